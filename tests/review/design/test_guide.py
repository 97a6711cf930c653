"""Order, spot checks and stopping over the life of a review: restarts, undo, a new analysis."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.review import read_review
from exempla.review.log import DecisionLog, RowDecision
from exempla.review.logfile import SCHEMA, UNDESIGNED, append, read_events, salvage
from exempla.review.session import EVERY, Guide
from tests.review.case import make_folder, make_framed, running, served, signed_in
from tests.review.test_app import decide
from tests.review.test_logfile import answer, fill


def opened(folder):
    review = read_review(folder)
    return Guide(review, DecisionLog(folder / "decisions.sqlite", review.key))


def settle(guide, item, action="keep"):
    state = RowDecision(item, action)
    guide.log.decide(state, seen=guide.log.state(item).version, once=f"{item}-{guide.log.version}")
    guide.draw_if_due()


def step(guide, action="keep"):
    """Decide about what comes next on the page."""
    waiting = guide.standing().waiting
    open_ = [i for i in guide.renewal().order if guide.log.state(i).action == "pending"]
    item = open_[0] if waiting is None else waiting
    settle(guide, item, action)
    return item


def test_every_third_row_is_a_spot_check_and_the_log_knows_it(tmp_path):
    guide = opened(make_framed(tmp_path, 60))
    seen = [step(guide) for _ in range(30)]
    draws = [each.row for each in guide.log.draws]
    assert [item in draws for item in seen] == [False, False, True] * 10
    assert EVERY == 3
    assert sum(row >= 60 for row in draws) >= 7, "mostly rows that are not listed"
    design = guide.log._own.design
    assert '"rows": 400' in design
    assert '"seed": 5' in design
    guide.log.close()


def test_a_restart_draws_the_same_rows_and_says_the_same(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    through = opened(make_framed(tmp_path / "a", 60))
    folder = make_framed(tmp_path / "b", 60)
    for _ in range(20):
        step(through)
        again = opened(folder)
        step(again)
        again.log.close()
    again = opened(folder)
    assert [d.row for d in again.log.draws] == [d.row for d in through.log.draws]
    assert again.renewal().order == through.renewal().order
    assert again.status(0)["remaining"] == through.status(0)["remaining"]


def test_before_any_check_it_is_the_models_then_the_spot_checks(tmp_path):
    guide = opened(make_framed(tmp_path, 60))
    before = guide.status(0)["remaining"]
    assert (before["checks"], before["low"], before["rows"]) == (0, None, 400)
    expected = np.concatenate([np.linspace(0.9, 0.3, 60), np.linspace(0.2, 0.001, 340)]).sum()
    assert before["mean"] == pytest.approx(expected, rel=0.02)
    for _ in range(3):
        step(guide)
    after = guide.status(0)["remaining"]
    assert (after["checks"], after["low"], after["rows"]) == (1, 0, 397)
    assert 300 < after["high"] <= 397, "one spot check says next to nothing, and the page says so"


def test_skipped_and_undone_spot_checks(tmp_path):
    guide = opened(make_framed(tmp_path, 60))
    step(guide), step(guide)
    spot = guide.standing().waiting
    settle(guide, spot, "skip")
    assert guide.status(0)["remaining"]["checks"] == 0, "a skipped one has said nothing"
    settle(guide, spot, "remove")
    one = guide.status(0)["remaining"]
    assert (one["checks"], one["low"] > 0) == (1, True)
    guide.log.undo(seen=guide.log.undoable().version, once="undo-undo")
    assert guide.status(0)["remaining"]["checks"] == 0
    guide.log.redo(seen=guide.log.redoable().version, once="redo-redo")
    assert guide.status(0)["remaining"] == one


def test_enough_right_spot_checks_suggest_to_stop_below_the_share_named(tmp_path):
    guide = opened(make_framed(tmp_path, 30, 90))
    guide.set_stop(0.2)
    stopped = []
    while not stopped or not stopped[-1]:
        step(guide)
        guide.draw_if_due(asked=True)
        stopped.append(guide.status(0)["remaining"]["stop"])
    left = guide.status(0)["remaining"]
    assert left["sure"] <= 0.2 * 90
    assert left["checks"] > 8
    guide.set_stop(0.001)
    assert not guide.status(0)["remaining"]["stop"]
    guide.log.close()
    assert opened(tmp_path / "review").stop_below == 0.001, "remembered"
    with pytest.raises(ExemplaError, match="between 0 and 1"):
        guide.set_stop(1.5)


def test_a_new_analysis_begins_a_new_design_and_keeps_the_decisions(tmp_path):
    guide = opened(make_framed(tmp_path, 60))
    for _ in range(9):
        step(guide)
    guide.log.close()
    again = opened(make_framed(tmp_path, 40))  # the same file, another list
    assert len(again.standing().settled) == 9
    assert [d.row for d in again.log.draws] != []  # 9 decisions: one is due at once
    assert again.status(0)["remaining"]["checks"] == 0
    assert again.status(0)["remaining"]["rows"] == 391
    step(again)
    assert again.status(0)["remaining"]["checks"] == 1


def test_a_folder_of_an_earlier_version_keeps_its_order_and_says_not_checked(tmp_path):
    guide = opened(make_folder(tmp_path, 12))
    for item in (0, 3, 6, 9, 12, 15):
        settle(guide, item, "remove")
    status = guide.status(0)
    assert (status["renewals"], status["spots"], status["waiting"]) == (0, [], None)
    assert status["remaining"]["checks"] == 0
    assert guide.log.draws == []


def test_a_sealed_log_from_before_spot_checks_opens_and_takes_them(tmp_path):
    folder = make_framed(tmp_path, 30)
    key = read_review(folder).key
    path = folder / "decisions.sqlite"
    fill(path, key, 12).close()
    wanted = answer(path, key)
    with closing(
        sqlite3.connect(path, isolation_level=None)
    ) as db:  # as an earlier version made it
        events = read_events(db)
        settings = db.execute("SELECT name, value FROM settings").fetchall()
    path.unlink()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(UNDESIGNED)
        for event in events:
            append(db, event)
        db.executemany("INSERT INTO settings VALUES (?, ?)", settings)
        with pytest.raises(sqlite3.IntegrityError):
            append(db, events[-1]._replace(version=0, kind="draw", once="new"))
    assert UNDESIGNED != SCHEMA
    assert len(salvage(path)) == len(events)
    assert answer(path, key) == wanted
    guide = opened(folder)
    guide.draw_if_due(asked=True)
    assert len(guide.log.draws) >= 1


def test_killed_between_decisions_it_goes_on_with_the_same_spot_checks(tmp_path):
    folder = make_framed(tmp_path, 60)
    spots: list[int] = []
    done: set[int] = set()
    for _ in range(3):
        with running(folder) as server, server.client() as client:
            before = client.get("/api/state").json()
            assert [item for item, _ in before["spots"]] == spots
            assert {s["row"] for s in before["changes"]} == done
            for _ in range(5):
                order = client.get("/api/order").json()["order"]
                state = client.get("/api/state").json()
                item = state["waiting"]
                if item is None:
                    item = next(i for i in order if i not in done)
                done.add(item)
                assert decide(client, item).status_code == 200
            spots = [item for item, _ in client.get("/api/state").json()["spots"]]
            server.kill()
    assert len(spots) == 5
    again = opened(folder)
    assert [d.row for d in again.log.draws] == spots
    again.log.close()


def test_rows_that_were_not_drawn_are_nobodys_to_choose(tmp_path):
    folder = make_framed(tmp_path, 30)
    hidden = read_review(folder).rest[0].item
    with served(folder) as address, signed_in(address) as client:
        assert client.get(f"/api/suspect/{hidden}").status_code == 404
        assert decide(client, hidden).status_code == 404
        found = client.get("/api/find", params={"wanted": "AND SO ON"}).json()["items"]
        assert found == list(range(30)), "in any case, and only what is listed or drawn"
        assert client.post("/api/stop", json={"share": 2.0}).status_code == 422
        answer = client.post("/api/spot", json={}).json()
        (item, entry), waiting = answer["spots"][0], answer["waiting"]
        assert item == waiting
        assert (entry is None) == (item < 30)
        assert client.get(f"/api/suspect/{item}").status_code == 200
        assert client.post("/api/spot", json={}).json()["waiting"] == waiting, "one at a time"


def test_the_share_to_stop_below_is_checked_before_anything_is_served(tmp_path, capsys):
    folder = make_framed(tmp_path, 10)
    assert main(["review", str(folder), "--no-browser", "--stop-below", "7"]) != 0
    assert "between 0 and 1" in capsys.readouterr().err
