"""Lookahead: guess the next picks within a small pool, check all guesses in one pass.

Greedy picks nearly always come from the few rows that have the highest scores now. The loop
therefore runs ahead within that pool, which costs little, and one pass over all rows
(`LookaheadScores.sweep`) finds out after each guessed step whether any other row could have scored
higher than the next guess. Correct guesses are committed; the steps from the first wrong guess on
are undone. Each guess is compared under the same error bounds as a leader, and ties are settled in
float64, so that the picks are the same as with one pass per pick.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exempla.selection.engine import Mark, Run, best_row, refresh, score_bounds, slack
from exempla.selection.rows import Leaders, Rows, Rule, StateLostError, tie_threshold
from exempla.selection.sweeps import LookaheadScores, Pool, Steps

POOL_FRACTION = 1 / 48
"""Size of the pool as a fraction of all rows, within `LookaheadScores.pool_sizes`."""
_FIRST_FRACTION = 0.4
"""The next pool consists of the rows that reached this fraction of a threshold; the fraction is
then adapted to the desired pool size."""
_FIRST_GUESSES = 16
"""Steps guessed in the first pass."""
_MAX_NEAR = 128
"""Rows that may beat a guess and are rescored; if there are more, the guesses end there."""


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
            self._undo(guesses[0])
            raise
        correct, winner = self._check(guesses, found.near)
        self._commit(guesses, correct)
        self._update_pool(found.promising)
        if winner is None:
            return None if self.run.stale else self.scores.leaders()
        if self.run.stale:
            refresh(self.scores, [self.run], [0])
        return Leaders(*np.array([[np.inf], [winner], [np.inf]]), certain=True)

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
                lowest, _ = score_bounds(row[None], run.basis, self.rows.tolerance, self.rule)
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

    def _check(
        self, guesses: list[_Guess], near: list[np.ndarray | None]
    ) -> tuple[int, int | None]:
        """Return how many steps were correct, and the pick after them if it is known."""
        winner: int | None = None
        for step, rows in enumerate(near):
            winner = self._winner(guesses, step, rows)
            if winner != guesses[step].next:
                return step + 1, winner
        return len(near), winner

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
        return int(near[best_row(self._features(near), basis, self.rows.tolerance, self.rule)])

    def _commit(self, guesses: list[_Guess], correct: int) -> None:
        """Keep the correct steps and undo the others."""
        self.scores.commit(correct)
        self.scores.drop([0] * correct, [guess.pick for guess in guesses[:correct]])
        estimate = 2 * correct  # all were correct: twice as many might have been
        if correct < len(guesses):
            self._undo(guesses[correct])
            estimate = correct
        self.usual = 0.5 * (self.usual + estimate)

    def _undo(self, guess: _Guess) -> None:
        """Undo this step and all after it."""
        self.run.rewind(guess.mark, guess.drift)

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
