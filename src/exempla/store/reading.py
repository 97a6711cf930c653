"""Rows of files in order, read ahead by threads while the caller computes.

Read, not mapped: what a pass needs is a few buffers, whatever the files' size, and the next ones
fill while one is used. A mapped file would be called in page by page by the thread that computes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exempla.errors import ExemplaError

__all__ = ["Range", "read_ahead", "read_rows"]

AHEAD = 3
"""Buffers that are filled while one is used."""
READERS = 2
"""Threads that fill them."""


class Range(NamedTuple):
    """Bytes of a file that are consecutive rows of a whole."""

    path: Path
    offset: int
    start: int
    stop: int


def read_ahead(
    ranges: Sequence[Range], width: int, dtype: np.dtype
) -> Iterator[tuple[slice, np.ndarray]]:
    """The rows of each range, in order. An array is used up when the next one is asked for."""
    if not ranges:
        return
    most = max(r.stop - r.start for r in ranges)
    count = min(AHEAD + 1, len(ranges))
    free = deque(np.empty((most, width), dtype) for _ in range(count))
    waiting: deque[tuple[Range, np.ndarray, Future[None]]] = deque()
    left = iter(ranges)
    pool = ThreadPoolExecutor(min(READERS, count), "exempla-read")
    try:
        while True:
            while free and (one := next(left, None)) is not None:
                buffer = free.popleft()
                waiting.append((one, buffer, pool.submit(_fill, one, buffer)))
            if not waiting:
                return
            one, buffer, filled = waiting.popleft()
            filled.result()
            yield slice(one.start, one.stop), buffer[: one.stop - one.start]
            free.append(buffer)
    finally:
        pool.shutdown(cancel_futures=True)


def read_rows(path: Path, offset: int, positions: np.ndarray, out: np.ndarray) -> None:
    """A few rows from all over a file, into `out`: each is read by itself, as a mapped file would
    call in a hundred kilobytes around every one of them."""
    size = out.itemsize * out.shape[1]
    values: Any = out
    view = memoryview(values).cast("B")
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            for i, position in enumerate(positions.tolist()):
                row = os.pread(handle, size, offset + position * size)
                if len(row) < size:
                    raise ExemplaError(f"{path} is cut short: fit again with this store=.")
                view[i * size : (i + 1) * size] = row
        finally:
            os.close(handle)
    except OSError as problem:
        raise ExemplaError(f"{path} cannot be read: {problem.strerror or problem}.") from None


def _fill(one: Range, buffer: np.ndarray) -> None:
    part: Any = buffer[: one.stop - one.start]
    view = memoryview(part).cast("B")
    try:
        with open(one.path, "rb", buffering=0) as file:
            file.seek(one.offset)
            while len(view):
                got = file.readinto(view)
                if not got:
                    raise ExemplaError(
                        f"{one.path} is cut short: fit again with this store=, which makes it anew."
                    )
                view = view[got:]
    except OSError as problem:
        raise ExemplaError(f"{one.path} cannot be read: {problem.strerror or problem}.") from None
