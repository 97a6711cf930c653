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
from pathlib import Path
from typing import TypeVar

_PartResult = TypeVar("_PartResult")
MIN_ENTRIES_PER_THREAD = 1 << 20
"""Entries to read that make another thread worthwhile."""
_NO_LIMIT = 1 << 16
_CGROUP_QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def n_threads() -> int:
    """Return the number of threads to use.

    EXEMPLA_THREADS if it is set (1 if it is not a number); otherwise the processors available to
    this process, or OMP_NUM_THREADS if that is lower.
    """
    requested = os.environ.get("EXEMPLA_THREADS")
    if requested is not None:
        return max(1, _parse(requested, 1))
    return max(1, min(available(), _parse(os.environ.get("OMP_NUM_THREADS", ""), available())))


@cache
def available() -> int:
    """Return the processors available to this process, within the quota of its container."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        count = os.cpu_count() or 1
    return max(1, min(count, _quota()))


def _quota() -> int:
    """Return the processors of the container's CPU quota, rounded up."""
    try:
        if Path(_CGROUP_QUOTAS[0]).exists():
            share, period = Path(_CGROUP_QUOTAS[0]).read_text().split()[:2]
        else:
            share = Path(_CGROUP_QUOTAS[1]).read_text().strip()
            period = Path(_CGROUP_QUOTAS[1]).with_name("cpu.cfs_period_us").read_text()
        share, period = int(share), int(period)  # "max" is not a number
    except (OSError, ValueError):
        return _NO_LIMIT
    return -(-share // period) if share > 0 and period > 0 else _NO_LIMIT


def _parse(text: str, default: int) -> int:
    try:
        return int(text.split(",")[0])
    except ValueError:
        return default


_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(count: int) -> ThreadPoolExecutor:
    """Return a pool of this process: the threads of a parent do not survive a fork."""
    key = os.getpid(), count
    return _POOLS.get(key) or _POOLS.setdefault(key, ThreadPoolExecutor(count, "exempla"))


def in_parts(
    work: Callable[[int, int], _PartResult], t: int, width: int, tile: int
) -> list[_PartResult]:
    """Call work(start, stop) on consecutive parts of t rows and return the results in order.

    Parts are cut at multiples of `tile` and run in as many threads as t × width entries deserve.

    >>> in_parts(lambda start, stop: stop - start, 10, 4, 8)
    [10]
    """
    count = min(n_threads(), t * width // MIN_ENTRIES_PER_THREAD, -(-t // tile))
    if count <= 1:
        return [work(0, t)]
    tiles = -(-t // tile)
    cuts = [min(t, tiles * i // count * tile) for i in range(count + 1)]
    pool = _pool(count - 1)  # this thread takes the first part
    others = [pool.submit(work, *part) for part in pairwise(cuts[1:])]
    return [work(*cuts[:2]), *(other.result() for other in others)]
