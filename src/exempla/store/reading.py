"""Rows of files in order, read ahead by threads while the caller computes.

Read, not mapped: what a pass needs is a few buffers, whatever the files' size, and the next ones
fill while one is used. A mapped file would be called in page by page by the thread that computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exempla.errors import ExemplaError

__all__ = ["Range", "read_ahead"]

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
