"""Deciding over HTTP: saved before the answer, once, never over another's decision."""

from __future__ import annotations

import threading
import uuid

import pytest

from tests.review.case import make_folder, running, served, signed_in


def once() -> str:
    return str(uuid.uuid4())


def decide(client, row, action="keep", seen=0, label=None, note="", key=None):
    body = {"row": row, "action": action, "seen": seen, "label": label, "note": note}
    return client.post("/api/decide", json=body | {"once": key or once()})


@pytest.fixture
def page(tmp_path):
    with served(make_folder(tmp_path, 12)) as address, signed_in(address) as client:
        yield client


def test_the_overview_lists_the_suspects_in_order(page):
    review = page.get("/api/review").json()
    assert [s[0] for s in review["suspects"]] == list(range(0, 36, 3))
    assert review["source"] == "mails.jsonl"
    assert review["classes"] == ["ham", "spam", "news"]
    card = page.get("/api/suspect/6").json()
    assert card["content"]["text"].startswith("The meeting about message 6")
    assert page.get("/api/image/train/6").content[8:12] == b"WEBP"
    assert page.get("/api/image/curated/7").headers["content-type"] == "image/webp"
    assert page.get("/api/image/train/7").status_code == 404


def test_a_decision_moves_counts_and_the_estimate(page):
    before = page.get("/api/state").json()
    after = decide(page, 0, "relabel", label="news").json()
    assert after["counts"] == before["counts"] | {"pending": 11, "relabel": 1}
    assert after["remaining"]["mean"] < before["remaining"]["mean"]
    assert page.get("/api/state").json()["changes"][0]["label"] == "news"
    skipped = decide(page, 3, "skip").json()
    assert skipped["remaining"] == after["remaining"], "a skipped row is still open"


def test_a_stale_decision_is_refused_with_the_others(page):
    mine = decide(page, 0, "keep").json()["state"]
    late = decide(page, 0, "remove", seen=0)
    assert late.status_code == 409
    assert late.json()["current"] == mine
    assert decide(page, 0, "remove", seen=mine["version"]).status_code == 200


def test_of_many_tabs_at_once_one_wins(page):
    codes: list[int] = []

    def tab(action: str) -> None:
        codes.append(decide(page, 9, action).status_code)

    tabs = [threading.Thread(target=tab, args=(a,)) for a in ["keep", "remove", "skip"] * 4]
    for thread in tabs:
        thread.start()
    for thread in tabs:
        thread.join()
    assert sorted(codes) == [200] + [409] * 11


def test_sending_again_is_answered_and_done_once(page):
    key = once()
    first = decide(page, 0, "keep", key=key)
    second = decide(page, 0, "keep", key=key)
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json()["version"] == first.json()["version"]


def test_a_page_left_open_over_a_new_analysis_says_so(tmp_path):
    with served(make_folder(tmp_path, 4)) as address, signed_in(address) as page:
        assert page.get("/api/suspect/3").status_code == 200
        make_folder(tmp_path, 4, hostile="another analysis")
        for route in ("/api/suspect/3", "/api/state"):
            answer = page.get(route)
            assert answer.status_code == 400
            assert "was replaced by a new analysis" in answer.json()["detail"]
        assert page.post("/api/export", json={}).json()["changed"] == 0


def test_undo_and_redo_over_http(page):
    done = decide(page, 0, "remove").json()
    back = page.post("/api/undo", json={"seen": done["undo"]["version"], "once": once()}).json()
    assert back["state"]["action"] == "pending"
    assert back["undo"] is None
    forth = page.post("/api/redo", json={"seen": back["redo"]["version"], "once": once()}).json()
    assert forth["state"]["action"] == "remove"
    stale = page.post("/api/undo", json={"seen": 999, "once": once()})
    assert stale.status_code == 409


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"row": 1}, 404),
        ({"row": -3}, 422),
        ({"row": "0"}, 422),
        ({"action": "explode"}, 422),
        ({"action": "relabel", "label": None}, 422),
        ({"action": "relabel", "label": "no such class"}, 422),
        ({"action": "keep", "label": "spam"}, 422),
        ({"once": "x"}, 422),
        ({"extra": 1}, 422),
        ({"note": "x" * 10_001}, 422),
    ],
)
def test_nonsense_is_refused_and_not_logged(page, change, status):
    body = {"row": 0, "action": "keep", "seen": 0, "once": once()} | change
    assert page.post("/api/decide", json=body).status_code == status
    assert page.get("/api/state").json()["version"] == 0


def test_killed_at_any_moment_it_has_what_it_acknowledged(tmp_path):
    folder = make_folder(tmp_path, 12)
    acknowledged: dict[int, tuple[str, str]] = {}
    for round_ in range(3):
        with running(folder) as server, server.client() as client:
            for row in range(12 * round_, 12 * round_ + 12, 3):
                action = ("keep", "remove", "skip")[row % 9 // 3]
                state = decide(client, row, action, note=f"note {row}").json()["state"]
                acknowledged[row] = (state["action"], state["note"])
            server.kill()
    with running(folder) as server, server.client() as client:
        found = client.get("/api/state").json()
    assert {s["row"]: (s["action"], s["note"]) for s in found["changes"]} == acknowledged
    assert len(acknowledged) == 12


def test_a_restart_takes_the_same_port_and_a_new_token(tmp_path):
    folder = make_folder(tmp_path, 3)
    with running(folder) as first, first.client() as client:
        decide(client, 0, "keep")
        first.kill()
        with running(folder) as second:
            assert second.port == first.port
            assert second.token != first.token
            assert client.get("/api/state").status_code == 403, "the old key is worth nothing"
