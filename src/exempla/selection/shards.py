"""Rows in several parts that behave as one `Rows`, wherever the parts are.

`Part` holds rows and their scores where the rows are. A `Transport` delivers calls to all parts and
returns their answers; `ShardedRows` and `ShardedCandidates` are what the greedy loop sees. Rows do
not travel, except for the few promising ones among which the next picks are guessed
(`lookahead`); the bytes that travel are counted (`Traffic`).

One round trip reaches all places at once: the calls queued since the last one (`tell`), then a call
with an answer (`ask`). A transport implements `_deliver` and carries bytes, so that messages can be
counted. A place that was restarted without its scores raises `StateLostError`, and the greedy loop
opens the scores again.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from exempla.selection.rows import CandidateScores, Leaders, Rows, Rule, StateLostError
from exempla.selection.selectors import Continuation, Outcome, Problem, Selector
from exempla.selection.sweeps import LookaheadScores, Pool, Steps, Swept


class Part:
    """Rows and their scores in one place.

    Row numbers are local, from 0, except for `drop`, which every part receives with global numbers.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.scores: Any = None
        self.start = 0

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of this part, otherwise of its rows or of its scores."""
        for owner in (self, self.rows):
            if hasattr(owner, name):
                return getattr(owner, name)(*args)
        return getattr(self._opened(), name)(*args)

    def _opened(self) -> Any:
        if self.scores is None:
            raise StateLostError
        return self.scores

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

    def open_scores(
        self, norms: np.ndarray, noise: float, rule: Rule, start: int, candidates: np.ndarray
    ) -> float:
        """Start new scores; `start` is the global number of the first row. Return their error."""
        self.start = start
        self.scores = self.rows.scores(candidates, norms, noise, rule, lookahead=True)
        return self.scores.error

    def drop(self, targets: list[int], rows: list[int]) -> None:
        """Remove those of the rows (global numbers) that are in this part."""
        stop = self.start + self.rows.t
        here = [(i, j - self.start) for i, j in zip(targets, rows) if self.start <= j < stop]
        if here:
            self._opened().drop([i for i, _ in here], [j for _, j in here])

    def to_float64(self) -> float:
        """Compute products in float64 from now on; return the new error."""
        scores = self._opened()
        scores.to_float64()
        return scores.error

    def sweep(self, steps: Steps, limit: int, fraction: float, most: int) -> Swept:
        """Sweep this part; return about `most` promising rows, because their features travel."""
        found = self._opened().sweep(steps, limit, fraction)
        if len(found.promising) <= most:
            return found
        return Swept(found.near, np.intersect1d(found.promising, self._opened().best(most)))

    def pool(self, rows: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return c and n of these rows, and the features of those that are new to the caller."""
        found = self._opened().pool(rows)
        return found.c, found.n, found.features[new]


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


_STATELESS = {"describe", "project", "align", "energy", "take", "choose"}
"""Calls whose answers do not depend on earlier calls: they may be sent again."""


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
        # New scores make earlier calls about the old ones pointless.
        before = [] if call.name == "open_scores" else self._queued
        self._queued = []
        return [*before, call]

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
        stateless = all(one.name in _STATELESS for one in calls)
        answers = self._deliver(messages, stateless)
        self.traffic.exchanges += 1
        self.traffic.sent += sum(map(len, messages.values()))
        self.traffic.received += sum(map(len, answers.values()))
        # Each message is freed as it is unpacked: some have a number for every row.
        return [answer for place in wanted for answer in unpacked(answers.pop(place))]

    @abstractmethod
    def _deliver(self, messages: dict[int, bytes], stateless: bool) -> dict[int, bytes]:
        """Send messages to places and return their answers; stateless ones may be repeated."""

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

    def _deliver(self, messages: dict[int, bytes], stateless: bool) -> dict[int, bytes]:
        raise NotImplementedError("calls in this process are not packed")


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

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask(Call("project", (vectors,))), axis=1)

    def align(self, targets: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask(Call("align", (targets,))), axis=1)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask(Call("energy", (directions,))))

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return rows from the parts that hold them."""
        indices = np.asarray(indices, np.int64)
        cuts = pairwise(self.transport.places)
        place_of = [place for place, (a, b) in enumerate(cuts) for _ in range(a, b)]
        owner = np.searchsorted(self.bounds, indices, side="right") - 1
        asked = sorted({place_of[s] for s in owner.tolist()})
        per_part = [(indices[owner == s] - start,) for s, start in enumerate(self.bounds[:-1])]
        out = np.empty((len(indices), self.p))
        if asked:
            answers = self.transport.ask(Call("take", (), per_part), of=asked)
            parts = [s for s, place in enumerate(place_of) if place in asked]
            for s, rows in zip(parts, answers):
                out[owner == s] = rows
        return out

    def scores(
        self,
        candidates: np.ndarray,
        target_norms: np.ndarray,
        noise: float,
        rule: Rule,
        lookahead: bool = False,
    ) -> CandidateScores:
        return ShardedCandidates(self, candidates, target_norms, noise, rule)

    def per_part(self, values: np.ndarray) -> list[tuple[np.ndarray]]:
        """Cut values of all rows (last axis) into those of each part."""
        return [(values[..., start:stop],) for start, stop in pairwise(self.bounds)]


class ShardedCandidates(LookaheadScores):
    """The scores of all parts; only the leaders and the pool of promising rows are global."""

    max_lookahead, lookahead_batch = 32, 16
    pool_sizes = 256, 1024

    def __init__(
        self,
        rows: ShardedRows,
        candidates: np.ndarray,
        target_norms: np.ndarray,
        noise: float,
        rule: Rule,
    ) -> None:
        self.rows, self.bounds, self.noise, self.rule = rows, rows.bounds, noise, rule
        self._pool: Pool | None = None
        per_part = [(start, *mine) for start, mine in zip(rows.bounds, rows.per_part(candidates))]
        opened = self._ask("open_scores", target_norms, noise, rule, per_part=per_part)
        self.error = max(opened)

    def _ask(self, name: str, *args: Any, per_part: list[tuple] | None = None) -> list[Any]:
        return self.rows.transport.ask(Call(name, args, per_part))

    def _tell(self, name: str, *args: Any, per_part: list[tuple] | None = None) -> None:
        self.rows.transport.tell(Call(name, args, per_part))

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        return self._overall(self._ask("refresh", targets, residuals))

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        return self._overall(self._ask("update", directions, coefs))

    def leaders(self) -> Leaders:
        return self._overall(self._ask("leaders"))

    def _overall(self, found: list[Leaders]) -> Leaders:
        return Leaders.merged([
            replace(one, rows=np.where(one.rows >= 0, one.rows + start, -1))
            for one, start in zip(found, self.bounds)
        ])  # fmt: skip

    def ties(
        self,
        targets: list[int],
        thresholds: np.ndarray,
        slack_c: np.ndarray,
        slack_n: np.ndarray,
        limit: int,
    ) -> list[np.ndarray]:
        found = self._ask("ties", targets, thresholds, slack_c, slack_n, limit)
        return [self._global(list(each))[:limit] for each in zip(*found)]

    def _global(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([rows + start for rows, start in zip(found, self.bounds)])

    def deflate(self, target: int, energy: np.ndarray) -> None:
        self._tell("deflate", target, per_part=self.rows.per_part(energy))

    def drop(self, targets: list[int], rows: list[int]) -> None:
        # The same message for all: with a thousand parts, individual messages would cost more.
        self._tell("drop", targets, rows)

    def to_float64(self) -> None:
        self.error = max(self._ask("to_float64"))

    def best(self, count: int) -> np.ndarray:
        """Return about `count` good rows: each part contributes an equal number of its best."""
        return self._global(self._ask("best", self._quota(count)))

    def _quota(self, count: int) -> int:
        """Return the share of each part in `count` rows."""
        return -(-count // (len(self.bounds) - 1))

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        most = 2 * self._quota(self.pool_sizes[1])
        answers: list[Swept] = self._ask("sweep", steps, limit, fraction, most)
        near: list[np.ndarray | None] = []
        for found in zip(*(answer.near for answer in answers)):
            known = [rows for rows in found if rows is not None]
            full = len(known) < len(found) or sum(map(len, known)) > limit
            near.append(None if full else self._global(known))
        return Swept(near, self._global([answer.promising for answer in answers]))

    def commit(self, count: int) -> None:
        self._tell("commit", count)

    def pool(self, rows: np.ndarray) -> Pool:
        new = np.ones(len(rows), bool) if self._pool is None else ~np.isin(rows, self._pool.rows)
        cuts = np.searchsorted(rows, self.bounds)
        each = zip(pairwise(cuts), self.bounds)
        local = [(rows[a:b] - start, new[a:b]) for (a, b), start in each]
        c, n, sent = (np.concatenate(found) for found in zip(*self._ask("pool", per_part=local)))
        features = np.empty((len(rows), self.rows.p), sent.dtype)
        features[new] = sent
        if self._pool is not None:
            features[~new] = self._pool.features[np.searchsorted(self._pool.rows, rows[~new])]
        norms2 = self.rows.norms2[rows]
        whole = None if self.rule is Rule.GAIN else norms2 + self.noise
        self._pool = Pool(rows, features, c, n, self.rows.tolerance * norms2, whole)
        return self._pool
