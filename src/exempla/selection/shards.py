"""How questions reach the parts, and what travels.

An exchange is one round trip to all places at once: the orders that have gathered since the last
one (`tell`), then a question (`ask`). Whatever carries it implements `_deliver`; what it carries
are bytes, so that they can be counted, kept, and sent again to a place that lost its state.

What stands where the rows are: one part, its race, and the questions it answers.

All numbers of rows are the part's own, from 0, but for rows to drop: those are told to everybody
in the numbers of all rows. Besides leaders a part shows a few rows at a time
in full, those among which the next picks are guessed (`ahead`): the asker then has their features,
so that only rows that are new to it travel.

Several parts that answer as one: what the greedy loop sees of rows that are elsewhere.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from exempla.selection.rows import Leaders, Pool, Race, Rows, Rule, Steps, Swept
from exempla.selection.selectors import Continuation, Outcome, Problem, Selector


@dataclass(frozen=True)
class _Shown:
    """Some rows of a single target's race as they stand; features only of those that are new."""

    rows: np.ndarray
    """Ascending."""
    c: np.ndarray
    n: np.ndarray
    new: np.ndarray
    """Positions in `rows` whose features follow."""
    features: np.ndarray


@dataclass(frozen=True)
class _PartSwept:
    """What a sweep found in a part."""

    near: list[np.ndarray | None]
    shown: _Shown


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

    def refresh(self, targets: list[int], residuals: np.ndarray) -> tuple[Leaders, _Shown | None]:
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

    def best(self, count: int) -> tuple[np.ndarray, _Shown]:
        """`Race.best`; those rows and the ones shown before are shown."""
        best = self.race.best(count)
        return best, self._show(np.union1d(self.shown, best))

    def show(self, rows: np.ndarray) -> _Shown:
        """These rows, and the ones shown before."""
        return self._show(np.union1d(self.shown, rows))

    def sweep(self, steps: Steps, limit: int, share: float, fair: int) -> _PartSwept:
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
        return _PartSwept(found.near, self._show(np.unique(np.concatenate([hopeful, *near]))))

    def keep(self, count: int) -> None:
        """`Race.keep`."""
        self.race.keep(count)

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        c, n = self.race.standing(rows)
        scores = self.rule.score(c, n, self.rows.norms2[rows], self.noise)
        return np.where(n > self.rows.tolerance * self.rows.norms2[rows], scores, -np.inf)

    def _show(self, rows: np.ndarray) -> _Shown:
        new = np.flatnonzero(~np.isin(rows, self.sent, assume_unique=True))
        self.shown = self.sent = rows
        c, n = self.race.standing(rows)
        return _Shown(rows, c, n, new, self.race.features(rows[new]))

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


def joined(parts: list[_Shown], offsets: Sequence[int], have: _Shown | None) -> _Shown:
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
    return _Shown(rows, c, n, np.arange(len(rows)), features)


class Call(NamedTuple):
    """A method of `Part` with its arguments."""

    name: str
    args: tuple = ()
    own: Sequence[tuple] | None = None
    """Further arguments of each part, if they differ."""

    def at(self, first: int, last: int) -> Call:
        """The call as the parts first … last − 1 get it."""
        return self if self.own is None else Call(self.name, self.args, self.own[first:last])


_LOOKING = {
    "describe", "project", "align", "energy", "take", "choose", "firsts", "contenders", "leaders"
}  # fmt: skip
"""Calls that leave a part as it is."""


class Effect(Enum):
    """What a message does to the state of a place."""

    NONE = "none"
    CHANGES = "changes"
    BEGINS = "begins"
    """What was before no longer counts."""

    @staticmethod
    def of(calls: Sequence[Call]) -> Effect:
        """The effect of these calls in turn."""
        names = {call.name for call in calls}
        if "open_race" in names:
            return Effect.BEGINS
        return Effect.NONE if names <= _LOOKING else Effect.CHANGES


@dataclass
class Traffic:
    """What has travelled so far."""

    exchanges: int = 0
    """Round trips, one after the other; each goes to all places at once."""
    sent: int = 0
    """Bytes to all places together."""
    received: int = 0
    restarts: int = 0
    """Places that were lost and brought back to where they had been."""

    def since(self, earlier: Traffic) -> Traffic:
        """What travelled after another moment.

        >>> Traffic(5, 80, 60).since(Traffic(3, 50, 50))
        Traffic(exchanges=2, sent=30, received=10, restarts=0)
        """
        before = asdict(earlier)
        return Traffic(**{name: value - before[name] for name, value in asdict(self).items()})

    def copy(self) -> Traffic:
        """This moment, to compare with a later one."""
        return Traffic(**asdict(self))


def packed(thing: Any) -> bytes:
    """As it travels."""
    return pickle.dumps(thing, protocol=5)


def unpacked(data: bytes) -> Any:
    """What was packed: only ever by this program, for itself."""
    return pickle.loads(data)


class Exchange(ABC):
    """Parts in places: place i holds the parts places[i] … places[i + 1] − 1."""

    def __init__(self, places: list[int]) -> None:
        self.places = places
        self.traffic = Traffic()
        self._orders: list[Call] = []

    def tell(self, call: Call) -> None:
        """Let all parts do this before the next question; nobody waits for it."""
        self._orders.append(call)

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        """Every part's answer, after the orders; or that of some places alone, whose answer must
        not depend on orders."""
        orders = [] if of is not None else self._orders
        if of is None:
            self._orders = []
        cuts = list(pairwise(self.places))
        wanted = range(len(cuts)) if of is None else of
        calls = [*orders, call]
        if all(one.own is None for one in calls):
            message = packed(calls)
            messages = dict.fromkeys(wanted, message)
        else:
            messages = {i: packed([one.at(*cuts[i]) for one in calls]) for i in wanted}
        answers = self._deliver(messages, Effect.of(calls))
        self.traffic.exchanges += 1
        self.traffic.sent += sum(map(len, messages.values()))
        self.traffic.received += sum(map(len, answers.values()))
        # each is let go as it is unpacked: some have a number for every row
        return [answer for place in wanted for answer in unpacked(answers.pop(place))]

    @abstractmethod
    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        """Carry messages to places and bring their answers."""

    def close(self) -> None:
        """Let the places go."""
        return


class LocalExchange(Exchange):
    """All parts in this process: nothing travels."""

    def __init__(self, parts: Parts) -> None:
        super().__init__([0, len(parts.parts)])
        self.parts = parts

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        if of is not None:
            return self.parts.answer([call])
        orders, self._orders = self._orders, []
        self.traffic.exchanges += 1
        return self.parts.answer([*orders, call])

    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        return {place: packed(self.parts.answer(unpacked(m))) for place, m in messages.items()}


class ShardedRows(Rows):
    """The rows of all parts, in the order of the parts."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        about = exchange.ask(Call("describe"))
        self.bounds = np.concatenate([[0], np.cumsum([t for t, *_ in about])]).tolist()
        self.t, self.p = self.bounds[-1], about[0][1]
        # parts of one array have one tolerance; of several types, the coarsest counts
        self.tolerance = max(tolerance for _, _, tolerance, _ in about)
        self.norms2 = np.concatenate([norms2 for *_, norms2 in about])
        self.shown: _Shown | None = None
        """Rows that are at hand: nobody need be asked for them."""

    @property
    def places(self) -> list[int]:
        """The place of each part."""
        cuts = pairwise(self.exchange.places)
        return [place for place, (a, b) in enumerate(cuts) for _ in range(a, b)]

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return np.concatenate(self.exchange.ask(Call("project", (vectors,))), axis=1)

    def align(self, targets: np.ndarray) -> np.ndarray:
        return np.concatenate(self.exchange.ask(Call("align", (targets,))), axis=1)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        return np.concatenate(self.exchange.ask(Call("energy", (directions,))))

    def take(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        out = np.empty((len(indices), self.p))
        missing = np.ones(len(indices), bool)
        if self.shown is not None and len(self.shown.rows):
            at = np.searchsorted(self.shown.rows, indices).clip(max=len(self.shown.rows) - 1)
            missing = self.shown.rows[at] != indices
            out[~missing] = self.shown.features[at[~missing]]
        if missing.any():
            out[missing] = self._fetched(indices[missing])
        return out

    def _fetched(self, indices: np.ndarray) -> np.ndarray:
        """Rows from those who have them."""
        owner = np.searchsorted(self.bounds, indices, side="right") - 1
        places = self.places
        asked = sorted({places[s] for s in owner.tolist()})
        parts = [s for s in range(len(places)) if places[s] in asked]
        own = [(indices[owner == s] - start,) for s, start in enumerate(self.bounds[:-1])]
        answers = self.exchange.ask(Call("take", (), own), of=asked)
        out = np.empty((len(indices), self.p))
        for s, rows in zip(parts, answers):
            out[owner == s] = rows
        return out

    def split(self, bounds: list[int]) -> list[Rows]:
        raise NotImplementedError("rows that are elsewhere stay in the parts they are in")

    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        return ShardedRace(self, candidates, noise, rule)

    # -- a part at a time ---------------------------------------------------------------------

    def of_parts(self, values: np.ndarray) -> list[tuple[np.ndarray]]:
        """Values of all rows along the last axis, cut into those of each part."""
        return [(values[..., start:stop],) for start, stop in pairwise(self.bounds)]

    def close(self) -> None:
        """Let the parts go."""
        self.exchange.close()


class ShardedRace(Race):
    """The parts' races; what is global is only the leader, and the few rows that are shown."""

    most_ahead, panel = 32, 16
    pools = 256, 1024

    def __init__(self, rows: ShardedRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        self.rows, self.bounds, self.fair = rows, rows.bounds, 1
        self.noise, self.rule = noise, rule
        self.steps: Steps
        """Those of the last sweep."""
        rows.shown = None
        own = [(start, *mine) for start, mine in zip(rows.bounds, rows.of_parts(candidates))]
        errors = self._ask("open_race", noise, rule, own=own)
        self.error = max(errors)

    def _ask(self, name: str, *args: Any, own: list[tuple] | None = None) -> list[Any]:
        return self.rows.exchange.ask(Call(name, args, own))

    def _tell(self, name: str, *args: Any, own: list[tuple] | None = None) -> None:
        self.rows.exchange.tell(Call(name, args, own))

    # -- a pick a pass ------------------------------------------------------------------------

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        answers = self._ask("refresh", targets, residuals)
        if answers[0][1] is not None:
            self._show([shown for _, shown in answers])
        return self._overall([leaders for leaders, _ in answers])

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        return self._overall(self._ask("update", directions, coefs))

    def leaders(self) -> Leaders:
        return self._overall(self._ask("leaders"))

    def _overall(self, proposals: list[Leaders]) -> Leaders:
        scores = np.stack([proposal.scores for proposal in proposals])
        offsets = np.array(self.bounds[:-1])[:, None]
        rows = np.stack([proposal.rows for proposal in proposals])
        rows = np.where(rows >= 0, rows + offsets, -1)
        best = np.argmax(scores, axis=0)  # the first part among equals: the lowest index
        every = np.arange(scores.shape[1])
        return Leaders(scores[best, every], rows[best, every])

    def firsts(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        found = np.full(len(thresholds), -1)
        answers = self._ask("firsts", thresholds, slack_c, slack_n)
        for rows, start in zip(answers, self.bounds):
            found = np.where((found < 0) & (rows >= 0), rows + start, found)
        return found

    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        found = self._ask("contenders", target, threshold, slack_c, slack_n, limit)
        return self._global(found)[:limit]

    def _global(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([rows + start for rows, start in zip(found, self.bounds)])

    def deflate(self, target: int, energy: np.ndarray) -> None:
        self._tell("deflate", target, own=self.rows.of_parts(energy))

    def drop(self, targets: list[int], rows: list[int]) -> None:
        # the same message to all: at a thousand parts, one of its own for each would cost more
        self._tell("drop", targets, rows)
        if self.rows.shown is not None:
            self.rows.shown.n[np.isin(self.rows.shown.rows, rows)] = -np.inf

    def sharpen(self) -> None:
        self.error = max(self._ask("sharpen"))

    # -- several picks a pass -----------------------------------------------------------------

    def best(self, count: int) -> np.ndarray:
        """About so many: each part gives its fair share, or all it has. Guessing asks for no more,
        and no part need know what the others have."""
        self.fair = -(-count // (len(self.bounds) - 1))
        answers = self._ask("best", self.fair)
        self._show([shown for _, shown in answers])
        return self._global([best for best, _ in answers])

    def sweep(self, steps: Steps, limit: int, share: float) -> Swept:
        self.steps = steps
        answers = self._ask("sweep", steps, limit, share, self.fair)
        self._show([answer.shown for answer in answers])
        near: list[np.ndarray | None] = []
        for step in range(len(steps)):
            found = [answer.near[step] for answer in answers]
            known = [rows for rows in found if rows is not None]
            full = len(known) < len(found) or sum(map(len, known)) > limit
            near.append(None if full else self._global(known))
        assert self.rows.shown is not None
        return Swept(near, self.rows.shown.rows)

    def keep(self, count: int) -> None:
        """The parts hear of it with the next question; the rows at hand go along."""
        self._tell("keep", count)
        shown = self.rows.shown
        assert shown is not None
        directions = self.steps.directions[:count].astype(shown.features.dtype)
        V = (shown.features @ directions.T).astype(np.float64)
        c, n = shown.c - V @ self.steps.coefs[:count], shown.n - np.vecdot(V, V)
        self.rows.shown = replace(shown, c=c, n=n)

    def pool(self, rows: np.ndarray) -> Pool:
        if self.rows.shown is None or not np.isin(rows, self.rows.shown.rows).all():
            cuts = np.searchsorted(rows, self.bounds)
            every = zip(pairwise(cuts), self.bounds)
            self._show(self._ask("show", own=[(rows[a:b] - start,) for (a, b), start in every]))
        shown = self.rows.shown
        assert shown is not None
        at = np.searchsorted(shown.rows, rows)
        features = shown.features if len(rows) == len(shown.rows) else shown.features[at]
        norms2 = self.rows.norms2[rows]
        floor, scale = self.rows.tolerance * norms2, self.rule.scale(norms2, self.noise)
        return Pool(rows, features, shown.c[at], shown.n[at], floor, scale, self.rule)

    def _show(self, parts: list[_Shown]) -> None:
        self.rows.shown = joined(parts, self.bounds, self.rows.shown)
