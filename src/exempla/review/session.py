"""A review in progress: the order of rows, when a spot check is due, and how many errors are left.

`ReviewPlan` computes all of it from the suspects and a `ReviewState`; `ReviewSession` takes that
state from the decision log. Nothing else is stored, so a killed server continues where it was: a
fit of the first 5, 10, 15 … decisions is the same whenever it is made. It is made when the page
asks for the order, after the next row is shown, so that no decision waits for it.

A review starts with a random sample of `INITIAL_SAMPLE` rows. It turns the model's expectation into
an interval for the number of wrong labels and calibrates the order. After that, one row in
`SPOT_CHECK_EVERY` is a spot check.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logit

from exempla.errors import ExemplaError
from exempla.review.folder import Review, Suspect
from exempla.review.log import ACTIONS, SETTLED, DecisionLog, Draw
from exempla.review.sampling import RemainingErrors, SpotCheck, Strata, draw, remaining_errors
from exempla.tasks.labels.decisions import Learned, Stated, learn

SPOT_CHECK_EVERY = 3
INITIAL_SAMPLE = 40
_MAX_SAMPLE_SHARE = 0.2
"""Largest share of a small file that the initial sample takes."""
RENEWED_EVERY = 5
"""Decisions between two fits."""
_STOP_BELOW = 0.01
FIELDS = (
    "row", "id", "given", "suggested", "probability", "side", "item", "snippet", "kind", "part",
    "expected", "spread",
)  # fmt: skip
"""The fields of a line of the list, as the page receives them."""

_CONFIDENT = 0.05
"""The analysis is confident below this probability of a wrong label, and above one minus it."""


class Settled(NamedTuple):
    """A decided row: the event since which it is decided, and whether its label was wrong."""

    since: int
    wrong: bool


@dataclass(frozen=True)
class ReviewState:
    """The rows decided, skipped and drawn so far."""

    settled: Mapping[int, Settled]
    skipped: Collection[int] = ()
    draws: Sequence[Draw] = ()

    @property
    def waiting(self) -> int | None:
        """The spot check drawn last, while it is neither decided nor skipped."""
        last = self.draws[-1].row if self.draws else None
        return None if last is None or last in self.settled or last in self.skipped else last


class ReviewPlan:
    """Suspects in order, sampled rows, and the strata they are drawn from."""

    def __init__(
        self,
        suspects: Sequence[Suspect],
        rest: Sequence[Suspect] = (),
        strata: Strata | None = None,
        initial_sample: int = 0,
    ) -> None:
        self.suspects, self.rest, self.strata = tuple(suspects), tuple(rest), strata
        rows = 0 if strata is None else strata.rows
        self.initial_sample = min(initial_sample, int(_MAX_SAMPLE_SHARE * rows))
        self.items = (*self.suspects, *self.rest)
        self.place = {suspect.item: place for place, suspect in enumerate(self.items)}
        self._numbers = np.array([suspect.item for suspect in self.items], dtype=np.int64)
        self._stratum = np.array([suspect.stratum for suspect in self.items], dtype=int)
        self._stated = Stated(
            np.array([s.probability for s in self.items]),
            [_given(s) for s in self.items],
            ["expected" if s.kind == "number" else s.suggested for s in self.items],
            logit(np.clip([s.model_probability for s in self.items], 1e-3, 1 - 1e-3)),
        )

    def learned(self, state: ReviewState) -> Learned:
        """Re-fit all probabilities to the decisions."""
        known = [item for item in state.settled if item in self.place]
        decided = np.array([self.place[item] for item in known], dtype=int)
        return learn(self._stated, decided, np.array([state.settled[i].wrong for i in known]))

    def order(self, state: ReviewState, learned: Learned) -> list[int]:
        """Return listed and drawn rows: the decided ones by time, then the most suspicious."""
        rank = {s.item: -p for s, p in zip(self.suspects, learned.probabilities.tolist())}
        rank |= {each.row: -np.inf for each in state.draws if each.row in self.place}
        by_time = sorted(state.settled, key=lambda item: state.settled[item].since)
        undecided = [item for item in rank if item not in state.settled]
        return [i for i in by_time if i in rank] + sorted(undecided, key=rank.__getitem__)

    def due(self, state: ReviewState) -> bool:
        """Return True if the next row should be a spot check."""
        if self.strata is None or state.waiting is not None:
            return False
        answered, drawn = len(state.settled) + len(state.skipped), len(state.draws)
        return drawn < self.initial_sample or drawn < (answered + 1) // SPOT_CHECK_EVERY

    def draw(self, state: ReviewState) -> int | None:
        """Return the next spot check; None if there is none to draw."""
        if self.strata is None:
            return None
        gone = {*state.settled, *(each.row for each in state.draws)}
        places = [self.place[item] for item in gone if item in self.place]
        open_ = np.ones(len(self.items), dtype=bool)
        open_[places] = False
        counts = np.bincount(self._stratum[places], minlength=len(self.strata.sizes))
        # Rows that an earlier analysis listed are somewhere among the others.
        counts[int(np.argmax(self.strata.sizes))] += len(gone) - len(places)
        items, strata = self._numbers[open_], self._stratum[open_]
        return draw(self.strata, len(state.draws), counts, items, strata)

    def remaining(self, state: ReviewState, learned: Learned) -> RemainingErrors:
        """Estimate the number of wrong labels left."""
        found = sum(each.wrong for each in state.settled.values())
        if self.strata is None:
            rows = sum(s.item not in state.settled for s in self.suspects)
        else:
            rows = max(0, self.strata.rows - len(state.settled))
        expected = self._expected(state, learned)
        return remaining_errors(self._checks(state), rows=rows, found=found, expected=expected)

    def contradictions(self, state: ReviewState) -> list[int]:
        """Return decided items that contradict confident evidence, if there are too many.

        They keep a label that the analysis is confident is wrong, or change one that it is
        confident in. Some of them are expected, at the rate that the analysis states.
        """
        stated = {
            i: self.items[self.place[i]].probability for i in state.settled if i in self.place
        }
        sure = {item: p for item, p in stated.items() if min(p, 1 - p) < _CONFIDENT}
        found = [item for item, p in sure.items() if state.settled[item].wrong == (p < 0.5)]
        expected = sum(min(p, 1 - p) for p in sure.values())
        return found if len(found) > 2 + 4 * expected else []

    def _checks(self, state: ReviewState) -> list[SpotCheck]:
        """Return the spot checks with what was known when each was drawn."""
        if self.strata is None:
            return []
        drawn = {each.row for each in state.draws}
        others = [each for item, each in state.settled.items() if item not in drawn]
        since, wrong = np.array(others, dtype=int).reshape(-1, 2).T
        waiting, checks = state.waiting, []
        for number, each in enumerate(state.draws):
            if each.row == waiting:
                continue
            before = since <= each.at
            known = state.settled.get(each.row)
            rows = max(self.strata.rows - int(before.sum()) - number, 1)
            outcome = None if known is None else known.wrong
            checks.append(SpotCheck(rows, int(wrong[before].sum()), outcome))
        return checks

    def _expected(self, state: ReviewState, learned: Learned) -> float:
        """Return the model's expectation: listed rows one by one, the others by their sample."""
        open_ = np.array([s.item not in state.settled for s in self.items], dtype=bool)
        listed = np.arange(len(self.items)) < len(self.suspects)
        total = float(learned.probabilities[open_ & listed].sum())
        for stratum, size in enumerate(() if self.strata is None else self.strata.sizes):
            own = ~listed & (self._stratum == stratum)
            if own.any():
                rows = size - int((own & ~open_).sum())
                total += rows * float(learned.probabilities[own].mean())
        return total


def _given(suspect: Suspect) -> str:
    """Return the given label; for a number, whether it is above or below the expected value."""
    if suspect.kind != "number" or suspect.expected is None:
        return f"{suspect.part}\0{suspect.given}"
    return "above" if float(suspect.given) > suspect.expected else "below"


class _Renewal(NamedTuple):
    """A fit of the first `decisions` decisions, and the order that follows from it."""

    decisions: int
    learned: Learned
    order: list[int]


class ReviewSession:
    """One review folder and its log; `initial_sample` random rows come first."""

    def __init__(
        self,
        review: Review,
        log: DecisionLog,
        stop_below: float | None = None,
        initial_sample: int = INITIAL_SAMPLE,
    ) -> None:
        self.review, self.log = review, log
        self.plan = ReviewPlan(review.suspects, review.rest, review.strata, initial_sample)
        self.rest = {suspect.item: suspect for suspect in review.rest}
        self._lock = threading.Lock()
        self._renewal: _Renewal | None = None
        if log.setting(self._name("sample")) == "skipped":
            self.plan.initial_sample = 0
        if stop_below is not None:
            self.set_stop(stop_below)
        if review.strata is not None:
            design = {"design": 1, **review.strata.to_dict(), "suspects": review.digest}
            log.start_design(json.dumps(design, sort_keys=True))
        self.draw_if_due()

    def state(self) -> ReviewState:
        """Return what the log says has been decided, skipped and drawn."""
        states, since = self.log.states(), self.log.since
        settled = {
            s.row: Settled(since.get(s.row, 0), s.action != "keep")
            for s in states
            if s.action in SETTLED
        }
        return ReviewState(settled, [s.row for s in states if s.action == "skip"], self.log.draws)

    def draw_if_due(self, *, asked: bool = False) -> None:
        """Draw the next spot check if one is due, or if the person asks for one."""
        state = self.state()
        if self.plan.due(state) or (asked and state.waiting is None):
            self.log.draw(lambda: self.plan.draw(self.state()), len(state.draws))

    def skip_sample(self) -> None:
        """End the initial sample and go on with the most suspicious rows."""
        self.plan.initial_sample = 0
        self.log.setting(self._name("sample"), "skipped")

    def renewal(self) -> _Renewal:
        """Return the fit and the order for the decisions so far, computed if they are due."""
        with self._lock:
            state = self.state()
            due = len(state.settled) // RENEWED_EVERY * RENEWED_EVERY
            if self._renewal is None or self._renewal.decisions != due:
                first = sorted(state.settled.items(), key=lambda pair: pair[1].since)[:due]
                learned = self.plan.learned(ReviewState(dict(first)))
                self._renewal = _Renewal(due, learned, self.plan.order(state, learned))
            return self._renewal

    def probability(self, item: int) -> float:
        """Return the probability that the label of an item is wrong, as last fitted."""
        fitted = self._renewal or self.renewal()
        return float(fitted.learned.probabilities[self.plan.place[item]])

    def status(self, since: int) -> dict[str, Any]:
        """Return what changed after version `since`, what undo and redo would do, the spot checks,
        the counts, and what is left."""
        state, log = self.state(), self.log
        framed = self.review.strata is not None
        fitted = (self._renewal if framed else None) or self.renewal()
        counts: dict[str, int] = dict.fromkeys(ACTIONS, 0)
        for suspect in (*self.review.suspects, *self.drawn()):
            counts[log.state(suspect.item).action] += 1
        turns = {"undo": log.undoable(), "redo": log.redoable()}
        left = asdict(self.plan.remaining(state, fitted.learned))
        rows = 0 if self.review.strata is None else self.review.strata.rows
        stop = left["sure"] is not None and left["sure"] <= self.stop_below * rows
        found = sum(each.wrong for each in state.settled.values())
        return {
            "version": log.version,
            "changes": [asdict(decision) for decision in log.states(since)],
            **{n: s and {"version": s.version, "row": s.row} for n, s in turns.items()},
            "counts": counts,
            "renewals": len(state.settled) // RENEWED_EVERY * RENEWED_EVERY if framed else 0,
            "spots": [
                [each.row, entry(self.rest[each.row]) if each.row in self.rest else None]
                for each in state.draws
                if each.at >= since and each.row in self.plan.place
            ],
            "waiting": state.waiting,
            "remaining": left
            | {"found": found, "all": rows, "stop_below": self.stop_below, "stop": stop},
            "contradictions": self.plan.contradictions(state),
            "sample": self.plan.initial_sample,
        }

    def drawn(self) -> list[Suspect]:
        """Return the unlisted rows that were drawn as spot checks."""
        return [self.rest[each.row] for each in self.log.draws if each.row in self.rest]

    def shows(self, item: int) -> bool:
        """Return True for suspects and drawn rows; the person must not choose other rows."""
        if item in self.rest:
            return any(item == suspect.item for suspect in self.drawn())
        return item in self.review.lines

    @property
    def stop_below(self) -> float:
        """The fraction of all rows that may be left wrong."""
        return float(self.log.setting(self._name("stop-below")) or _STOP_BELOW)

    def set_stop(self, share: float) -> None:
        """Store the fraction of wrong rows below which the person wants to stop."""
        self.log.setting(self._name("stop-below"), repr(checked_share(share)))

    def _name(self, setting: str) -> str:
        return f"{setting} {self.review.key.partition(' ')[0]}"


def entry(suspect: Suspect) -> list[Any]:
    """Return a line of the list, with the `FIELDS`."""
    return [getattr(suspect, name) for name in FIELDS]


def checked_share(share: float) -> float:
    """Return the share if it lies between 0 and 1."""
    if not 0.0 < share < 1.0:
        raise ExemplaError(
            f"The fraction of wrong rows to stop below must lie between 0 and 1, such as 0.01 for "
            f"1 %; {share} does not."
        )
    return share
