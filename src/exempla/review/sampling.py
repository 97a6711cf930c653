"""Which row is the next spot check: uniform over all undecided rows, spread over the strata.

The t-th draw takes the stratum in which the fraction

    v_t = (v_0 + t·(√5 − 1)/2) mod 1,    v_0 uniform,

of the undecided rows ends, and a uniform row in it. Each draw is therefore uniform over all
undecided rows, whatever was decided before and why; together the draws fill the strata evenly.

The rows that spot checks are drawn from: all that were judged, in strata of like probability.

The listed suspects are all in the review folder. Of the rest, which may be millions of rows, it
carries a random sample, the same share of each stratum: a random row of a random sample of a
stratum is a random row of the stratum. The sizes of the strata are those of the file.

How many wrong labels are left, from spot checks alone.

T rows of the file are wrong: that is all that is unknown. When spot check t was drawn, uniformly
from the n_t rows that were neither decided nor drawn, O_t wrong ones had been found among the rows
decided in their order and s among the spot checks before it, so it was wrong with probability

    p_t(s) = (T − O_t − s) / n_t

whatever the mistakes are like, and in whatever order rows were decided. The law of the number S of
wrong spot checks follows step by step, for each T; without decisions in between it is the
hypergeometric one. T is in the 90 % interval unless S, as it came out, is among the most extreme
5 % on either side (as Clopper and Pearson). What is left is T less what has been found. That the
strata are filled evenly makes S vary less than this law says, never more (Hoeffding 1956).

That interval holds at any one moment. Who stops as soon as it is good enough looks again and again,
and among many looks the luckiest is not to be trusted. So stopping has a bound of its own, which
holds at all moments at once (Ville's inequality). Bet against "T or more are wrong": that each spot
check is wrong c times as often as that, c < 1. If it were so, the stake

    E = Σ_c w_c Π_t  c  where t was wrong,  (1 − c·p_t) / (1 − p_t)  where it was right,

would not grow on average, whatever comes next, and ever reach 10 with a chance of 1 in 10 at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.errors import ExemplaError

LISTED_STRATA, _REST_STRATA = 2, 4
_MOST_CARRIED = 400
"""Rows of the rest that a folder carries; some 320 right ones bound what is left below 1 %."""


@dataclass(frozen=True)
class Frame:
    """How many rows there are to draw from, by stratum, the most suspicious first.

    The first strata are those of the listed suspects; `seed` is the seed of all drawing.

    >>> Frame((10, 10, 240, 240), seed=0).rows
    500
    """

    sizes: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.sizes) or self.seed < 0:
            raise ExemplaError("The strata of a frame have sizes, and its seed is not negative.")

    @property
    def rows(self) -> int:
        """All of them."""
        return sum(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"sizes": list(self.sizes), "rows": self.rows, "seed": self.seed}

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> Frame:
        """Read it again."""
        return cls(tuple(int(size) for size in stated["sizes"]), int(stated["seed"]))


def check_frame(frame: Frame, listed: int) -> None:
    """ExemplaError unless the frame's first strata are those of so many listed suspects."""
    wanted = np.bincount(strata_of(listed, LISTED_STRATA), minlength=LISTED_STRATA).tolist()
    if list(frame.sizes[:LISTED_STRATA]) != wanted:
        raise ExemplaError(
            f"The frame was made for another number of suspects than {listed}; make it with "
            f"sample_rest(..., listed={listed})."
        )


def strata_of(count: int, strata: int) -> np.ndarray:
    """Which of `strata` equal parts each of `count` ranks belongs to.

    >>> strata_of(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    return (np.arange(count) * strata) // max(count, 1)


def sample_rest(
    probabilities: Sequence[float] | np.ndarray,
    *,
    listed: int,
    seed: int = 0,
    most: int = _MOST_CARRIED,
) -> tuple[Frame, np.ndarray, np.ndarray]:
    """The frame of `listed` suspects and a rest, and which of the rest the folder shall carry.

    `probabilities` are those of the rest. The answer is the frame, the positions in the rest, and
    the stratum of each.

    >>> frame, chosen, strata = sample_rest([0.01] * 1000, listed=20, seed=1, most=40)
    >>> frame.sizes, len(chosen), strata.min(), strata.max()
    ((10, 10, 250, 250, 250, 250), 40, np.int64(2), np.int64(5))
    """  # fmt: skip
    p = np.asarray(probabilities, dtype=float)
    first = np.bincount(strata_of(listed, LISTED_STRATA), minlength=LISTED_STRATA)
    # Ties in random order: a file may be sorted, and strata should not be its beginning and end.
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(p.size)
    order = order[np.argsort(-p[order], kind="stable")]
    parts = strata_of(p.size, _REST_STRATA)
    sizes = np.bincount(parts, minlength=_REST_STRATA)
    carried = min(p.size, most)
    chosen: list[np.ndarray] = []
    strata: list[np.ndarray] = []
    for stratum, size in enumerate(sizes.tolist()):
        count = -(-carried * size // max(p.size, 1))  # rounded up: no stratum is left out
        own = rng.permutation(order[parts == stratum])[:count]
        chosen.append(own)
        strata.append(np.full(own.size, LISTED_STRATA + stratum))
    frame = Frame((*first.tolist(), *sizes.tolist()), seed)
    return frame, np.concatenate(chosen), np.concatenate(strata)


_GOLDEN = (5**0.5 - 1) / 2


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
    place = (start + number * _GOLDEN) % 1.0
    stratum = int(np.searchsorted(np.cumsum(left) / left.sum(), place, side="right"))
    stratum = min(stratum, len(frame.sizes) - 1)
    choices = np.sort(np.asarray(open_[stratum], dtype=np.int64))
    if not choices.size:
        return None
    rng = np.random.default_rng([frame.seed, 2, number])
    return int(choices[int(rng.integers(len(choices)))])


_LEVEL = 0.90
_MODEL_WEIGHT = 4.0
"""How many spot checks the model's expectation is worth in the estimate; not in the interval."""

BETS = ((0.0, 0.4), (0.125, 0.2), (0.25, 0.2), (0.5, 0.2))
"""(c, w_c): most on "none is wrong", which is what one hopes for in the end."""


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
    sure: float | None = None
    """No more than so many are left, 90 % sure, however often one looks: to stop by."""


def wrong_left(
    checks: Sequence[SpotCheck], *, rows: int, found: int, expected: float, level: float = _LEVEL
) -> Left:
    """The number of wrong labels among the `rows` that are undecided now.

    `found` is how many wrong ones have been found, among all that are decided; `expected` how many
    of the undecided the model expects to be wrong.

    >>> spots = [SpotCheck(rows=1000 - t, found=0, wrong=t == 3) for t in range(20)]
    >>> left = wrong_left(spots, rows=980, found=1, expected=5.0)
    >>> left.low, left.high, left.checks
    (2.0, 213.0, 20)
    >>> wrong_left([], rows=1000, found=0, expected=35.0)
    Left(mean=35.0, low=None, high=None, rows=1000, checks=0, sure=None)
    """
    done = [check for check in checks if check.wrong is not None]
    if rows == 0:
        return Left(0.0, 0.0, 0.0, 0, len(done), 0.0)
    if not done:
        return Left(float(np.clip(expected, 0, rows)), None, None, rows, 0)
    n = np.array([check.rows for check in checks], dtype=float)
    before = np.array([check.found for check in checks], dtype=float)
    least = sum(check.wrong is True for check in checks)
    most = sum(check.wrong is not False for check in checks)
    tail = (1 - level) / 2
    low = _first(lambda total: _law(n, before, total)[least:].sum() > tail, found, found + rows)
    high = _last(lambda total: _law(n, before, total)[: most + 1].sum() > tail, low, found + rows)
    rate = (least + _MODEL_WEIGHT * expected / rows) / (len(done) + _MODEL_WEIGHT)
    mean = float(np.clip(rate * rows, low - found, high - found))
    wrong = np.array([check.wrong is not False for check in checks])
    beaten = _first(
        lambda t: _stake(n, before, wrong, t) >= 1 / (1 - level), found, found + rows + 1
    )
    sure = float(min(rows, max(beaten - 1 - found, 0)))
    return Left(mean, float(low - found), float(high - found), rows, len(done), sure)


def _stake(n: np.ndarray, before: np.ndarray, wrong: np.ndarray, total: float) -> float:
    """E after all checks, in the bet against `total` wrong rows or more."""
    found = before + np.concatenate([[0], np.cumsum(wrong)[:-1]])
    p = np.clip((total - found) / n, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        logs = [
            np.log(share) + np.where(wrong, _log(c), np.log1p(-c * p) - np.log1p(-p)).sum()
            for c, share in BETS
        ]
    return float(np.exp(min(np.logaddexp.reduce(logs), 700.0)))


def _log(c: float) -> float:
    return float(np.log(c)) if c > 0 else -np.inf


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
