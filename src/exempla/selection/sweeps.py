"""Lookahead passes: follow all candidates of one target through several guessed picks at once.

`LookaheadScores` is what `lookahead` needs of scores; `SweptCandidates` implements it for one
array, `shards` for several parts.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.arrays import Array
from exempla.selection.rows import ArrayCandidates, CandidateScores, Rows, Rule
from exempla.selection.threads import in_parts

_MAX_LOOKAHEAD = 32
"""Picks that one pass checks at most."""


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
    """The result of `LookaheadScores.sweep`."""

    near: list[np.ndarray | None]
    """After each step the rows that may reach its threshold, ascending; None if too many do."""
    promising: np.ndarray
    """Rows that reached a given fraction of a threshold after some step."""


class LookaheadScores(CandidateScores):
    """Scores of a single target that can check several guessed picks in one pass."""

    max_lookahead: int
    """Picks that one pass over the rows can check (`sweep`)."""
    lookahead_batch: int = 8
    """Checking this many picks costs hardly more than checking one."""
    pool_sizes: tuple[int, int] = (1024, 8192)
    """Smallest and largest number of rows to guess among. Chosen among 512 … 8192 rows as the
    fewest passes per pick on Gaussian rows of 20 k × 1024 and 100 k to 400 k × 256."""

    def lookahead(self, rows: Rows, run: Any, k: int, rule: Rule) -> Any:
        from exempla.selection.lookahead import Lookahead

        return Lookahead(rows, self, run, k, rule)

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


class SweptCandidates(ArrayCandidates, LookaheadScores):
    """`ArrayCandidates` of a single target, with passes over blocks of rows."""

    def __init__(self, *problem: Any) -> None:
        super().__init__(*problem)
        # The products of a sweep then take at most an eighth of the memory of float32 rows.
        self.max_lookahead = int(np.clip(self.rows.p // 8, self.lookahead_batch, _MAX_LOOKAHEAD))
        self._steps: Steps
        self._swept: list[tuple[slice, Array]] = []
        """The steps of the last sweep and their products with blocks of rows."""

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
        n = (
            self.n[0, part] - error
            if self.whole is None
            else xp.asarray(self.whole[part], copy=True)
        )
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
