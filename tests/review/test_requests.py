"""Broken requests, two exports at once, a full disk: the page says so and loses nothing."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.review.case import make_folder, served, signed_in


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One page for the tests that change nothing."""
    folder = make_folder(tmp_path_factory.mktemp("requests"), 3)
    with served(folder) as address, signed_in(address) as client:
        yield client


def test_answers_are_sent_without_delay(tmp_path):
    from exempla.review.log import DecisionLog
    from exempla.review.server import listen

    log = DecisionLog(tmp_path / "decisions.sqlite", "k")
    with listen(0, log) as listener:  # accepted sockets inherit it
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    log.close()


HALF = "\\ud800"
BROKEN = {
    "not a number": '{"row": NaN, "action": "keep", "seen": 0, "once": "0123456789"}',
    "infinite": '{"row": 0, "action": "keep", "seen": 1e999, "once": "0123456789"}',
    "half a surrogate in the note":
        f'{{"row": 0, "action": "keep", "seen": 0, "note": "{HALF}", "once": "0123456789"}}',
    "half a surrogate in the label":
        f'{{"row": 0, "action": "relabel", "label": "{HALF}", "seen": 0, "once": "0123456789"}}',
    "half a surrogate as a field": f'{{"row": 0, "{HALF}": 1}}',
    "half a surrogate in the key":
        f'{{"row": 0, "action": "keep", "seen": 0, "once": "{HALF}23456789"}}',
    "too deep": "[" * 60_000,
    "a number of 50,000 digits": f'{{"row": {"1" * 50_000}}}',
    "no JSON": "{",
    "no text": b"\xff\xfe{}",
    "empty": "",
    "a list": "[]",
    "a large row": f'{{"row": {10**30}, "action": "keep", "seen": 0, "once": "01234567"}}',
}  # fmt: skip


@pytest.mark.parametrize("what", list(BROKEN))
def test_a_broken_request_gets_a_sentence(page, what):
    headers = {"Content-Type": "application/json"}
    answer = page.post("/api/decide", content=BROKEN[what], headers=headers)
    assert answer.status_code in (400, 404, 422)
    assert answer.json()["detail"].endswith(".")
    assert page.get("/api/state").json()["version"] == 0


@pytest.mark.parametrize(
    "path",
    [
        "/api/state?since=NaN",
        "/api/state?since=%ED%A0%80",
        "/api/suspect/-1",
        f"/api/suspect/{'9' * 300}",
        f"/api/image/train/{'9' * 300}",
        f"/api/image/train/{'9' * 5000}",
        "/api/image/train/%ED%A0%80",
        "/api/export/%00",
        "/static/%ED%A0%80",
    ],
)
def test_a_broken_address_gets_an_answer(page, path):
    assert page.get(path).status_code in (400, 404, 422)


def test_of_two_exports_at_once_one_waits_its_turn_in_words(tmp_path, monkeypatch):
    from exempla.review import export

    begun, go_on = threading.Event(), threading.Event()
    real = export.write_corrected

    def slow(*given):
        begun.set()
        assert go_on.wait(10)
        return real(*given)

    monkeypatch.setattr(export, "write_corrected", slow)
    answers = {}
    with served(make_folder(tmp_path, 3)) as address, signed_in(address) as page:
        first = threading.Thread(
            target=lambda: answers.update(first=page.post("/api/export", json={}))
        )
        first.start()
        assert begun.wait(10)
        second = page.post("/api/export", json={})
        go_on.set()
        first.join()
        assert (answers["first"].status_code, second.status_code) == (200, 409)
        assert "Another export is being written" in second.json()["detail"]
        assert page.post("/api/export", json={}).status_code == 200


def test_a_full_disk_is_said_and_loses_nothing(tmp_path, monkeypatch):
    import errno

    from exempla import io as atomic

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = make_folder(tmp_path, 3)
    with served(folder) as address, signed_in(address) as page:
        body = {"row": 0, "action": "remove", "seen": 0, "once": "0123456789"}
        assert page.post("/api/decide", json=body).status_code == 200
        assert page.post("/api/export", json={}).status_code == 200
        before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        body |= {"row": 3, "once": "9876543210"}
        assert page.post("/api/decide", json=body).status_code == 200
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, "fsync", full)
            answer = page.post("/api/export", json={})
            assert answer.status_code == 507
            said = answer.json()["detail"]
            assert "decisions.json could not be written (No space left on device)" in said
        for name in ("decisions.json", "patch.csv", "corrected.jsonl"):
            assert (folder / name).read_bytes() == before[name]
        assert not [p for p in folder.iterdir() if p.name.endswith(".part")]
        assert page.post("/api/export", json={}).json()["changed"] == 2


def test_a_decision_that_does_not_fit_on_the_disk_is_refused_and_can_be_sent_again(tmp_path):
    from exempla.review import read_review
    from exempla.review.log import DecisionLog, RowDecision, StorageError

    folder = make_folder(tmp_path, 3)
    log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    pages = log._db.execute("PRAGMA page_count").fetchone()[0]
    log._db.execute(f"PRAGMA max_page_count = {pages}")
    state = RowDecision(0, "keep", None, "x" * 9000)
    with pytest.raises(StorageError, match="full"):
        log.decide(state, seen=0, once="first")
    assert log.state(0).action == "pending"
    log._db.execute("PRAGMA max_page_count = 100000")
    assert log.decide(state, seen=0, once="first").version == 1
    log.close()
    again = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    assert again.state(0).note == "x" * 9000
    again.close()
