"""The file of the log: damage is noticed, what is whole is kept, earlier logs still open."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.review.log import DecisionLog, RowDecision
from exempla.review.logfile import open_log, recover_log, salvage
from tests.review.case import make_folder

FLIPS = int(os.environ.get("EXEMPLA_FUZZ_FLIPS", "280"))
"""Bits flipped at places drawn by chance; `make fuzz` raises it."""
ACTIONS = ("keep", "relabel", "remove", "skip")


def fill(path: Path, key: str = "k", events: int = 24) -> DecisionLog:
    """Decisions with notes in many letters, undone and redone ones among them."""
    log = DecisionLog(path, key)
    for i in range(events):
        row, action = i % 7, ACTIONS[i % 4]
        label = "späm" if action == "relabel" else None
        state = RowDecision(row, action, label, f"Grund {i} … 😀" * (i % 3))
        log.decide(state, seen=log.state(row).version, once=f"{key}-{i}")
        if i % 5 == 0:
            log.undo(seen=log.undoable().version, once=f"{key}-undo-{i}")
        if i % 10 == 0:
            log.redo(seen=log.redoable().version, once=f"{key}-redo-{i}")
    return log


def answer(path: Path, key: str = "k") -> object:
    """All that the log says about its key, and how much it holds about others."""
    log = DecisionLog(path, key)
    try:
        return log.states(), log.undoable(), log.redoable(), log.version, log.others()
    finally:
        log.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[bytes, object]:
    path = tmp_path_factory.mktemp("whole") / "decisions.sqlite"
    fill(path, "other", 5).close()
    fill(path).close()
    wanted = answer(path)
    return path.read_bytes(), wanted


def try_damaged(data: bytes, wanted: object, place: Path) -> bool:
    """Whether a damaged copy is refused, with a sentence; it may not answer anything else."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = place / "decisions.sqlite"
    path.write_bytes(data)
    try:
        found, said = answer(path), ""
    except ExemplaError as error:
        found, said = wanted, str(error)
    assert found == wanted
    if said:
        assert re.search(r"is damaged \(.+\), and .+ whole; restore a copy", said)
        assert path.read_bytes() == data, "nothing is mended behind the user's back"
    return bool(said)


def test_a_flipped_bit_is_never_a_silently_different_answer(whole, tmp_path, record_property):
    data, wanted = whole
    rng = random.Random(0)
    places = [*range(0, 100, 5), *(rng.randrange(len(data)) for _ in range(FLIPS))]
    record_property("log flips", len(places))
    refused = 0
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        refused += try_damaged(bytes(flipped), wanted, tmp_path / "w")
    assert refused > 60, "most of the file is in use"


def test_a_flip_in_the_text_of_any_event_is_refused(whole, tmp_path):
    data, wanted = whole
    for word in (b"Grund 7", b"k-11", b"relabel", b"sp\xc3\xa4m", b"CREATE TABLE head"):
        flipped = bytearray(data)
        flipped[data.index(word)] ^= 0x02
        assert try_damaged(bytes(flipped), wanted, tmp_path / "w"), word


def test_a_shortened_file_is_refused_at_every_length(whole, tmp_path):
    data, wanted = whole
    lengths = {0, 1, 15, 16, 99, 100, 511, 512, *range(0, len(data), 509)}
    lengths |= {page + off for page in range(4096, len(data), 4096) for off in (-1, 0, 1)}
    for length in sorted(lengths):
        assert try_damaged(data[:length], wanted, tmp_path / "w"), length
    # Bytes at the end that belong to nothing change nothing.
    try_damaged(data + bytes(4096), wanted, tmp_path / "w")


def test_after_a_kill_the_file_alone_holds_what_was_acknowledged(tmp_path):
    # Whatever becomes of the write-ahead log, nothing that was acknowledged hangs on it.
    path = tmp_path / "decisions.sqlite"
    log = fill(path)
    wanted = (log.states(), log.undoable(), log.redoable(), log.version, {})
    rng = random.Random(1)
    for number in range(40):  # as a kill would leave it, then damaged in one bit
        place = tmp_path / f"killed-{number}"
        place.mkdir()
        for ending in ("", "-wal", "-shm"):
            data = bytearray((tmp_path / f"decisions.sqlite{ending}").read_bytes())
            if ending == "-wal" and data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            if ending == "" or number % 3:
                (place / f"decisions.sqlite{ending}").write_bytes(data)
        assert answer(place / "decisions.sqlite") == wanted
    log.close()


def test_an_event_taken_out_with_its_traces_is_noticed(tmp_path):
    path = tmp_path / "decisions.sqlite"
    fill(path).close()
    for removed in ("version = 5", "version = (SELECT max(version) FROM events)"):
        copy = tmp_path / "copy.sqlite"
        shutil.copyfile(path, copy)
        db = sqlite3.connect(copy)
        db.execute("DROP TRIGGER events_remain")
        sql = (
            "CREATE TRIGGER events_remain BEFORE DELETE ON events\n"
            "    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END"
        )
        db.execute(f"DELETE FROM events WHERE {removed}")
        db.execute(sql)
        db.commit()
        db.close()
        with pytest.raises(ExemplaError, match="is damaged"):
            DecisionLog(copy, "k")


def test_the_recovered_log_is_the_whole_prefix_and_the_damaged_one_is_kept(whole, tmp_path):
    data, _ = whole
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(data)
    before = salvage(path)
    flipped = bytearray(data)
    flipped[data.index(b"Grund 14")] ^= 0x02
    path.write_bytes(flipped)
    found = recover_log(path)
    assert found.kept is not None
    assert found.kept.read_bytes() == flipped
    bad = next(event.version for event in before if event.note.startswith("Grund 14"))
    assert found.events == bad - 1
    db = open_log(path)
    rows = db.execute("SELECT version, row, note FROM events ORDER BY version").fetchall()
    db.close()
    assert rows == [(e.version, e.row, e.note) for e in before if e.version < bad]
    log = DecisionLog(path, "k")
    log.decide(RowDecision(99, "keep"), seen=0, once="afterwards")
    log.close()
    # A second accident does not take the place of the first.
    path.write_bytes(b"")
    again = recover_log(path)
    assert again.kept is not None
    assert again.kept.name == "decisions.sqlite.damaged-2"
    assert found.kept.read_bytes() == flipped


def test_a_damaged_first_page_does_not_take_the_events_with_it(whole, tmp_path):
    data, _ = whole
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(data)
    events = salvage(path)
    for place in (0, 18, 101, data.index(b"CREATE TABLE events")):
        flipped = bytearray(data)
        flipped[place] ^= 0xFF
        path.write_bytes(flipped)
        assert salvage(path) == events


def test_the_command_says_what_is_whole_and_recovers_it(tmp_path, capsys):
    folder = make_folder(tmp_path, 8)
    path = folder / "decisions.sqlite"
    fill(path, "k", 12).close()
    data = path.read_bytes()
    path.write_bytes(data[:-4096])
    assert main(["review", str(folder), "--export"]) == 2
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert f"exempla review {folder} --recover" in said
    assert len(said.strip().splitlines()) == 1
    assert path.read_bytes() == data[:-4096]
    assert main(["review", str(folder), "--recover"]) == 0
    assert "whole events are in decisions.sqlite" in capsys.readouterr().out
    assert (folder / "decisions.sqlite.damaged").read_bytes() == data[:-4096]
    assert main(["review", str(folder), "--export"]) == 0
    assert main(["review", str(folder), "--recover"]) == 0
    assert "nothing to recover" in capsys.readouterr().out


UNSEALED = """
CREATE TABLE events (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('set', 'undo', 'redo')),
    row INTEGER NOT NULL, action TEXT NOT NULL, label TEXT, note TEXT NOT NULL,
    time TEXT NOT NULL, once TEXT NOT NULL, UNIQUE (key, once)
);
CREATE TRIGGER events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END;
CREATE TRIGGER events_remain BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the log of decisions is append-only'); END;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO settings VALUES ('port', '8123');
"""


def test_a_log_of_an_earlier_version_opens_with_all_its_decisions_and_is_sealed(tmp_path):
    path, new = tmp_path / "decisions.sqlite", tmp_path / "new.sqlite"
    fill(new).close()
    wanted = answer(new)
    db = sqlite3.connect(path)
    db.executescript(f"PRAGMA journal_mode = WAL; {UNSEALED}")
    for event in salvage(new):
        db.execute(f"INSERT INTO events VALUES ({', '.join('?' * 9)})", event[:-1])
    db.commit()
    db.close()
    path.chmod(0o644)
    for _ in range(2):
        assert answer(path) == wanted
    assert path.stat().st_mode & 0o777 == 0o600
    log = DecisionLog(path, "k")
    assert log.setting("port") == "8123"
    log.decide(RowDecision(50, "keep"), seen=0, once="later")
    log.close()
    data = bytearray(path.read_bytes())
    data[data.index(b"Grund 7")] ^= 0x02
    path.write_bytes(data)
    with pytest.raises(ExemplaError, match="is damaged"):
        DecisionLog(path, "k")


def test_an_empty_file_or_a_write_ahead_log_alone_is_not_a_new_log(tmp_path):
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(b"")
    with pytest.raises(ExemplaError, match="it is empty"):
        DecisionLog(path, "k")
    assert path.read_bytes() == b""
    path.unlink()
    (tmp_path / "decisions.sqlite-wal").write_bytes(b"something")
    with pytest.raises(ExemplaError, match="the file is gone"):
        DecisionLog(path, "k")
    assert not path.exists()
    (tmp_path / "decisions.sqlite-wal").unlink()
    path.mkdir()
    with pytest.raises(ExemplaError, match="is no file"):
        DecisionLog(path, "k")


def test_the_log_and_what_sqlite_makes_beside_it_are_private(tmp_path):
    for name, folder_mode, mode in (("own", 0o755, 0o600), ("shared", 0o770, 0o660)):
        folder = tmp_path / name
        folder.mkdir()
        folder.chmod(folder_mode)
        log = DecisionLog(folder / "decisions.sqlite", "k")
        log.decide(RowDecision(1, "keep"), seen=0, once="a")
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert set(modes) == {"decisions.sqlite", "decisions.sqlite-wal", "decisions.sqlite-shm"}
        assert set(modes.values()) == {mode}
        log.close()
