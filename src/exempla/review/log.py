"""Decisions as an append-only log in SQLite; what a row's decision is now is derived from it.

An event sets a row's state, undoes the latest set, or redoes the latest undone one. Nothing is
ever changed or deleted (triggers hold that), so undo has no limit and survives a restart.

A writer says which version of the row it saw. If the row has moved on since, the write is refused
with `StaleError` and the row's present state: two open tabs cannot overwrite each other unseen.
Each event carries the sender's key `once`: sending it again changes nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from exempla.errors import ExemplaError

__all__ = ["ACTIONS", "DecisionLog", "StaleError", "RowDecision"]

ACTIONS = ("pending", "keep", "relabel", "remove", "skip")

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('set', 'undo', 'redo')),
    row INTEGER NOT NULL, action TEXT NOT NULL, label TEXT, note TEXT NOT NULL,
    time TEXT NOT NULL, once TEXT NOT NULL, UNIQUE (key, once)
);
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END;
CREATE TRIGGER IF NOT EXISTS events_remain BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


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
class Step:
    """One set event, as the undo and redo stacks keep it."""

    version: int
    before: RowDecision
    after: RowDecision


class StaleError(Exception):
    """The writer had not seen the latest event; `state` is what it did not know of."""

    def __init__(self, state: RowDecision | None) -> None:
        super().__init__("decided elsewhere in the meantime")
        self.state = state


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
        path = Path(path)
        if path.is_symlink():
            raise ExemplaError(f"{path} is a link; replace it by the file it points to.")
        self.key = key
        self._lock = threading.RLock()
        self._states: dict[int, RowDecision] = {}
        self._done: list[Step] = []
        self._undone: list[Step] = []
        self._version = 0
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA busy_timeout = 5000")
            self._db.execute("PRAGMA journal_mode = WAL")
            # NORMAL survives a killed process; only FULL also survives a power cut.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
            self.refresh()
        except sqlite3.DatabaseError as error:
            raise ExemplaError(
                f"{path} cannot be opened ({error}); check that the folder is writable and that "
                "the file was written by this program."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def version(self) -> int:
        """The latest event known here."""
        return self._version

    def state(self, row: int) -> RowDecision:
        """What is decided about a row, as of the last `refresh` or write."""
        return self._states.get(row, RowDecision(row))

    def states(self, since: int = 0) -> list[RowDecision]:
        """The states that events after `since` made."""
        with self._lock:
            return [state for state in self._states.values() if state.version > since]

    def undoable(self) -> Step | None:
        """What undo would take back."""
        return self._done[-1] if self._done else None

    def redoable(self) -> Step | None:
        """What redo would bring back."""
        return self._undone[-1] if self._undone else None

    def refresh(self) -> None:
        """Take in events that another process wrote."""
        with self._lock:
            rows = self._db.execute(
                "SELECT version, kind, row, action, label, note, time FROM events"
                " WHERE key = ? AND version > ? ORDER BY version",
                (self.key, self._version),
            )
            for version, kind, row, action, label, note, time in rows.fetchall():
                self._apply(kind, RowDecision(row, action, label, note, time, version))

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

    def setting(self, name: str, value: str | None = None) -> str | None:
        """Remember `value` under `name`, or recall it."""
        with self._lock:
            if value is not None:
                self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))
                return value
            found = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,))
            row = found.fetchone()
            return row[0] if row else None

    def others(self) -> int:
        """Number of decisions in the file that belong to other data (an earlier version of it)."""
        with self._lock:
            found = self._db.execute(
                "SELECT count(*) FROM events WHERE key != ? AND kind = 'set'", (self.key,)
            )
            return int(found.fetchone()[0])

    @contextmanager
    def _writing(self, once: str) -> Iterator[int | None]:
        """One immediate transaction, up to date with other processes.

        Yields the row of the event already written under `once`, if there is one.
        """
        with self._lock:
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

    def _append(self, kind: str, state: RowDecision, once: str) -> RowDecision:
        # `time` is when the state was decided: undo and redo bring the old time back.
        cursor = self._db.execute(
            "INSERT INTO events (key, kind, row, action, label, note, time, once)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.key, kind, state.row, state.action, state.label, state.note, state.time, once),
        )
        return replace(state, version=int(cursor.lastrowid or 0))

    def _apply(self, kind: str, state: RowDecision) -> None:
        if kind == "set":
            self._done.append(Step(state.version, self.state(state.row), state))
            self._undone.clear()
        elif kind == "undo":
            self._undone.append(self._done.pop())
        else:
            self._done.append(self._undone.pop())
        self._states[state.row] = state
        self._version = state.version


def _clock() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
