"""What a long job reports: the memory it will need, and then its progress.

`with showing(progress):` decides once, where the user calls, whether anything is shown. Inside it,
`counter`, `track` and `waiting` report what is being done, on one line: that of the outermost of
them, or that of `overall`, with which a command shows its stages. It is a bar in a terminal and
lines elsewhere; quick work shows nothing.

A job that may need much memory says so before it begins (`announce`), so that you can stop it,
choose a smaller `sketch=`, or keep rows on disk with `store=`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from threading import Event, RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
MIN_ANNOUNCED_BYTES = 2**28
"""Memory forecasts below this many bytes are not printed."""
_UNKNOWN_MEMORY = 2**32
"""Bytes assumed to be free where the system does not report it."""

_SHOWN: ContextVar[bool] = ContextVar("exempla_progress", default=False)
_DISPLAY: ContextVar[_Display | None] = ContextVar("exempla_display", default=None)
_INCLUDED: ContextVar[bool] = ContextVar("exempla_memory_included", default=False)
"""Whether an outer forecast covers the job."""


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


def say(text: str) -> None:
    """Print one line, if progress is shown."""
    if _SHOWN.get():
        clear_line()
        _print(text)


def _print(text: str) -> None:
    print(f"exempla: {text}", file=sys.stderr, flush=True)


# ---- memory


@contextmanager
def _silence() -> Iterator[None]:
    token = _INCLUDED.set(True)
    try:
        yield
    finally:
        _INCLUDED.reset(token)


def announce(needed: float, what: str, disk: float = 0.0) -> AbstractContextManager[None]:
    """Print a memory forecast if it is large; as a context manager, silence those inside.

    `what` is the size of the job in words. A large number of bytes written to `disk` also makes the
    line appear. A job that calls other jobs runs them in the block: ``with announce(…): …``.
    """
    if max(needed, disk) > MIN_ANNOUNCED_BYTES and not _INCLUDED.get():
        say(f"{what}; about {needed / 2**30:.2g} GiB of memory")
    return _silence()


def available_memory(device: Any = None) -> int:
    """Return the free bytes of a GPU, or those of main memory without swapping."""
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:  # includes pages that only cache files
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return _UNKNOWN_MEMORY
