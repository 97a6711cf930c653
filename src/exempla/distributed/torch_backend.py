"""Parts with the processes of a torch.distributed group: every rank holds its own rows.

All ranks run the same greedy loop on the same answers, so that decisions need not travel: an
exchange is one gathering of what the parts found. A checksum of each question travels along: ranks
that would go different ways (another target, another k, other hardware) stop with a sentence.

The training set embedded by several processes or machines, each a part, into one store.

Everybody runs what one machine alone would run for `Explainer.fit(train, part=(i, n))`: the store
keeps the basis and the Fisher of whoever was first, and everybody's rows are made with those. A
task that is lost is run again and makes what is missing of its part.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from exempla.distributed.ray_backend import OnRay, cluster, ray_module
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.progress import Bar, counter, showing
from exempla.selection.select import as_rows, refuse_unusable
from exempla.selection.sharded import Backend, cuts_of
from exempla.selection.shards import (
    Call,
    Effect,
    Part,
    Parts,
    ShardedRows,
    Transport,
    packed,
    unpacked,
)
from exempla.store import StoredRows


@dataclass(frozen=True)
class OnTorch(Backend):
    """The parts of `Sharded` with the processes of a torch.distributed group.

    Every process calls with rows of its own, an array or stored rows, and with the same target and
    k. Each gets the same picks; their indices count the rows of rank 0 first, then those of rank 1,
    and so on. Rows on a GPU stay there.

    Parameters
    ----------
    group : process group, optional
        The default one if not given.
    """

    group: Any = None

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """The rows of all ranks; `shards` is theirs, so it is not looked at."""
        group = _process_group(self.group)
        parts = together(lambda: Parts([Part(as_rows(features))]), group)
        rows = ShardedRows(_TorchTransport(parts, group))
        refuse_unusable(rows)
        yield rows


class _TorchTransport(Transport):
    """A place is a rank. Nothing is sent but answers, by each to all."""

    def __init__(self, parts: Parts, group: Any) -> None:
        self.parts, self.group = parts, group
        counts = _gathered(len(parts.parts), group)
        super().__init__([0, *accumulate(counts)])
        self.rank, _ = _rank_and_size(group)

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        calls = [call] if of is not None else [*self._queued, call]
        if of is None:
            self._queued = []
        first, last = self.places[self.rank : self.rank + 2]

        def mine() -> list[Any]:
            if of is not None and self.rank not in of:
                return []
            return self.parts.answer([one.slice(first, last) for one in calls])

        answer = packed((_checksum(calls), _tried(mine)))
        every = _gathered(answer, self.group)
        self.traffic.exchanges += 1
        self.traffic.sent += len(answer) * (len(every) - 1)
        self.traffic.received += sum(map(len, every)) - len(answer)
        sums, answers = zip(*map(unpacked, every))
        if len(set(sums)) > 1:
            raise ExemplaError(
                "the processes went different ways: call with the same target, k and selector on "
                "every rank, on machines of one kind."
            )
        return [one for rank in _without_errors(answers) for one in rank]

    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        raise NotImplementedError("every rank answers by itself")


def together(work: Callable[[], Any], group: Any) -> Any:
    """What the work gives here, once it has succeeded on every rank; else the same error on all:
    nobody waits for a rank that has stopped."""
    mine = _tried(work)
    failed = mine if isinstance(mine, _Failure) else None
    _without_errors(_gathered(failed, group))
    return mine


def _in_turn(work: Callable[[], Any], group: Any) -> Any:
    """What the work gives here, done by one rank after the other: who opens a store locks it."""
    rank, size = _rank_and_size(group)
    found = None
    for turn in range(size):
        mine = together(lambda turn=turn: work() if rank == turn else None, group)
        found = mine if rank == turn else found
    return found


@dataclass(frozen=True)
class _Failure:
    said: str


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as problem:  # of whatever kind: the other ranks are waiting
        known = isinstance(problem, ExemplaError)
        return _Failure(str(problem) if known else f"{type(problem).__name__}: {problem}")


def _without_errors(answers: Sequence[Any]) -> Sequence[Any]:
    failed = [(rank, a.said) for rank, a in enumerate(answers) if isinstance(a, _Failure)]
    if failed:
        rank, said = failed[0]
        raise ExemplaError(f"rank {rank}: {said}")
    return answers


def _gathered(thing: Any, group: Any) -> list[Any]:
    """What every rank has, on every rank."""
    distributed = _distributed()
    every: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(every, thing, group=group)
    return every


def _rank_and_size(group: Any) -> tuple[int, int]:
    """Which process of the group this is, and of how many."""
    distributed = _distributed()
    return distributed.get_rank(group), distributed.get_world_size(group)


def _process_group(group: Any) -> Any:
    """The group, if there is one."""
    distributed = _distributed()
    if not distributed.is_available() or not distributed.is_initialized():
        raise ExemplaError(
            "backend 'torch' needs a process group: start the program with torchrun and call "
            "torch.distributed.init_process_group() first."
        )
    return group


def _distributed() -> Any:
    try:
        import torch.distributed
    except ImportError:
        raise ExemplaError(
            "backend 'torch' needs the package torch: pip install 'exempla[torch]'."
        ) from None
    return torch.distributed


def _checksum(value: Any) -> int:
    """A number that differs where calls differ; those of different parts are the same here."""
    if isinstance(value, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(value).tobytes())
    if isinstance(value, Call):
        return _checksum((value.name, *value.args))
    if isinstance(value, list | tuple):
        return zlib.crc32(repr([_checksum(one) for one in value]).encode())
    if is_dataclass(value) and not isinstance(value, type):
        return _checksum([getattr(value, field.name) for field in fields(value)])
    return zlib.crc32(repr(value).encode())


def fit_ranks(explainer: Explainer, train: Any, ids: Any = None, *, group: Any = None) -> Explainer:
    """`explainer.fit` by all ranks of a torch.distributed group, each of which calls this.

    Parameters
    ----------
    explainer : Explainer
        With `store=` a folder that all ranks see; on its own device on each rank, if there are
        several.
    train, ids
        As for `Explainer.fit`, the same on every rank.
    group : process group, optional
        The default one if not given.

    Returns
    -------
    Explainer
        The same, fitted to all rows, on every rank.
    """
    group = _process_group(group)
    rank, size = _rank_and_size(group)
    if explainer.store is None:
        raise ExemplaError("ranks meet in a store: give the Explainer store=FOLDER.")
    # The first makes basis and Fisher while the others would only make them once more.
    together(lambda: explainer.fit(train, ids, part=(1, size)) if rank == 0 else None, group)
    together(lambda: explainer.fit(train, ids, part=(rank + 1, size)) if rank else None, group)
    _in_turn(lambda: explainer.fit(train, ids), group)
    return explainer


def rank_rows(explainer: Explainer, *, group: Any = None) -> Any:
    """This rank's share of the whitened rows of a fitted explainer, for `Sharded(…, "torch")`.

    The shares are consecutive, in the order of the ranks: indices of picks are those of the
    training set.
    """
    group = _process_group(group)
    rank, size = _rank_and_size(group)
    rows = _in_turn(lambda: explainer.features.rows, group)
    # never more ranks than rows, or a rank would have nothing to answer with
    if len(rows) < size:
        raise ExemplaError(f"{size} ranks cannot share {len(rows)} rows: start fewer.")
    start, stop = cuts_of(len(rows), size)[rank : rank + 2]
    return rows.part(start, stop) if isinstance(rows, StoredRows) else rows[start:stop]


def fit_on_ray(
    explainer: Explainer,
    train: Any,
    ids: Any = None,
    *,
    parts: int | None = None,
    on: OnRay | None = None,
) -> Explainer:
    """`explainer.fit` with its rows made by tasks of a Ray cluster.

    Parameters
    ----------
    explainer : Explainer
        With `store=` a folder that all machines see.
    train, ids
        As for `Explainer.fit`; model and data travel once to each machine.
    parts : int, optional
        Tasks; each makes about as many shards of the store. As many as the cluster can run at once,
        if not given.
    on : OnRay, optional
        Which cluster, and what a task is given.
    """
    if explainer.store is None:
        raise ExemplaError("tasks meet in a store: give the Explainer store=FOLDER.")
    store = explainer.store.absolute()

    cloudpickle = ray_module().cloudpickle
    sent = cloudpickle.dumps(explainer)
    # A store knows a model by how it is laid out in memory, which sending may change: the fit here
    # is of the model as it arrives there.
    arrived = cloudpickle.loads(sent)
    explainer.model, explainer.oracles = arrived.model, arrived.oracles

    def part(i: int, n: int, sent: bytes, train: Any) -> None:
        explainer = cloudpickle.loads(sent)
        explainer.store = store
        explainer.fit(train, ids, part=(i, n))

    _parts_on_ray(part, parts, on or OnRay(), sent, train, progress=explainer.progress)
    return explainer.fit(train, ids)


def _parts_on_ray(
    work: Callable[..., None], parts: int | None, on: OnRay, *shared: Any, progress: bool = False
) -> None:
    """work(i, n, *shared) for the parts 1 … n, as tasks of a Ray cluster.

    The first runs alone: it makes what all parts share. A task that is lost with its machine is run
    again, up to `on.restarts` times.
    """
    with showing(progress), cluster(on.address) as ray:
        parts = parts or _room_for(on, ray)
        with counter("embedding", parts, "part") as bar:
            _run_parts(ray, work, parts, on, shared, bar)


def _room_for(on: OnRay, ray: Any) -> int:
    """Tasks that the cluster can run at once, each of the kind that is asked for."""
    have = ray.cluster_resources()
    room = []
    for what, each in (("CPU", on.cpus), ("GPU", on.gpus)):
        if each > have.get(what, 0.0):
            raise ExemplaError(
                f"a task wants {each:g} {what}s and the Ray cluster has {have.get(what, 0.0):g}: "
                "ask for less."
            )
        if each:
            room.append(int(have[what] / each))
    return max(1, min(room, default=1))


def _run_parts(
    ray: Any, work: Callable[..., None], parts: int, on: OnRay, shared: tuple[Any, ...], bar: Bar
) -> None:
    from ray.exceptions import RayTaskError, WorkerCrashedError

    task = ray.remote(work).options(
        num_cpus=on.cpus, num_gpus=on.gpus, max_retries=on.restarts,
        scheduling_strategy="SPREAD",
    )  # fmt: skip
    given = [ray.put(thing) for thing in shared]
    try:
        ray.get(task.remote(1, parts, *given))
        bar.update()
        left = [task.remote(i, parts, *given) for i in range(2, parts + 1)]
        while left:
            done, left = ray.wait(left)
            ray.get(done)
            bar.update(len(done))
    except RayTaskError as problem:
        cause = getattr(problem, "cause", None)
        if isinstance(cause, ExemplaError):
            raise ExemplaError(str(cause)) from None
        raise
    except WorkerCrashedError as problem:
        raise ExemplaError(
            f"a part died more than {on.restarts} times ({problem}): see to the machines, or "
            "to their memory; what is made already is kept."
        ) from None
