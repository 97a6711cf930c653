"""Several threads at once, for tests of what they must not do to each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

__all__ = ["hammered"]


def hammered(jobs: list[Callable[[], Any]], times: int = 6) -> list[list[Any]]:
    """What each job returned each time, all jobs run at once, a thread each."""

    def repeat(job: Callable[[], Any]) -> list[Any]:
        return [job() for _ in range(times)]

    with switching_often(), ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(repeat, job) for job in jobs]]


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns every few instructions: what can meet, meets."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
