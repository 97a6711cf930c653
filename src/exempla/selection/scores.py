"""Candidates and their running scores: c and n of every row, updated pick after pick.

`CandidateScores` holds, for T targets at once, c = f·r and n = ‖f‖² + σ² − ‖Qᵀf‖² of every
candidate, where the rows are, and returns only the leaders to the greedy loop in `engine`.
`ArrayCandidates` implements it for one array; `shards` for several parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from exempla.arrays import Array
from exempla.selection.rows import ROUNDING, ArrayRows, Rule
from exempla.selection.threads import in_parts

_MAX_LOOKAHEAD = 32
_SCORED_ENTRIES = 1 << 16
"""Scores that are compared at a time: they stay in the cache."""
_MIN_LOOKAHEAD_ENTRIES = 1 << 20
"""Smaller rows stay in the cache, where a pass per pick costs little."""


class StateLostError(Exception):
    """A place that held scores was restarted without them; the greedy loop opens them again."""


@dataclass(frozen=True)
class Leaders:
    """The best row of each target by upper bounds on the scores."""

    upper: np.ndarray
    """(T,) upper bound of the leader's score; −inf if no row is left."""
    rows: np.ndarray
    """(T,) row of the leader, −1 if none is left."""
    rivals: np.ndarray
    """(T,) largest upper bound among the other rows; +inf if it is unknown."""
    certain: bool = False
    """True if ties have already been settled in float64."""

    @staticmethod
    def merged(found: list[Leaders]) -> Leaders:
        """Return the leaders among those of consecutive parts of the rows."""
        upper, rows, rivals = (
            np.stack([getattr(one, name) for one in found]) for name in ("upper", "rows", "rivals")
        )
        first = np.argmax(upper, axis=0)[None]  # the first part of ties: the lowest index
        others = upper.copy()
        np.put_along_axis(others, first, -np.inf, axis=0)
        best, row = (np.take_along_axis(x, first, axis=0)[0] for x in (upper, rows))
        return Leaders(best, row, np.maximum(others.max(axis=0), rivals.max(axis=0)))


@dataclass
class Pool:
    """A few candidates of a single target with their c and n, used to guess the next picks."""

    rows: np.ndarray
    """(m,) row numbers, ascending."""
    features: np.ndarray
    """(m, p), in the precision of the rows."""
    c: np.ndarray
    n: np.ndarray
    floor: np.ndarray
    """n below this value means that the row adds nothing new."""
    whole: np.ndarray | None
    """‖f‖² + σ² if scores are divided by it; None if they are divided by n."""

    def position(self, j: int) -> int:
        """Return the position of row j, −1 if it is not in the pool."""
        at = int(np.searchsorted(self.rows, j))
        return at if at < len(self.rows) and self.rows[at] == j else -1

    def step(self, j: int, direction: np.ndarray, coef: float) -> int:
        """Apply one pick, remove row j, and return the best remaining row (−1 if none)."""
        at = self.position(j)
        if at >= 0:
            self.n[at] = -np.inf
        v = np.vecdot(self.features, direction.astype(self.features.dtype)).astype(np.float64)
        self.c, self.n = self.c - coef * v, self.n - v * v
        left = np.flatnonzero(self.n > self.floor)
        if not len(left):
            return -1
        divisor = self.n if self.whole is None else self.whole
        return int(self.rows[left[np.argmax(self.c[left] ** 2 / divisor[left])]])


@dataclass(frozen=True)
class Steps:
    """Consecutive guessed picks of a single target, one per entry, and the threshold after each.

    Step s updates c −= coef·v and n −= v² for v = F q. Afterwards the next guess is right unless
    the score of another row may reach its threshold, given the slacks (see
    `CandidateScores.ties`).
    """

    directions: np.ndarray
    """(b, p)."""
    coefs: np.ndarray
    thresholds: np.ndarray
    """Lower bound on the score of the next guess; +inf if there is no next guess."""
    slack_c: np.ndarray
    slack_n: np.ndarray

    def __len__(self) -> int:
        return len(self.coefs)


@dataclass(frozen=True)
class Swept:
    """The result of `CandidateScores.sweep`."""

    near: list[np.ndarray | None]
    """After each step the rows that may reach its threshold, ascending; None if too many do."""
    promising: np.ndarray
    """Rows that reached a given fraction of a threshold after some step."""


class CandidateScores(ABC):
    """c and n of all candidates of T targets; from `sweep` on, methods serve a single target."""

    error: float
    """Bound on the error of one product f·q, in units of ‖f‖; 0 if sums are in float64."""
    max_lookahead: int = 1
    """Picks of a single target that one pass over the rows can check (`sweep`)."""
    lookahead_batch: int = 8
    """Checking this many picks costs hardly more than checking one."""
    pool_sizes: tuple[int, int] = (1024, 8192)
    """Smallest and largest number of rows to guess among. Chosen among 512 … 8192 rows as the
    fewest passes per pick on Gaussian rows of 20 k × 1024 and 100 k to 400 k × 256."""

    @abstractmethod
    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        """Recompute c = F r with float64 sums for these targets; return all leaders."""

    @abstractmethod
    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        """Apply one pick per target in one pass: c −= coef·v and n −= v² with v = F q, q (T, p)."""

    @abstractmethod
    def leaders(self) -> Leaders:
        """Return all leaders from the current c and n."""

    @abstractmethod
    def ties(
        self,
        targets: list[int],
        thresholds: np.ndarray,
        slack_c: np.ndarray,
        slack_n: np.ndarray,
        limit: int,
    ) -> list[np.ndarray]:
        """Return, for each of these targets, the first `limit` rows that may reach its threshold.

        The slacks bound the errors of c (in units of ‖f‖) and of n (in units of ‖f‖²).
        """

    @abstractmethod
    def deflate(self, target: int, energy: np.ndarray) -> None:
        """Set n = ‖f‖² + σ² − energy for all remaining rows."""

    @abstractmethod
    def drop(self, targets: list[int], rows: list[int]) -> None:
        """Remove rows from the candidates of targets, pair by pair."""

    @abstractmethod
    def to_float64(self) -> None:
        """Compute products in float64 from now on (`error` becomes 0)."""

    @abstractmethod
    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        """Try guessed steps in one pass without changing c and n.

        Find the rows that may reach the threshold after each step (at most `limit`), and those
        that reach `fraction` of it.
        """

    @abstractmethod
    def commit(self, count: int) -> None:
        """Apply the first `count` steps of the last sweep to c and n without another pass."""

    @abstractmethod
    def pool(self, rows: np.ndarray) -> Pool:
        """Return these rows (ascending) with their c and n."""

    @abstractmethod
    def best(self, count: int) -> np.ndarray:
        """Return the `count` rows of highest score, or all that are left, ascending."""


class ArrayCandidates(CandidateScores):
    """c and n are (T, t) float64 arrays beside the rows; a removed row has n = −inf."""

    def __init__(
        self,
        rows: ArrayRows,
        candidates: np.ndarray,
        target_norms: np.ndarray,
        noise: float,
        rule: Rule,
    ) -> None:
        self.rows, self.noise, self.rule, self.xp = rows, noise, rule, rows.xp
        # Zero rows explain nothing, and 0/0 must never win.
        kept = candidates & (rows.norms2 > 0)
        self.n = rows.here(np.where(kept, rows.norms2 + noise, -np.inf))
        self.c = self.xp.zeros_like(self.n)
        self.norms2 = rows.norms2_here
        self.lengths = self.xp.sqrt(self.norms2)
        self.floor = self.norms2 * rows.tolerance
        self.whole = None if rule is Rule.GAIN else self.norms2 + noise
        self._rounding = rows.here(ROUNDING * target_norms)[:, None]
        # Many targets are one matrix product, which is computed in float64 throughout.
        self.error = rows.error if len(candidates) == 1 else 0.0
        if rows.t * rows.p > _MIN_LOOKAHEAD_ENTRIES:
            # The products of a sweep then take at most an eighth of the memory of float32 rows.
            self.max_lookahead = int(np.clip(rows.p // 8, self.lookahead_batch, _MAX_LOOKAHEAD))
        self._steps: Steps
        self._swept: list[tuple[slice, Array]] = []
        """The steps of the last sweep and their products with blocks of rows."""

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        for i, c in zip(targets, self.rows.here(self.rows.project(residuals))):
            self.c[i] = c
        return self.leaders()

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        Q, b = self.rows.here(directions), self.rows.here(coefs)[:, None]

        def updated() -> Iterator[slice]:
            for part, block in self.rows.blocks(len(Q)):
                v = Q @ block.T
                self.c[:, part] -= b * v
                self.n[:, part] -= v * v
                yield part

        return self._leaders(updated())

    def leaders(self) -> Leaders:
        step = max(self.rows.block_rows, _SCORED_ENTRIES // len(self.c))
        starts = range(0, self.rows.t, step)
        return self._leaders(slice(start, min(start + step, self.rows.t)) for start in starts)

    def _leaders(self, parts: Iterable[slice]) -> Leaders:
        """Return the leaders by upper bounds that allow for rounding alone."""
        xp, host, found = self.xp, self.rows.host, []
        for part in parts:
            c, n, norms2 = self.c[:, part], self.n[:, part], self.norms2[part]
            upper = xp.abs(c) + self._rounding * self.lengths[part]
            divisor = n - ROUNDING * norms2 if self.whole is None else self.whole[part]
            # Rows that are alive have n far above rounding: the tolerance is 1000 times larger.
            alive = n > self.floor[part] - ROUNDING * norms2
            with np.errstate(divide="ignore", invalid="ignore"):
                upper = xp.where(alive, upper * upper / divisor, -np.inf)
            at = xp.argmax(upper, axis=1)[:, None]
            best = xp.take_along_axis(upper, at, axis=1)[:, 0]
            upper[xp.arange(len(c), device=self.rows.device), at[:, 0]] = -np.inf
            rivals = xp.max(upper, axis=1) if self.error == 0.0 else xp.full_like(best, np.inf)
            best, row, rivals = host(best), host(at[:, 0]), host(rivals)
            row = np.where(best > -np.inf, row + part.start, -1)
            found.append(Leaders(best, row, rivals))
        return Leaders.merged(found)

    def ties(
        self,
        targets: list[int],
        thresholds: np.ndarray,
        slack_c: np.ndarray,
        slack_n: np.ndarray,
        limit: int,
    ) -> list[np.ndarray]:
        found = []
        for i, threshold, more, less in zip(targets, thresholds, slack_c, slack_n):
            error = float(less) * self.norms2
            upper = self.xp.abs(self.c[i]) + float(more) * self.lengths
            divisor = self.n[i] - error if self.whole is None else self.whole
            with np.errstate(invalid="ignore"):  # 0 · inf for removed rows
                reach = upper * upper >= max(float(threshold), 0.0) * divisor
            reach = reach & (self.n[i] + error > self.floor)
            found.append(self.rows.host(self.xp.nonzero(reach)[0][:limit]))
        return found

    def deflate(self, target: int, energy: np.ndarray) -> None:
        n = self.norms2 + self.noise - self.rows.here(energy)
        out = self.n[target] == -np.inf
        self.n[target] = self.xp.where(out, self.n[target], n)

    def drop(self, targets: list[int], rows: list[int]) -> None:
        where = tuple(self.rows.here(np.array(which, dtype=np.int64)) for which in (targets, rows))
        self.n[where] = -np.inf

    def to_float64(self) -> None:
        self.error = 0.0

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        Q = self.rows.directions(steps.directions, exact=self.error == 0.0)
        found = self.rows.over_blocks(
            lambda part, rows: self._check(part, rows, Q, steps, fraction)
        )
        self._steps, self._swept = steps, [(part, V) for part, V, _ in found]
        host, b = self.rows.host, len(steps)
        rows = np.concatenate([part.start + host(some) for part, _, some in found])
        v = np.concatenate([host(V[:b, some]) for _, V, some in found], axis=1).astype(np.float64)
        return self._near(rows, v, steps, limit, fraction)

    def _check(
        self, part: slice, rows: Array, Q: Array, steps: Steps, fraction: float
    ) -> tuple[slice, Array, Array]:
        """Follow a block of rows through the steps.

        Returns the products and the positions of rows that may reach a fraction of a threshold.
        """
        xp, V = self.xp, self.rows.multiply(rows, Q)
        lengths, norms2 = self.lengths[part], self.norms2[part]
        # The slacks grow from step to step: here the last ones stand for all.
        slack, error = float(steps.slack_c.max()) * lengths, float(steps.slack_n.max()) * norms2
        alive = self.n[0, part] + error > self.floor[part]  # n never increases
        c = xp.asarray(self.c[0, part], copy=True)
        n_decreases = self.whole is None
        n = self.n[0, part] - error if n_decreases else xp.asarray(self.whole[part], copy=True)
        thresholds = fraction * steps.thresholds
        reach = self.rows.follow(V, c, n, slack, steps.coefs, thresholds, n_decreases)
        return part, V, xp.nonzero(reach & alive)[0]

    def _near(
        self, rows: np.ndarray, v: np.ndarray, steps: Steps, limit: int, fraction: float
    ) -> Swept:
        """Follow a few rows through the steps, given their products, with the slacks of each."""
        c, n = self.values(rows)
        norms2 = self.rows.norms2[rows]
        c = c - np.cumsum(steps.coefs[:, None] * v, axis=0)
        n = n - np.cumsum(v * v, axis=0)
        error = steps.slack_n[:, None] * norms2
        upper = (np.abs(c) + steps.slack_c[:, None] * np.sqrt(norms2)) ** 2
        divisor = n - error if self.whole is None else norms2 + self.noise
        asked = steps.thresholds[:, None] < np.inf
        thresholds = np.where(asked, steps.thresholds[:, None], 0.0)
        alive = (n + error > norms2 * self.rows.tolerance) & asked
        reach = alive & (upper >= thresholds * divisor)
        near = [None if np.count_nonzero(one) > limit else rows[one] for one in reach]
        promising = alive & (upper >= fraction * thresholds * divisor)
        return Swept(near, rows[promising.any(axis=0)])

    def commit(self, count: int) -> None:
        if not count:
            return
        xp, coefs = self.xp, self.rows.here(self._steps.coefs[:count])

        def apply(start: int, stop: int) -> None:
            for part, V in self._swept[start:stop]:
                v = xp.astype(V[:count], xp.float64)
                self.c[0, part] -= coefs @ v
                v *= v
                self.n[0, part] -= xp.sum(v, axis=0)

        in_parts(apply, len(self._swept), count * self.rows.sweep_rows, 1)

    def pool(self, rows: np.ndarray) -> Pool:
        whole = None if self.whole is None else self.rows.norms2[rows] + self.noise
        floor = self.rows.norms2[rows] * self.rows.tolerance
        return Pool(rows, self.rows.features(rows), *self.values(rows), floor, whole)

    def values(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return c and n of these rows on the host."""
        here = self.rows.here(rows)
        return self.rows.host(self.c[0][here]), self.rows.host(self.n[0][here])

    def best(self, count: int) -> np.ndarray:
        c, n = self.c[0], self.n[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = self.xp.where(
                n > self.floor, c * c / (n if self.whole is None else self.whole), -np.inf
            )
        scores = self.rows.host(scores)
        rows = np.arange(len(scores))
        if count < len(scores):
            rows = np.sort(np.argpartition(scores, len(scores) - count)[-count:])
        return rows[scores[rows] > -np.inf]
