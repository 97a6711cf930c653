"""Which row is the next spot check: uniform over all undecided rows, spread over the strata.

The t-th draw takes the stratum in which the fraction

    v_t = (v_0 + t·(√5 − 1)/2) mod 1,    v_0 uniform,

of the undecided rows ends, and a uniform row in it. Each draw is therefore uniform over all
undecided rows, whatever was decided before and why; together the draws fill the strata evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exempla.review.design.frame import Frame

__all__ = ["draw"]

GOLDEN = (5**0.5 - 1) / 2


def draw(
    frame: Frame,
    number: int,
    gone: Sequence[int] | np.ndarray,
    open_: Sequence[Sequence[int] | np.ndarray],
) -> int | None:
    """The `number`-th spot check (from 0), or None if the stratum's carried rows are used up.

    `gone[h]` counts the rows of stratum h that are decided or drawn; `open_[h]` are those that can
    be drawn, in any order.

    >>> draw(Frame((2, 8), seed=3), 0, [0, 0], [[7, 9], [20, 21, 22]]) in {7, 9, 20, 21, 22}
    True
    >>> draw(Frame((1,)), 0, [1], [[]])
    """
    left = np.array(frame.sizes) - np.array(gone)
    if left.sum() <= 0:
        return None
    start = np.random.default_rng([frame.seed, 1]).random()
    place = (start + number * GOLDEN) % 1.0
    stratum = int(np.searchsorted(np.cumsum(left) / left.sum(), place, side="right"))
    stratum = min(stratum, len(frame.sizes) - 1)
    choices = np.sort(np.asarray(open_[stratum], dtype=np.int64))
    if not choices.size:
        return None
    rng = np.random.default_rng([frame.seed, 2, number])
    return int(choices[int(rng.integers(len(choices)))])
