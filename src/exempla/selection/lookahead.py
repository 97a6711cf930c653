"""Lookahead: guess the next picks within a small pool, check all guesses in one pass.

Greedy picks nearly always come from the few rows that have the highest scores now. The loop
therefore runs ahead within that pool, which costs little, and one pass over all rows
(`CandidateScores.sweep`) finds out after each guessed step whether any other row could have scored
higher than the next guess. Correct guesses are committed; the steps from the first wrong guess on
are undone. Each guess is compared under the same error bounds as a leader, and ties are settled in
float64, so that the picks are the same as with one pass per pick.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from exempla.selection.engine import Mark, Run, best_row, refresh, score_bounds, slack
from exempla.selection.rows import CandidateScores, Leaders, Rows, Rule, Steps, tie_threshold

POOL_FRACTION = 1 / 48
"""Size of the pool as a fraction of all rows, within `CandidateScores.pool_sizes`."""
_FIRST_FRACTION = 0.4
"""The next pool consists of the rows that reached this fraction of a threshold; the fraction is
then adapted to the desired pool size."""
_FIRST_GUESSES = 16
"""Steps guessed in the first pass."""
_MAX_NEAR = 128
"""Rows that may beat a guess and are rescored; if there are more, the guesses end there."""


@dataclass
class _Guesses:
    """Guessed steps: the first is certain, the others are to be checked."""

    picks: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    """State of the basis before each pick."""
    drifts: list[float] = field(default_factory=list)
    directions: list[np.ndarray] = field(default_factory=list)
    coefs: list[float] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    slacks: list[tuple[float, float]] = field(default_factory=list)
    next: int = -1
    """The guess after the last step."""

    def steps(self) -> Steps:
        """Return all steps, each with the threshold of the next guess."""
        slack_c, slack_n = np.array(self.slacks).T
        directions, coefs = np.stack(self.directions), np.array(self.coefs)
        return Steps(directions, coefs, np.array(self.thresholds), slack_c, slack_n)

    def after(self, step: int) -> int:
        """Return the pick guessed to follow this step."""
        return self.picks[step + 1] if step + 1 < len(self.picks) else self.next


class Lookahead:
    """Guess and check picks for a single target."""

    def __init__(self, rows: Rows, scores: CandidateScores, run: Run, k: int, rule: Rule) -> None:
        self.rows, self.scores, self.run, self.k, self.rule = rows, scores, run, k, rule
        self.usual: float = _FIRST_GUESSES
        """Moving average of the number of correct guesses."""
        self.pool_size = int(np.clip(POOL_FRACTION * rows.t, *scores.pool_sizes))
        self.fraction = _FIRST_FRACTION
        self.promising = scores.best(self.pool_size)
        """Rows to guess among."""

    def advance(self, first: int) -> Leaders | None:
        """Apply the certain pick `first` and every correct guess after it.

        Returns the leaders for the next pick; None if c must be recomputed or all picks are made.
        """
        count = self._n_guesses()
        if count < 1:
            self._take(first, self.rows.take(np.array([first]))[0], _Guesses())
            return None
        guesses = self._guess(first, count)
        found = self.scores.sweep(guesses.steps(), _MAX_NEAR, self.fraction)
        correct, winner = self._check(guesses, found.near)
        self._commit(guesses, correct)
        self._update_pool(found.promising)
        if winner is None:
            return None if self.run.stale else self.scores.leaders()
        if self.run.stale:
            refresh(self.scores, [self.run], [0])
        return Leaders(np.array([np.nan]), np.array([winner]), certain=True)

    def _guess(self, first: int, count: int) -> _Guesses:
        """Run ahead in the pool for at most `count` steps, or until the run must stop."""
        guesses, pool, run = _Guesses(), self.scores.pool(self.promising), self.run
        j, row = first, self.rows.take(np.array([first]))[0]
        while True:
            fresh = self._take(j, row, guesses)
            best = pool.step(j, guesses.directions[-1], guesses.coefs[-1])
            j, threshold = -1, np.inf
            if fresh and best >= 0 and not run.matched:  # else the pool or the run is exhausted
                row = self.rows.take(np.array([best]))[0]
                lowest, _ = score_bounds(row[None], run.basis, self.rows.tolerance, self.rule)
                if lowest[0] > -np.inf:
                    j, threshold = best, float(tie_threshold(lowest[0]))
            guesses.thresholds.append(threshold)
            guesses.slacks.append(slack(self.scores, run))
            if j < 0 or len(guesses.picks) == count:
                guesses.next = j
                return guesses

    def _take(self, j: int, row: np.ndarray, guesses: _Guesses) -> bool:
        """Apply a pick to the run and record it; return True if it adds a direction."""
        run = self.run
        guesses.picks.append(j)
        guesses.marks.append(run.basis.mark())
        guesses.drifts.append(run.drift)
        q, coef, fresh = run.take(j, row)
        guesses.directions.append(q)
        guesses.coefs.append(coef)
        return fresh

    def _check(self, guesses: _Guesses, near: list[np.ndarray | None]) -> tuple[int, int | None]:
        """Return how many steps were correct, and the pick after them if it is known."""
        winner: int | None = None
        for step, rows in enumerate(near):
            winner = self._winner(guesses, step, rows)
            if winner != guesses.after(step):
                return step + 1, winner
        return len(near), winner

    def _winner(self, guesses: _Guesses, step: int, near: np.ndarray | None) -> int | None:
        """Return the pick after this step, among the rows that may reach the guess's score.

        None if the guess is missing or too many rows may reach it.
        """
        guess = guesses.after(step)
        if guess < 0 or near is None:
            return None
        if near.tolist() == [guess]:  # the usual case
            return guess
        near = np.setdiff1d(near, guesses.picks[: step + 1])
        near = np.union1d(near, [guess])
        if len(near) == 1:
            return guess
        basis = self.run.basis
        if step + 1 < len(guesses.marks):
            basis = basis.before(guesses.marks[step + 1])
        return int(near[best_row(self.rows.take(near), basis, self.rows.tolerance, self.rule)])

    def _commit(self, guesses: _Guesses, correct: int) -> None:
        """Keep the correct steps and undo the others."""
        self.scores.commit(correct)
        self.scores.drop([0] * correct, guesses.picks[:correct])
        estimate = 2 * correct  # all were correct: twice as many might have been
        if correct < len(guesses.picks):
            self.run.rewind(guesses.marks[correct], guesses.drifts[correct])
            estimate = correct
        self.usual = 0.5 * (self.usual + estimate)

    def _n_guesses(self) -> int:
        """Return how many steps to guess: the usual number of correct ones, in whole batches."""
        left, batch = self.k - len(self.run.indices) - 1, self.scores.lookahead_batch
        batches = max(1, round(min(self.usual, self.scores.max_lookahead) / batch - 0.25))
        return min(left, batches * batch)

    def _update_pool(self, promising: np.ndarray) -> None:
        """Guess among the promising rows next time, and adapt the fraction to the pool size."""
        ratio = len(promising) / self.pool_size
        self.fraction = float(np.clip(self.fraction * ratio**0.2, 0.05, 0.95))
        if len(promising) < self.pool_size // 4:
            promising = np.union1d(promising, self.scores.best(self.pool_size))
        self.promising = promising
