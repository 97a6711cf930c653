"""Python threads for passes over the rows; the result is the same for any number of them.

The compiled passes release the interpreter lock. numba's own parallel loops are built on OpenMP,
which terminates every process that forks after using it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

_PartResult = TypeVar("_PartResult")
MIN_ENTRIES_PER_THREAD = 1 << 20
"""Entries to read that make another thread worthwhile."""


def n_threads() -> int:
    """Return the number of threads to use.

    EXEMPLA_THREADS if it is set (1 if it is not a number); otherwise the processors available to
    this process, or OMP_NUM_THREADS if that is lower.
    """
    requested = os.environ.get("EXEMPLA_THREADS")
    default = 1 if requested is not None else available()
    text = requested if requested is not None else os.environ.get("OMP_NUM_THREADS", "")
    first = text.split(",")[0]
    count = int(first) if first.strip().lstrip("+-").isdecimal() else default
    return max(1, count if requested is not None else min(count, default))


@cache
def available() -> int:
    """Return the processors available to this process, within the quota of its container."""
    from joblib import cpu_count

    return cpu_count()


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "exempla")


if hasattr(os, "register_at_fork"):  # the threads of a parent do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)


def in_parts(
    work: Callable[[int, int], _PartResult], t: int, width: int, tile: int
) -> list[_PartResult]:
    """Call work(start, stop) on consecutive parts of t rows and return the results in order.

    Parts are cut at multiples of `tile` and run in as many threads as t × width entries deserve.
    """
    tiles = -(-t // tile)
    count = min(t * width // MIN_ENTRIES_PER_THREAD, tiles)
    count = min(count, n_threads()) if count > 1 else 1
    cuts = [min(t, tiles * i // count * tile) for i in range(count + 1)]
    parts = list(pairwise(cuts))
    pool = _pool(count - 1) if count > 1 else None  # this thread takes the first part
    others = [pool.submit(work, *part) for part in parts[1:]] if pool else []
    return [work(*parts[0]), *(other.result() for other in others)]
