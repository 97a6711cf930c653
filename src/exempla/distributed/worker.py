"""What runs on the other machine: parts opened from files, and a count of what was done to them.

A worker that is started again has lost its race. The count tells: whoever asks says how many
changes it has seen answered, and a worker that has made another number of them answers None. It is
then given all messages of the race again and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from exempla.distributed.files import check_visible
from exempla.errors import ExemplaError
from exempla.selection.inputs import wrap
from exempla.selection.shards import Part, Parts
from exempla.selection.shards.exchange import Effect, packed, unpacked
from exempla.store import StoredRows

__all__ = ["Worker"]


class Worker:
    """Holds a share of stored rows: in the files, or on a GPU."""

    def __init__(self, share: StoredRows, gpu: bool = False) -> None:
        self.share, self.gpu = share, gpu
        self.done = 0
        """Messages that changed something, since the race began."""
        self.last: bytes | None = None

    @cached_property
    def parts(self) -> Parts:
        """The share, opened when it is first needed: so that an error reaches who asks."""
        check_visible(self.share)
        return Parts([Part(wrap(_on_gpu(self.share) if self.gpu else self.share))])

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


def _on_gpu(share: StoredRows) -> Any:
    """The rows in the memory of this worker's GPU, brought there a piece at a time."""
    import torch

    if not torch.cuda.is_available():
        raise ExemplaError(
            "a worker was given a GPU that torch cannot use: install torch with CUDA on every "
            "machine, or leave gpus at 0."
        )
    try:
        kind = {"float32": torch.float32, "float64": torch.float64}[share.dtype.name]
        out = torch.empty(share.shape, dtype=kind, device="cuda")
        for here, rows in share.stream():
            out[here] = torch.from_numpy(np.array(rows)).cuda()
        return out
    except torch.cuda.OutOfMemoryError:
        size = share.nbytes / 2**30
        raise ExemplaError(
            f"{size:.1f} GiB of rows do not fit on a worker's GPU: give more shards."
        ) from None
