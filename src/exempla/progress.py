"""What a person sees while they wait: bars in a terminal, lines in a file, nothing for quick work.

Whether to show anything is decided once, at the door (`with showing(progress):`), and known to
everything called below it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from tqdm import tqdm

if TYPE_CHECKING:
    from exempla.oracles.base import ScoreRows

__all__ = [
    "Bar",
    "counter",
    "say",
    "showing",
    "track",
    "track_rows",
    "waiting",
]

T = TypeVar("T")
DELAY = 2.0
"""Seconds before a bar or a line shows: quick jobs stay quiet."""
BETWEEN_LINES = 10.0
"""Seconds between two lines where the output is no terminal."""

_LONG = 20.0
"""Seconds from which on work is announced with an estimate as soon as there is one."""

_SHOWN: ContextVar[bool] = ContextVar("exempla_progress", default=False)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Let the counters below this call show, or not."""
    token = _SHOWN.set(enabled)
    try:
        yield
    finally:
        _SHOWN.reset(token)


class Bar(Protocol):
    """What `counter` hands out."""

    def update(self, n: float = 1) -> object:
        """So much more is done."""
        ...


class Lines:
    """Progress where no bar can be drawn: a line now and then."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0.0
        self.start = monotonic()
        self.next = self.start + DELAY
        self.said = False

    def update(self, n: float = 1) -> None:
        self.done += n
        now = monotonic()
        if now >= self.next or self._long(now - self.start):
            self.next, self.said = now + BETWEEN_LINES, True
            say(f"{self.what}: {self._how_far(now - self.start)}")

    def _long(self, seconds: float) -> bool:
        """Whether the first piece already tells that this will take long: an estimate is due."""
        if self.said or not self.total or not self.done:
            return False
        return seconds * self.total / self.done > _LONG

    def _how_far(self, seconds: float) -> str:
        if not self.total or not self.done:
            return f"{self.done:g} done"
        left = seconds * (self.total - self.done) / self.done
        return f"{self.done:g} of {self.total} ({self.done / self.total:.0%}), {left:.0f} s left"


@contextmanager
def counter(what: str, total: int | None, unit: str = "it") -> Iterator[Bar]:
    """A bar to be moved on by hand (`with counter(...) as bar: bar.update()`)."""
    shown = _SHOWN.get()
    if shown and total == 1:  # "1 of 1" comes when it is over, and tells nothing
        with waiting(what):
            yield tqdm(disable=True)
        return
    if shown and not sys.stderr.isatty():
        yield Lines(what, total)
        return
    with tqdm(
        desc=what, total=total, delay=DELAY, disable=not shown, leave=False, unit=unit
    ) as bar:
        yield bar


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Work that cannot be counted: a line once it takes more than two seconds, and now and then.

    >>> with showing(False), waiting("reading the file"):
    ...     pass
    """
    if not _SHOWN.get():
        yield
        return
    over, start = Event(), monotonic()

    def tell() -> None:
        pause = DELAY
        while not over.wait(pause):
            _print(f"{what}: {monotonic() - start:.0f} s so far")
            pause = BETWEEN_LINES

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar once they take more than two seconds."""
    with counter(what, total) as bar:
        for item in items:
            yield item
            bar.update()


def track_rows(batches: Iterable[ScoreRows], what: str, total: int) -> Iterator[ScoreRows]:
    """Batches of score rows, with a bar that counts examples."""
    with counter(what, total, "ex") as bar:
        last = -1
        for batch in batches:
            yield batch
            if len(batch):
                newest = int(batch.sample.max())
                bar.update(max(newest - last, 0))
                last = max(last, newest)


def say(text: str) -> None:
    """One line to the person who waits."""
    if _SHOWN.get():
        _print(text)


def _print(text: str) -> None:
    print(f"exempla: {text}", file=sys.stderr, flush=True)
