"""What stands where the rows are: one part, its race, and the questions it answers.

All numbers of rows are the part's own, from 0, but for rows to drop: those are told to everybody
in the numbers of all rows. Besides leaders a part shows a few rows at a time
in full, those among which the next picks are guessed (`ahead`): the asker then has their features,
so that only rows that are new to it travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exempla.selection.candidates.base import Leaders, Race, Rows, Rule, Steps
from exempla.selection.selector import Continuation, Outcome, Problem, Selector

__all__ = ["Part", "Parts", "Shown", "Swept", "joined"]


@dataclass(frozen=True)
class Shown:
    """Some rows of a single target's race as they stand; features only of those that are new."""

    rows: np.ndarray
    """Ascending."""
    c: np.ndarray
    n: np.ndarray
    new: np.ndarray
    """Positions in `rows` whose features follow."""
    features: np.ndarray


@dataclass(frozen=True)
class Swept:
    """What a sweep found in a part."""

    near: list[np.ndarray | None]
    shown: Shown


class Part:
    """Rows and their race."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.race: Race
        self.start, self.noise, self.rule = 0, 0.0, Rule.GAIN
        self.shown = self.sent = np.zeros(0, np.int64)
        """Rows shown last, and those whose features the asker has."""

    # -- rows ---------------------------------------------------------------------------------

    def describe(self) -> tuple[int, int, float, np.ndarray]:
        """t, p, tolerance and squared norms."""
        return self.rows.t, self.rows.p, self.rows.tolerance, self.rows.norms2

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """`Rows.project`."""
        return self.rows.project(vectors)

    def align(self, targets: np.ndarray) -> np.ndarray:
        """`Rows.align`."""
        return self.rows.align(targets)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        """`Rows.energy`."""
        return self.rows.energy(directions)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """`Rows.take`."""
        return self.rows.take(indices)

    def choose(
        self,
        selector: Selector,
        targets: np.ndarray,
        sides: tuple[str, ...],
        k: int,
        alignment: np.ndarray,
        candidates: np.ndarray,
    ) -> list[Outcome]:
        """What a selector chooses from this part alone."""
        starts = (None,) * len(targets)
        outcomes = selector.choose(
            Problem(self.rows, targets, alignment, candidates, sides, starts), k
        )
        # nobody continues from a part: its basis need not travel
        return [replace(o, state=Continuation(o.state.rows, o.state.target)) for o in outcomes]

    # -- race ---------------------------------------------------------------------------------

    def open_race(self, noise: float, rule: Rule, start: int, candidates: np.ndarray) -> float:
        """Begin another race, of rows that are numbered from `start` on among all; its error."""
        self.start, self.noise, self.rule = start, noise, rule
        self.race = self.rows.race(candidates, noise, rule)
        self.shown = self.sent = np.zeros(0, np.int64)
        return self.race.error

    def refresh(self, targets: list[int], residuals: np.ndarray) -> tuple[Leaders, Shown | None]:
        """`Race.refresh`, and how the rows that were shown stand after it."""
        leaders = self.race.refresh(targets, residuals)
        return leaders, self._show(self.shown) if len(targets) == 1 else None

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        """`Race.update`."""
        return self.race.update(directions, coefs)

    def firsts(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        """`Race.firsts`."""
        return self.race.firsts(thresholds, slack_c, slack_n)

    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        """`Race.contenders`."""
        return self.race.contenders(target, threshold, slack_c, slack_n, limit)

    def deflate(self, target: int, energy: np.ndarray) -> None:
        """`Race.deflate`."""
        self.race.deflate(target, energy)

    def drop(self, targets: list[int], rows: list[int]) -> None:
        """`Race.drop`, of those that are here."""
        stop = self.start + self.rows.t
        here = [(i, j - self.start) for i, j in zip(targets, rows) if self.start <= j < stop]
        if here:
            self.race.drop([i for i, _ in here], [j for _, j in here])

    def sharpen(self) -> float:
        """`Race.sharpen`; the error from now on."""
        self.race.sharpen()
        return self.race.error

    def leaders(self) -> Leaders:
        """`Race.leaders`."""
        return self.race.leaders()

    # -- running ahead ------------------------------------------------------------------------

    def best(self, count: int) -> tuple[np.ndarray, Shown]:
        """`Race.best`; those rows and the ones shown before are shown."""
        best = self.race.best(count)
        return best, self._show(np.union1d(self.shown, best))

    def show(self, rows: np.ndarray) -> Shown:
        """These rows, and the ones shown before."""
        return self._show(np.union1d(self.shown, rows))

    def sweep(self, steps: Steps, limit: int, share: float, fair: int) -> Swept:
        """`Race.sweep`. The best of the hopeful rows are shown: at least `fair` rows, at most twice
        as many, and all that may have reached a bar."""
        found = self.race.sweep(steps, limit, share)
        hopeful = found.hopeful
        if len(hopeful) < fair:
            hopeful = np.union1d(hopeful, self.race.best(fair))
        elif len(hopeful) > 2 * fair:
            scores = self._scores(hopeful)
            hopeful = hopeful[np.argpartition(scores, len(scores) - 2 * fair)[-2 * fair :]]
        near = [rows for rows in found.near if rows is not None]
        return Swept(found.near, self._show(np.unique(np.concatenate([hopeful, *near]))))

    def keep(self, count: int) -> None:
        """`Race.keep`."""
        self.race.keep(count)

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        c, n = self.race.standing(rows)
        scores = self.rule.score(c, n, self.rows.norms2[rows], self.noise)
        return np.where(n > self.rows.tolerance * self.rows.norms2[rows], scores, -np.inf)

    def _show(self, rows: np.ndarray) -> Shown:
        new = np.flatnonzero(~np.isin(rows, self.sent, assume_unique=True))
        self.shown = self.sent = rows
        c, n = self.race.standing(rows)
        return Shown(rows, c, n, new, self.race.features(rows[new]))

    def forget(self) -> None:
        """The asker may lack features that were sent: all of them are sent again."""
        self.sent = np.zeros(0, np.int64)


class Parts:
    """Several parts in one place: each call goes to all of them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    def answer(self, calls: Sequence[tuple[str, tuple, Sequence[tuple] | None]]) -> list[Any]:
        """Make these calls, (name, arguments, further arguments of each part) in turn; every part's
        answer to the last of them."""
        answers: list[Any] = []
        for name, args, own in calls:
            each = own or [()] * len(self.parts)
            answers = [getattr(p, name)(*args, *more) for p, more in zip(self.parts, each)]
        return answers


def joined(parts: list[Shown], offsets: Sequence[int], have: Shown | None) -> Shown:
    """What all parts show, in the numbers of all rows; the features that did not travel are those
    the asker has."""
    rows = np.concatenate([shown.rows + start for shown, start in zip(parts, offsets)])
    width = next(s.features.shape[1] for s in parts)
    dtype = np.result_type(*(s.features.dtype for s in parts))
    features = np.empty((len(rows), width), dtype)
    fresh = np.zeros(len(rows), bool)
    top = 0
    for shown in parts:
        features[top + shown.new] = shown.features
        fresh[top + shown.new] = True
        top += len(shown.rows)
    if have is not None and not fresh.all():
        features[~fresh] = have.features[np.searchsorted(have.rows, rows[~fresh])]
    c, n = (np.concatenate([getattr(s, name) for s in parts]) for name in ("c", "n"))
    return Shown(rows, c, n, np.arange(len(rows)), features)
