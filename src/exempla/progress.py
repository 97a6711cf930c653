"""Progress of long work: a bar in a terminal, lines elsewhere, nothing for quick work.

`with showing(progress):` decides once, where the user calls, whether anything is shown. Inside it,
`counter`, `track` and `waiting` report what is being done, on one line: that of the outermost of
them, or that of `overall`, with which a command shows its stages.
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

T = TypeVar("T")
DELAY = 2.0
"""Seconds before a bar or a line appears."""
BETWEEN_LINES = 10.0
"""Seconds between two lines if the output is not a terminal."""
_REDRAW = 0.5
"""Seconds between two drawings of the bar in a terminal."""
_BAR_WIDTH = 24
_MIN_SHARE_FOR_ESTIMATE = 0.02
"""Share of the work that must be done before the time left is estimated."""

_SHOWN: ContextVar[bool | None] = ContextVar("exempla_progress", default=None)
_SAID: ContextVar[set[str] | None] = ContextVar("exempla_said", default=None)
"""Lines printed in the outermost `showing`: models of one job have the same to say."""
_DISPLAY: ContextVar[_Display | None] = ContextVar("exempla_display", default=None)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Show the progress of the work in this block, or hide it."""
    token, said = _SHOWN.set(enabled), _SAID.get()
    lines = _SAID.set(set() if said is None else said)
    try:
        yield
    finally:
        _SHOWN.reset(token)
        _SAID.reset(lines)


class Stage(NamedTuple):
    """A stage of a command: its name, its typical share of the time, and its number of counters."""

    name: str
    share: float
    counters: int = 1


class Bar:
    """What `counter` yields: some work, and how much of it is done."""

    def __init__(self, display: _Display | None, what: str, total: int | None) -> None:
        self.display, self.what, self.total, self.done = display, what, total, 0.0

    def update(self, n: float = 1) -> None:
        """Add n to the work done."""
        self.done += n
        if self.display is not None:
            self.display.show()


class _Display:
    """The line on the screen. Each stage takes its share of the bar; inside a stage, the outermost
    counter moves it."""

    def __init__(self, name: str, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages) or (Stage(name, 1.0),)
        self.started, self.drawn = monotonic(), -float("inf")
        self.place, self.counted, self.highest = 0, 0, 0.0
        self.bars: list[Bar] = []
        self.width, self.lock, self.over = 0, RLock(), Event()

    def enter(self, name: str | None) -> None:
        """Start the stage of this name, or the next one; unknown names are ignored."""
        later = [stage.name for stage in self.stages[self.place + 1 :]]
        if later and (name is None or name in later):
            self.place += 1 + (0 if name is None else later.index(name))
            self.counted = 0
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
        """Return the fraction of the work that is done; it never decreases."""
        stage = self.stages[self.place]
        running = [min(bar.done / bar.total, 1.0) for bar in self.bars if bar.total][:1]
        counters = max(stage.counters, self.counted + len(running), 1)
        before = sum(stage.share for stage in self.stages[: self.place])
        done = before + stage.share * (self.counted + sum(running)) / counters
        self.highest = max(self.highest, done / sum(stage.share for stage in self.stages))
        return self.highest

    def line(self, now: float) -> str:
        """Return what is being done, how much of it is done, and the time left."""
        what = self.bars[0].what if self.bars else self.stages[self.place].name
        done, seconds = self.fraction(), now - self.started
        if done < _MIN_SHARE_FOR_ESTIMATE:
            return f"{what}: {seconds:.0f} s so far"
        left = seconds * (1 - done) / done
        rest = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
        return f"{what}: {done:.0%}, about {rest} left"

    def show(self) -> None:
        """Draw the bar, or print a line, if it is time."""
        with self.lock:
            now, terminal = monotonic(), sys.stderr.isatty()
            pause = min(_REDRAW, BETWEEN_LINES) if terminal else BETWEEN_LINES
            if now < max(self.started + DELAY, self.drawn + pause):
                return
            self.drawn = now
            if not terminal:
                _print(self.line(now))
                return
            done = round(_BAR_WIDTH * self.fraction())
            text = f"[{'#' * done}{'-' * (_BAR_WIDTH - done)}] {self.line(now)}"
            print(f"\r{text.ljust(self.width)}", end="", file=sys.stderr, flush=True)
            self.width = len(text)

    def clear(self) -> None:
        """Erase the bar."""
        with self.lock:
            if self.width:
                print(f"\r{' ' * self.width}\r", end="", file=sys.stderr, flush=True)
                self.width = 0


@contextmanager
def overall(name: str, stages: Sequence[Stage] = ()) -> Iterator[None]:
    """Show one bar for everything in this block, if progress is shown.

    Parameters
    ----------
    name : str
        What the bar is about, such as the command.
    stages : sequence of Stage
        The stages in order; `stage(name)` starts the next one.
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
    """Report work that cannot be counted: after two seconds, then every ten."""
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
        for batch in batches:
            yield batch
            if len(batch):
                bar.update(max(int(batch.sample.max()) + 1 - bar.done, 0))
            del batch  # the next pass needs its memory


def say(text: str, always: bool = False) -> None:
    """Print one line, once per job, if progress is shown.

    With `always`, print it every time, unless the caller has hidden progress.
    """
    shown, said = _SHOWN.get(), _SAID.get()
    if shown or (always and shown is None):
        if said is not None and not always:
            if text in said:
                return
            said.add(text)
        clear_line()
        _print(text)


def _print(text: str) -> None:
    print(f"exempla: {text}", file=sys.stderr, flush=True)
