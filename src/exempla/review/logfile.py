"""The file of the decision log: made whole, checked when opened, every event sealed to the last.

SQLite keeps a file in order when a process dies, and notices a page that makes no sense. It does
not notice a flipped bit inside a value, nor events that are simply gone. So each event bears

    seal_n = SHA-256(seal_{n−1}, version, key, kind, row, action, label, note, time, once)

and the table `head` the number of events and the last seal: whatever is altered, missing or added
breaks the chain. A log is made under another name and renamed when it is complete, so an empty file
is never a new log. Logs of earlier versions, without seals or without a place for the design of
spot checks, are given them when first opened.

What can be read of a damaged decision log: its events from the first on, while seals hold.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from exempla.errors import ExemplaError
from exempla.io import file_mode, flush_folder, write_bytes

_PAGE = 4096
SCHEMA = """
CREATE TABLE events (
    version INTEGER PRIMARY KEY,
    key TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('set', 'undo', 'redo', 'design', 'draw')),
    row INTEGER NOT NULL, action TEXT NOT NULL, label TEXT, note TEXT NOT NULL,
    time TEXT NOT NULL, once TEXT NOT NULL, seal TEXT NOT NULL, UNIQUE (key, once)
);
CREATE TRIGGER events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END;
CREATE TRIGGER events_remain BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END;
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1), events INTEGER NOT NULL, seal TEXT NOT NULL
);
INSERT INTO head VALUES (1, 0, '');
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

UNDESIGNED = SCHEMA.replace(", 'design', 'draw'", "")
"""Of logs written before there were spot checks."""


class DamagedError(ExemplaError):
    """The log is not what was written; the message says what is whole and how to go on."""


class Event(NamedTuple):
    """A line of the log and its seal.

    A decision set, undone or redone; or the design of the spot checks (in `note`), or one drawn.
    """

    version: int
    key: str
    kind: str
    row: int
    action: str
    label: str | None
    note: str
    time: str
    once: str
    seal: str = ""


_COLUMNS = ", ".join(Event._fields)
_UNSEALED = ", ".join(Event._fields[:-1])


def open_log(path: Path) -> sqlite3.Connection:
    """Open the log, made if there is none; DamagedError if it is not whole, and nothing changed."""
    if path.is_symlink():
        raise ExemplaError(f"{path} is a link; replace it by the file it points to.")
    try:
        if not path.exists():
            if _size(_beside(path, "-wal")):
                raise _damaged(path, "the file is gone, and what belongs to it is there")
            _write_log(path)
        elif not path.is_file():
            raise ExemplaError(f"{path} is no file; move it away.")
        _check(path)
        return _connected(path)
    except (sqlite3.Error, OSError) as error:
        raise ExemplaError(
            f"{path} cannot be opened ({error}); check that the folder is writable and the disk "
            "not full."
        ) from error


def _write_log(path: Path, events: Iterable[Event] = (), *, replace: bool = False) -> int:
    """Make a log of these events, sealed anew, at `path`; how many there were.

    One that is there already stays, unless `replace`.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    made = Path(name)
    try:
        with closing(sqlite3.connect(made, isolation_level=None)) as db:
            db.execute(f"PRAGMA page_size = {_PAGE}")
            db.execute("PRAGMA journal_mode = WAL")  # now, while nobody else has it open
            db.executescript(f"BEGIN;{SCHEMA}")
            count = 0
            for event in events:
                append(db, event)
                count += 1
            db.execute("COMMIT")
        os.chmod(made, file_mode(path.parent))
        if replace:
            os.replace(made, path)
        else:
            _put(made, path)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            _beside(made, ending).unlink(missing_ok=True)
    flush_folder(path.parent)
    return count


def append(db: sqlite3.Connection, event: Event) -> Event:
    """Write the event, sealed; within the caller's transaction. A version of 0 takes the next."""
    count, last = db.execute("SELECT events, seal FROM head").fetchone()
    top = db.execute("SELECT max(version) FROM events").fetchone()[0] or 0
    event = event._replace(version=event.version or top + 1)
    event = event._replace(seal=seal(last, event))
    marks = ", ".join("?" * len(event))
    db.execute(f"INSERT INTO events ({_COLUMNS}) VALUES ({marks})", event)
    db.execute("UPDATE head SET events = ?, seal = ?", (count + 1, event.seal))
    return event


def seal(last: str, event: Event) -> str:
    """What binds an event to all before it; `ascii` because it is the same in every Python."""
    return hashlib.sha256(ascii((last, *event[:-1])).encode()).hexdigest()[:32]


def read_events(
    db: sqlite3.Connection, after: int = 0, last: str = "", count: int = 0
) -> list[Event]:
    """The events after a version, held against their seals and the head.

    `last` and `count` are the seal and the number of the events up to `after`. One transaction:
    the caller's, or one of its own.
    """
    own = not db.in_transaction
    if own:
        db.execute("BEGIN")
    try:
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM events WHERE version > ? ORDER BY version", (after,)
        )
        events = list(_whole_events(map(Event._make, rows), last))
        head = db.execute("SELECT events, seal FROM head").fetchall()
    finally:
        if own:
            db.execute("COMMIT")
    if head != [(count + len(events), events[-1].seal if events else last)]:
        raise BrokenChainError("events are missing or altered")
    return events


def _whole_events(events: Iterable[Event], last: str = "") -> Iterator[Event]:
    """The events as they come; BrokenChainError at the first that does not follow from the last."""
    for event in events:
        if event.seal != seal(last, event):
            raise BrokenChainError(f"event {event.version} is not what was written")
        last = event.seal
        yield event


class BrokenChainError(Exception):
    """An event that does not follow from the one before it."""


_DAMAGE = (sqlite3.Error, BrokenChainError, TypeError, ValueError)
"""What reading a damaged file raises; a message of SQLite's may itself be no text."""


def _is_unsealed(db: sqlite3.Connection) -> bool:
    """Whether an earlier version wrote this log."""
    names = [name for _, name, *_ in db.execute("PRAGMA table_info(events)")]
    return names == list(Event._fields[:-1])


def _check(path: Path) -> None:
    """DamagedError unless the file is whole, found out without writing to it."""
    if not _size(path):
        raise _damaged(path, "it is empty")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute("PRAGMA busy_timeout = 5000")
            _check_pages(db, path)
            if not _is_unsealed(db):
                if _schema(db) not in (_schema_of(SCHEMA), _schema_of(UNDESIGNED)):
                    raise BrokenChainError("its tables are not those of a log")
                read_events(db)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "unable to open" in str(error):
            raise
        raise _damaged(path, str(error)) from error
    except _DAMAGE as error:
        raise _damaged(path, str(error)) from error


def _check_pages(db: sqlite3.Connection, path: Path) -> None:
    """Every page is there and makes sense, and each index says what its table says."""
    problems = [line for (line,) in db.execute("PRAGMA integrity_check")]
    if problems != ["ok"]:
        raise BrokenChainError(str(problems[0]).splitlines()[-1])
    (pages,), (size,) = db.execute("PRAGMA page_count"), db.execute("PRAGMA page_size")
    if pages[0] * size[0] > _size(path) and not _size(_beside(path, "-wal")):
        raise BrokenChainError("its end is missing")


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA busy_timeout = 5000")
    db.execute("PRAGMA journal_mode = WAL")
    # NORMAL survives a killed process; only FULL also survives a power cut.
    db.execute("PRAGMA synchronous = FULL")
    if _schema(db) != _schema_of(SCHEMA):
        _renew(db)
        os.chmod(path, file_mode(path.parent))  # earlier versions left it readable by all
    return db


def _renew(db: sqlite3.Connection) -> None:
    """Bring a log of an earlier version into today's form, with its seals, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if _schema(db) != _schema_of(SCHEMA):  # and no other process was quicker
            rows = db.execute(f"SELECT {_UNSEALED} FROM events ORDER BY version").fetchall()
            settings = db.execute("SELECT name, value FROM settings").fetchall()
            for table in ("events", "settings", "head"):
                db.execute(f"DROP TABLE IF EXISTS {table}")  # with its triggers
            for statement in _statements(SCHEMA):
                db.execute(statement)
            for row in rows:
                append(db, Event(*row))
            db.executemany("INSERT INTO settings VALUES (?, ?)", settings)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _schema(db: sqlite3.Connection) -> frozenset[tuple[Any, ...]]:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return frozenset(row for row in rows if not str(row[1]).startswith("sqlite_"))


@cache
def _schema_of(script: str) -> frozenset[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script)
        return _schema(db)


def _damaged(path: Path, why: str) -> DamagedError:

    count = len(salvage(path))
    whole = f"its first {count:,} events are" if count else "no event in it is"
    return DamagedError(
        f"{path} cannot be opened: it is damaged ({why}), and {whole} whole; restore a copy of it, "
        f"or let `exempla review {path.parent} --recover` go on with what is whole and keep the "
        "damaged file aside."
    )


def _put(made: Path, path: Path) -> None:
    """Give a new file its name, unless another process was quicker."""
    try:
        os.link(made, path)
    except FileExistsError:
        pass
    except OSError:  # no links on this file system: the moment between is short
        if not path.exists():
            os.replace(made, path)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@dataclass(frozen=True)
class _Recovered:
    """How many events were whole, and where the damaged file is kept; None: it was not damaged."""

    events: int
    kept: Path | None


def recover_log(path: str | Path) -> _Recovered:
    """Put a log of the whole events in the place of a damaged one, which is kept beside it.

    >>> place = Path(tempfile.mkdtemp()) / "decisions.sqlite"
    >>> place.write_bytes(b"")
    0
    >>> found = recover_log(place)
    >>> found.events, found.kept.name, recover_log(place).kept
    (0, 'decisions.sqlite.damaged', None)
    """
    path = Path(path)
    try:
        open_log(path).close()
        return _Recovered(0, None)
    except DamagedError:
        pass
    events = salvage(path)
    kept = _free_name(path)
    for ending in ("-wal", ""):  # copied before anything is taken away
        source = path.with_name(path.name + ending)
        if source.is_file():
            write_bytes(kept.with_name(kept.name + ending), source.read_bytes())
    for ending in ("-wal", "-shm"):  # they would be read into the new file
        path.with_name(path.name + ending).unlink(missing_ok=True)
    return _Recovered(_write_log(path, events, replace=True), kept)


def salvage(path: Path) -> list[Event]:
    """The longest run of whole events from the first on; the file itself is only copied."""
    best: list[Event] = []
    with tempfile.TemporaryDirectory(prefix="exempla-log-") as place:
        for number, prepare in enumerate((_as_it_is, _without_wal, _with_a_new_first_page)):
            copy = Path(place, str(number), path.name)
            copy.parent.mkdir()
            if path.is_file() and prepare(path, copy):
                found = list(_readable(copy))
                best = max(best, found, key=len)
    return best


def _as_it_is(path: Path, copy: Path) -> bool:
    wal = path.with_name(path.name + "-wal")
    if wal.is_file():
        shutil.copyfile(wal, copy.with_name(wal.name))
    return _without_wal(path, copy)


def _without_wal(path: Path, copy: Path) -> bool:
    shutil.copyfile(path, copy)
    return True


def _with_a_new_first_page(path: Path, copy: Path) -> bool:
    """The first page says where all else lies, and is the same in every log but for its size."""
    data = path.read_bytes()
    _write_log(copy)
    first = bytearray(copy.read_bytes()[:_PAGE])
    first[28:32] = (len(data) // _PAGE).to_bytes(4, "big")
    copy.write_bytes(bytes(first) + data[_PAGE:])
    return len(data) > _PAGE


def _readable(path: Path) -> Iterator[Event]:
    try:
        with closing(sqlite3.connect(path)) as db:
            if _is_unsealed(db):  # nothing to hold them against: as far as they can be read
                for row in db.execute(f"SELECT {_UNSEALED} FROM events ORDER BY version"):
                    yield Event(*row)
            else:
                # not by the index, which may be what is damaged
                rows = db.execute(f"SELECT {_COLUMNS} FROM events NOT INDEXED ORDER BY version")
                yield from _whole_events(map(Event._make, rows))
    except _DAMAGE:
        return


def _free_name(path: Path) -> Path:
    for number in range(1, 1000):
        name = path.with_name(f"{path.name}.damaged{f'-{number}' if number > 1 else ''}")
        if not name.exists():
            return name
    raise ExemplaError(f"{path.parent} holds a thousand damaged logs; move them away.")
