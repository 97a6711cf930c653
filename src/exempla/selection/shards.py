"""Rows in several parts that behave as one `Rows`, wherever the parts are.

`Part` holds rows and their scores where the rows are. A `Transport` delivers calls to all parts and
returns their answers; `ShardedRows` and `ShardedCandidates` are what the greedy loop sees. Rows do
not travel, except for the few promising ones among which the next picks are guessed
(`lookahead`); the bytes that travel are counted (`Traffic`).

One round trip reaches all places at once: the calls queued since the last one (`tell`), then a call
with an answer (`ask`). A transport implements `_deliver` and carries bytes, so that messages can be
counted, logged, and sent again to a place that lost its state.
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

from exempla.selection.rows import CandidateScores, Leaders, Pool, Rows, Rule, Steps, Swept
from exempla.selection.selectors import Continuation, Outcome, Problem, Selector


@dataclass(frozen=True)
class _Excerpt:
    """Some rows of a single target with their c and n; features only of those not yet sent."""

    rows: np.ndarray
    """Ascending."""
    c: np.ndarray
    n: np.ndarray
    new: np.ndarray
    """Positions in `rows` whose features follow."""
    features: np.ndarray


@dataclass(frozen=True)
class _PartSwept:
    """The result of a sweep in one part."""

    near: list[np.ndarray | None]
    excerpt: _Excerpt


class Part:
    """Rows and their scores in one place.

    Row numbers are local, from 0, except for `drop`, which every part receives with global numbers.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.scores: CandidateScores
        self.start, self.noise, self.rule = 0, 0.0, Rule.GAIN
        self.excerpted = self.sent = np.zeros(0, np.int64)
        """Rows of the last excerpt, and rows whose features the caller has."""

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of this part, otherwise of its rows or of its scores."""
        for owner in (self, self.rows):
            if hasattr(owner, name):
                return getattr(owner, name)(*args)
        return getattr(self.scores, name)(*args)

    def describe(self) -> tuple[int, int, float, np.ndarray]:
        """Return t, p, tolerance and squared norms."""
        return self.rows.t, self.rows.p, self.rows.tolerance, self.rows.norms2

    def choose(
        self,
        selector: Selector,
        targets: np.ndarray,
        sides: tuple[str, ...],
        k: int,
        alignment: np.ndarray,
        candidates: np.ndarray,
    ) -> list[Outcome]:
        """Run a selector on this part alone."""
        starts = (None,) * len(targets)
        problem = Problem(self.rows, targets, alignment, candidates, sides, starts)
        outcomes = selector.choose(problem, k)
        # A part is never continued, so its basis need not travel.
        return [replace(o, state=Continuation(o.state.rows, o.state.target)) for o in outcomes]

    def open_scores(self, noise: float, rule: Rule, start: int, candidates: np.ndarray) -> float:
        """Start new scores; `start` is the global number of the first row. Return their error."""
        self.start, self.noise, self.rule = start, noise, rule
        self.scores = self.rows.scores(candidates, noise, rule)
        self.excerpted = self.sent = np.zeros(0, np.int64)
        return self.scores.error

    def refresh(self, targets: list[int], residuals: np.ndarray) -> tuple[Leaders, _Excerpt | None]:
        """Refresh the scores; for a single target also return the last excerpt again."""
        leaders = self.scores.refresh(targets, residuals)
        return leaders, self._excerpt(self.excerpted) if len(targets) == 1 else None

    def drop(self, targets: list[int], rows: list[int]) -> None:
        """Remove those of the rows (global numbers) that are in this part."""
        stop = self.start + self.rows.t
        here = [(i, j - self.start) for i, j in zip(targets, rows) if self.start <= j < stop]
        if here:
            self.scores.drop([i for i, _ in here], [j for _, j in here])

    def to_float64(self) -> float:
        """Compute products in float64 from now on; return the new error."""
        self.scores.to_float64()
        return self.scores.error

    def best(self, count: int) -> tuple[np.ndarray, _Excerpt]:
        """Return the best rows, and an excerpt of them and the rows of the last excerpt."""
        best = self.scores.best(count)
        return best, self.excerpt(best)

    def excerpt(self, rows: np.ndarray) -> _Excerpt:
        """Return these rows and those of the last excerpt."""
        return self._excerpt(np.union1d(self.excerpted, rows))

    def sweep(self, steps: Steps, limit: int, fraction: float, quota: int) -> _PartSwept:
        """Sweep this part; return an excerpt of its promising rows.

        The excerpt has at least `quota` rows and at most twice as many, plus all rows that may
        have reached a threshold.
        """
        found = self.scores.sweep(steps, limit, fraction)
        promising = found.promising
        if len(promising) < quota:
            promising = np.union1d(promising, self.scores.best(quota))
        elif len(promising) > 2 * quota:
            scores = self._scores(promising)
            promising = promising[np.argpartition(scores, len(scores) - 2 * quota)[-2 * quota :]]
        near = [rows for rows in found.near if rows is not None]
        return _PartSwept(found.near, self._excerpt(np.unique(np.concatenate([promising, *near]))))

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        c, n = self.scores.values(rows)
        scores = self.rule.score(c, n, self.rows.norms2[rows], self.noise)
        return np.where(n > self.rows.tolerance * self.rows.norms2[rows], scores, -np.inf)

    def _excerpt(self, rows: np.ndarray) -> _Excerpt:
        new = np.flatnonzero(~np.isin(rows, self.sent, assume_unique=True))
        self.excerpted = self.sent = rows
        c, n = self.scores.values(rows)
        return _Excerpt(rows, c, n, new, self.scores.features(rows[new]))

    def resend(self) -> None:
        """Send all features again: the caller may have lost them."""
        self.sent = np.zeros(0, np.int64)


class Parts:
    """Several parts in one place: each call goes to all of them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        """Make these calls in turn; return every part's answer to the last one."""
        answers: list[Any] = []
        for name, args, per_part in calls:
            each = per_part or [()] * len(self.parts)
            answers = [part.call(name, *args, *more) for part, more in zip(self.parts, each)]
        return answers


def _merged(parts: list[_Excerpt], offsets: Sequence[int], have: _Excerpt | None) -> _Excerpt:
    """Join the excerpts of all parts, with global row numbers; features that did not travel are
    taken from the previous excerpt."""
    rows = np.concatenate([excerpt.rows + start for excerpt, start in zip(parts, offsets)])
    width = parts[0].features.shape[1]
    dtype = np.result_type(*(excerpt.features.dtype for excerpt in parts))
    features = np.empty((len(rows), width), dtype)
    fresh = np.zeros(len(rows), bool)
    top = 0
    for excerpt in parts:
        features[top + excerpt.new] = excerpt.features
        fresh[top + excerpt.new] = True
        top += len(excerpt.rows)
    if have is not None and not fresh.all():
        features[~fresh] = have.features[np.searchsorted(have.rows, rows[~fresh])]
    c, n = (np.concatenate([getattr(e, name) for e in parts]) for name in ("c", "n"))
    return _Excerpt(rows, c, n, np.arange(len(rows)), features)


class Call(NamedTuple):
    """A method of `Part`, of its rows or of its scores, with arguments."""

    name: str
    args: tuple = ()
    per_part: Sequence[tuple] | None = None
    """Further arguments of each part, if they differ."""

    def slice(self, first: int, last: int) -> Call:
        """Return the call for the parts first … last − 1."""
        if self.per_part is None:
            return self
        return Call(self.name, self.args, self.per_part[first:last])


_READ_ONLY = {
    "describe", "project", "align", "energy", "take", "choose", "first_above", "ties", "leaders"
}  # fmt: skip
"""Calls that do not change a part."""


class Effect(Enum):
    """What a message does to the state of a place."""

    NONE = "none"
    CHANGES = "changes"
    BEGINS = "begins"
    """The earlier state no longer matters."""

    @staticmethod
    def of(calls: Sequence[Call]) -> Effect:
        """Return the effect of a sequence of calls."""
        names = {call.name for call in calls}
        if "open_scores" in names:
            return Effect.BEGINS
        return Effect.NONE if names <= _READ_ONLY else Effect.CHANGES


@dataclass
class Traffic:
    """Messages exchanged so far."""

    exchanges: int = 0
    """Consecutive round trips; each reaches all places at once."""
    sent: int = 0
    """Bytes sent to all places together."""
    received: int = 0
    restarts: int = 0
    """Places that were lost and restored."""

    def since(self, earlier: Traffic) -> Traffic:
        """Return the difference to an earlier count.

        >>> Traffic(5, 80, 60).since(Traffic(3, 50, 50))
        Traffic(exchanges=2, sent=30, received=10, restarts=0)
        """
        before = asdict(earlier)
        return Traffic(**{name: value - before[name] for name, value in asdict(self).items()})

    def copy(self) -> Traffic:
        """Return a copy, to compare with a later count."""
        return replace(self)


def packed(thing: Any) -> bytes:
    """Serialize an object for a message."""
    return pickle.dumps(thing, protocol=5)


def unpacked(data: bytes) -> Any:
    """Deserialize a message, which only this program itself has written."""
    return pickle.loads(data)


class Transport(ABC):
    """Deliver calls to parts in places: place i holds the parts places[i] … places[i + 1] − 1."""

    def __init__(self, places: list[int]) -> None:
        self.places = places
        self.traffic = Traffic()
        self._queued: list[Call] = []

    def tell(self, call: Call) -> None:
        """Queue a call without an answer; it travels with the next question."""
        self._queued.append(call)

    def _flush(self, call: Call, of: Sequence[int] | None) -> list[Call]:
        """Return the calls to make: the queue goes along unless only some places are asked."""
        if of is not None:
            return [call]
        calls, self._queued = [*self._queued, call], []
        return calls

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        """Return every part's answer after the queued calls.

        With `of`, ask only these places; their answer must not depend on queued calls.
        """
        calls = self._flush(call, of)
        cuts = list(pairwise(self.places))
        wanted = range(len(cuts)) if of is None else of
        if all(one.per_part is None for one in calls):
            messages = dict.fromkeys(wanted, packed(calls))
        else:
            messages = {i: packed([one.slice(*cuts[i]) for one in calls]) for i in wanted}
        answers = self._deliver(messages, Effect.of(calls))
        self.traffic.exchanges += 1
        self.traffic.sent += sum(map(len, messages.values()))
        self.traffic.received += sum(map(len, answers.values()))
        # Each message is freed as it is unpacked: some have a number for every row.
        return [answer for place in wanted for answer in unpacked(answers.pop(place))]

    @abstractmethod
    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        """Send messages to places and return their answers."""

    def close(self) -> None:
        """Release the places."""
        return


class LocalTransport(Transport):
    """All parts in this process: nothing travels."""

    def __init__(self, parts: Parts) -> None:
        super().__init__([0, len(parts.parts)])
        self.parts = parts

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        self.traffic.exchanges += of is None
        return self.parts.answer(self._flush(call, of))

    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        return {place: packed(self.parts.answer(unpacked(m))) for place, m in messages.items()}


class ShardedRows(Rows):
    """The rows of all parts, in the order of the parts."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        about = transport.ask(Call("describe"))
        self.bounds = np.concatenate([[0], np.cumsum([t for t, *_ in about])]).tolist()
        self.t, self.p = self.bounds[-1], about[0][1]
        # Parts of one array have one tolerance; with several dtypes the coarsest counts.
        self.tolerance = max(tolerance for _, _, tolerance, _ in about)
        self.norms2 = np.concatenate([norms2 for *_, norms2 in about])
        self.excerpt: _Excerpt | None = None
        """Rows that are available here without asking a part."""

    @property
    def places(self) -> list[int]:
        """The place of each part."""
        cuts = pairwise(self.transport.places)
        return [place for place, (a, b) in enumerate(cuts) for _ in range(a, b)]

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask(Call("project", (vectors,))), axis=1)

    def align(self, targets: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask(Call("align", (targets,))), axis=1)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask(Call("energy", (directions,))))

    def take(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        out = np.empty((len(indices), self.p))
        missing = np.ones(len(indices), bool)
        if self.excerpt is not None and len(self.excerpt.rows):
            at = np.searchsorted(self.excerpt.rows, indices).clip(max=len(self.excerpt.rows) - 1)
            missing = self.excerpt.rows[at] != indices
            out[~missing] = self.excerpt.features[at[~missing]]
        if missing.any():
            out[missing] = self._fetch(indices[missing])
        return out

    def _fetch(self, indices: np.ndarray) -> np.ndarray:
        """Return rows from the parts that hold them."""
        owner = np.searchsorted(self.bounds, indices, side="right") - 1
        places = self.places
        asked = sorted({places[s] for s in owner.tolist()})
        parts = [s for s in range(len(places)) if places[s] in asked]
        per_part = [(indices[owner == s] - start,) for s, start in enumerate(self.bounds[:-1])]
        answers = self.transport.ask(Call("take", (), per_part), of=asked)
        out = np.empty((len(indices), self.p))
        for s, rows in zip(parts, answers):
            out[owner == s] = rows
        return out

    def split(self, bounds: list[int]) -> list[Rows]:
        raise NotImplementedError("sharded rows cannot be split again")

    def scores(self, candidates: np.ndarray, noise: float, rule: Rule) -> CandidateScores:
        return ShardedCandidates(self, candidates, noise, rule)

    def per_part(self, values: np.ndarray) -> list[tuple[np.ndarray]]:
        """Cut values of all rows (last axis) into those of each part."""
        return [(values[..., start:stop],) for start, stop in pairwise(self.bounds)]

    def close(self) -> None:
        """Release the parts."""
        self.transport.close()


class ShardedCandidates(CandidateScores):
    """The scores of all parts; only the leaders and a few promising rows are global."""

    max_lookahead, lookahead_batch = 32, 16
    pool_sizes = 256, 1024

    def __init__(self, rows: ShardedRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        self.rows, self.bounds, self.quota = rows, rows.bounds, 1
        self.noise, self.rule = noise, rule
        self.steps: Steps
        """The steps of the last sweep."""
        rows.excerpt = None
        per_part = [(start, *mine) for start, mine in zip(rows.bounds, rows.per_part(candidates))]
        self.error = max(self._ask("open_scores", noise, rule, per_part=per_part))

    def _ask(self, name: str, *args: Any, per_part: list[tuple] | None = None) -> list[Any]:
        return self.rows.transport.ask(Call(name, args, per_part))

    def _tell(self, name: str, *args: Any, per_part: list[tuple] | None = None) -> None:
        self.rows.transport.tell(Call(name, args, per_part))

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        answers = self._ask("refresh", targets, residuals)
        if answers[0][1] is not None:
            self._receive([excerpt for _, excerpt in answers])
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
        best = np.argmax(scores, axis=0)  # the first part of ties: the lowest index
        every = np.arange(scores.shape[1])
        return Leaders(scores[best, every], rows[best, every])

    def first_above(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        found = np.full(len(thresholds), -1)
        answers = self._ask("first_above", thresholds, slack_c, slack_n)
        for rows, start in zip(answers, self.bounds):
            found = np.where((found < 0) & (rows >= 0), rows + start, found)
        return found

    def ties(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        return self._global(self._ask("ties", target, threshold, slack_c, slack_n, limit))[:limit]

    def _global(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([rows + start for rows, start in zip(found, self.bounds)])

    def deflate(self, target: int, energy: np.ndarray) -> None:
        self._tell("deflate", target, per_part=self.rows.per_part(energy))

    def drop(self, targets: list[int], rows: list[int]) -> None:
        # The same message for all: with a thousand parts, individual messages would cost more.
        self._tell("drop", targets, rows)
        if self.rows.excerpt is not None:
            self.rows.excerpt.n[np.isin(self.rows.excerpt.rows, rows)] = -np.inf

    def to_float64(self) -> None:
        self.error = max(self._ask("to_float64"))

    def best(self, count: int) -> np.ndarray:
        """Return about `count` good rows: each part contributes an equal number of its best."""
        self.quota = -(-count // (len(self.bounds) - 1))
        answers = self._ask("best", self.quota)
        self._receive([excerpt for _, excerpt in answers])
        return self._global([best for best, _ in answers])

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        self.steps = steps
        answers = self._ask("sweep", steps, limit, fraction, self.quota)
        promising = self._receive([answer.excerpt for answer in answers]).rows
        near: list[np.ndarray | None] = []
        for step in range(len(steps)):
            found = [answer.near[step] for answer in answers]
            known = [rows for rows in found if rows is not None]
            full = len(known) < len(found) or sum(map(len, known)) > limit
            near.append(None if full else self._global(known))
        return Swept(near, promising)

    def commit(self, count: int) -> None:
        """Queue the commit for the parts and apply it to the excerpt."""
        self._tell("commit", count)
        excerpt = self.rows.excerpt
        assert excerpt is not None
        directions = self.steps.directions[:count].astype(excerpt.features.dtype)
        V = (excerpt.features @ directions.T).astype(np.float64)
        c, n = excerpt.c - V @ self.steps.coefs[:count], excerpt.n - np.vecdot(V, V)
        self.rows.excerpt = replace(excerpt, c=c, n=n)

    def pool(self, rows: np.ndarray) -> Pool:
        excerpt = self.rows.excerpt
        if excerpt is None or not np.isin(rows, excerpt.rows).all():
            cuts = np.searchsorted(rows, self.bounds)
            each = zip(pairwise(cuts), self.bounds)
            local = [(rows[a:b] - start,) for (a, b), start in each]
            excerpt = self._receive(self._ask("excerpt", per_part=local))
        at = np.searchsorted(excerpt.rows, rows)
        features = excerpt.features if len(rows) == len(excerpt.rows) else excerpt.features[at]
        norms2 = self.rows.norms2[rows]
        floor, scale = self.rows.tolerance * norms2, self.rule.scale(norms2, self.noise)
        return Pool(rows, features, excerpt.c[at], excerpt.n[at], floor, scale, self.rule)

    def _receive(self, parts: list[_Excerpt]) -> _Excerpt:
        self.rows.excerpt = _merged(parts, self.bounds, self.rows.excerpt)
        return self.rows.excerpt
