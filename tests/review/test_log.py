"""The append-only log: what is decided, undone, redone, and by whom first."""

from __future__ import annotations

import random
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.review.log import DamagedError, DecisionLog, RowDecision, StaleError, recover_log
from tests.review.case import make_folder

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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "decisions.sqlite"


def plain(state: RowDecision) -> tuple[str, str | None, str]:
    return state.action, state.label, state.note


def test_it_is_on_disk_in_wal_with_full_sync_when_decide_returns(path):
    log = DecisionLog(path, "k")
    log.decide(RowDecision(5, "relabel", "spam", "sure"), seen=0, once="a")
    # A second connection sees only what is committed.
    other = sqlite3.connect(path)
    rows = other.execute("SELECT row, action, label, note FROM events").fetchall()
    assert rows == [(5, "relabel", "spam", "sure")]
    assert other.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert log._db.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_the_log_cannot_be_rewritten(path):
    log = DecisionLog(path, "k")
    log.decide(RowDecision(5, "keep"), seen=0, once="a")
    other = sqlite3.connect(path)
    for statement in ("UPDATE events SET action = 'remove'", "DELETE FROM events"):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            other.execute(statement)


def test_a_writer_who_has_not_seen_the_latest_is_refused_and_told(path):
    one, two = DecisionLog(path, "k"), DecisionLog(path, "k")
    first = one.decide(RowDecision(5, "keep"), seen=0, once="a")
    with pytest.raises(StaleError) as caught:
        two.decide(RowDecision(5, "remove"), seen=0, once="b")
    assert caught.value.state == first
    assert two.state(5).action == "keep"
    # Other rows are no conflict, and with the version known the row can be decided anew.
    two.decide(RowDecision(6, "remove"), seen=0, once="c")
    assert two.decide(RowDecision(5, "remove"), seen=first.version, once="d").action == "remove"
    one.refresh()
    assert one.state(5).action == "remove"


def test_sending_again_changes_nothing(path):
    log = DecisionLog(path, "k")
    first = log.decide(RowDecision(5, "keep"), seen=0, once="same")
    again = log.decide(RowDecision(5, "keep"), seen=0, once="same")
    assert again == first
    assert sqlite3.connect(path).execute("SELECT count(*) FROM events").fetchone()[0] == 1
    log.undo(seen=first.version, once="undo")
    log.undo(seen=first.version, once="undo")
    assert log.state(5).action == "pending"
    assert log.redoable() is not None


def test_undo_gives_back_the_former_state_with_note_and_time(path):
    log = DecisionLog(path, "k")
    one = log.decide(RowDecision(5, "keep", None, "hm"), seen=0, once="a")
    two = log.decide(RowDecision(5, "relabel", "spam", "no"), seen=one.version, once="b")
    back = log.undo(seen=two.version, once="c")
    assert (plain(back), back.time) == (("keep", None, "hm"), one.time)
    assert plain(log.undo(seen=one.version, once="d")) == ("pending", None, "")
    with pytest.raises(StaleError):
        log.undo(seen=one.version, once="e")


def test_undo_of_what_another_tab_did_meanwhile_is_refused(path):
    log = DecisionLog(path, "k")
    mine = log.decide(RowDecision(1, "keep"), seen=0, once="a")
    log.decide(RowDecision(2, "keep"), seen=0, once="b")
    with pytest.raises(StaleError) as caught:
        log.undo(seen=mine.version, once="c")
    assert caught.value.state is not None
    assert caught.value.state.row == 2


def test_a_new_decision_ends_redo(path):
    log = DecisionLog(path, "k")
    one = log.decide(RowDecision(1, "keep"), seen=0, once="a")
    log.undo(seen=one.version, once="b")
    assert log.redoable() is not None
    log.decide(RowDecision(2, "keep"), seen=0, once="c")
    assert log.redoable() is None


MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"),
            st.integers(0, 4),
            st.sampled_from(["keep", "remove", "skip", "relabel"]),
        ),
        st.tuples(st.just("undo"), st.just(0), st.just("")),
        st.tuples(st.just("redo"), st.just(0), st.just("")),
        st.tuples(st.just("restart"), st.just(0), st.just("")),
    ),
    max_size=40,
)


@given(moves=MOVES)
@settings(max_examples=30, deadline=None)
def test_law_the_log_acts_like_a_list_of_snapshots(moves, tmp_path_factory):
    path = tmp_path_factory.mktemp("law") / "decisions.sqlite"
    log = DecisionLog(path, "k")
    past, future, now = [], [], {}
    for number, (kind, row, action) in enumerate(moves):
        once = f"move-{number}"
        if kind == "set":
            past, future = [*past, now], []
            label = "spam" if action == "relabel" else None
            now = {**now, row: (action, label, f"n{number}")}
            state = RowDecision(row, action, label, f"n{number}")
            log.decide(state, seen=log.state(row).version, once=once)
        elif kind == "undo" and past:
            past, future, now = past[:-1], [*future, now], past[-1]
            log.undo(seen=log.undoable().version, once=once)
        elif kind == "redo" and future:
            past, future, now = [*past, now], future[:-1], future[-1]
            log.redo(seen=log.redoable().version, once=once)
        elif kind == "restart":
            log.close()
            log = DecisionLog(path, "k")
        assert {row: plain(log.state(row)) for row in range(5)} == {
            row: now.get(row, ("pending", None, "")) for row in range(5)
        }
        assert (log.undoable() is None, log.redoable() is None) == (not past, not future)
    log.close()


def test_decisions_about_other_data_are_kept_apart(path):
    DecisionLog(path, "old").decide(RowDecision(1, "remove"), seen=0, once="a")
    log = DecisionLog(path, "new")
    assert log.state(1).action == "pending"
    assert log.others() == {"old": 1}
    back = DecisionLog(path, "old")
    back.undo(seen=back.undoable().version, once="b")
    log.refresh()
    assert log.others() == {}, "what was undone is no decision"
    back.redo(seen=back.redoable().version, once="c")
    assert DecisionLog(path, "old").state(1).action == "remove"


def test_links_and_foreign_files_are_refused(tmp_path):
    (tmp_path / "real").write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(ExemplaError, match="is damaged"):
        DecisionLog(tmp_path / "real", "k")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ExemplaError, match="is a symbolic link"):
        DecisionLog(tmp_path / "link", "k")


def test_many_who_open_a_new_log_at_once_share_it(path):
    def tab(number: int) -> None:
        log = DecisionLog(path, "k")
        for row in range(5):
            state = RowDecision(10 * number + row, "keep")
            log.decide(state, seen=0, once=f"{number}-{row}")
        log.close()

    tabs = [threading.Thread(target=tab, args=(number,)) for number in range(8)]
    for thread in tabs:
        thread.start()
    for thread in tabs:
        thread.join()
    log = DecisionLog(path, "k")
    assert log.version == len(log.states()) == 40
    log.close()


def test_a_folder_that_cannot_be_written_is_said(path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("exempla.review.log.tempfile.mkstemp", refused)
    with pytest.raises(ExemplaError, match="Permission denied"):
        DecisionLog(path, "k")


def test_a_log_that_was_moved_takes_no_more_decisions(path):
    log = DecisionLog(path, "k")
    log.decide(RowDecision(1, "keep"), seen=0, once="a")
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).rename(path.with_name(f"elsewhere.sqlite{ending}"))
    with pytest.raises(ExemplaError, match="moved or replaced"):
        log.decide(RowDecision(2, "keep"), seen=0, once="b")
    DecisionLog(path, "k").decide(RowDecision(1, "remove"), seen=0, once="c")
    with pytest.raises(ExemplaError, match="moved or replaced"):
        log.decide(RowDecision(2, "keep"), seen=0, once="d")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "decisions.sqlite"
    fill(path, "other", 5).close()
    fill(path).close()
    return path.read_bytes()


def test_a_shortened_file_is_refused_and_left_untouched(whole, path):
    pages = range(4096, len(whole), 4096)
    lengths = {0, 1, 16, 100, 511, *(page + off for page in pages for off in (-1, 0, 1))}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=r"is damaged \(.+\)\. Restore a backup"):
            DecisionLog(path, "k")
        assert path.read_bytes() == whole[:length]


def test_a_page_of_garbage_is_refused_wherever_it_is(whole, path):
    rng = random.Random(0)
    for start in range(0, len(whole), 4096):
        damaged = bytearray(whole)
        damaged[start : start + 4096] = rng.randbytes(4096)
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match="is damaged"):
            DecisionLog(path, "k")
        assert path.read_bytes() == damaged


def test_the_recovered_log_has_the_readable_events_and_the_damaged_one_is_kept(whole, path):
    path.write_bytes(whole)
    with sqlite3.connect(path) as db:
        events = db.execute("SELECT version, row, note FROM events ORDER BY version").fetchall()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    damaged = whole[:-4096]
    path.write_bytes(damaged)
    found = recover_log(path)
    assert found.kept is not None
    assert found.kept.read_bytes() == damaged
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT version, row, note FROM events ORDER BY version").fetchall()
    db.close()
    assert 0 < len(rows) == found.events
    assert rows == events[: len(rows)]
    log = DecisionLog(path, "k")
    log.decide(RowDecision(99, "keep"), seen=0, once="afterwards")
    log.close()
    path.write_bytes(b"")  # a second accident does not replace the first copy
    again = recover_log(path)
    assert again.kept is not None
    assert again.kept.name == "decisions.sqlite.damaged-2"
    assert found.kept.read_bytes() == damaged


def test_the_command_says_that_the_log_is_damaged_and_recovers_it(tmp_path, capsys):
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
    assert "decisions.sqlite" in capsys.readouterr().out
    assert (folder / "decisions.sqlite.damaged").read_bytes() == data[:-4096]
    assert main(["review", str(folder), "--export"]) == 0
    assert main(["review", str(folder), "--recover"]) == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_an_event_that_cannot_follow_the_others_is_refused(path):
    DecisionLog(path, "k").close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO events VALUES (1, 'k', 'undo', 3, 'keep', NULL, '', '', 'a')")
    db.close()
    with pytest.raises(DamagedError, match="event 1 has nothing to undo"):
        DecisionLog(path, "k")


def test_an_empty_file_or_a_write_ahead_log_alone_is_not_a_new_log(path):
    path.write_bytes(b"")
    with pytest.raises(ExemplaError, match="it is empty"):
        DecisionLog(path, "k")
    assert path.read_bytes() == b""
    path.unlink()
    path.with_name("decisions.sqlite-wal").write_bytes(b"something")
    with pytest.raises(ExemplaError, match="only its write-ahead log is left"):
        DecisionLog(path, "k")
    assert not path.exists()
    path.with_name("decisions.sqlite-wal").unlink()
    path.mkdir()
    with pytest.raises(ExemplaError, match="is not a file"):
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
