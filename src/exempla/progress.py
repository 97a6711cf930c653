"""Progress bars that appear only when there is something to wait for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tqdm import tqdm

from exempla.oracles.base import ScoreRows

__all__ = ["counter", "say", "showing", "track", "track_rows"]

T = TypeVar("T")
DELAY = 2.0
"""Seconds before a bar shows: quick jobs stay quiet."""


_SHOWN: ContextVar[bool] = ContextVar("exempla_progress", default=False)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Let the counters below this call show, or not."""
    token = _SHOWN.set(enabled)
    try:
        yield
    finally:
        _SHOWN.reset(token)


def counter(what: str, total: int) -> Any:
    """A bar to be moved on by hand (`with counter(...) as bar: bar.update()`)."""
    return tqdm(desc=what, total=total, delay=DELAY, disable=not _SHOWN.get(), leave=False)


def track(items: Iterable[T], what: str, enabled: bool, total: int | None = None) -> Iterator[T]:
    """The items, with a bar once they take more than two seconds."""
    yield from tqdm(items, desc=what, total=total, delay=DELAY, disable=not enabled, leave=False)


def track_rows(
    batches: Iterable[ScoreRows], what: str, enabled: bool, total: int
) -> Iterator[ScoreRows]:
    """Batches of score rows, with a bar that counts examples."""
    with tqdm(
        desc=what, total=total, delay=DELAY, disable=not enabled, leave=False, unit="ex"
    ) as bar:
        last = -1
        for batch in batches:
            yield batch
            if len(batch):
                newest = int(batch.sample.max())
                bar.update(max(newest - last, 0))
                last = max(last, newest)


def say(text: str, enabled: bool) -> None:
    """One line to the person who waits."""
    if enabled:
        print(f"exempla: {text}", file=sys.stderr)
