"""What the page is told beside the decisions themselves: order, spot checks, the number left.

Between requests nothing is kept that does not follow from the log: a fit of the first 5, 10, 15 …
decisions is the same whenever it is made. It is made when the page asks for the order, which it
does after the next row is shown, so that no decision waits for it.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from typing import Any

from exempla.errors import ExemplaError
from exempla.review.design.course import Course, Settled, Standing
from exempla.review.design.left import Left
from exempla.review.folder import Review
from exempla.review.learning import Learned
from exempla.review.listing import ListedSuspect
from exempla.review.log import SETTLED, DecisionLog

__all__ = ["STOP_BELOW", "Guide", "Renewal", "checked_share"]

RENEWED_EVERY = 5
STOP_BELOW = 0.01
FIELDS = (
    "row", "id", "given", "suggested", "probability", "side", "item", "snippet", "kind", "part",
    "expected", "spread",
)  # fmt: skip


@dataclass(frozen=True)
class Renewal:
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
        self._renewal: Renewal | None = None
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

    def renewal(self) -> Renewal:
        """The order that the decisions so far have led to; made now if it is due."""
        with self._lock:
            standing = self.standing()
            due = _due(standing)
            if self._renewal is None or self._renewal.decisions != due:
                first = sorted(standing.settled.items(), key=lambda pair: pair[1].since)[:due]
                learned = self.course.learned(Standing(dict(first)))
                order = self.course.order(standing, learned)
                self._renewal = Renewal(due, learned, order)
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
            return checked_share(float(self.log.setting(self._stop_name) or STOP_BELOW))
        except (ValueError, ExemplaError):
            return STOP_BELOW

    def set_stop(self, share: float) -> None:
        """Remember the share below which the person wants to stop."""
        self.log.setting(self._stop_name, repr(checked_share(share)))

    @property
    def _stop_name(self) -> str:
        return f"stop-below {self.review.key.partition(' ')[0]}"

    def _left(self, standing: Standing, fitted: Renewal) -> Left:
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
