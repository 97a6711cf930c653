"""Work of many small launches, recorded once and then launched as one graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Recorded"]


class Recorded:
    """Work on tensors that keep their places and sizes, which one number decides.

    The first time it is simply done, which compiles what is to be compiled; from the second time on
    it is a CUDA graph. Recording takes as long as a few runs of the work: `worth` says whether
    there will be more. Without a GPU nothing is recorded.
    """

    def __init__(self, device: Any) -> None:
        self.on_gpu = device.type == "cuda"
        self.seen: set[int] = set()
        self.graphs: dict[int, Any] = {}

    def __call__(self, work: Callable[[int], None], size: int, worth: bool) -> None:
        """The same work each time: it is not kept, since it holds what holds this."""
        if self.on_gpu and worth and size in self.seen and size not in self.graphs:
            self.graphs[size] = record(work, size)
        if size in self.graphs:
            self.graphs[size].replay()
        else:
            work(size)
            self.seen.add(size)


def record(work: Callable[[int], None], size: int) -> Any:
    """A graph of the work; one of somebody else's that is collected meanwhile would spoil it.

    `torch.cuda.graph` would also collect garbage and give memory back, which takes longer than the
    passes that are saved.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            work(size)
            graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
