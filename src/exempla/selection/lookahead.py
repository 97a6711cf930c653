"""Lookahead: guess the next picks within a small pool, check all guesses in one pass.

Greedy picks nearly always come from the few rows that have the highest scores now. The loop
therefore runs ahead within that pool, which costs little, and one pass over all rows
(`LookaheadScores.sweep`) finds out after each guessed step whether any other row could have scored
higher than the next guess. Correct guesses are committed; the steps from the first wrong guess on
are undone. Each guess is compared under the same error bounds as a leader, and ties are settled in
float64, so that the picks are the same as with one pass per pick.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import Array
from exempla.selection.engine import Mark, Run, best_row, refresh, score_bounds, slack
from exempla.selection.rows import (
    ArrayCandidates,
    CandidateScores,
    Leaders,
    Rows,
    Rule,
    StateLostError,
    tie_threshold,
)
from exempla.selection.threads import in_parts

POOL_FRACTION = 1 / 48
"""Size of the pool as a fraction of all rows, within `LookaheadScores.pool_sizes`."""
_FIRST_FRACTION = 0.4
"""The next pool consists of the rows that reached this fraction of a threshold; the fraction is
then adapted to the desired pool size."""
_FIRST_GUESSES = 16
"""Steps guessed in the first pass."""
_MAX_NEAR = 128
"""Rows that may beat a guess and are rescored; if there are more, the guesses end there."""
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
        q, v = direction.astype(self.features.dtype), np.empty(len(self.rows))

        def multiply(start: int, stop: int) -> None:
            v[start:stop] = np.vecdot(self.features[start:stop], q)

        in_parts(multiply, len(v), self.features.shape[1], 256)
        self.c, self.n = self.c - coef * v, self.n - v * v
        left = np.flatnonzero(self.n > self.floor)
        if not len(left):
            return -1
        divisor = self.n if self.whole is None else self.whole
        return int(self.rows[left[np.argmax(self.c[left] ** 2 / divisor[left])]])


class Steps(NamedTuple):
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


class Swept(NamedTuple):
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
        host, b = self.rows.host, len(steps.coefs)
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
        decreases = self.whole is None
        n = self.n[0, part] - error if self.whole is None else self.whole[part] + 0.0
        bars = np.stack([steps.coefs, fraction * steps.thresholds])
        reach = self.rows.follow(V, c, n, slack, bars, decreases)
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
        features = in_parts(lambda a, b: self.rows.features(rows[a:b]), len(rows), self.rows.p, 256)
        return Pool(rows, np.concatenate(features), *self.values(rows), floor, whole)

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


class _Guess(NamedTuple):
    """A guessed step: the first is certain, the others are to be checked."""

    pick: int
    mark: Mark
    """State of the basis before the pick."""
    drift: float
    direction: np.ndarray
    coef: float
    next: int
    """The guess after this step, −1 if there is none."""
    threshold: float
    """Lower bound on the score of the next guess."""
    slack_c: float
    slack_n: float


class Lookahead:
    """Guess and check picks for a single target."""

    def __init__(self, rows: Rows, scores: LookaheadScores, run: Run, k: int, rule: Rule) -> None:
        self.rows, self.scores, self.run, self.k, self.rule = rows, scores, run, k, rule
        self.usual: float = _FIRST_GUESSES
        """Moving average of the number of correct guesses."""
        self.pool_size = int(np.clip(POOL_FRACTION * rows.t, *scores.pool_sizes))
        self.fraction = _FIRST_FRACTION
        self.promising = scores.best(self.pool_size)
        """Rows to guess among."""
        self.pool: Pool
        """The same with their features, as they were before the last guesses."""

    def advance(self, first: int) -> Leaders | None:
        """Apply the certain pick `first` and every correct guess after it.

        Returns the leaders for the next pick; None if c must be recomputed or all picks are made.
        """
        left = self.k - len(self.run.indices) - 1
        if left < 1:
            self.run.take(first, self.rows.take(np.array([first]))[0])
            return None
        guesses = self._guess(first, min(left, self._n_guesses()))
        names = ("direction", "coef", "threshold", "slack_c", "slack_n")
        steps = Steps(*(np.array([getattr(guess, name) for guess in guesses]) for name in names))
        try:
            found = self.scores.sweep(steps, _MAX_NEAR, self.fraction)
        except StateLostError:
            self.run.rewind(guesses[0].mark, guesses[0].drift)
            raise
        correct, winner = 0, None
        for near in found.near:  # until a guess is wrong
            winner, correct = self._winner(guesses, correct, near), correct + 1
            if winner != guesses[correct - 1].next:
                break
        self._commit(guesses, correct)
        self._update_pool(found.promising)
        if winner is None:
            return None if self.run.stale else self.scores.leaders()
        if self.run.stale:
            refresh(self.scores, [self.run], [0])
        return Leaders(*np.array([[winner], [np.inf], [np.inf], [-np.inf]]))

    def _guess(self, first: int, count: int) -> list[_Guess]:
        """Run ahead in the pool for at most `count` steps, or until the run must stop."""
        self.pool = pool = self.scores.pool(self.promising)
        guesses, run = [], self.run
        j, row = first, self._features(np.array([first]))[0]
        while j >= 0 and len(guesses) < count:
            pick, mark, drift = j, run.basis.mark(), run.drift
            q, coef, fresh = run.take(j, row)
            best = pool.step(j, q, coef)
            j, threshold = -1, np.inf
            if fresh and best >= 0 and not run.matched:  # else the pool or the run is exhausted
                row = self._features(np.array([best]))[0]
                lowest, _ = score_bounds(row[None], run.basis, self.rule)
                if lowest[0] > -np.inf:
                    j, threshold = best, float(tie_threshold(lowest[0]))
            slacks = slack(self.scores, run)
            guesses.append(_Guess(pick, mark, drift, q, coef, j, threshold, *slacks))
        return guesses

    def _features(self, rows: np.ndarray) -> np.ndarray:
        """Return rows in float64, from the pool if all are there: then nothing is fetched."""
        at = np.array([self.pool.position(j) for j in rows.tolist()])
        if (at >= 0).all():
            return self.pool.features[at].astype(np.float64)
        return self.rows.take(rows)

    def _winner(self, guesses: list[_Guess], step: int, near: np.ndarray | None) -> int | None:
        """Return the pick after this step, among the rows that may reach the guess's score.

        None if the guess is missing or too many rows may reach it.
        """
        guess = guesses[step].next
        if guess < 0 or near is None:
            return None
        near = np.setdiff1d(near, [one.pick for one in guesses[: step + 1]])
        near = np.union1d(near, [guess])
        if len(near) == 1:
            return guess
        basis = self.run.basis
        if step + 1 < len(guesses):
            basis = basis.before(guesses[step + 1].mark)
        return int(near[best_row(self._features(near), basis, self.rule)])

    def _commit(self, guesses: list[_Guess], correct: int) -> None:
        """Keep the correct steps and undo the others."""
        self.scores.commit(correct)
        self.scores.drop([0] * correct, [guess.pick for guess in guesses[:correct]])
        estimate = 2 * correct  # all were correct: twice as many might have been
        if correct < len(guesses):
            self.run.rewind(guesses[correct].mark, guesses[correct].drift)
            estimate = correct
        self.usual = 0.5 * (self.usual + estimate)

    def _n_guesses(self) -> int:
        """Return how many steps to guess: the usual number of correct ones, in whole batches."""
        batch = self.scores.lookahead_batch
        return batch * max(1, round(min(self.usual, self.scores.max_lookahead) / batch - 0.25))

    def _update_pool(self, promising: np.ndarray) -> None:
        """Guess among the promising rows next time, and adapt the fraction to the pool size."""
        ratio = len(promising) / self.pool_size
        self.fraction = float(np.clip(self.fraction * ratio**0.2, 0.05, 0.95))
        if len(promising) < self.pool_size // 4:
            promising = np.union1d(promising, self.scores.best(self.pool_size))
        self.promising = promising
