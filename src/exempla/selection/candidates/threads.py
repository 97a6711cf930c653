"""Threads that read rows: as many as this process may use, and the same answer from any number.

They are Python's own threads, which leave the interpreter while they compute: numba's parallel
loops stand on OpenMP, which ends every process that forks after using it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

__all__ = ["available", "in_parts", "threads"]

T = TypeVar("T")
FEWEST = 1 << 20
"""Numbers to read for which more than one thread is worth it."""
QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def threads() -> int:
    """Threads to use: EXEMPLA_THREADS if that is set (1 if it is no number), else what this
    process may use, or OMP_NUM_THREADS if that is lower."""
    named = os.environ.get("EXEMPLA_THREADS")
    if named is not None:
        return max(1, _number(named, 1))
    return max(1, min(available(), _number(os.environ.get("OMP_NUM_THREADS", ""), available())))


@cache
def available() -> int:
    """Processors this process may use, a container's share of them respected."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        count = os.cpu_count() or 1
    return max(1, min(count, _quota()))


def _quota() -> int:
    """Processors that a container's limit amounts to, rounded up; many if there is none."""
    try:
        if Path(QUOTAS[0]).exists():
            share, period = Path(QUOTAS[0]).read_text().split()[:2]
        else:
            share = Path(QUOTAS[1]).read_text().strip()
            period = Path(QUOTAS[1]).with_name("cpu.cfs_period_us").read_text()
        share, period = int(share), int(period)  # "max" is no number
    except (OSError, ValueError):
        return 1 << 16
    return -(-share // period) if share > 0 and period > 0 else 1 << 16


def _number(text: str, otherwise: int) -> int:
    try:
        return int(text.split(",")[0])
    except ValueError:
        return otherwise


_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(count: int) -> ThreadPoolExecutor:
    """So many threads of this process: those of a parent do not live on in its child."""
    key = os.getpid(), count
    return _POOLS.get(key) or _POOLS.setdefault(key, ThreadPoolExecutor(count, "exempla"))


def in_parts(work: Callable[[int, int], T], t: int, width: int, tile: int) -> list[T]:
    """work(start, stop) of consecutive parts of t rows, cut at multiples of `tile`, in order.

    >>> in_parts(lambda start, stop: stop - start, 10, 4, 8)
    [10]
    """
    count = min(threads(), t * width // FEWEST, -(-t // tile))
    if count <= 1:
        return [work(0, t)]
    tiles = -(-t // tile)
    cuts = [min(t, tiles * i // count * tile) for i in range(count + 1)]
    pool = _pool(count - 1)  # this thread reads, too
    others = [pool.submit(work, *part) for part in pairwise(cuts[1:])]
    return [work(*cuts[:2]), *(other.result() for other in others)]
