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
from typing import Any

from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.selection.select import as_rows, refuse_unusable
from exempla.selection.sharded import (
    Backend,
    Call,
    Part,
    ShardedRows,
    Transport,
    cuts_of,
    packed,
    unpacked,
)
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
        part = together(lambda: Part(as_rows(features)), self.group)
        rows = ShardedRows(_TorchTransport(part, self.group))
        refuse_unusable(rows)
        yield rows


class _TorchTransport(Transport):
    """Each rank holds a part; only answers are sent, by each to all."""

    def __init__(self, part: Part, group: Any) -> None:
        self.part, self.group = part, group
        self.rank, size = _rank_and_size(group)
        super().__init__(size)

    def _answers(self, calls: list[Call], wanted: Sequence[int]) -> list[Any]:
        def mine() -> Any:
            mine = [one.of(self.rank) for one in calls]
            return self.part.answer(mine) if self.rank in wanted else None

        # Arguments of single parts are left out: they differ between the ranks.
        checksum = zlib.crc32(packed([(call.name, call.args) for call in calls]))
        answer = packed((checksum, _tried(mine)))
        every = _gathered(answer, self.group)
        self.traffic.sent += len(answer) * (len(every) - 1)
        self.traffic.received += sum(map(len, every)) - len(answer)
        sums, answers = zip(*map(unpacked, every))
        if len(set(sums)) > 1:
            raise ExemplaError(
                "the processes diverged: call with the same target, k and selector on every rank, "
                "on machines of the same kind."
            )
        _raise_failure(answers)
        return [answers[rank] for rank in wanted]


def together(work: Callable[[], Any], group: Any) -> Any:
    """Return the result of the work here once it has succeeded on every rank.

    If it fails on one rank, all raise the same error, so that none waits for a stopped rank.
    """
    mine = _tried(work)
    _raise_failure(_gathered(mine if isinstance(mine, _Failure) else None, group))
    return mine


def _in_turn(work: Callable[[], Any], group: Any) -> Any:
    """Run the work on one rank after the other, because opening a store locks it."""
    rank, size = _rank_and_size(group)
    turns = [together(work if rank == turn else lambda: None, group) for turn in range(size)]
    return turns[rank]


class _Failure(str):
    """The message of an error on one rank."""


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as problem:  # of any kind: the other ranks are waiting
        known = isinstance(problem, ExemplaError)
        return _Failure(problem if known else f"{type(problem).__name__}: {problem}")


def _raise_failure(answers: Sequence[Any]) -> None:
    for rank, answer in enumerate(answers):
        if isinstance(answer, _Failure):
            raise ExemplaError(f"rank {rank}: {answer}")


def _gathered(thing: Any, group: Any) -> list[Any]:
    """Return the objects of all ranks, on every rank."""
    distributed = _distributed()
    every: list[Any] = [None] * distributed.get_world_size(group)
    try:
        distributed.all_gather_object(every, thing, group=group)
    except RuntimeError as problem:  # DistBackendError and DistNetworkError are RuntimeErrors
        why = str(problem).partition("\n")[0].rpartition("] ")[2]  # without the C++ source file
        raise ExemplaError(
            f"lost the connection to another rank ({why}): a process has stopped or its machine "
            "cannot be reached. See the output of the other ranks, then start all of them again."
        ) from None
    return every


def _rank_and_size(group: Any) -> tuple[int, int]:
    """Return the rank of this process and the size of the group."""
    distributed = _distributed()
    return distributed.get_rank(group), distributed.get_world_size(group)


def _distributed() -> Any:
    """Return torch.distributed, or raise if it has no process group."""
    try:
        import torch.distributed as distributed
    except ImportError:
        raise ExemplaError(
            "backend 'torch' needs the package torch: pip install 'exempla[torch]'."
        ) from None
    if not distributed.is_available() or not distributed.is_initialized():
        raise ExemplaError(
            "backend 'torch' needs a process group: start the program with torchrun and call "
            "torch.distributed.init_process_group() first."
        )
    return distributed


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
    rank, size = _rank_and_size(group)
    rows = _in_turn(lambda: explainer.features.rows, group)
    # Every rank needs at least one row.
    if len(rows) < size:
        raise ExemplaError(f"{size} ranks cannot share {len(rows)} rows: start fewer ranks.")
    start, stop = cuts_of(len(rows), size)[rank : rank + 2]
    return rows.part(start, stop) if isinstance(rows, StoredRows) else rows[start:stop]
