"""Work of many small launches, recorded once and then launched as one graph."""

from __future__ import annotations

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

    def __init__(self, work: Callable[[int], None], device: Any) -> None:
        self.work, self.on_gpu = work, device.type == "cuda"
        self.seen: set[int] = set()
        self.graphs: dict[int, Any] = {}

    def __call__(self, size: int, worth: bool) -> None:
        if self.on_gpu and worth and size in self.seen and size not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.work(size)
            self.graphs[size] = graph
        if size in self.graphs:
            self.graphs[size].replay()
        else:
            self.work(size)
            self.seen.add(size)
