"""The course of a review: in which order rows come, when a spot check is due, what is left.

Everything here follows from the folder and the log alone, so a killed server goes on where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from exempla.review.design.draws import draw
from exempla.review.design.frame import Frame
from exempla.review.design.left import Left, SpotCheck, wrong_left
from exempla.review.learning import Learned, Stated, learn
from exempla.review.listing import ListedSuspect
from exempla.review.log import Draw

__all__ = ["EVERY", "Course", "Settled", "Standing"]

EVERY = 3
"""One row in so many is a spot check."""


@dataclass(frozen=True)
class Settled:
    """A decided row: the event since which it is, and whether its label was wrong."""

    since: int
    wrong: bool


@dataclass(frozen=True)
class Standing:
    """What has been decided, skipped and drawn so far."""

    settled: Mapping[int, Settled]
    skipped: Collection[int] = ()
    draws: Sequence[Draw] = ()

    @property
    def waiting(self) -> int | None:
        """The spot check drawn last, while nothing is decided about it."""
        last = self.draws[-1].row if self.draws else None
        return None if last is None or last in self.settled or last in self.skipped else last

    @property
    def answered(self) -> int:
        """How many rows a person has dealt with."""
        return len(self.settled) + len(self.skipped)


class Course:
    """Suspects in their order, rows of the rest, and the frame they are drawn from."""

    def __init__(
        self,
        suspects: Sequence[ListedSuspect],
        rest: Sequence[ListedSuspect] = (),
        frame: Frame | None = None,
    ) -> None:
        self.suspects, self.rest, self.frame = tuple(suspects), tuple(rest), frame
        self.items = (*self.suspects, *self.rest)
        self.place = {suspect.item: place for place, suspect in enumerate(self.items)}
        self.numbers = np.array([suspect.item for suspect in self.items], dtype=np.int64)
        self.strata = np.array([suspect.stratum for suspect in self.items], dtype=int)
        self.stated = Stated(
            np.array([s.probability for s in self.items]),
            [_from(s) for s in self.items],
            [_to(s) for s in self.items],
            _log_odds(np.array([s.model_probability for s in self.items])),
        )

    def learned(self, standing: Standing) -> Learned:
        """All probabilities, re-fitted to what was decided."""
        known = [item for item in standing.settled if item in self.place]
        decided = np.array([self.place[item] for item in known], dtype=int)
        return learn(
            self.stated, decided, np.array([standing.settled[item].wrong for item in known])
        )

    def order(self, standing: Standing, learned: Learned) -> list[int]:
        """Listed and drawn rows: those decided first, in time, then the most suspicious."""
        p = learned.probabilities[: len(self.suspects)]
        ranks = {
            self.suspects[place].item: rank
            for rank, place in enumerate(np.argsort(-p, kind="stable"))
        }
        ranks |= {each.row: -1 for each in standing.draws if each.row in self.place}
        first = sorted(standing.settled, key=lambda item: standing.settled[item].since)
        done = [item for item in first if item in ranks]
        return done + sorted(ranks.keys() - set(done), key=ranks.__getitem__)

    def due(self, standing: Standing) -> bool:
        """Whether the next row should be a spot check."""
        if self.frame is None or standing.waiting is not None:
            return False
        return len(standing.draws) < (standing.answered + 1) // EVERY

    def draw(self, standing: Standing) -> int | None:
        """The next spot check; None if there is none to be drawn."""
        if self.frame is None:
            return None
        gone = {*standing.settled, *(each.row for each in standing.draws)}
        places = [self.place[item] for item in gone if item in self.place]
        open_ = np.ones(len(self.items), dtype=bool)
        open_[places] = False
        counts = np.bincount(self.strata[places], minlength=len(self.frame.sizes))
        # What an earlier analysis listed is somewhere in the rest.
        counts[int(np.argmax(self.frame.sizes))] += len(gone) - len(places)
        choices = [self.numbers[open_ & (self.strata == h)] for h in range(len(self.frame.sizes))]
        return draw(self.frame, len(standing.draws), counts, choices)

    def left(self, standing: Standing, learned: Learned) -> Left:
        """How many wrong labels are left."""
        found = sum(each.wrong for each in standing.settled.values())
        expected = self._expected(standing, learned)
        if self.frame is None:
            open_ = sum(s.item not in standing.settled for s in self.suspects)
            return wrong_left([], rows=open_, found=found, expected=expected)
        rows = max(0, self.frame.rows - len(standing.settled))
        return wrong_left(self._checks(standing), rows=rows, found=found, expected=expected)

    def _checks(self, standing: Standing) -> list[SpotCheck]:
        """The spot checks with what was known when each was drawn."""
        if self.frame is None:
            return []
        drawn = {each.row for each in standing.draws}
        others = sorted(
            (each.since, each.wrong) for item, each in standing.settled.items() if item not in drawn
        )
        since = [when for when, _ in others]
        wrong = np.concatenate([[0], np.cumsum([each for _, each in others])])
        waiting = standing.waiting
        checks = []
        for number, each in enumerate(standing.draws):
            if each.row == waiting:
                continue
            before = int(np.searchsorted(since, each.at, side="right"))
            known = standing.settled.get(each.row)
            rows = self.frame.rows - before - number
            checks.append(
                SpotCheck(max(rows, 1), int(wrong[before]), None if known is None else known.wrong)
            )
        return checks

    def _expected(self, standing: Standing, learned: Learned) -> float:
        """What the model expects: listed rows one by one, the rest by its sample."""
        open_ = np.array([s.item not in standing.settled for s in self.items], dtype=bool)
        listed = np.arange(len(self.items)) < len(self.suspects)
        total = float(learned.probabilities[open_ & listed].sum())
        if self.frame is None:
            return total
        for stratum, size in enumerate(self.frame.sizes):
            own = ~listed & (self.strata == stratum)
            if own.any():
                rows = size - int((own & ~open_).sum())
                total += rows * float(learned.probabilities[own].mean())
        return total


def _from(suspect: ListedSuspect) -> str:
    """What the label was: for a number, on which side of the expected it lies."""
    if suspect.kind != "number" or suspect.expected is None:
        return f"{suspect.part}\0{suspect.given}"
    return "above" if float(suspect.given) > suspect.expected else "below"


def _to(suspect: ListedSuspect) -> str:
    return "expected" if suspect.kind == "number" else suspect.suggested


def _log_odds(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, 1e-3, 1 - 1e-3)
    return np.log(p) - np.log1p(-p)
