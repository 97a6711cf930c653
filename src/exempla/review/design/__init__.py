"""The number of wrong labels left, from a random sample: valid whatever the kind of mistakes.

frame.py     the rows that can be sampled, in strata of like probability, and their numbers
draws.py     which row is the next spot check: a seeded design, the same after every restart
left.py      from the spot checks' outcomes to an interval for the number left
"""

from __future__ import annotations

from exempla.review.design.draws import draw
from exempla.review.design.frame import Frame, sample_rest
from exempla.review.design.left import Left, SpotCheck, wrong_left

__all__ = ["Frame", "Left", "SpotCheck", "draw", "sample_rest", "wrong_left"]
