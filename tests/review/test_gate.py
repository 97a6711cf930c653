"""Who may talk to the page. A real server on a random port, asked as attackers would ask."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from importlib import resources

import httpx
import pytest

from exempla.review.gate import CSP
from tests.review.case import make_folder, running

DECISION = {"row": 3, "action": "keep", "seen": 0, "once": "0123456789"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(make_folder(tmp_path_factory.mktemp("gate"), 5)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with server.client() as client:
        yield client


ROUTES = [
    "/api/review",
    "/api/state",
    "/api/suspect/3",
    "/api/image/train/0",
    "/api/export/patch",
    "/openapi.json",
    "/docs",
    "/nothing",
]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_needs_the_key(server, client, route):
    assert httpx.get(server.origin + route, trust_env=False).status_code == 403
    key = client.headers["X-Exempla"]
    for forged in ({"X-Exempla": "guess"}, {"X-Exempla": ""}, {"X-Exempla": key[:-1]}):
        assert httpx.get(server.origin + route, headers=forged, trust_env=False).status_code == 403
    # Where ports and other programs could get hold of it, the key opens nothing.
    for carrier in ({"Cookie": f"exempla-review-{server.port}={key}; X-Exempla={key}"},):
        answer = httpx.get(f"{server.origin}{route}?key={key}", headers=carrier, trust_env=False)
        assert answer.status_code == 403
    assert client.get(route).status_code in (200, 404)


@pytest.mark.parametrize("route", ["/", "/static/main.js", "/static/style.css"])
def test_without_the_key_there_is_only_the_empty_page(server, route):
    """It holds nothing of the data, is the same for everybody, and sets no cookie."""
    answer = httpx.get(server.origin + route, trust_env=False)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert "mails.jsonl" not in answer.text
    shipped = resources.files("exempla.review") / "static"
    assert answer.text == (shipped / (route.split("/")[-1] or "index.html")).read_text("utf-8")


@pytest.mark.parametrize("route", ["/", "/api/state", "/nothing", "/api/suspect/99"])
def test_every_answer_bears_the_headers(server, client, route):
    for answer in (client.get(route), httpx.get(server.origin + route, trust_env=False)):
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "no-store" in answer.headers["cache-control"]
        assert not any(name.startswith("access-control") for name in answer.headers)
        assert "server" not in answer.headers


def test_the_policy_is_the_strict_one():
    assert CSP == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob: data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


def hosts(port: int) -> dict[str, int]:
    return {
        f"127.0.0.1:{port}": 200,
        f"localhost:{port}": 200,
        f"[::1]:{port}": 200,
        f"evil.test:{port}": 403,
        "evil.test": 403,
        f"127.0.0.1:{port + 1}": 403,
        "127.0.0.1": 403,
        f"localhost:{port}.evil.test": 403,
        f"evil.test@127.0.0.1:{port}": 403,
        f"127.0.0.1.evil.test:{port}": 403,
        f"LOCALHOST:{port}": 403,
        "": 403,
    }


@pytest.mark.parametrize("which", range(12))
def test_only_our_own_names_with_our_own_port_are_served(client, server, which):
    host, wanted = list(hosts(server.port).items())[which]
    assert client.get("/api/state", headers={"Host": host}).status_code == wanted


def test_two_host_headers_are_refused(server, client):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("GET", "/api/state", skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.port}")
    connection.putheader("Host", "evil.test")
    connection.putheader("X-Exempla", client.headers["X-Exempla"])
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)


@pytest.mark.parametrize(
    ("header", "first"),
    [("X-Exempla", "guess"), ("Sec-Fetch-Site", "cross-site"), ("Origin", "http://evil.test")],
)
def test_a_header_that_decides_may_not_be_sent_twice(server, client, header, first):
    """Otherwise the second one, which is right, would hide the first."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("GET", "/api/state")
    right = {name: client.headers[name] for name in ("X-Exempla", "Sec-Fetch-Site", "Origin")}
    connection.putheader(header, first)
    for name, value in right.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 403


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Sec-Fetch-Site", "same-site"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "none"),
        ("Sec-Fetch-Site", None),
        ("Origin", "null"),
        ("Origin", "http://evil.test"),
        ("Origin", "http://127.0.0.1:1"),
        ("Origin", "https://127.0.0.1"),
        ("Origin", None),
        ("X-Exempla", None),
    ],
)
def test_a_post_that_is_not_from_our_page_is_refused_and_changes_nothing(client, header, value):
    request = client.build_request("POST", "/api/decide", json=DECISION)
    del request.headers[header]
    if value is not None:
        request.headers[header] = value
    assert client.send(request).status_code == 403
    assert client.get("/api/state").json()["version"] == 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_post_that_a_form_could_send_is_refused(client, kind):
    answer = client.post("/api/decide", content=b"{}", headers={"Content-Type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "0x10", ""])
def test_a_length_that_is_none_is_refused(server, client, length):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as plain:
        head = [
            "POST /api/decide HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            f"Origin: {server.origin}",
            "Sec-Fetch-Site: same-origin",
            "Content-Type: application/json",
            f"X-Exempla: {client.headers['X-Exempla']}",
            f"Content-Length: {length}",
        ]
        plain.sendall("\r\n".join([*head, "", ""]).encode())
        assert plain.recv(200).split()[1] in (b"400", b"413")


def test_a_large_body_is_refused(client):
    answer = client.post("/api/decide", json=DECISION | {"note": "x" * 70_000})
    assert answer.status_code == 413


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
@pytest.mark.parametrize("route", ["/", "/api/review", "/static/main.js", "/api/image/train/0"])
def test_embedding_from_another_page_is_refused_even_with_the_key(client, site, route):
    answer = client.get(route, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
    assert answer.status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_do_nothing(client, method):
    assert client.request(method, "/api/decide").status_code in (400, 403, 405, 413, 415)


HOSTILE_PATHS = [
    "/static/../server.py",
    "/static/..%2fserver.py",
    "/static/%2e%2e/server.py",
    "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/static/..%5cserver.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/main.js%00.css",
    "/../../etc/passwd",
    "//etc/passwd",
    "/api/image/train/..%2f..%2freview.json",
    "/api/image/../../review.json",
    "/api/image/train/0.webp",
    "/api/image/train/-1",
    "/api/image/train/1e3",
    "/api/image/etc/0",
    "/api/suspect/..%2f..%2freview.json",
    "/api/export/..%2fdecisions.sqlite",
    "/api/export/decisions.sqlite",
    "/decisions.sqlite",
    "/review.json",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_paths_lead_nowhere(server, client, path):
    # http.client sends the path as it stands; httpx would tidy it first.
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers={"X-Exempla": client.headers["X-Exempla"]})
    answer = connection.getresponse()
    assert answer.status in (400, 403, 404, 405, 422)
    assert b"root:" not in answer.read()


def enter(server, token, **headers):
    sent = {"Sec-Fetch-Site": "same-origin", "Origin": server.origin, "X-Exempla": token}
    sent = {name: value for name, value in (sent | headers).items() if value is not None}
    return httpx.post(f"{server.origin}/api/session", json={}, headers=sent, trust_env=False)


def test_the_token_works_once_and_only_for_our_own_page(tmp_path):
    with running(make_folder(tmp_path, 3)) as server:
        for wrong in ("A" * 43, "", server.token[:-1], server.token + "A"):
            assert enter(server, wrong).status_code == 403
        foreign = [
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": None},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": None},
            {"Host": "evil.test"},
        ]
        for headers in foreign:
            assert enter(server, server.token, **headers).status_code == 403
        headers = {"X-Exempla": server.token}
        asked = httpx.get(f"{server.origin}/api/session", headers=headers, trust_env=False)
        assert asked.status_code == 403, "reading does not spend it"
        first = enter(server, server.token)
        assert first.status_code == 200
        key = first.json()["session"]
        assert len(key) >= 43
        assert key != server.token
        assert "set-cookie" not in first.headers
        again = enter(server, server.token)
        assert (again.status_code, "session" in again.text) == (403, False)
        assert enter(server, key).status_code == 403, "the key is no token"
        headers = {"X-Exempla": server.token}
        for route in ("/api/state", "/api/review"):  # nor is the token a key
            answer = httpx.get(server.origin + route, headers=headers, trust_env=False)
            assert answer.status_code == 403


def test_the_token_is_in_no_log_and_no_command_line(tmp_path):
    with running(make_folder(tmp_path, 3)) as server:
        with server.client() as client:
            client.get("/api/state")
            client.get(server.address)
            client.get("/nothing")
        listing = subprocess.run(
            ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=False
        ).stdout
        assert server.token not in listing
        server.process.terminate()
        server.process.wait(timeout=10)
    assert all(server.token not in line for line in server.output)
    kept = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert kept
    assert all(server.token.encode() not in p.read_bytes() for p in kept)


def test_it_listens_on_loopback_only(server):
    outside = [
        info[4][0]
        for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        if not info[4][0].startswith("127.")
    ]
    for address in outside:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, server.port), timeout=2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=2):
        pass


def test_websockets_are_refused(server, client):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "X-Exempla": client.headers["X-Exempla"],
    }
    connection.request("GET", "/api/state", headers=headers)
    assert connection.getresponse().status != 101


def test_importing_the_package_does_not_need_a_web_server():
    heavy = "{'fastapi', 'torch', 'pandas', 'sklearn'}"
    code = f"import sys, exempla.review; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
