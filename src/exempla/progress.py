"""Progress of long work: bars in a terminal, lines elsewhere, nothing for quick work.

`with showing(progress):` decides once, where the user calls, whether anything is shown. Inside it,
`counter`, `track` and `waiting` report what is being done. By default each of them has its own bar.
A command wraps them in `overall`, which shows one bar for the whole command: its stages, the step
that is running, and the time left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from tqdm import tqdm

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
"""Seconds between two drawings of the overall bar in a terminal."""
_LONG = 20.0
"""Work that is estimated to take more seconds than this is announced at once."""
_BAR_WIDTH = 24
_MIN_SHARE_FOR_ESTIMATE = 0.1
"""Share of the command that must be done before the time left is estimated."""

_SHOWN: ContextVar[bool] = ContextVar("exempla_progress", default=False)
_OVERALL: ContextVar[_Overall | None] = ContextVar("exempla_overall", default=None)


@contextmanager
def showing(enabled: bool) -> Iterator[None]:
    """Show the progress of the work in this block, or hide it."""
    token = _SHOWN.set(enabled)
    try:
        yield
    finally:
        _SHOWN.reset(token)


class Bar(Protocol):
    """The object that `counter` yields."""

    def update(self, n: float = 1) -> object:
        """Add n to the work done."""
        ...


class Stage(NamedTuple):
    """A stage of a command: its name, its typical share of the time, and its number of counters."""

    name: str
    share: float
    counters: int = 1


class _Step:
    """A counter inside an overall bar."""

    def __init__(self, whole: _Overall, what: str, total: int | None) -> None:
        self.whole, self.what, self.total, self.done = whole, what, total, 0.0

    def update(self, n: float = 1) -> None:
        self.done += n
        self.whole.show()

    @property
    def share(self) -> float:
        return min(self.done / self.total, 1.0) if self.total else 0.0


class _Overall:
    """One bar for a whole command.

    Each stage takes its share of the bar; inside a stage, the outermost counter moves it. The time
    left is what the current stage still needs at its own speed, plus the later stages at the speed
    of the command so far.
    """

    def __init__(self, name: str, stages: Sequence[Stage]) -> None:
        self.name, self.stages = name, tuple(stages)
        self.started = self.stage_started = monotonic()
        self.place, self.counted, self.highest = 0, 0, 0.0
        self.steps: list[_Step] = []
        self.next, self.width, self.lock = self.started + DELAY, 0, RLock()

    def enter(self, name: str | None) -> None:
        """Start the stage of this name, or the next one; unknown names are ignored."""
        later = [stage.name for stage in self.stages[self.place + 1 :]]
        if later and (name is None or name in later):
            self.place += 1 + (0 if name is None else later.index(name))
            self.stage_started, self.counted = monotonic(), 0
            self.show()

    @contextmanager
    def counting(self, what: str, total: int | None) -> Iterator[_Step]:
        step = _Step(self, what, total)
        self.steps.append(step)
        try:
            yield step
        finally:
            self.steps.remove(step)
            if not self.steps and total is not None:
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
        running = [step for step in self.steps if step.total]
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
        what = self.steps[0].what if self.steps else self.stages[self.place].name
        left = self.seconds_left(now)
        rest = "" if left is None else f", {_rounded(left)} left"
        return f"{100 * self.fraction():.0f} %, {what}{rest}"

    def show(self) -> None:
        """Draw the bar, or print a line, if it is time."""
        with self.lock:
            now = monotonic()
            if now < self.next:
                return
            if sys.stderr.isatty():
                self.next = now + min(_REDRAW, BETWEEN_LINES)
                done = round(_BAR_WIDTH * self.fraction())
                text = f"{self.name} [{'#' * done}{'-' * (_BAR_WIDTH - done)}] {self.line(now)}"
                print(f"\r{text.ljust(self.width)}", end="", file=sys.stderr, flush=True)
                self.width = len(text)
            else:
                self.next = now + BETWEEN_LINES
                _print(self.line(now))

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
def overall(name: str, stages: Sequence[Stage]) -> Iterator[None]:
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
    if not _SHOWN.get() or _OVERALL.get() is not None:
        yield
        return
    whole, over = _Overall(name, stages), Event()

    def redraw() -> None:
        while not over.wait(_REDRAW):
            whole.show()

    teller = Thread(target=redraw, daemon=True)
    token = _OVERALL.set(whole)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        _OVERALL.reset(token)
        whole.clear()


def stage(name: str | None = None) -> None:
    """Start this stage of the overall bar, or the next one; do nothing if there is no such bar."""
    if (whole := _OVERALL.get()) is not None:
        whole.enter(name)


def clear_line() -> None:
    """Erase the overall bar before something else is printed; it is drawn again later."""
    if (whole := _OVERALL.get()) is not None:
        whole.clear()


class Lines:
    """Progress of one counter as lines, where no bar can be drawn."""

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
        """Return True if the first piece of work shows that all of it will take long."""
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
    """Yield a bar that you move with `bar.update()`."""
    shown, whole = _SHOWN.get(), _OVERALL.get()
    if shown and whole is not None:
        with whole.counting(what, total) as step:
            yield step
    elif shown and total == 1:  # "1 of 1" would appear when the work is over
        with waiting(what):
            yield tqdm(disable=True)
    elif shown and not sys.stderr.isatty():
        yield Lines(what, total)
    else:
        with tqdm(
            desc=what, total=total, delay=DELAY, disable=not shown, leave=False, unit=unit
        ) as bar:
            yield bar


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Report work that cannot be counted: a line after two seconds, then one every ten.

    >>> with showing(False), waiting("reading the file"):
    ...     pass
    """
    whole = _OVERALL.get()
    if not _SHOWN.get():
        yield
        return
    if whole is not None:
        with whole.counting(what, None):
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
    """Yield the items and show a bar if they take more than two seconds."""
    with counter(what, total) as bar:
        for item in items:
            yield item
            bar.update()


def track_rows(batches: Iterable[ScoreRows], what: str, total: int) -> Iterator[ScoreRows]:
    """Yield batches of score rows and show a bar that counts examples."""
    with counter(what, total, "ex") as bar:
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
