"""Decisions as an append-only log in SQLite; what a row's decision is now is derived from it.

An event sets a row's state, undoes the latest set, or redoes the latest undone one. Nothing is
ever changed or deleted (triggers hold that), so undo has no limit and survives a restart. Which
rows were drawn as spot checks, by which design and when, are events too.

A writer says which version of the row it saw. If the row has moved on since, the write is refused
with `StaleError` and the row's present state: two open tabs cannot overwrite each other unseen.
Each event carries the sender's key `once`: sending it again changes nothing.

How the file is kept whole, and what happens if it is not: `exempla.review.logfile`.

How many may connect, how long they may take, and how much is said about it.

A page for one person needs a handful of connections, but any program on the machine may open some
and leave them hanging, until no file handles are left and every attempt is logged. So a connection
has `PATIENCE` seconds to send a whole request, and there are at most `MOST` of them: for each one
more, the one that has kept us waiting longest is closed. Whoever comes last and speaks is heard.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from exempla.review.logfile import (
    BrokenChainError,
    DamagedError,
    Event,
    append,
    open_log,
    read_events,
)

ACTIONS = ("pending", "keep", "relabel", "remove", "skip")
SETTLED = ("keep", "relabel", "remove")


@dataclass(frozen=True)
class RowDecision:
    """What is decided about a row now; `version` is the event that made it so (0: none)."""

    row: int
    action: str = "pending"
    label: str | None = None
    note: str = ""
    time: str = ""
    version: int = 0


@dataclass(frozen=True)
class _Step:
    """One set event, as the undo and redo stacks keep it."""

    version: int
    before: RowDecision
    after: RowDecision


@dataclass(frozen=True)
class Draw:
    """A spot check: its row, and the event by which it was drawn."""

    row: int
    at: int


class StaleError(Exception):
    """The writer had not seen the latest event; `state` is what it did not know of."""

    def __init__(self, state: RowDecision | None) -> None:
        super().__init__("decided elsewhere in the meantime")
        self.state = state


@dataclass
class _Ledger:
    """What the events of one key add up to."""

    states: dict[int, RowDecision] = field(default_factory=dict)
    done: list[_Step] = field(default_factory=list)
    undone: list[_Step] = field(default_factory=list)
    since: dict[int, int] = field(default_factory=dict)
    """Of each settled row: the event since which it has been so without a break."""
    design: str = ""
    draws: list[Draw] = field(default_factory=list)

    def state(self, row: int) -> RowDecision:
        """What is decided about a row."""
        return self.states.get(row, RowDecision(row))

    def take(self, event: Event) -> None:
        """Follow one event."""
        now = RowDecision(
            event.row, event.action, event.label, event.note, event.time, event.version
        )
        if now.action not in ACTIONS:
            raise BrokenChainError(f"event {event.version} has no known action")
        if event.kind == "design":  # draws of an earlier one stay decided, and count no more
            self.design, self.draws = event.note, []
            return
        if event.kind == "draw":
            self.draws.append(Draw(event.row, event.version))
            return
        if event.kind == "set":
            self.done.append(_Step(event.version, self.state(event.row), now))
            self.undone.clear()
        else:
            source, goal = (
                (self.done, self.undone) if event.kind == "undo" else (self.undone, self.done)
            )
            if not source:
                raise BrokenChainError(f"event {event.version} has nothing to {event.kind}")
            goal.append(source.pop())
        self.states[event.row] = now
        if now.action not in SETTLED:
            self.since.pop(event.row, None)
        else:
            self.since.setdefault(event.row, event.version)

    def decided(self) -> int:
        """How many rows something is decided or noted about."""
        return sum(s.action != "pending" or s.note != "" for s in self.states.values())


class DecisionLog:
    """The log in one file, for the data named by `key` (see `Review.key`).

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> log = DecisionLog(Path(folder.name) / "decisions.sqlite", key="mails")
    >>> log.decide(RowDecision(7, "relabel", "spam"), seen=0, once="a").action
    'relabel'
    >>> log.undo(seen=log.undoable().version, once="b").action
    'pending'
    >>> log.redo(seen=log.redoable().version, once="c").label
    'spam'
    >>> log.close(); folder.cleanup()
    """

    def __init__(self, path: str | Path, key: str) -> None:
        self.path, self.key = Path(path), key
        self._lock = threading.RLock()
        self._ledgers: dict[str, _Ledger] = {key: _Ledger()}
        self._version = 0  # the latest event of this key
        self._last = Event(0, "", "", 0, "", None, "", "", "")  # of any key
        self._count = 0
        self._db = open_log(self.path)
        self._file = os.stat(self.path)
        try:
            self.refresh()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def version(self) -> int:
        """The latest event known here."""
        return self._version

    def state(self, row: int) -> RowDecision:
        """What is decided about a row, as of the last `refresh` or write."""
        return self._own.state(row)

    def states(self, since: int = 0) -> list[RowDecision]:
        """The states that events after `since` made."""
        with self._lock:
            return [state for state in self._own.states.values() if state.version > since]

    def undoable(self) -> _Step | None:
        """What undo would take back."""
        return self._own.done[-1] if self._own.done else None

    def redoable(self) -> _Step | None:
        """What redo would bring back."""
        return self._own.undone[-1] if self._own.undone else None

    def since(self) -> dict[int, int]:
        """The settled rows, and the event since which each has been so."""
        with self._lock:
            return dict(self._own.since)

    @property
    def draws(self) -> list[Draw]:
        """The spot checks of the present design, in the order in which they were drawn."""
        return list(self._own.draws)

    def refresh(self) -> None:
        """Take in events that another process wrote; DamagedError if they do not fit."""
        with self._lock:
            try:
                for event in read_events(
                    self._db, self._last.version, self._last.seal, self._count
                ):
                    self._ledgers.setdefault(event.key, _Ledger()).take(event)
                    self._last, self._count = event, self._count + 1
                    if event.key == self.key:
                        self._version = event.version
            except BrokenChainError as error:
                raise DamagedError(
                    f"{self.path} is not what this program wrote ({error}); end every program that "
                    "uses it and start `exempla review` again."
                ) from error

    def decide(self, state: RowDecision, *, seen: int, once: str) -> RowDecision:
        """Set a row's state if `seen` is still its version; StaleError otherwise."""
        with self._writing(once) as repeated:
            if repeated is not None:
                return self.state(repeated)
            now = self.state(state.row)
            if now.version != seen:
                raise StaleError(now)
            return self._append("set", replace(state, time=_clock()), once)

    def undo(self, *, seen: int, once: str) -> RowDecision:
        """Take back the latest set event if it is the one `seen`; the row gets its former state."""
        with self._writing(once) as repeated:
            if repeated is not None:
                return self.state(repeated)
            step = self.undoable()
            if step is None or step.version != seen:
                raise StaleError(step.after if step else None)
            return self._append("undo", step.before, once)

    def redo(self, *, seen: int, once: str) -> RowDecision:
        """Bring back the event undone last if it is the one `seen`."""
        with self._writing(once) as repeated:
            if repeated is not None:
                return self.state(repeated)
            step = self.redoable()
            if step is None or step.version != seen:
                raise StaleError(step.before if step else None)
            return self._append("redo", step.after, once)

    def start_design(self, design: str) -> None:
        """Write down by which design spot checks are drawn, unless it is the present one."""
        if self._own.design == design:
            return
        with self._writing("") as _:
            if self._own.design != design:
                self._append("design", RowDecision(0, note=design), f"design-{self._version}")

    def draw(self, choose: Callable[[], int | None], number: int) -> bool:
        """Let `choose` take the spot check of this number, unless it has been drawn.

        It is asked with the log up to date, and nothing is decided until its choice is written.
        """
        with self._writing("") as _:
            if len(self._own.draws) != number:
                return False
            row = choose()
            if row is None:
                return False
            self._append("draw", RowDecision(row, time=_clock()), f"draw-{self._last.version}")
            return True

    def setting(self, name: str, value: str | None = None) -> str | None:
        """Remember `value` under `name`, or recall it."""
        with self._lock:
            if value is not None:
                self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))
                return value
            found = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,))
            row = found.fetchone()
            return row[0] if row else None

    def others(self) -> dict[str, int]:
        """Keys of other data that the file holds decisions about, and how many."""
        with self._lock:
            found = {key: ledger.decided() for key, ledger in self._ledgers.items()}
            return {key: count for key, count in found.items() if count and key != self.key}

    @property
    def _own(self) -> _Ledger:
        return self._ledgers[self.key]

    @contextmanager
    def _writing(self, once: str) -> Iterator[int | None]:
        """One immediate transaction, up to date with other processes.

        Yields the row of the event already written under `once`, if there is one.
        """
        with self._lock:
            self._check_in_place()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self.refresh()
                found = self._db.execute(
                    "SELECT row FROM events WHERE key = ? AND once = ?", (self.key, once)
                ).fetchone()
                yield found[0] if found else None
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self.refresh()  # memory follows the disk, never the other way round
            self._empty_wal()

    def _check_in_place(self) -> None:
        """A file that was moved or replaced would take decisions along to where nobody looks."""
        try:
            same = os.path.samestat(os.stat(self.path), self._file)
        except OSError:
            same = False
        if not same:
            raise DamagedError(
                f"{self.path} was moved or replaced while in use; start `exempla review` again."
            )

    def _empty_wal(self) -> None:
        """Bring what was committed from the write-ahead log into the file itself.

        The decision is safe before this. But damage to a write-ahead log cannot be told from a
        write that never ended, while the file answers for all it holds. If it cannot be done now
        (another process reads, the disk is full), the next decision does it.
        """
        with suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA busy_timeout = 250")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.execute("PRAGMA busy_timeout = 5000")

    def _append(self, kind: str, state: RowDecision, once: str) -> RowDecision:
        # `time` is when the state was decided: undo and redo bring the old time back.
        event = Event(
            0, self.key, kind, state.row, state.action, state.label, state.note, state.time, once
        )
        return replace(state, version=append(self._db, event).version)


def _clock() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


MOST = 64
BACKLOG = 64
"""Connections that the system holds for us; asyncio accepts as many in one go."""
PATIENCE = 10.0
LINES = 20
"""Lines a minute that a logger may write."""


class Connection(H11Protocol):
    """HTTP on one connection, with an end to our patience."""

    since = 0.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for it, and begin to wait."""
        super().connection_made(transport)
        self._wait()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    @property
    def waiting(self) -> bool:
        """Whether it is the client's turn: no request, one that has not ended, or one answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _wait(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.since = self.loop.time()
        self.timer = self.loop.call_later(PATIENCE, self._give_up)

    def _give_up(self) -> None:
        if self.waiting:
            self._drop()

    def _make_room(self) -> None:
        while len(self.connections) > MOST:
            idle = [c for c in self.connections if isinstance(c, Connection) and c.waiting]
            others = [c for c in idle if c is not self]
            min(others, key=lambda c: c.since, default=self)._drop()

    def _drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


class _Sparing(logging.Filter):
    """The first lines of every minute, and then one that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.minute, self.lines = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self.minute > 60:
            self.minute, self.lines = now, 0
        self.lines += 1
        if self.lines == LINES:
            record.msg = f"{record.getMessage()} (what follows within this minute is left out)"
            record.args = ()
        return self.lines <= LINES


@contextmanager
def sparing_logs() -> Iterator[None]:
    """While the server runs, no flood of requests becomes a flood of log lines."""
    loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error")]
    filters = [_Sparing() for _ in loggers]
    for logger, spare in zip(loggers, filters, strict=True):
        logger.addFilter(spare)
    try:
        yield
    finally:
        for logger, spare in zip(loggers, filters, strict=True):
            logger.removeFilter(spare)
