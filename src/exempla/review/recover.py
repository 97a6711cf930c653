"""What can be read of a damaged decision log: its events from the first on, while seals hold."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from exempla.atomic import write_bytes
from exempla.errors import ExemplaError
from exempla.review.logfile import (
    COLUMNS,
    DAMAGE,
    PAGE,
    UNSEALED,
    DamagedError,
    Event,
    is_unsealed,
    open_log,
    whole_events,
    write_log,
)

__all__ = ["Recovered", "recover_log", "salvage"]


@dataclass(frozen=True)
class Recovered:
    """How many events were whole, and where the damaged file is kept; None: it was not damaged."""

    events: int
    kept: Path | None


def recover_log(path: str | Path) -> Recovered:
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
        return Recovered(0, None)
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
    return Recovered(write_log(path, events, replace=True), kept)


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
    write_log(copy)
    first = bytearray(copy.read_bytes()[:PAGE])
    first[28:32] = (len(data) // PAGE).to_bytes(4, "big")
    copy.write_bytes(bytes(first) + data[PAGE:])
    return len(data) > PAGE


def _readable(path: Path) -> Iterator[Event]:
    try:
        with closing(sqlite3.connect(path)) as db:
            if is_unsealed(db):  # nothing to hold them against: as far as they can be read
                for row in db.execute(f"SELECT {UNSEALED} FROM events ORDER BY version"):
                    yield Event(*row)
            else:
                # not by the index, which may be what is damaged
                rows = db.execute(f"SELECT {COLUMNS} FROM events NOT INDEXED ORDER BY version")
                yield from whole_events(map(Event._make, rows))
    except DAMAGE:
        return


def _free_name(path: Path) -> Path:
    for number in range(1, 1000):
        name = path.with_name(f"{path.name}.damaged{f'-{number}' if number > 1 else ''}")
        if not name.exists():
            return name
    raise ExemplaError(f"{path.parent} holds a thousand damaged logs; move them away.")
