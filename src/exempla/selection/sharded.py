"""`Sharded`: run a selector on rows that are kept in several parts, wherever the parts are.

In exact mode every part computes its own scores and proposes its leaders; each pick is sent to all
parts as a direction, so that p numbers per pick travel. Rows do not travel, except for the few
promising ones among which the next picks are guessed and those that must be scored again. They
travel with the answer that names them, so that a pass is one round trip.

A `Backend` decides where the parts are: in this process or, by name, on other machines
(`exempla.distributed`). `Part` holds rows and their scores where the rows are. A `Transport`
delivers calls to all parts and returns their answers; `ShardedRows` and `ShardedCandidates` are
what the greedy loop sees.

One round trip reaches all parts at once: the calls queued since the last one (`tell`), then a call
with an answer (`ask`). A transport implements `_deliver` and carries bytes, so that messages can be
counted (`Traffic`). A part that was restarted without its scores raises `StateLostError`, and the
greedy loop opens the scores again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from exempla.arrays import Array
from exempla.checks import check_choice, whole_number
from exempla.errors import ExemplaError
from exempla.results import Selection
from exempla.selection.candidate_scores import CandidateScores, Leaders, LookaheadPool, Steps, Swept
from exempla.selection.rows import ArrayRows, Rows, Rule, StateLostError
from exempla.selection.select import as_rows
from exempla.selection.selectors import Problem, Selector

_MAX_SENT_TIES = 1024
"""Rows to be scored again whose features a part sends unasked; more are fetched if needed."""


class Call(NamedTuple):
    """A method of `Part`, of its rows or of its scores, with arguments."""

    name: str
    args: tuple = ()
    per_part: Sequence[tuple] | None = None
    """Further arguments of each part, if they differ."""

    def of(self, part: int) -> Call:
        """Return the call with the arguments of one part."""
        return self if self.per_part is None else Call(self.name, self.args + self.per_part[part])


class Part:
    """Rows and their scores in one place.

    Row numbers are local, from 0, except for `drop`, which every part receives with global numbers.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.scores: Any = None
        self.start = 0
        self.shown = np.empty(0, np.int64)
        """Rows whose features the caller holds."""

    def answer(self, calls: Sequence[Call]) -> Any:
        """Make these calls in turn; return the answer to the last one."""
        found: Any = None
        for name, args, _ in calls:
            owners = (owner for owner in (self, self.rows) if hasattr(owner, name))
            found = getattr(next(owners, None) or self._opened(), name)(*args)
        return found

    def _opened(self) -> Any:
        if self.scores is None:
            raise StateLostError
        return self.scores

    def describe(self) -> tuple[int, int, float, np.ndarray]:
        """Return t, p, tolerance and squared norms."""
        return self.rows.t, self.rows.p, self.rows.tolerance, self.rows.norms2

    def choose(
        self, selector: Selector, k: int, targets: Array, sides: Any, z: Array, candidates: Array
    ) -> list[tuple[np.ndarray, float]]:
        """Run a selector on this part alone; return rows and variance for each target."""
        starts = (None,) * len(targets)
        problem = Problem(self.rows, targets, z, candidates, sides, starts)
        return [(found.indices, found.variance) for found in selector.choose(problem, k)]

    def open_scores(
        self, norms: np.ndarray, noise: float, rule: Rule, start: int, candidates: np.ndarray
    ) -> float:
        """Start new scores; `start` is the global number of the first row. Return their error."""
        self.start, self.shown = start, np.empty(0, np.int64)
        self.scores = self.rows.scores(candidates, norms, noise, rule)
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

    def ties(
        self, targets: list[int], slacks: np.ndarray, limit: int
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Return the rows of this part that may be its best, and their features if they are few."""
        found = self._opened().ties(targets, slacks, limit)
        rows = np.concatenate(found)
        return found, self.rows.take(rows) if len(rows) <= _MAX_SENT_TIES else None

    def sweep(self, steps: Steps, limit: int, fraction: float, most: int) -> tuple[Any, Any]:
        """Sweep this part; return the near rows, and about `most` promising ones."""
        scores = self._opened()
        near, promising = scores.sweep(steps, limit, fraction)
        if len(promising) > most:
            promising = np.intersect1d(promising, scores.best(most))
            promising = np.unique(np.concatenate([promising, *(x for x in near if x is not None)]))
        return near, self._show(promising)

    def best(self, count: int) -> tuple[np.ndarray, ...]:
        """Return the `count` rows of highest score, and those shown before."""
        return self._show(np.union1d(self._opened().best(count), self.shown))

    def _show(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return rows, c and n, which of them were not shown before, and the features of those."""
        pool, new = self._opened().pool(rows), ~np.isin(rows, self.shown)
        self.shown = rows
        return rows, pool.c, pool.n, new, pool.features[new]


_STATELESS = {"describe", "project", "align", "energy", "take", "choose"}
"""Calls whose answers do not depend on earlier calls: they may be sent again."""


@dataclass
class Traffic:
    """Messages exchanged so far."""

    exchanges: int = 0
    """Consecutive round trips; each reaches all parts at once."""
    sent: int = 0
    """Bytes sent to all parts together."""
    received: int = 0
    restarts: int = 0
    """Parts that were lost and restored."""

    def since(self, earlier: Traffic) -> Traffic:
        """Return the difference to an earlier count."""
        before = asdict(earlier)
        return Traffic(**{name: value - before[name] for name, value in asdict(self).items()})


packed, unpacked = partial(pickle.dumps, protocol=5), pickle.loads
"""Messages are written and read by this program alone."""


class Transport:
    """Deliver calls to `size` parts."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.traffic = Traffic()
        self._queued: list[Call] = []

    def tell(self, name: str, *args: Any, per_part: Sequence[tuple] | None = None) -> None:
        """Queue a call without an answer; it travels with the next question."""
        self._queued.append(Call(name, args, per_part))

    def ask(
        self,
        name: str,
        *args: Any,
        per_part: Sequence[tuple] | None = None,
        of: Sequence[int] | None = None,
    ) -> list[Any]:
        """Return every part's answer to a call, after the queued calls.

        With `of`, ask only these parts; their answer must not depend on queued calls.
        """
        calls = [Call(name, args, per_part)]
        if of is None:
            # New scores make earlier calls about the old ones pointless.
            calls = calls if name == "open_scores" else self._queued + calls
            self._queued = []
        found = self._answers(calls, range(self.size) if of is None else of)
        self.traffic.exchanges += 1
        return found

    def _answers(self, calls: list[Call], wanted: Sequence[int]) -> list[Any]:
        """Return the answers of these parts to the last of the calls."""
        if all(one.per_part is None for one in calls):
            messages = dict.fromkeys(wanted, packed(calls))
        else:
            messages = {i: packed([one.of(i) for one in calls]) for i in wanted}
        stateless = all(one.name in _STATELESS for one in calls)
        answers = self._deliver(messages, stateless)
        self.traffic.sent += sum(map(len, messages.values()))
        self.traffic.received += sum(map(len, answers.values()))
        # Each message is freed as it is unpacked: some have a number for every row.
        return [unpacked(answers.pop(i)) for i in wanted]

    def _deliver(self, messages: dict[int, bytes], stateless: bool) -> dict[int, bytes]:
        """Send messages to parts and return their answers; stateless ones may be repeated."""
        raise NotImplementedError


class LocalTransport(Transport):
    """All parts in this process: nothing travels."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(len(parts))
        self.parts = parts

    def _answers(self, calls: list[Call], wanted: Sequence[int]) -> list[Any]:
        return [self.parts[i].answer([one.of(i) for one in calls]) for i in wanted]


class ShardedRows(Rows):
    """The rows of all parts, in the order of the parts."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        about = transport.ask("describe")
        self.bounds = np.concatenate([[0], np.cumsum([t for t, *_ in about])]).tolist()
        self.t, self.p = self.bounds[-1], about[0][1]
        # Parts of one array have one tolerance; with several dtypes the coarsest counts.
        self.tolerance = max(tolerance for _, _, tolerance, _ in about)
        self.norms2 = np.concatenate([norms2 for *_, norms2 in about])
        self.fetched: dict[int, np.ndarray] = {}
        """Features that came with other answers, by row."""

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask("project", vectors), axis=1)

    def align(self, targets: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask("align", targets), axis=1)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        return np.concatenate(self.transport.ask("energy", directions))

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return rows from the parts that hold them, unless their features have arrived already."""
        indices = np.asarray(indices, np.int64)
        out = np.empty((len(indices), self.p))
        if all(j in self.fetched for j in indices.tolist()):
            for i, j in enumerate(indices.tolist()):
                out[i] = self.fetched[j]
            return out
        owner = np.searchsorted(self.bounds, indices, side="right") - 1
        asked = np.unique(owner).tolist()
        per_part = [(indices[owner == s] - start,) for s, start in enumerate(self.bounds[:-1])]
        for s, rows in zip(asked, self.transport.ask("take", per_part=per_part, of=asked)):
            out[owner == s] = rows
        return out

    def scores(
        self, candidates: np.ndarray, target_norms: np.ndarray, noise: float, rule: Rule
    ) -> CandidateScores:
        return ShardedCandidates(self, candidates, target_norms, noise, rule)

    def per_part(self, values: np.ndarray) -> list[tuple[np.ndarray]]:
        """Cut values of all rows (last axis) into those of each part."""
        return [(values[..., start:stop],) for start, stop in pairwise(self.bounds)]


class ShardedCandidates(CandidateScores):
    """The scores of all parts; only the leaders and the pool of promising rows are global."""

    max_lookahead, lookahead_batch = 32, 16
    pool_sizes = 256, 1024

    def __init__(
        self, rows: ShardedRows, candidates: Array, target_norms: Array, noise: float, rule: Rule
    ) -> None:
        self.rows, self.bounds, self.noise, self.rule = rows, rows.bounds, noise, rule
        rows.fetched = {}
        self._ask, self._tell = rows.transport.ask, rows.transport.tell
        self._steps: Steps
        self._pool: LookaheadPool | None = None
        """The rows shown last, with their c and n before the steps of the last sweep."""
        per_part = [(start, *mine) for start, mine in zip(rows.bounds, rows.per_part(candidates))]
        self.error = max(self._ask("open_scores", target_norms, noise, rule, per_part=per_part))

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        if self._pool is not None:
            self._pool.c = self._pool.features @ residuals[0]
        return self._overall(self._ask("refresh", targets, residuals))

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        return self._overall(self._ask("update", directions, coefs))

    def leaders(self) -> Leaders:
        return self._overall(self._ask("leaders"))

    def _overall(self, found: list[Leaders]) -> Leaders:
        return Leaders.merged([
            one._replace(rows=np.where(one.rows >= 0, one.rows + start, -1))
            for one, start in zip(found, self.bounds)
        ])  # fmt: skip

    def ties(self, targets: list[int], slacks: np.ndarray, limit: int) -> list[np.ndarray]:
        answers = self._ask("ties", targets, slacks, limit)
        for (near, features), start in zip(answers, self.bounds):
            if features is not None:
                rows = (np.concatenate(near) + start).tolist()
                self.rows.fetched.update(zip(rows, features, strict=True))
        return [self._global(list(each))[:limit] for each in zip(*(near for near, _ in answers))]

    def _global(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([rows + start for rows, start in zip(found, self.bounds)])

    def deflate(self, target: int, energy: np.ndarray) -> None:
        self._tell("deflate", target, per_part=self.rows.per_part(energy))

    def drop(self, targets: list[int], rows: list[int]) -> None:
        # The same message for all: with a thousand parts, individual messages would cost more.
        self._tell("drop", targets, rows)
        if self._pool is not None:
            self._pool.n[np.isin(self._pool.rows, rows)] = -np.inf

    def to_float64(self) -> None:
        self.error = max(self._ask("to_float64"))

    def best(self, count: int) -> np.ndarray:
        """Return about `count` good rows: each part contributes an equal number of its best."""
        return self._learn(self._ask("best", self._quota(count)))

    def _quota(self, count: int) -> int:
        """Return the share of each part in `count` rows."""
        return -(-count // (len(self.bounds) - 1))

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        answers = self._ask("sweep", steps, limit, fraction, 2 * self._quota(self.pool_sizes[1]))
        near: list[np.ndarray | None] = []
        for found in zip(*(near for near, _ in answers)):
            known = [rows for rows in found if rows is not None]
            full = len(known) < len(found) or sum(map(len, known)) > limit
            near.append(None if full else self._global(known))
        self._steps = steps
        return Swept(near, self._learn([shown for _, shown in answers]))

    def _learn(self, shown: list[tuple[np.ndarray, ...]]) -> np.ndarray:
        """Make the rows that the parts show the pool; return their numbers."""
        local, *others = zip(*shown)
        rows, (c, n, new, sent) = self._global(list(local)), map(np.concatenate, others)
        self.rows.fetched.update(zip(rows[new].tolist(), sent, strict=True))
        self.rows.fetched = {j: self.rows.fetched[j] for j in rows.tolist()}
        features = np.array(list(self.rows.fetched.values()), sent.dtype).reshape(-1, self.rows.p)
        norms2 = self.rows.norms2[rows]
        whole = None if self.rule is Rule.GAIN else norms2 + self.noise
        self._pool = LookaheadPool(rows, features, c, n, self.rows.tolerance * norms2, whole)
        return rows

    def commit(self, count: int) -> None:
        self._tell("commit", count)
        assert self._pool is not None  # a sweep was made
        for q, coef in zip(self._steps.directions[:count], self._steps.coefs.tolist()):
            self._pool.step(-1, q, coef)

    def pool(self, rows: np.ndarray) -> LookaheadPool:
        assert self._pool is not None  # `best` or `sweep` named these rows
        return replace(self._pool, c=self._pool.c.copy(), n=self._pool.n.copy())


class Backend:
    """Decide where the parts of `Sharded` are placed."""

    def opened(self, features: Any, shards: int) -> AbstractContextManager[ShardedRows]:
        """Return a context in which the rows are available in parts."""
        raise NotImplementedError


class Local(Backend):
    """Keep the parts in this process."""

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """Split the rows into views."""
        whole = as_rows(features)
        assert isinstance(whole, ArrayRows)  # `Sharded.placed` returns other rows as they are
        array, bounds = whole.array, pairwise(cuts_of(whole.t, shards))
        parts = (array.part(a, b) if whole.is_stored else array[a:b] for a, b in bounds)
        places = [Part(ArrayRows(part, whole.tolerance)) for part in parts]
        yield ShardedRows(LocalTransport(places))


def cuts_of(t: int, shards: int) -> list[int]:
    """Return the bounds of `shards` parts of t rows, or of t parts if there are fewer rows."""
    return [int(b) for b in np.linspace(0, t, min(shards, t) + 1)]


BACKENDS = ("local", "ray", "torch")


def resolve(backend: str | Backend) -> Backend:
    """Return the backend of this name, or the one given."""
    if isinstance(backend, Backend):
        return backend
    if check_choice("backend", backend, BACKENDS) == "local":
        return Local()
    from exempla.distributed import OnRay, OnTorch

    return OnRay() if backend == "ray" else OnTorch()


@dataclass(frozen=True)
class Sharded(Selector):
    """Run a selector on rows that are kept in several parts.

    Parameters
    ----------
    selector : Selector
        The algorithm to run.
    shards : int, default 4
        Number of parts.
    mode : {"exact", "two-round"}, default "exact"
        "exact" returns the picks of the selector on all rows. "two-round" lets every part select k
        rows by itself, selects k among all of those, and returns the better of this and the best
        part: few messages, and a residual that may be several times larger.
    backend : {"local", "ray", "torch"} or Backend, default "local"
        Where the parts are: in this process; on the workers of a Ray cluster
        (`exempla.distributed.OnRay`), which open stored rows by path; or one with each process of a
        torch.distributed group (`exempla.distributed.OnTorch`), where every process calls with its
        own rows and gets the picks from all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import SBQ, Sharded, select
    >>> rows = np.random.default_rng(0).standard_normal((40, 5))
    >>> sharded = select(rows, rows.mean(axis=0), 4, Sharded(SBQ(), shards=3))
    >>> bool((sharded.indices == select(rows, rows.mean(axis=0), 4).indices).all())
    True
    """

    selector: Selector
    shards: int = 4
    mode: Literal["exact", "two-round"] = "exact"
    backend: str | Backend = "local"

    def __post_init__(self) -> None:
        if not isinstance(self.selector, Selector):
            raise ExemplaError(f"Sharded wraps a selector such as SBQ(), not {self.selector!r}")
        if isinstance(self.selector, Sharded):
            raise ExemplaError("Sharded cannot wrap another Sharded; give a selector such as SBQ()")
        if not whole_number(self.shards) or self.shards < 1:
            raise ExemplaError(f"shards is {self.shards!r}; give a whole number of at least 1")
        check_choice("mode", self.mode, ("exact", "two-round"))
        resolve(self.backend)

    @property
    def noise(self) -> float:  # type: ignore[override]
        return self.selector.noise

    @property
    def name(self) -> str:
        """Name in results; exact sharding changes no result, so it is not part of the name."""
        inner = self.selector.name
        return inner if self.mode == "exact" else f"Sharded({inner}, two-round)"

    @property
    def continues(self) -> bool:
        return self.mode == "exact" and self.selector.continues

    @contextmanager
    def placed(self, features: Any) -> Iterator[ShardedRows]:
        """Return the rows in parts, unless they are sharded already."""
        if isinstance(features, ShardedRows):
            yield features
            return
        with resolve(self.backend).opened(features, self.shards) as rows:
            yield rows

    def choose(self, problem: Problem, k: int) -> list[Selection]:
        if self.mode == "exact":
            return self.selector.choose(problem, k)
        return self._two_rounds(problem, k)

    def _two_rounds(self, problem: Problem, k: int) -> list[Selection]:
        rows = problem.rows
        assert isinstance(rows, ShardedRows)  # see `placed`
        both = rows.per_part(problem.alignment), rows.per_part(problem.candidates)
        per_part = [(*z, *candidates) for z, candidates in zip(*both)]
        question = "choose", self.selector, k, problem.targets, problem.sides
        # first[s][i]: rows and variance of part s, target i
        first = rows.transport.ask(*question, per_part=per_part)
        results = []
        for i in range(len(problem.targets)):
            found = [(part[i][0] + start, part[i][1]) for part, start in zip(first, rows.bounds)]
            best, _ = min(found, key=lambda one: one[1])
            union = np.unique(np.concatenate([indices for indices, _ in found]))
            options = [self._within(problem, i, pool, k) for pool in (union, np.sort(best))]
            results.append(min(options, key=lambda option: option.variance))
        return results

    def _within(self, problem: Problem, i: int, pool: np.ndarray, k: int) -> Selection:
        """Select for target i within a pool of rows."""
        pool = pool if len(pool) else np.zeros(1, np.int64)  # any row: none is a candidate
        rows, one = problem.rows, slice(i, i + 1)
        z, candidates = problem.alignment[one, pool], problem.candidates[one, pool]
        some = ArrayRows(rows.take(pool), rows.tolerance)
        about = problem.targets[one], z, candidates, problem.sides[one], problem.starts[one]
        found = self.selector.choose(Problem(some, *about), k)[0]
        available = int(problem.candidates[i].sum())
        # The pool is exhausted, not the problem: the parts had kept everything that is new.
        exhausted = found.stopped == "candidates" and len(found) < available
        stopped = "rank" if exhausted else found.stopped
        own = {"selector": self.name, "candidates": available, "stopped": stopped}
        return replace(found, indices=pool[found.indices], **own)
