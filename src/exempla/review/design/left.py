"""How many wrong labels are left, from spot checks alone.

T rows of the file are wrong: that is all that is unknown. When spot check t was drawn, uniformly
from the n_t rows that were neither decided nor drawn, O_t wrong ones had been found among the rows
decided in their order and s among the spot checks before it, so it was wrong with probability

    p_t(s) = (T − O_t − s) / n_t

whatever the mistakes are like, and in whatever order rows were decided. The law of the number S of
wrong spot checks follows step by step, for each T; without decisions in between it is the
hypergeometric one. T is in the 90 % interval unless S, as it came out, is among the most extreme
5 % on either side (as Clopper and Pearson). What is left is T less what has been found. That the
strata are filled evenly makes S vary less than this law says, never more (Hoeffding 1956).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Left", "SpotCheck", "wrong_left"]

LEVEL = 0.90
MODEL_WEIGHT = 4.0
"""How many spot checks the model's expectation is worth in the estimate; not in the interval."""


@dataclass(frozen=True)
class SpotCheck:
    """One spot check: what was known when it was drawn, and what came out.

    `rows` is n_t, `found` O_t. `wrong` is None for one that was left undecided: the interval
    then allows for both.
    """

    rows: int
    found: int
    wrong: bool | None


@dataclass(frozen=True)
class Left:
    """Wrong labels among the undecided rows: an estimate and, with spot checks, an interval."""

    mean: float
    low: float | None
    high: float | None
    rows: int
    """Undecided rows."""
    checks: int
    """Spot checks the interval rests on; without any, `mean` is what the model expects."""


def wrong_left(
    checks: Sequence[SpotCheck], *, rows: int, found: int, expected: float, level: float = LEVEL
) -> Left:
    """The number of wrong labels among the undecided rows of `rows` in all.

    `found` is how many wrong ones have been found (of all decided), `expected` how many of the
    undecided the model expects to be wrong. The number undecided follows from the checks' history
    only if nothing else was decided since, so `rows` is the number undecided now.

    >>> spots = [SpotCheck(rows=1000 - t, found=0, wrong=t == 3) for t in range(20)]
    >>> left = wrong_left(spots, rows=980, found=1, expected=5.0)
    >>> left.low, left.high, left.checks
    (2.0, 213.0, 20)
    >>> wrong_left([], rows=1000, found=0, expected=35.0)
    Left(mean=35.0, low=None, high=None, rows=1000, checks=0)
    """
    done = [check for check in checks if check.wrong is not None]
    if rows == 0:
        return Left(0.0, 0.0, 0.0, 0, len(done))
    if not done:
        return Left(float(np.clip(expected, 0, rows)), None, None, rows, 0)
    n = np.array([check.rows for check in checks], dtype=float)
    before = np.array([check.found for check in checks], dtype=float)
    least = sum(check.wrong is True for check in checks)
    most = sum(check.wrong is not False for check in checks)
    tail = (1 - level) / 2
    low = _first(lambda total: _law(n, before, total)[least:].sum() > tail, found, found + rows)
    high = _last(lambda total: _law(n, before, total)[: most + 1].sum() > tail, low, found + rows)
    rate = (least + MODEL_WEIGHT * expected / rows) / (len(done) + MODEL_WEIGHT)
    mean = float(np.clip(rate * rows, low - found, high - found))
    return Left(mean, float(low - found), float(high - found), rows, len(done))


def _law(n: np.ndarray, before: np.ndarray, total: float) -> np.ndarray:
    """P(S = s), s = 0 … m, if `total` rows of the file are wrong."""
    law = np.zeros(n.size + 1)
    law[0] = 1.0
    s = np.arange(n.size + 1)
    for rows, found in zip(n, before, strict=True):
        p = np.clip((total - found - s) / rows, 0.0, 1.0)
        hit = law * p
        law = law - hit
        law[1:] += hit[:-1]
    return law


def _first(holds, low: int, high: int) -> int:  # type: ignore[no-untyped-def]
    """The smallest number from `low` to `high` for which `holds` (which then holds on)."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _last(holds, low: int, high: int) -> int:  # type: ignore[no-untyped-def]
    """The largest number from `low` to `high` for which `holds` (which held until there)."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
