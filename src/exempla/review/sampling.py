r"""Spot checks: random rows that bound the number of wrong labels left in the file.

**Strata.** All rows the analysis judged are divided into strata of similar probability. The review
folder contains every listed suspect and, of the other rows (possibly millions), a random sample
with the same share of each stratum.

**Drawing.** Draw t picks the stratum that contains the fraction

    v_t = (v_0 + t·(√5 − 1)/2) mod 1,    v_0 uniform,

of the undecided rows, and a uniform row in it. Each draw is uniform over the undecided rows,
whatever was decided before; together the draws fill the strata evenly.

**Interval.** Let T be the unknown number of wrong rows. When spot check t was drawn from the n_t
rows that were neither decided nor drawn, O_t wrong ones had been found among the other decisions
and s among the earlier spot checks. It was wrong with probability

    p_t(s) = (T − O_t − s) / n_t,

whatever the mistakes look like and in whatever order rows were decided. This gives the law of the
number S of wrong spot checks for each T; without decisions in between it is hypergeometric. T is in
the 90 % interval unless the observed S is among the most extreme 5 % on either side (Clopper and
Pearson). Even strata only make S less variable than this law (Hoeffding 1956).

**Stopping.** That interval holds at one moment. A person who stops as soon as it is small enough
looks many times, so stopping uses a bound that holds at all moments at once (Ville's inequality).
Bet against "T or more are wrong" that each spot check is wrong c < 1 times as often. If T or more
were wrong, the stake

    E = Σ_c w_c Π_t  c  if t was wrong,  (1 − c·p_t) / (1 − p_t)  if it was right,

would not grow on average, and would ever reach 10 with probability at most 1/10.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.errors import ExemplaError

LISTED_STRATA, _OTHER_STRATA = 2, 4
_MAX_SAMPLED_ROWS = 400
"""Unlisted rows in a review folder; about 320 correct ones bound the errors left below 1 %."""
_LEVEL = 0.90
_MODEL_WEIGHT = 4.0
"""Spot checks that the model's expectation is worth in the estimate; the interval ignores it."""
BETS = ((0.0, 0.4), (0.125, 0.2), (0.25, 0.2), (0.5, 0.2))
"""(c, w_c): most of the stake is on "none is wrong"."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Strata:
    """The number of rows in each stratum, most suspicious first, and the seed of all draws.

    The first `LISTED_STRATA` strata are those of the listed suspects.
    """

    sizes: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.sizes) or self.seed < 0:
            raise ExemplaError("The sizes of strata and the seed must not be negative.")

    @property
    def rows(self) -> int:
        """The number of rows in all strata."""
        return sum(self.sizes)

    def check_listed(self, listed: int) -> None:
        """Raise ExemplaError unless the first strata hold `listed` suspects."""
        if list(self.sizes[:LISTED_STRATA]) != _listed_sizes(listed):
            raise ExemplaError(
                f"The strata were made for a number of suspects other than {listed}; make them "
                f"with sample_rest(..., listed={listed})."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"sizes": list(self.sizes), "rows": self.rows, "seed": self.seed}


def strata_of(count: int, strata: int) -> np.ndarray:
    """Return the stratum of each of `count` ranks, in `strata` equal parts."""
    return (np.arange(count) * strata) // max(count, 1)


def _listed_sizes(listed: int) -> list[int]:
    return np.bincount(strata_of(listed, LISTED_STRATA), minlength=LISTED_STRATA).tolist()


def sample_rest(
    probabilities: Sequence[float] | np.ndarray,
    *,
    listed: int,
    seed: int = 0,
) -> tuple[Strata, np.ndarray, np.ndarray]:
    """Divide the unlisted rows into strata and sample the rows that the folder will contain.

    `probabilities` are those of the unlisted rows, `listed` is the number of listed suspects.
    Returns the strata, the sampled positions among the unlisted rows, and the stratum of each.
    """
    p = np.asarray(probabilities, dtype=float)
    # Ties in random order: a file may be sorted, and strata should not be its beginning and end.
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(p.size)
    order = order[np.argsort(-p[order], kind="stable")]
    parts = strata_of(p.size, _OTHER_STRATA)
    sizes = np.bincount(parts, minlength=_OTHER_STRATA).tolist()
    sampled = min(p.size, _MAX_SAMPLED_ROWS)
    chosen: list[np.ndarray] = []
    for stratum, size in enumerate(sizes):
        count = -(-sampled * size // max(p.size, 1))  # rounded up: no stratum is left out
        chosen.append(rng.permutation(order[parts == stratum])[:count])
    numbers = [np.full(own.size, LISTED_STRATA + h) for h, own in enumerate(chosen)]
    strata = Strata((*_listed_sizes(listed), *sizes), seed)
    return strata, np.concatenate(chosen), np.concatenate(numbers)


def draw(
    strata: Strata, number: int, gone: Any, items: np.ndarray, stratum: np.ndarray
) -> int | None:
    """Return spot check `number` (from 0), or None if the rows of its stratum are used up.

    `gone[h]` counts the rows of stratum h that are decided or drawn; `items` are those that can be
    drawn, in any order, and `stratum` is the stratum of each.
    """
    left = np.array(strata.sizes) - np.array(gone)
    if left.sum() <= 0:
        return None
    start = np.random.default_rng([strata.seed, 1]).random()
    place = (start + number * _GOLDEN) % 1.0
    chosen = int(np.searchsorted(np.cumsum(left) / left.sum(), place, side="right"))
    choices = np.sort(items[stratum == min(chosen, len(strata.sizes) - 1)])
    if not choices.size:
        return None
    rng = np.random.default_rng([strata.seed, 2, number])
    return int(choices[rng.integers(len(choices))])


@dataclass(frozen=True)
class SpotCheck:
    """One spot check: the state when it was drawn, and its outcome.

    `rows` is n_t and `found` is O_t. `wrong` is None if it was skipped: the interval then allows
    for both outcomes.
    """

    rows: int
    found: int
    wrong: bool | None


@dataclass(frozen=True)
class RemainingErrors:
    """Wrong labels among the undecided rows: an estimate and, with spot checks, an interval."""

    mean: float
    low: float | None
    high: float | None
    rows: int
    """Undecided rows."""
    checks: int
    """Spot checks behind the interval; with none, `mean` is what the model expects."""
    sure: float | None = None
    """Upper bound to stop by: 90 % confidence, however often one looks."""


def remaining_errors(
    checks: Sequence[SpotCheck], *, rows: int, found: int, expected: float
) -> RemainingErrors:
    """Estimate the number of wrong labels among the `rows` undecided rows.

    `found` counts the wrong labels found so far, spot checks included; `expected` is the number of
    undecided rows that the model expects to be wrong.
    """
    done = [check for check in checks if check.wrong is not None]
    if rows == 0:
        return RemainingErrors(0.0, 0.0, 0.0, 0, len(done), 0.0)
    if not done:
        return RemainingErrors(float(np.clip(expected, 0, rows)), None, None, rows, 0)
    n = np.array([check.rows for check in checks], dtype=float)
    before = np.array([check.found for check in checks], dtype=float)
    least = sum(check.wrong is True for check in checks)
    most = sum(check.wrong is not False for check in checks)
    tail, top = (1 - _LEVEL) / 2, found + rows
    low = _first(lambda total: _law(n, before, total)[least:].sum() > tail, found, top)
    # The largest T that is not excluded is one below the first that is.
    high = _first(lambda T: _law(n, before, T)[: most + 1].sum() <= tail, low + 1, top + 1) - 1
    rate = (least + _MODEL_WEIGHT * expected / rows) / (len(done) + _MODEL_WEIGHT)
    mean = float(np.clip(rate * rows, low - found, high - found))
    wrong = np.array([check.wrong is not False for check in checks])
    beaten = _first(lambda T: _stake(n, before, wrong, T) >= 1 / (1 - _LEVEL), found, top + 1)
    sure = float(min(rows, max(beaten - 1 - found, 0)))
    return RemainingErrors(mean, float(low - found), float(high - found), rows, len(done), sure)


def _stake(n: np.ndarray, before: np.ndarray, wrong: np.ndarray, total: float) -> float:
    """Return E after all checks, in the bet against `total` wrong rows or more."""
    found = before + np.concatenate([[0], np.cumsum(wrong)[:-1]])
    p = np.clip((total - found) / n, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        logs = [
            np.log(share) + np.where(wrong, np.log(c), np.log1p(-c * p) - np.log1p(-p)).sum()
            for c, share in BETS
        ]
    return float(np.exp(min(np.logaddexp.reduce(logs), 700.0)))


def _law(n: np.ndarray, before: np.ndarray, total: float) -> np.ndarray:
    """Return P(S = s), s = 0 … m, if `total` rows of the file are wrong."""
    law = np.zeros(n.size + 1)
    law[0] = 1.0
    s = np.arange(n.size + 1)
    for rows, found in zip(n, before, strict=True):
        hit = law * np.clip((total - found - s) / rows, 0.0, 1.0)
        law = law - hit
        law[1:] += hit[:-1]
    return law


def _first(holds: Callable[[int], Any], low: int, high: int) -> int:
    """Return the smallest number from `low` to `high` for which the monotone `holds` is true."""
    return low + bisect_left(range(low, high), True, key=lambda number: bool(holds(number)))
