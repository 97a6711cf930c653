"""Floods, slow clients and broken requests: the page stays within reach and answers in words."""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid

import pytest

from exempla.review import log as connections
from exempla.review.log import LINES, MOST, Connection, sparing_logs
from tests.review.case import make_folder, running, served, signed_in


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


@pytest.fixture
def handles():
    """Room for 1,500 connections on our side."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_1500_half_open_connections_do_not_keep_the_person_out(tmp_path, handles):
    with running(make_folder(tmp_path, 3), handles=256) as server, server.client() as client:
        held = []
        for number in range(1500):
            held.append(connect(server.port))
            if number % 2:
                held[-1].sendall(b"GET /api/state HTTP/1.1\r\nHost: 127.0.")
            if number % 40 == 0:
                assert client.get("/api/state").status_code == 200
        assert client.get("/api/state").status_code == 200
        body = {"row": 0, "action": "keep", "seen": 0, "once": str(uuid.uuid4())}
        assert client.post("/api/decide", json=body).status_code == 200
        for each in held:
            each.close()
        assert client.get("/api/state").json()["version"] == 1
        server.process.terminate()
        server.process.wait(timeout=10)
    assert len("".join(server.output)) < 10_000


def test_there_are_never_more_connections_than_allowed_and_the_last_is_heard(tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        port = int(address.split(":")[2].split("/")[0])
        held = [connect(port) for _ in range(MOST + 30)]
        held[-1].sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert held[-1].recv(20).startswith(b"HTTP/1.1 200")
        ended = 0
        for each in held[:30]:  # those who kept us waiting longest
            each.settimeout(5)
            try:
                ended += each.recv(1) == b""
            except ConnectionResetError:
                ended += 1
        assert ended == 30
        held[-2].settimeout(0.2)
        with pytest.raises(TimeoutError):  # still open
            held[-2].recv(1)
        for each in held:
            each.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"POST /api/session HTTP/1.1\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 5\r\n\r\n{",
    ],
)
def test_who_does_not_finish_a_request_is_cut_off(tmp_path, monkeypatch, said):
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    with served(make_folder(tmp_path, 3)) as address:
        slow = connect(int(address.split(":")[2].split("/")[0]))
        slow.sendall(said)
        slow.settimeout(5)
        try:
            while slow.recv(4096):
                pass
        except ConnectionResetError:
            pass
        slow.close()


def test_a_slow_answer_is_not_cut_off(tmp_path, monkeypatch):
    from exempla.review import app

    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    real = app.export_review
    monkeypatch.setattr(app, "export_review", lambda review: (time.sleep(0.8), real(review))[1])
    with served(make_folder(tmp_path, 3)) as address, signed_in(address) as page:
        assert page.post("/api/export", json={}).status_code == 200


def test_answers_are_sent_without_delay(tmp_path, monkeypatch):
    found = []
    real = Connection.connection_made

    def made(self, transport):
        plain = transport.get_extra_info("socket")
        real(self, transport)
        found.append(plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", made)
    with served(make_folder(tmp_path, 3)) as address, signed_in(address) as page:
        page.get("/api/state")
    assert found
    assert all(found)


def test_a_flood_of_messages_is_cut_short_and_says_so():
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("asyncio"), Keep()
    logger.addHandler(handler)
    try:
        with sparing_logs():
            for number in range(10_000):
                logger.error("socket.accept() out of system resource %d", number)
        logger.error("afterwards")
    finally:
        logger.removeHandler(handler)
    assert len(lines) == LINES + 1
    assert "left out" in lines[LINES - 1]
    assert lines[-1] == "afterwards"


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
def test_a_broken_request_gets_a_sentence(tmp_path, what):
    with served(make_folder(tmp_path, 3)) as address, signed_in(address) as page:
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
def test_a_broken_address_gets_an_answer(tmp_path, path):
    with served(make_folder(tmp_path, 3)) as address, signed_in(address) as page:
        assert page.get(path).status_code in (400, 404, 422)


def test_of_two_exports_at_once_one_waits_its_turn_in_words(tmp_path, monkeypatch):
    from exempla.review import export

    begun, go_on = threading.Event(), threading.Event()
    real = export.write_corrected

    def slow(review, decisions):
        begun.set()
        assert go_on.wait(10)
        return real(review, decisions)

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
    from exempla.review.log import DecisionLog, RowDecision

    folder = make_folder(tmp_path, 3)
    log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    pages = log._db.execute("PRAGMA page_count").fetchone()[0]
    log._db.execute(f"PRAGMA max_page_count = {pages}")
    import sqlite3

    state = RowDecision(0, "keep", None, "x" * 9000)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        log.decide(state, seen=0, once="first")
    assert log.state(0).action == "pending"
    log._db.execute("PRAGMA max_page_count = 100000")
    assert log.decide(state, seen=0, once="first").version == 1
    log.close()
    again = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    assert again.state(0).note == "x" * 9000
    again.close()
