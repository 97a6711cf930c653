"""Running ahead of the race: guess the next picks among a few rows, check all guesses in one pass.

Greedy picks come from a small pool nearly always: the rows of the highest scores now. So the loop
runs ahead inside the pool, which costs next to nothing, and one reading of all rows (`Race.sweep`)
asks after each guessed step whether any row could have been better than the next guess. What was
guessed right is kept; from the first guess that was beaten on, the steps are forgotten. Every
guess is held against the same bounds as a leader of the race, and close calls are settled in
float64 as there, so that the picks are those of one pass a pick.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from exempla.selection.basis import Mark
from exempla.selection.candidates.base import Leaders, Race, Rows, Rule, Steps
from exempla.selection.run import Run, best_row, score_bounds, slack
from exempla.selection.ties import just_below

__all__ = ["Scout"]

SHARE = 1 / 48
"""Of all rows, how many to guess among, within the bounds of the race (`Race.pools`)."""
HOPE = 0.4
"""At first the next pool is made of the rows that reached this share of a guess's score; the share
is then adapted to the size that is wanted."""
FIRST = 16
"""Steps guessed in the first pass."""
MOST_NEAR = 128
"""Rows that may be better than a guess and are scored again; more of them end the guessing."""


@dataclass
class Guesses:
    """What the next steps may be: the first is certain, the others are to be checked."""

    picks: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    """Where the basis stood before each pick."""
    drifts: list[float] = field(default_factory=list)
    directions: list[np.ndarray] = field(default_factory=list)
    coefs: list[float] = field(default_factory=list)
    bars: list[float] = field(default_factory=list)
    """What the score of the next guess is at least, after each step; +inf: there is none."""
    slacks: list[tuple[float, float]] = field(default_factory=list)
    next: int = -1
    """The guess after the last step."""

    def steps(self) -> Steps:
        """All steps, each followed by the question whether the next guess is right."""
        slack_c, slack_n = np.array(self.slacks).T
        return Steps(
            np.stack(self.directions), np.array(self.coefs), np.array(self.bars), slack_c, slack_n
        )  # fmt: skip

    def after(self, step: int) -> int:
        """The pick guessed for after this step."""
        return self.picks[step + 1] if step + 1 < len(self.picks) else self.next


class Scout:
    """Runs ahead for a single target."""

    def __init__(self, rows: Rows, race: Race, run: Run, k: int, rule: Rule) -> None:
        self.rows, self.race, self.run, self.k, self.rule = rows, race, run, k, rule
        self.usual: float = FIRST
        self.size = int(np.clip(SHARE * rows.t, *race.pools))
        self.share = HOPE
        self.hopeful = race.best(self.size)
        """Rows to guess among."""

    def advance(self, first: int) -> Leaders | None:
        """Take the certain pick in, and what can be guessed of those after it.

        Returns the leaders for the next pick; None where c must be computed anew, or where all
        picks are made.
        """
        room = self._room()
        if room < 1:
            self._take(first, self.rows.take(np.array([first]))[0], Guesses())
            return None
        guesses = self._guess(first, room)
        found = self.race.sweep(guesses.steps(), MOST_NEAR, self.share)
        kept, winner = self._right(guesses, found.near)
        self._settle(guesses, kept)
        self._learn(found.hopeful)
        if winner is None:
            return None if self.run.stale else self.race.leaders()
        if self.run.stale:
            self._refresh()
        return Leaders(np.array([np.nan]), np.array([winner]), certain=True)

    # -- guessing -----------------------------------------------------------------------------

    def _guess(self, first: int, room: int) -> Guesses:
        """Run ahead in the pool, up to so many steps, or to where the run must stop."""
        guesses, pool, run = Guesses(), self.race.pool(self.hopeful), self.run
        j, row = first, self.rows.take(np.array([first]))[0]
        while True:
            fresh = self._take(j, row, guesses)
            best = pool.step(j, guesses.directions[-1], guesses.coefs[-1])
            j, bar = -1, np.inf
            if fresh and best >= 0 and not run.matched:  # else the pool is used up, or the run ends
                row = self.rows.take(np.array([best]))[0]
                least, _ = score_bounds(row[None], run.basis, self.rows.tolerance, self.rule)
                if least[0] > -np.inf:
                    j, bar = best, float(just_below(least[0]))
            guesses.bars.append(bar)
            guesses.slacks.append(slack(self.race, run))
            if j < 0 or len(guesses.picks) == room:
                guesses.next = j
                return guesses

    def _take(self, j: int, row: np.ndarray, guesses: Guesses) -> bool:
        """Take a row in; whether it adds a direction."""
        run = self.run
        guesses.picks.append(j)
        guesses.marks.append(run.basis.mark())
        guesses.drifts.append(run.drift)
        q, coef, fresh = run.take(j, row)
        guesses.directions.append(q)
        guesses.coefs.append(coef)
        return fresh

    # -- checking -----------------------------------------------------------------------------

    def _right(self, guesses: Guesses, near: list[np.ndarray | None]) -> tuple[int, int | None]:
        """How many steps were right, and the pick after them, if it is known."""
        winner: int | None = None
        for step, rows in enumerate(near):
            winner = self._winner(guesses, step, rows)
            if winner != guesses.after(step):
                return step + 1, winner
        return len(near), winner

    def _winner(self, guesses: Guesses, step: int, near: np.ndarray | None) -> int | None:
        """The pick after this step, from the rows that may reach the guessed one's score; None if
        too many may."""
        guess = guesses.after(step)
        if guess < 0 or near is None:
            return None
        if near.tolist() == [guess]:  # nearly always
            return guess
        near = np.setdiff1d(near, guesses.picks[: step + 1])
        near = np.union1d(near, [guess])
        if len(near) == 1:
            return guess
        basis = self.run.basis
        if step + 1 < len(guesses.marks):
            basis = basis.before(guesses.marks[step + 1])
        best = best_row(self.rows.take(near), basis, self.rows.tolerance, self.rule)
        return int(near[best])

    def _settle(self, guesses: Guesses, kept: int) -> None:
        """Keep the first steps and forget the others."""
        self.race.keep(kept)
        self.race.drop([0] * kept, guesses.picks[:kept])
        right = 2 * kept  # all of them: twice as many might have been
        if kept < len(guesses.picks):
            self.run.rewind(guesses.marks[kept], guesses.drifts[kept])
            right = kept
        self.usual = 0.5 * (self.usual + right)

    def _room(self) -> int:
        """How many steps to guess: as many as were right lately, in whole panels."""
        left, most = self.k - len(self.run.indices) - 1, self.race.most_ahead
        panels = max(1, round(min(self.usual, most) / self.race.panel - 0.25))
        return min(left, panels * self.race.panel)

    def _learn(self, hopeful: np.ndarray) -> None:
        """Guess among the hopeful next time, and adapt how much hope is enough."""
        self.share = float(np.clip(self.share * (len(hopeful) / self.size) ** 0.2, 0.05, 0.95))
        if len(hopeful) < self.size // 4:
            hopeful = np.union1d(hopeful, self.race.best(self.size))
        self.hopeful = hopeful

    def _refresh(self) -> None:
        """c anew."""
        self.run.fresh_norm, self.run.drift = self.run.residual_norm, 0.0
        self.race.refresh([0], self.run.basis.residual[None])
