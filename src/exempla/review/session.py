"""The number of wrong labels left, from a random sample: valid whatever the kind of mistakes.

frame.py     the rows that can be sampled, in strata of like probability, and their numbers
draws.py     which row is the next spot check: a seeded design, the same after every restart
left.py      from the spot checks' outcomes to an interval for the number left

The course of a review: in which order rows come, when a spot check is due, what is left.

Everything here follows from the folder and the log alone, so a killed server goes on where it was.

What the page is told beside the decisions themselves: order, spot checks, the number left.

Between requests nothing is kept that does not follow from the log: a fit of the first 5, 10, 15 …
decisions is the same whenever it is made. It is made when the page asks for the order, which it
does after the next row is shown, so that no decision waits for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.review.folder import ListedSuspect, Review
from exempla.review.log import SETTLED, DecisionLog, Draw
from exempla.review.sampling import Frame, Left, SpotCheck, draw, wrong_left
from exempla.tasks.labels.decisions import Learned, Stated, learn

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


RENEWED_EVERY = 5
_STOP_BELOW = 0.01
FIELDS = (
    "row", "id", "given", "suggested", "probability", "side", "item", "snippet", "kind", "part",
    "expected", "spread",
)  # fmt: skip


@dataclass(frozen=True)
class _Renewal:
    """A fit of so many decisions, and the order that follows from it."""

    decisions: int
    learned: Learned
    order: list[int]


class Guide:
    """One review and its log."""

    def __init__(self, review: Review, log: DecisionLog, stop_below: float | None = None) -> None:
        self.review, self.log = review, log
        self.course = Course(review.suspects, review.rest, review.frame)
        self.rest = {suspect.item: suspect for suspect in review.rest}
        self._lock = threading.Lock()
        self._renewal: _Renewal | None = None
        self._known: tuple[tuple[int, int], Left] | None = None
        if stop_below is not None:
            self.set_stop(stop_below)
        if review.frame is not None:
            design = {"design": 1, **review.frame.to_dict(), "suspects": review.digest}
            log.start_design(json.dumps(design, sort_keys=True))
        self.draw_if_due()

    def standing(self) -> Standing:
        """What the log says has been decided, skipped and drawn."""
        since, settled, skipped = self.log.since(), {}, []
        for state in self.log.states():
            if state.action in SETTLED:
                settled[state.row] = Settled(since.get(state.row, 0), state.action != "keep")
            elif state.action == "skip":
                skipped.append(state.row)
        return Standing(settled, skipped, self.log.draws)

    def draw_if_due(self, *, asked: bool = False) -> None:
        """Draw the next spot check if it is time for one, or if the person asks for one."""
        standing = self.standing()
        if self.course.due(standing) or (asked and standing.waiting is None):
            self.log.draw(lambda: self.course.draw(self.standing()), len(standing.draws))

    def renewal(self) -> _Renewal:
        """The order that the decisions so far have led to; made now if it is due."""
        with self._lock:
            standing = self.standing()
            due = _due(standing)
            if self._renewal is None or self._renewal.decisions != due:
                first = sorted(standing.settled.items(), key=lambda pair: pair[1].since)[:due]
                learned = self.course.learned(Standing(dict(first)))
                order = self.course.order(standing, learned)
                self._renewal = _Renewal(due, learned, order)
            return self._renewal

    def probability(self, item: int) -> float:
        """The chance that an item is wrong, as last fitted."""
        fitted = self._renewal or self.renewal()
        return float(fitted.learned.probabilities[self.course.place[item]])

    def status(self, since: int) -> dict[str, Any]:
        """The part of an answer that is about order, spot checks and what is left."""
        standing = self.standing()
        framed = self.review.frame is not None
        fitted = (self._renewal if framed else None) or self.renewal()
        left = self._left(standing, fitted)
        return {
            "renewals": _due(standing) if framed else 0,
            "spots": [
                [each.row, self.entry(self.rest[each.row]) if each.row in self.rest else None]
                for each in standing.draws
                if each.at >= since and each.row in self.course.place
            ],
            "waiting": standing.waiting,
            "remaining": asdict(left) | self._stop(left.sure),
        }

    def entry(self, suspect: ListedSuspect) -> list[Any]:
        """A line of the list, as FIELDS name it."""
        return [getattr(suspect, name) for name in FIELDS]

    def drawn(self) -> list[ListedSuspect]:
        """The rows of the rest that were drawn as spot checks."""
        return [self.rest[each.row] for each in self.log.draws if each.row in self.rest]

    @property
    def stop_below(self) -> float:
        """The share of all rows that may be left wrong."""
        try:
            return checked_share(float(self.log.setting(self._stop_name) or _STOP_BELOW))
        except (ValueError, ExemplaError):
            return _STOP_BELOW

    def set_stop(self, share: float) -> None:
        """Remember the share below which the person wants to stop."""
        self.log.setting(self._stop_name, repr(checked_share(share)))

    @property
    def _stop_name(self) -> str:
        return f"stop-below {self.review.key.partition(' ')[0]}"

    def _left(self, standing: Standing, fitted: _Renewal) -> Left:
        """What is left, worked out once for each event and fit: the page asks every few seconds."""
        moment = (self.log.version, fitted.decisions)
        if self._known is None or self._known[0] != moment:
            self._known = (moment, self.course.left(standing, fitted.learned))
        return self._known[1]

    def _stop(self, sure: float | None) -> dict[str, Any]:
        rows = 0 if self.review.frame is None else self.review.frame.rows
        stop = sure is not None and sure <= self.stop_below * rows
        return {"all": rows, "stop_below": self.stop_below, "stop": stop}


def _due(standing: Standing) -> int:
    """How many decisions the order should follow."""
    return len(standing.settled) // RENEWED_EVERY * RENEWED_EVERY


def checked_share(share: float) -> float:
    """The share as a number between 0 and 1.

    >>> checked_share(0.01)
    0.01
    """
    if not 0.0 < share < 1.0:
        raise ExemplaError(
            f"{share} is no share of the rows to stop below; give one between 0 and 1, such as "
            "0.01 for one row in a hundred."
        )
    return share
