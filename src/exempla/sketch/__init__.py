"""Scores of any length become rows of one width: exactly where that fits and its cost is fair, else
in K-FAC's basis.

Inside: choose (which form), cost (what each would cost), identity, span (the dual form), kronecker
with its moments, rest (what that leaves, seen at random). Imports: oracles.base, factors, arrays,
progress, errors.
"""

from exempla.sketch.base import Sketch
from exempla.sketch.choose import check_sketch, choose_sketch

__all__ = ["Sketch", "check_sketch", "choose_sketch"]
