"""Progress bars that appear only when there is something to wait for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from exempla.oracles.base import ScoreRows

__all__ = ["say", "track", "track_rows"]

T = TypeVar("T")
DELAY = 2.0
"""Seconds before a bar shows: quick jobs stay quiet."""


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
