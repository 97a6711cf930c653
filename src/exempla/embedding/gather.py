"""Rows of many batches in one array, on the device that makes them or in main memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from exempla.arrays import Array, concatenate

__all__ = ["in_one_array"]

GPU_SHARE = 1 / 8
"""Share of the GPU's free memory that rows may take before they move to main memory."""
TRANSFER_BYTES = 2**26
"""Bytes of rows put in their place at a time."""


def in_one_array(batches: Iterable[Array], count: int) -> Array:
    """All rows in one array: on the GPU that makes them while they are few beside its memory,
    else in main memory, carried there many batches at a time (each transfer is a wait)."""
    out: Any = None
    waiting: list[Array] = []
    start = 0
    for rows in batches:
        if out is None:
            out = room_for(rows, count)
        waiting.append(rows)
        there = isinstance(rows, np.ndarray) or rows.device == out.device
        if there or sum(r.nbytes for r in waiting) >= TRANSFER_BYTES:
            start = put(out, start, waiting)
    put(out, start, waiting)
    return out


def room_for(rows: Array, count: int) -> Array:
    """An empty array for `count` such rows."""
    if isinstance(rows, np.ndarray):
        return np.empty((count, rows.shape[1]), rows.dtype)
    import torch

    needed = count * rows.shape[1] * rows.element_size()
    on_gpu = rows.is_cuda and needed < GPU_SHARE * torch.cuda.mem_get_info(rows.device)[0]
    where = rows.device if on_gpu else "cpu"
    return torch.empty(count, rows.shape[1], dtype=rows.dtype, device=where)


def put(out: Array, start: int, waiting: list[Array]) -> int:
    """Move what waits to its place and forget it; where the next rows go."""
    if waiting:
        rows = concatenate(waiting)
        out[start : start + len(rows)] = rows
        start += len(rows)
        waiting.clear()
    return start
