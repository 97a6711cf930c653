"""Parts with the processes of a torch.distributed group: every rank holds its own rows.

All ranks run the same greedy loop on the same answers, so that decisions need not travel: an
exchange is one gathering of what the parts found. A checksum of each question travels along: ranks
that would go different ways (another target, another k, other hardware) stop with a sentence.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.selection.inputs import as_rows, refuse_unusable
from exempla.selection.shards import Backend, Call, Exchange, Part, Parts, ShardedRows
from exempla.selection.shards.exchange import Effect, packed, unpacked

__all__ = ["OnTorch", "gathered", "in_turn", "process_group", "rank_and_size", "together"]


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
        group = process_group(self.group)
        parts = together(lambda: Parts([Part(as_rows(features))]), group)
        rows = ShardedRows(TorchExchange(parts, group))
        refuse_unusable(rows)
        yield rows


class TorchExchange(Exchange):
    """A place is a rank. Nothing is sent but answers, by each to all."""

    def __init__(self, parts: Parts, group: Any) -> None:
        self.parts, self.group = parts, group
        counts = gathered(len(parts.parts), group)
        super().__init__([0, *accumulate(counts)])
        self.rank, _ = rank_and_size(group)

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        calls = [call] if of is not None else [*self._orders, call]
        if of is None:
            self._orders = []
        first, last = self.places[self.rank : self.rank + 2]

        def mine() -> list[Any]:
            if of is not None and self.rank not in of:
                return []
            return self.parts.answer([one.at(first, last) for one in calls])

        answer = packed((checksum(calls), _tried(mine)))
        every = gathered(answer, self.group)
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
    _without_errors(gathered(failed, group))
    return mine


def in_turn(work: Callable[[], Any], group: Any) -> Any:
    """What the work gives here, done by one rank after the other: who opens a store locks it."""
    rank, size = rank_and_size(group)
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


def gathered(thing: Any, group: Any) -> list[Any]:
    """What every rank has, on every rank."""
    distributed = _distributed()
    every: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(every, thing, group=group)
    return every


def rank_and_size(group: Any) -> tuple[int, int]:
    """Which process of the group this is, and of how many."""
    distributed = _distributed()
    return distributed.get_rank(group), distributed.get_world_size(group)


def process_group(group: Any) -> Any:
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


def checksum(value: Any) -> int:
    """A number that differs where calls differ; those of different parts are the same here."""
    if isinstance(value, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(value).tobytes())
    if isinstance(value, Call):
        return checksum((value.name, *value.args))
    if isinstance(value, list | tuple):
        return zlib.crc32(repr([checksum(one) for one in value]).encode())
    if is_dataclass(value) and not isinstance(value, type):
        return checksum([getattr(value, field.name) for field in fields(value)])
    return zlib.crc32(repr(value).encode())
