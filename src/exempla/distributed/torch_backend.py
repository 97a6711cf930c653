"""Selection and embedding in the processes of a torch.distributed group.

All ranks run the same greedy loop on the same answers, so that decisions need not travel: one
exchange gathers the answers of all parts. A checksum of each question travels along, so that ranks
that diverge (another target, another k, other hardware) stop with an error.

`fit_ranks` embeds a training set into one store. Each rank runs `Explainer.fit(train, part=(i, n))`
with the basis and the Fisher matrix that the first one stored.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.selection.select import as_rows, refuse_unusable
from exempla.selection.sharded import Backend, cuts_of
from exempla.selection.shards import (
    Call,
    Part,
    Parts,
    ShardedRows,
    Transport,
    packed,
    unpacked,
)  # fmt: skip
from exempla.store import StoredRows


@dataclass(frozen=True)
class OnTorch(Backend):
    """Place the parts of `Sharded` in the processes of a torch.distributed group.

    Every process calls with its own rows, an array or stored rows, and with the same target and k.
    All get the same picks; indices count the rows of rank 0 first, then those of rank 1, and so on.
    Rows on a GPU stay there.

    Parameters
    ----------
    group : process group, optional
        Default: the default group.
    """

    group: Any = None

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """Return the rows of all ranks; `shards` is ignored, because each rank is one."""
        group = _process_group(self.group)
        parts = together(lambda: Parts([Part(as_rows(features))]), group)
        rows = ShardedRows(_TorchTransport(parts, group))
        refuse_unusable(rows)
        yield rows


class _TorchTransport(Transport):
    """Each place is a rank; only answers are sent, by each to all."""

    def __init__(self, parts: Parts, group: Any) -> None:
        self.parts, self.group = parts, group
        counts = _gathered(len(parts.parts), group)
        super().__init__([0, *accumulate(counts)])
        self.rank, _ = _rank_and_size(group)

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        calls = self._flush(call, of)
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
                "the processes diverged: call with the same target, k and selector on every rank, "
                "on machines of the same kind."
            )
        return [one for rank in _without_errors(answers) for one in rank]

    def _deliver(self, messages: dict[int, bytes], stateless: bool) -> dict[int, bytes]:
        raise NotImplementedError("ranks exchange answers, not messages")


def together(work: Callable[[], Any], group: Any) -> Any:
    """Return the result of the work here once it has succeeded on every rank.

    If it fails on one rank, all raise the same error, so that none waits for a stopped rank.
    """
    mine = _tried(work)
    failed = mine if isinstance(mine, _Failure) else None
    _without_errors(_gathered(failed, group))
    return mine


def _in_turn(work: Callable[[], Any], group: Any) -> Any:
    """Run the work on one rank after the other, because opening a store locks it."""
    rank, size = _rank_and_size(group)
    found = None
    for turn in range(size):
        mine = together(lambda turn=turn: work() if rank == turn else None, group)
        found = mine if rank == turn else found
    return found


@dataclass(frozen=True)
class _Failure:
    message: str


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as problem:  # of any kind: the other ranks are waiting
        known = isinstance(problem, ExemplaError)
        return _Failure(str(problem) if known else f"{type(problem).__name__}: {problem}")


def _without_errors(answers: Sequence[Any]) -> Sequence[Any]:
    failed = [(rank, a.message) for rank, a in enumerate(answers) if isinstance(a, _Failure)]
    if failed:
        rank, message = failed[0]
        raise ExemplaError(f"rank {rank}: {message}")
    return answers


def _gathered(thing: Any, group: Any) -> list[Any]:
    """Return the objects of all ranks, on every rank."""
    distributed = _distributed()
    every: list[Any] = [None] * distributed.get_world_size(group)
    try:
        distributed.all_gather_object(every, thing, group=group)
    except RuntimeError as problem:  # DistBackendError and DistNetworkError are RuntimeErrors
        first = str(problem).partition("\n")[0].partition(". ")[0]
        why = first[first.startswith("[") and first.find("] ") + 2 :]  # without the C++ source file
        raise ExemplaError(
            f"lost the connection to another rank ({why}): a process has stopped or its machine "
            "cannot be reached. See the output of the other ranks, then start all of them again."
        ) from None
    return every


def _rank_and_size(group: Any) -> tuple[int, int]:
    """Return the rank of this process and the size of the group."""
    distributed = _distributed()
    return distributed.get_rank(group), distributed.get_world_size(group)


def _process_group(group: Any) -> Any:
    """Return the group, or raise if torch.distributed is not initialised."""
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


def _checksum(calls: Sequence[Call]) -> int:
    """Return a number that differs if calls differ; arguments of single parts are left out."""
    return zlib.crc32(packed([(call.name, call.args) for call in calls]))


def fit_ranks(explainer: Explainer, train: Any, ids: Any = None, *, group: Any = None) -> Explainer:
    """Fit an explainer with all ranks of a torch.distributed group; every rank calls this.

    Parameters
    ----------
    explainer : Explainer
        With `store=` a folder that all ranks see; each rank may use a device of its own.
    train, ids
        As for `Explainer.fit`, the same on every rank.
    group : process group, optional
        Default: the default group.

    Returns
    -------
    Explainer
        The same object, fitted to all rows, on every rank.
    """
    group = _process_group(group)
    rank, size = _rank_and_size(group)
    if explainer.store is None:
        raise ExemplaError("ranks share their rows in a store: give the Explainer store=FOLDER.")
    # The first rank computes basis and Fisher matrix, which the others would only repeat.
    together(lambda: explainer.fit(train, ids, part=(1, size)) if rank == 0 else None, group)
    together(lambda: explainer.fit(train, ids, part=(rank + 1, size)) if rank else None, group)
    _in_turn(lambda: explainer.fit(train, ids), group)
    return explainer


def rank_rows(explainer: Explainer, *, group: Any = None) -> Any:
    """Return this rank's share of the whitened rows of an explainer, for `Sharded(…, "torch")`.

    Shares are consecutive in the order of the ranks, so that indices of picks are those of the
    training set.
    """
    group = _process_group(group)
    rank, size = _rank_and_size(group)
    rows = _in_turn(lambda: explainer.features.rows, group)
    # Every rank needs at least one row.
    if len(rows) < size:
        raise ExemplaError(f"{size} ranks cannot share {len(rows)} rows: start fewer ranks.")
    start, stop = cuts_of(len(rows), size)[rank : rank + 2]
    return rows.part(start, stop) if isinstance(rows, StoredRows) else rows[start:stop]
