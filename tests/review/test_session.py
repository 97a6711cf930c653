"""Order, spot checks and stopping over the life of a review: restarts, undo, a new analysis."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.review import read_review
from exempla.review.log import DecisionLog, RowDecision
from exempla.review.session import INITIAL_SAMPLE, SPOT_CHECK_EVERY, ReviewSession
from tests.review.case import make_folder, make_framed, running, served, signed_in
from tests.review.test_app import decide


def opened(folder, initial_sample=0):
    review = read_review(folder)
    log = DecisionLog(folder / "decisions.sqlite", review.key)
    return ReviewSession(review, log, initial_sample=initial_sample)


def settle(session, item, action="keep"):
    log = session.log
    log.decide(
        RowDecision(item, action), seen=log.state(item).version, once=f"{item}-{log.version}"
    )
    session.draw_if_due()


def step(session, action="keep"):
    """Decide about what comes next on the page."""
    waiting = session.state().waiting
    open_ = [i for i in session.renewal().order if session.log.state(i).action == "pending"]
    item = open_[0] if waiting is None else waiting
    settle(session, item, action)
    return item


def test_every_third_row_is_a_spot_check_and_the_log_knows_it(tmp_path):
    session = opened(make_framed(tmp_path, 60))
    seen = [step(session) for _ in range(30)]
    draws = [each.row for each in session.log.draws]
    assert [item in draws for item in seen] == [False, False, True] * 10
    assert SPOT_CHECK_EVERY == 3
    assert sum(row >= 60 for row in draws) >= 7, "mostly rows that are not listed"
    design = session.log.design
    assert '"rows": 400' in design
    assert '"seed": 5' in design
    session.log.close()


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
    session = opened(make_framed(tmp_path, 60))
    before = session.status(0)["remaining"]
    assert (before["checks"], before["low"], before["rows"]) == (0, None, 400)
    expected = np.concatenate([np.linspace(0.9, 0.3, 60), np.linspace(0.2, 0.001, 340)]).sum()
    assert before["mean"] == pytest.approx(expected, rel=0.02)
    for _ in range(3):
        step(session)
    after = session.status(0)["remaining"]
    assert (after["checks"], after["low"], after["rows"]) == (1, 0, 397)
    assert 300 < after["high"] <= 397, "one spot check says next to nothing, and the page says so"


def test_skipped_and_undone_spot_checks(tmp_path):
    session = opened(make_framed(tmp_path, 60))
    step(session), step(session)
    spot = session.state().waiting
    settle(session, spot, "skip")
    assert session.status(0)["remaining"]["checks"] == 0, "a skipped one has said nothing"
    settle(session, spot, "remove")
    one = session.status(0)["remaining"]
    assert (one["checks"], one["low"] > 0) == (1, True)
    session.log.undo(seen=session.log.undoable().version, once="undo-undo")
    assert session.status(0)["remaining"]["checks"] == 0
    session.log.redo(seen=session.log.redoable().version, once="redo-redo")
    assert session.status(0)["remaining"] == one


def test_enough_right_spot_checks_suggest_to_stop_below_the_share_named(tmp_path):
    session = opened(make_framed(tmp_path, 30, 90))
    session.set_stop(0.2)
    stopped = []
    while not stopped or not stopped[-1]:
        step(session)
        session.draw_if_due(asked=True)
        stopped.append(session.status(0)["remaining"]["stop"])
    left = session.status(0)["remaining"]
    assert left["sure"] <= 0.2 * 90
    assert left["checks"] > 8
    session.set_stop(0.001)
    assert not session.status(0)["remaining"]["stop"]
    session.log.close()
    assert opened(tmp_path / "review").stop_below == 0.001, "remembered"
    with pytest.raises(ExemplaError, match="between 0 and 1"):
        session.set_stop(1.5)


def test_a_new_analysis_begins_a_new_design_and_keeps_the_decisions(tmp_path):
    session = opened(make_framed(tmp_path, 60))
    for _ in range(9):
        step(session)
    session.log.close()
    again = opened(make_framed(tmp_path, 40))  # the same file, another list
    assert len(again.state().settled) == 9
    assert [d.row for d in again.log.draws] != []  # 9 decisions: one is due at once
    assert again.status(0)["remaining"]["checks"] == 0
    assert again.status(0)["remaining"]["rows"] == 391
    step(again)
    assert again.status(0)["remaining"]["checks"] == 1


def test_a_folder_of_an_earlier_version_keeps_its_order_and_says_not_checked(tmp_path):
    session = opened(make_folder(tmp_path, 12))
    for item in (0, 3, 6, 9, 12, 15):
        settle(session, item, "remove")
    status = session.status(0)
    assert (status["renewals"], status["spots"], status["waiting"]) == (0, [], None)
    assert status["remaining"]["checks"] == 0
    assert session.log.draws == []


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


def test_a_review_starts_with_a_random_sample_that_can_be_skipped(tmp_path):
    session = opened(make_framed(tmp_path, 60), INITIAL_SAMPLE)
    seen = [step(session) for _ in range(25)]
    assert seen == [each.row for each in session.log.draws][:25], "all of them are spot checks"
    session.skip_sample()
    step(session)  # the one that waits
    drawn = [each.row for each in session.log.draws]
    assert step(session) not in drawn
    session.log.close()
    again = opened(tmp_path / "review", INITIAL_SAMPLE)
    assert again.status(0)["sample"] == 0, "remembered"


def test_a_small_file_has_a_small_sample(tmp_path):
    assert opened(make_framed(tmp_path, 12, 60), INITIAL_SAMPLE).plan.initial_sample == 12
    assert INITIAL_SAMPLE == 40


@pytest.mark.parametrize("careless", [True, False])
def test_decisions_against_confident_evidence_are_pointed_out(tmp_path, careless):
    session = opened(make_framed(tmp_path, 60), INITIAL_SAMPLE)
    for number in range(24):
        step(session, "remove" if careless and number % 2 else "keep")
    found = session.status(0)["contradictions"]
    if not careless:
        assert found == [], "agreeing with the evidence is no contradiction"
        return
    assert len(found) >= 3
    p = {s.item: s.probability for s in session.plan.items}
    assert all(p[item] < 0.05 for item in found)
    assert all(session.log.state(item).action == "remove" for item in found)
