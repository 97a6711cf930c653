"""The decision log: one append-only SQLite table, from which the state of every row is derived.

An event sets the state of a row, undoes the latest set, or redoes the latest undone one. Triggers
reject updates and deletes, so undo has no limit and survives a restart. The spot checks that were
drawn, and the sampling design they were drawn from, are events as well.

The file is in WAL mode with `synchronous = FULL`: a decision is on disk when `decide` returns and
survives a killed process and a power cut. Opening the file runs SQLite's `integrity_check`. A
damaged file is refused and left untouched; `recover_log` rebuilds it from the readable events.

A writer states which version of the row it has seen. If the row has changed since, `StaleError`
carries the current state, so two open tabs cannot overwrite each other unnoticed. Every request has
a unique id (`once`): sending it again changes nothing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from exempla.errors import ExemplaError
from exempla.io import write_bytes

ACTIONS = ("pending", "keep", "relabel", "remove", "skip")
SETTLED = ("keep", "relabel", "remove")

_SCHEMA = """
CREATE TABLE events (
    version INTEGER PRIMARY KEY,
    key TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('set', 'undo', 'redo', 'design', 'draw')),
    row INTEGER NOT NULL, action TEXT NOT NULL, label TEXT, note TEXT NOT NULL,
    time TEXT NOT NULL, once TEXT NOT NULL, UNIQUE (key, once)
);
CREATE TRIGGER no_update BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the decision log is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the decision log is append-only'); END;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_OTHERS = """
SELECT key, count(*) FROM (
    SELECT key, action, note, max(version) FROM events
    WHERE key != ? AND kind IN ('set', 'undo', 'redo') GROUP BY key, row
) WHERE action != 'pending' OR note != '' GROUP BY key
"""
"""With max(version), SQLite takes the other columns from the latest event of each row."""
_BUSY_TIMEOUT_MS = 5000


class DamagedError(ExemplaError):
    """The decision log cannot be read in full."""


class StorageError(ExemplaError):
    """The disk is full or not writable."""


class StaleError(Exception):
    """The writer had not seen the latest event; `state` is what it missed."""

    def __init__(self, state: RowDecision | None) -> None:
        super().__init__("decided elsewhere in the meantime")
        self.state = state


_Event = tuple[Any, ...]
"""A row of the table. A sampling design is stored in `note`."""
_COLUMNS = ("version", "key", "kind", "row", "action", "label", "note", "time", "once")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM events"
_INSERT = f"INSERT INTO events ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


@dataclass(frozen=True)
class RowDecision:
    """The current decision about a row; `version` is the event that set it (0: none)."""

    row: int
    action: str = "pending"
    label: str | None = None
    note: str = ""
    time: str = ""
    version: int = 0


class Draw(NamedTuple):
    """A spot check: its row, and the version of the event that drew it."""

    row: int
    at: int


class _Ledger:
    """The decisions that the events of one key add up to.

    `version` is the latest event. `steps` has the states before and after each set event that can
    be undone ("undo") or redone ("redo"). `since` has the version since which each settled row has
    been settled without interruption. `draws` are the spot checks of the current `design`.
    """

    def __init__(self) -> None:
        self.version = 0
        self.decisions: dict[int, RowDecision] = {}
        self.steps: dict[str, list[tuple[RowDecision, RowDecision]]] = {"undo": [], "redo": []}
        self.since: dict[int, int] = {}
        self.design = ""
        self.draws: list[Draw] = []

    def state(self, row: int) -> RowDecision:
        """Return the decision about a row, as of the last `refresh` or write."""
        return self.decisions.get(row, RowDecision(row))

    def states(self, since: int = 0) -> list[RowDecision]:
        """Return the states set by events after `since`."""
        return [state for state in list(self.decisions.values()) if state.version > since]

    def undoable(self) -> RowDecision | None:
        """Return the decision that `undo` would revert."""
        return self.steps["undo"][-1][1] if self.steps["undo"] else None

    def redoable(self) -> RowDecision | None:
        """Return the decision that `redo` would restore."""
        return self.steps["redo"][-1][1] if self.steps["redo"] else None

    def apply(self, event: _Event) -> None:
        """Apply one event; ValueError if it cannot follow the ones before it."""
        version, _, kind, row, action, label, note, time, _ = event
        if action not in ACTIONS:
            raise ValueError(f"event {version} has the unknown action {action!r}")
        self.version = version or 0
        if kind == "design":  # spot checks of an earlier design no longer count
            self.design, self.draws = note, []
            return
        if kind == "draw":
            self.draws = [*self.draws, Draw(row, self.version)]
            return
        now = RowDecision(row, action, label, note, time, self.version)
        if kind == "set":
            self.steps["undo"].append((self.state(row), now))
            self.steps["redo"].clear()
        elif not self.steps[kind]:
            raise ValueError(f"event {version} has nothing to {kind}")
        else:
            self.steps["redo" if kind == "undo" else "undo"].append(self.steps[kind].pop())
        self.decisions[row] = now
        if action in SETTLED:
            self.since.setdefault(row, self.version)
        else:
            self.since.pop(row, None)


class DecisionLog(_Ledger):
    """The decisions about the data named by `key` (see `Review.key`), stored in one file.

    >>> log = DecisionLog(Path(tempfile.mkdtemp()) / "decisions.sqlite", key="mails")
    >>> log.decide(RowDecision(7, "relabel", "spam"), seen=0, once="a").action
    'relabel'
    >>> log.undo(seen=log.undoable().version, once="b").action
    'pending'
    """

    def __init__(self, path: str | Path, key: str) -> None:
        super().__init__()
        self.path, self.key = Path(path), key
        self._lock = threading.RLock()
        self._db = _open(self.path)
        self._file = os.stat(self.path)
        self.refresh()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def refresh(self) -> None:
        """Read the events that another process wrote."""
        with self._lock, self._disk_errors():
            latest = f"{_SELECT} WHERE version > ? AND key = ? ORDER BY version"
            try:
                for event in self._db.execute(latest, (self.version, self.key)).fetchall():
                    self.apply(event)
            except ValueError as error:
                raise _damaged(self.path, str(error)) from error

    def decide(self, state: RowDecision, *, seen: int, once: str) -> RowDecision:
        """Set the state of a row if `seen` is still its version; StaleError otherwise."""
        with self._transaction(once) as known:
            if not known:
                now = self.state(state.row)
                if now.version != seen:
                    raise StaleError(now)
                self._insert("set", replace(state, time=_clock()), once)
        return self.state(state.row)

    def undo(self, *, seen: int, once: str) -> RowDecision:
        """Revert the latest set event if it is the one `seen`; the row gets its former state."""
        return self._turn("undo", seen, once)

    def redo(self, *, seen: int, once: str) -> RowDecision:
        """Restore the event that was undone last if it is the one `seen`."""
        return self._turn("redo", seen, once)

    def _turn(self, kind: str, seen: int, once: str) -> RowDecision:
        with self._transaction(once) as known:
            if known:
                return self.state(known[0])
            if not self.steps[kind]:
                raise StaleError(None)
            before, after = self.steps[kind][-1]
            new, now = (before, after) if kind == "undo" else (after, before)
            if after.version != seen:
                raise StaleError(now)
            self._insert(kind, new, once)  # with the time at which that state was decided
        return self.state(new.row)

    def start_design(self, design: str) -> None:
        """Record the design that spot checks are drawn from, unless it is the current one."""
        with self._transaction():
            if self.design != design:
                self._insert("design", RowDecision(0, note=design))

    def draw(self, choose: Callable[[], int | None], number: int) -> None:
        """Record the spot check that `choose` returns as number `number`, unless there is one.

        `choose` is called with the log up to date, and nothing can be decided before its choice is
        written.
        """
        with self._transaction():
            row = choose() if len(self.draws) == number else None
            if row is not None:
                self._insert("draw", RowDecision(row, time=_clock()))

    def setting(self, name: str, value: str | None = None) -> str | None:
        """Store `value` under `name`, if it is given, and return the stored value."""
        with self._lock, self._disk_errors():
            if value is not None:
                self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))
            found = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,))
            row = found.fetchone()
            return row and row[0]

    def others(self) -> dict[str, int]:
        """Return the number of decisions about other data in this file, by key."""
        with self._lock, self._disk_errors():
            return dict(self._db.execute(_OTHERS, (self.key,)).fetchall())

    @contextmanager
    def _transaction(self, once: str = "") -> Iterator[tuple[int] | None]:
        """Write in one transaction on the latest state; yield the row of an earlier event `once`.

        Memory follows the disk: the state is read again after the commit.
        """
        with self._lock, self._disk_errors():
            self._check_in_place()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self.refresh()
                yield self._db.execute(
                    "SELECT row FROM events WHERE key = ? AND once = ?", (self.key, once)
                ).fetchone()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self.refresh()

    def _insert(self, kind: str, state: RowDecision, once: str = "") -> None:
        once = once or f"{kind}-{self.version}"
        event = (None, self.key, kind, *astuple(state)[:-1], once)  # SQLite numbers the versions
        self._db.execute(_INSERT, event)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raise StorageError if SQLite cannot use the file, as on a full disk."""
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.path.name} cannot be used ({error}); free some space or make the folder "
                "writable, then try again. Earlier decisions are saved."
            ) from error

    def _check_in_place(self) -> None:
        """Refuse to write to a file that was moved or replaced: nobody would find the decisions."""
        with suppress(OSError):
            if os.path.samestat(os.stat(self.path), self._file):
                return
        raise DamagedError(
            f"{self.path} was moved or replaced while in use; start `exempla review` again."
        )


def _clock() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _open(path: Path) -> sqlite3.Connection:
    """Open the log, creating it if it does not exist; DamagedError if it fails the check."""
    if path.is_symlink():
        raise ExemplaError(f"{path} is a symbolic link; replace it with the file it points to.")
    if path.exists() and not path.is_file():
        raise ExemplaError(f"{path} is not a file; move it away.")
    try:
        if path.exists() and not _size(path):
            raise _damaged(path, "it is empty")
        if not path.exists():
            if _size(_beside(path, "-wal")):
                raise _damaged(path, "only its write-ahead log is left")
            _create(path)
        _check_integrity(path)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # NORMAL survives a killed process, not a power cut
        return db
    except (sqlite3.OperationalError, OSError) as error:
        raise ExemplaError(
            f"{path} cannot be opened ({error}); check that the folder is writable and that the "
            "disk is not full."
        ) from error


def _check_integrity(path: Path) -> None:
    """DamagedError unless the file passes SQLite's check; read-only."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            problems = [str(line) for (line,) in db.execute("PRAGMA integrity_check")]
            if problems != ["ok"]:
                raise _damaged(path, problems[0].splitlines()[-1])
            columns = [name for _, name, *_ in db.execute("PRAGMA table_info(events)")]
            if columns != list(_COLUMNS):
                raise _damaged(path, "its table is not a decision log of this version")
            (pages,), (size,) = db.execute("PRAGMA page_count"), db.execute("PRAGMA page_size")
            if pages[0] * size[0] > _size(path) and not _size(_beside(path, "-wal")):
                raise _damaged(path, "its end is missing")
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "unable to open" in str(error):
            raise
        raise _damaged(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error


def _create(path: Path, events: Iterable[_Event] = (), *, replace_old: bool = False) -> None:
    """Make a log elsewhere and move it into place, so that a half-made log is never found."""
    with tempfile.TemporaryDirectory(prefix="exempla-log-") as place:
        made = Path(place, path.name)
        with closing(sqlite3.connect(made, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN;{_SCHEMA}")
            db.executemany(_INSERT, events)
            db.execute("COMMIT")
        write_bytes(path, made.read_bytes(), keep_existing=not replace_old)


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged ({why}). Restore a backup of it, or run `exempla review {path.parent} "
        "--recover` to continue with the events that can be read; the damaged file is kept."
    )


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class Recovered(NamedTuple):
    """The number of events recovered, and where the damaged file is kept (None: not damaged)."""

    events: int
    kept: Path | None


def recover_log(path: str | Path) -> Recovered:
    """Rebuild a damaged log from its readable events and keep the damaged file beside it."""
    path = Path(path)
    with suppress(DamagedError):
        DecisionLog(path, "").close()
        return Recovered(0, None)
    events = _readable_events(path)
    endings = chain([".damaged"], (f".damaged-{n}" for n in count(2)))
    kept = next(name for each in endings if not (name := _beside(path, each)).exists())
    for ending in ("-wal", ""):  # copied before anything is removed
        source = _beside(path, ending)
        if source.is_file():
            write_bytes(_beside(kept, ending), source.read_bytes())
    for ending in ("-wal", "-shm"):  # SQLite would replay them into the new file
        _beside(path, ending).unlink(missing_ok=True)
    _create(path, events, replace_old=True)
    return Recovered(len(events), kept)


def _readable_events(path: Path) -> list[_Event]:
    """Return the events up to the first one that cannot be read or does not fit."""
    events: list[_Event] = []
    ledgers: dict[str, _Ledger] = {}
    with tempfile.TemporaryDirectory(prefix="exempla-log-") as place:  # reading may replay the WAL
        copy = Path(place, path.name)
        for ending in ("", "-wal"):
            if _beside(path, ending).is_file():
                shutil.copyfile(_beside(path, ending), _beside(copy, ending))
        _pad(copy)
        with suppress(sqlite3.Error, ValueError, TypeError), closing(sqlite3.connect(copy)) as db:
            # Not by the index, which may be what is damaged.
            for event in db.execute(f"{_SELECT} NOT INDEXED ORDER BY version"):
                ledgers.setdefault(event[1], _Ledger()).apply(event)
                events.append(event)
    return events


def _pad(path: Path) -> None:
    """Pad a truncated file with zeros: SQLite reads nothing from a file that lacks pages."""
    head = path.read_bytes()[:32] if path.is_file() else b""
    size = int.from_bytes(head[16:18], "big") * int.from_bytes(head[28:32], "big")
    if _size(path) < size < 2**31:
        os.truncate(path, size)
