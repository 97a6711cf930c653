"""Progress of long work: a bar in a terminal, lines elsewhere, nothing for quick work.

`with showing(progress):` decides once, where the user calls, whether anything is shown. Inside it,
`counter`, `track` and `waiting` report what is being done, on one line: that of the outermost of
them, or that of `overall`, with which a command shows its stages, the step that is running, and the
time left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from exempla.oracles.base import ScoreRows

__all__ = [
    "Bar", "Stage", "clear_line", "counter", "overall", "say", "showing", "stage", "track",
    "track_rows", "waiting",
]  # fmt: skip

T = TypeVar("T")
DELAY = 2.0
"""Seconds before a bar or a line appears."""
BETWEEN_LINES = 10.0
"""Seconds between two lines if the output is not a terminal."""
_REDRAW = 0.5
"""Seconds between two drawings of the bar in a terminal."""
_LONG = 20.0
"""Work that is estimated to take more seconds than this is announced at once."""
_BAR_WIDTH = 24
_MIN_SHARE_FOR_ESTIMATE = 0.1
"""Share of the command that must be done before the time left is estimated."""

_SHOWN: ContextVar[bool] = ContextVar("exempla_progress", default=False)
_DISPLAY: ContextVar[_Display | None] = ContextVar("exempla_display", default=None)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Show the progress of the work in this block, or hide it."""
    token = _SHOWN.set(enabled)
    try:
        yield
    finally:
        _SHOWN.reset(token)


class Stage(NamedTuple):
    """A stage of a command: its name, its typical share of the time, and its number of counters."""

    name: str
    share: float
    counters: int = 1


class Bar:
    """What `counter` yields: some work, and how much of it is done."""

    def __init__(self, display: _Display | None, what: str, total: int | None) -> None:
        self.display, self.what, self.total, self.done = display, what, total, 0.0
        self.started = monotonic()

    def update(self, n: float = 1) -> None:
        """Add n to the work done."""
        self.done += n
        if self.display is not None:
            self.display.show()

    @property
    def share(self) -> float:
        """Share of the work that is done; 0 if it cannot be counted."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def seconds_left(self, now: float) -> float | None:
        """Estimate the seconds left at the speed so far; None while nothing is known."""
        return (now - self.started) * (1 - self.share) / self.share if self.share else None

    def text(self, now: float) -> str:
        """Return how far the work is, in words."""
        left = self.seconds_left(now)
        if left is not None:
            return f"{self.done:g} of {self.total} ({self.share:.0%}), {left:.0f} s left"
        return f"{self.done:g} done" if self.done else f"{now - self.started:.0f} s so far"


class _Display:
    """The line on the screen: of a command with stages, or of a single piece of work.

    Each stage takes its share of the bar; inside a stage, the outermost counter moves it. The time
    left is what the current stage still needs at its own speed, plus the later stages at the speed
    of the command so far.
    """

    def __init__(self, name: str, stages: Sequence[Stage]) -> None:
        self.name, self.stages = name, tuple(stages) or (Stage(name, 1.0),)
        self.has_stages = bool(stages)
        self.started = self.stage_started = monotonic()
        self.place, self.counted, self.highest = 0, 0, 0.0
        self.bars: list[Bar] = []
        self.drawn, self.width, self.lock, self.over = -float("inf"), 0, RLock(), Event()

    def enter(self, name: str | None) -> None:
        """Start the stage of this name, or the next one; unknown names are ignored."""
        later = [stage.name for stage in self.stages[self.place + 1 :]]
        if later and (name is None or name in later):
            self.place += 1 + (0 if name is None else later.index(name))
            self.stage_started, self.counted = monotonic(), 0
            self.show()

    @contextmanager
    def counting(self, what: str, total: int | None) -> Iterator[Bar]:
        bar = Bar(self, what, total)
        self.bars.append(bar)
        try:
            yield bar
        finally:
            self.bars.remove(bar)
            if not self.bars and total is not None:
                self.counted += 1

    def fraction(self) -> float:
        """Return the fraction of the command that is done; it never decreases."""
        total = sum(stage.share for stage in self.stages)
        before = sum(stage.share for stage in self.stages[: self.place])
        done = (before + self.stages[self.place].share * self._within()) / total
        self.highest = max(self.highest, done)
        return self.highest

    def _within(self) -> float:
        """Return the fraction of the current stage that is done."""
        running = [bar for bar in self.bars if bar.total]
        count = max(self.stages[self.place].counters, self.counted + len(running[:1]), 1)
        return (self.counted + (running[0].share if running else 0.0)) / count

    def seconds_left(self, now: float) -> float | None:
        """Estimate the seconds left; None while too little is known."""
        done, within = self.fraction(), self._within()
        if done < _MIN_SHARE_FOR_ESTIMATE:
            return None
        total = sum(stage.share for stage in self.stages)
        speed = (now - self.started) / done  # seconds for the whole bar
        later = sum(stage.share for stage in self.stages[self.place + 1 :]) / total
        here = self.stages[self.place].share / total * (1 - within) * speed
        if within > 0.05:
            here = (now - self.stage_started) * (1 - within) / within
        return here + later * speed

    def line(self, now: float) -> str:
        """Return the state in words."""
        if not self.has_stages:
            return self.bars[0].text(now) if self.bars else "done"
        what = self.bars[0].what if self.bars else self.stages[self.place].name
        left = self.seconds_left(now)
        rest = "" if left is None else f", {_rounded(left)} left"
        return f"{100 * self.fraction():.0f} %, {what}{rest}"

    def show(self) -> None:
        """Draw the bar, or print a line, if it is time."""
        with self.lock:
            now = monotonic()
            if not self._is_time(now):
                return
            self.drawn = now
            if sys.stderr.isatty():
                done = round(_BAR_WIDTH * self.fraction())
                text = f"{self.name} [{'#' * done}{'-' * (_BAR_WIDTH - done)}] {self.line(now)}"
                print(f"\r{text.ljust(self.width)}", end="", file=sys.stderr, flush=True)
                self.width = len(text)
            else:
                _print(self.line(now) if self.has_stages else f"{self.name}: {self.line(now)}")

    def _is_time(self, now: float) -> bool:
        """Return True for the next drawing, and at once if work turns out to take long."""
        if self.drawn < self.started and not self.has_stages and self.bars:
            left = self.bars[0].seconds_left(now)
            if left is not None and now - self.started + left > _LONG:
                return True
        pause = min(_REDRAW, BETWEEN_LINES) if sys.stderr.isatty() else BETWEEN_LINES
        return now >= max(self.started + DELAY, self.drawn + pause)

    def clear(self) -> None:
        """Erase the bar."""
        with self.lock:
            if self.width:
                print(f"\r{' ' * self.width}\r", end="", file=sys.stderr, flush=True)
                self.width = 0


def _rounded(seconds: float) -> str:
    """Return a duration to the precision of an estimate.

    >>> _rounded(3.2), _rounded(41.0), _rounded(200.0)
    ('a few seconds', 'about 40 s', 'about 3 min')
    """
    if seconds < 8:
        return "a few seconds"
    if seconds < 90:
        return f"about {5 * round(seconds / 5)} s"
    return f"about {seconds / 60:.0f} min"


@contextmanager
def overall(name: str, stages: Sequence[Stage] = ()) -> Iterator[None]:
    """Show one bar for everything in this block, if progress is shown.

    Parameters
    ----------
    name : str
        What the bar is about, such as the command.
    stages : sequence of Stage
        The stages in order; `stage(name)` starts the next one.

    Examples
    --------
    >>> with showing(False), overall("explain", [Stage("reading", 1), Stage("scoring", 4)]):
    ...     stage("scoring")
    """
    if not _SHOWN.get() or _display() is not None:
        yield
        return
    display = _Display(name, stages)

    def redraw() -> None:
        while not display.over.wait(_REDRAW):
            display.show()

    teller = Thread(target=redraw, daemon=True)
    _DISPLAY.set(display)
    teller.start()
    try:
        yield
    finally:
        display.over.set()
        teller.join()
        display.clear()


def _display() -> _Display | None:
    """Return the line that is shown now, if any."""
    display = _DISPLAY.get()
    # not reset at the end: a generator may be closed in another context than it began in
    return None if display is None or display.over.is_set() else display


def stage(name: str | None = None) -> None:
    """Start this stage of the overall bar, or the next one; do nothing if there is no such bar."""
    if (display := _display()) is not None:
        display.enter(name)


def clear_line() -> None:
    """Erase the bar before something else is printed; it is drawn again later."""
    if (display := _display()) is not None:
        display.clear()


@contextmanager
def counter(what: str, total: int | None) -> Iterator[Bar]:
    """Yield a bar that you move with `bar.update()`."""
    with overall(what):
        display = _display()
        if display is None or not _SHOWN.get():
            yield Bar(None, what, total)
            return
        with display.counting(what, total) as bar:
            yield bar


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Report work that cannot be counted: after two seconds, then every ten.

    >>> with showing(False), waiting("reading the file"):
    ...     pass
    """
    with counter(what, None):
        yield


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and show a bar if they take more than two seconds."""
    with counter(what, total) as bar:
        for item in items:
            yield item
            bar.update()


def track_rows(batches: Iterable[ScoreRows], what: str, total: int) -> Iterator[ScoreRows]:
    """Yield batches of score rows and show a bar that counts examples."""
    with counter(what, total) as bar:
        last = -1
        for batch in batches:
            yield batch
            if len(batch):
                newest = int(batch.sample.max())
                bar.update(max(newest - last, 0))
                last = max(last, newest)


def say(text: str) -> None:
    """Print one line, if progress is shown."""
    if _SHOWN.get():
        clear_line()
        _print(text)


def _print(text: str) -> None:
    print(f"exempla: {text}", file=sys.stderr, flush=True)
