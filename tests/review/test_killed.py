"""Killed at every step: nothing acknowledged is lost, and no file is half-written."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep

import httpx
import pytest

from exempla.errors import ExemplaError
from exempla.review import read_review
from exempla.review.export import export_review
from exempla.review.log import DecisionLog, RowDecision, _readable_events
from tests.review import killed
from tests.review.case import make_folder, running
from tests.review.test_app import decide as post_decision
from tests.review.test_export import SOME, decide, images_case
from tests.review.test_log import answer, fill

Record = Callable[[str, object], None]
FINAL = ("decisions.json", "patch.csv", "corrected.jsonl", "corrected")
STRIDE = int(os.environ.get("EXEMPLA_KILL_STRIDE", "4"))
"""Every so many-th step is one to be killed at; `make fuzz` tries all."""
SERVER_KILLS = int(os.environ.get("EXEMPLA_SERVER_KILLS", "2"))
"""How often the server is killed; `make fuzz` sets 40."""


def runs(
    deed: Callable[[Path], None], template: Path, work: Path, record: Record, stride: int = STRIDE
) -> list[Path]:
    """What each killed run left, in the order of how far it came; the last one was not killed."""
    work.mkdir()
    killed.kill_at_every_step(deed, template, work, stride)
    found = sorted(work.iterdir())
    record("kills", len(found) - 1)
    assert len(found) > 10 // stride, "there are many steps to be killed at"
    return found


def digest(path: Path) -> str:
    """Of a file, or of every name and byte in a folder; "" if there is none."""
    if path.is_dir():
        parts = [f"{p.relative_to(path)} {digest(p)}" for p in sorted(path.rglob("*"))]
        return hashlib.sha256("\n".join(p for p in parts).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def check_exports(template: Path, work: Path, record: Record) -> None:
    """Every file is the one from before or the one from after, and a new export mends all."""
    left = runs(killed.export, template, work, record)
    before = {name: digest(template / "review" / name) for name in FINAL}
    after = {name: digest(left[-1] / "review" / name) for name in FINAL}
    assert before != after
    assert sum({n: digest(p / "review" / n) for n in FINAL} == before for p in left) > 3 // STRIDE
    for place in left:
        for name in FINAL:
            allowed = {before[name], after[name]}
            if name == "corrected":
                allowed.add("")  # between the two names of one moment: gone, never in part
            assert digest(place / "review" / name) in allowed, (place, name)
        review = read_review(place / "review")
        export_review(review)
        assert {name: digest(place / "review" / name) for name in FINAL} == after
        assert not list((place / "review").glob(".[!d]*.part")), "what was left is gone"


def test_an_export_killed_at_any_step_leaves_whole_files(tmp_path, record_property):
    (tmp_path / "template").mkdir()
    folder = make_folder(tmp_path / "template", 6)
    decide(folder, RowDecision(3, "remove"))
    export_review(read_review(folder))
    decide(folder, *SOME)
    check_exports(tmp_path / "template", tmp_path / "work", record_property)


def test_an_export_of_images_killed_at_any_step_leaves_whole_trees(tmp_path, record_property):
    (tmp_path / "template").mkdir()
    folder = images_case(tmp_path / "template")
    folder = folder.rename(tmp_path / "template" / "review")
    export_review(read_review(folder))
    decide(folder, RowDecision(1, "keep"))
    check_exports(tmp_path / "template", tmp_path / "work", record_property)


def test_decisions_killed_at_any_step_are_all_there_once_acknowledged(tmp_path, record_property):
    folder = tmp_path / "template" / "review"
    folder.mkdir(parents=True)
    fill(folder / "decisions.sqlite").close()
    first = answer(folder / "decisions.sqlite")[3]
    left = runs(killed.decide, tmp_path / "template", tmp_path / "work", record_property, 1)
    reached = set()
    for place in left:
        said = [int(line) for line in (place / "said.txt").read_text().split()]
        log = DecisionLog(place / "review" / "decisions.sqlite", "k")
        acknowledged = said[-1] if said else first
        assert acknowledged <= log.version <= acknowledged + 1
        reached.add(log.version)
        for number in range(min(log.version - first, 3)):
            undone = number == 2 and log.version == first + 4
            state = log.state(100 + number)
            assert (state.action, state.note) == (
                ("pending", "") if undone else ("remove", "x" * 3000)
            )
        log.close()
    assert reached == set(range(first, first + 6))


def test_a_new_log_killed_at_any_step_is_no_damaged_log(tmp_path, record_property):
    (tmp_path / "template" / "review").mkdir(parents=True)
    for place in runs(killed.decide, tmp_path / "template", tmp_path / "work", record_property):
        said = (place / "said.txt").read_text().split()
        log = DecisionLog(place / "review" / "decisions.sqlite", "k")
        assert log.version >= (int(said[-1]) if said else 0)
        log.close()


def test_a_recovery_killed_at_any_step_has_lost_nothing(tmp_path, record_property):
    folder = tmp_path / "template" / "review"
    folder.mkdir(parents=True)
    path = folder / "decisions.sqlite"
    fill(path, events=24).close()
    data = path.read_bytes()[:-4096]
    path.write_bytes(data)
    readable = _readable_events(path)
    assert len(readable) > 5
    for place in runs(
        killed.recover, tmp_path / "template", tmp_path / "work", record_property, 3 * STRIDE
    ):
        log = place / "review" / "decisions.sqlite"
        assert _readable_events(log) == readable
        if log.read_bytes() == data:  # not replaced yet: refused as before, nothing removed
            with pytest.raises(ExemplaError, match="is damaged"):
                answer(log)
        else:
            answer(log)
            assert log.with_name("decisions.sqlite.damaged").read_bytes() == data
    shutil.rmtree(tmp_path / "work")


def test_a_server_killed_during_requests_has_all_it_confirmed(tmp_path, record_property):
    """Two people decide as fast as they can while the server is killed, again and again."""
    folder, rng = make_folder(tmp_path, 12), Random(0)
    confirmed: dict[int, tuple[int, str]] = {}  # by row: version and note
    sent: dict[int, str] = {}  # notes whose answer has not come
    failures: list[BaseException] = []
    told = 0

    def decide_until_killed(client: httpx.Client, rows: range, number: int) -> None:
        nonlocal told
        try:
            for i in range(10_000):
                row = rows[i % len(rows)]
                sent[row] = f"{number}-{i}"
                seen = confirmed.get(row, (0, ""))[0]
                action = ("keep", "remove", "skip")[i % 3]
                answer = post_decision(client, row, action, seen=seen, note=sent[row])
                state = answer.json()["state"]
                confirmed[row] = (state["version"], state["note"])
                del sent[row]
                told += 1
        except httpx.TransportError:
            pass
        except BaseException as error:
            failures.append(error)

    def check(notes: dict[int, str]) -> None:
        for row, (_, note) in confirmed.items():
            assert notes[row] in {note, sent.get(row, note)}, row

    for number in range(SERVER_KILLS):
        with running(folder) as server, server.client() as client:
            found = {s["row"]: s for s in client.get("/api/state").json()["changes"]}
            check({row: state["note"] for row, state in found.items()})
            confirmed = {row: (s["version"], s["note"]) for row, s in found.items()}
            sent.clear()
            people = [
                threading.Thread(target=decide_until_killed, args=(client, rows, number))
                for rows in (range(0, 18, 3), range(18, 36, 3))
            ]
            for person in people:
                person.start()
            sleep(rng.uniform(0.1, 0.6))
            server.kill()
            for person in people:
                person.join(timeout=30)
                assert not person.is_alive(), "a request to a dead server ends"
        assert not failures, failures
    record_property("kills", SERVER_KILLS)
    record_property("confirmed decisions", told)
    log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    check({row: log.state(row).note for row in range(0, 36, 3)})
    log.close()
    assert told > 2 * SERVER_KILLS
