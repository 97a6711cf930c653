"""What runs on the other machine: parts opened from files, and a count of what was done to them.

A worker that is started again has lost its race. The count tells: whoever asks says how many
changes it has seen answered, and a worker that has made another number of them answers None. It is
then given all messages of the race again and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from exempla.distributed.files import Piece
from exempla.errors import ExemplaError
from exempla.selection.inputs import wrap
from exempla.selection.shards import Part, Parts
from exempla.selection.shards.exchange import Effect, packed, unpacked

__all__ = ["Worker"]


class Worker:
    """Holds the rows of some pieces of files; on a GPU in one array, else a part for each."""

    def __init__(self, pieces: Sequence[Piece], gpu: bool = False) -> None:
        self.pieces, self.gpu = pieces, gpu
        self.done = 0
        """Messages that changed something, since the race began."""
        self.last: bytes | None = None
        self._parts: Parts | None = None

    @property
    def parts(self) -> Parts:
        """The parts, opened when they are first needed: so that an error reaches who asks."""
        if self._parts is None:
            arrays: list[Any] = [piece.read() for piece in self.pieces]
            self._parts = Parts([Part(wrap(a)) for a in (_on_gpu(arrays) if self.gpu else arrays)])
        return self._parts

    def answer(self, done: int, message: bytes, effect: Effect) -> bytes | None:
        """The packed answers to packed calls; None if the state is not the one that is meant."""
        if effect is Effect.BEGINS:
            self.done = done = 0
        if effect is Effect.CHANGES and self.done == done + 1 and self.last is not None:
            return self.last  # it was asked before, and the answer was lost on its way
        if self.done != done:
            return None
        answer = packed(self.parts.answer(unpacked(message)))
        if effect is not Effect.NONE:
            self.done, self.last = done + 1, answer
        return answer

    def replay(self, messages: Sequence[bytes]) -> bool:
        """Stand where a worker stands that has answered all of these; True when it does."""
        for message in messages:
            self.parts.answer(unpacked(message))
        for part in self.parts.parts:
            part.forget()
        self.done, self.last = len(messages), None
        return True


def _on_gpu(arrays: list[np.ndarray]) -> list[Any]:
    """The rows in the memory of this worker's GPU, as one tensor."""
    import torch

    if not torch.cuda.is_available():
        raise ExemplaError(
            "a worker was given a GPU that torch cannot use: install torch with CUDA on every "
            "machine, or leave gpus at 0."
        )
    try:
        return [torch.cat([torch.from_numpy(np.array(a)).cuda() for a in arrays])]
    except torch.cuda.OutOfMemoryError:
        size = sum(a.nbytes for a in arrays) / 2**30
        raise ExemplaError(
            f"{size:.1f} GiB of rows do not fit on a worker's GPU: give more shards."
        ) from None
