"""Starting the page: the port, the address, and opening a browser without showing the token."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from exempla.errors import ExemplaError
from exempla.review import read_review, serve
from exempla.review import server as server_module
from exempla.review.gate import Keys
from exempla.review.log import DecisionLog
from tests.review.case import make_folder


@pytest.fixture
def opened(monkeypatch):
    """Addresses handed to the browser; the server itself returns at once."""
    import uvicorn

    seen: list[str] = []
    monkeypatch.setattr(server_module.webbrowser, "open", seen.append)
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda self, sockets: [s.close() for s in sockets] and None
    )
    return seen


def test_the_browser_gets_a_private_file_and_not_the_token(tmp_path, opened):
    lines: list[str] = []
    serve(make_folder(tmp_path, 2), announce=lines.append)
    address = lines[0].split(" at ")[1]
    token = address.split("token=")[1]
    assert len(token) >= 43
    assert address.startswith("http://127.0.0.1:")
    (handed,) = opened
    assert token not in handed
    file = Path(unquote(urlparse(handed).path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert f'content="0;url={address}"' in file.read_text(encoding="utf-8")
    assert not file.is_relative_to(tmp_path / "review"), "not in the served folder"


def test_without_a_browser_nothing_is_opened(tmp_path, opened):
    lines: list[str] = []
    serve(make_folder(tmp_path, 2), open_browser=False, announce=lines.append)
    assert opened == []
    assert "token=" in lines[0]


def test_each_start_has_its_own_token_and_keeps_the_port(tmp_path, opened):
    folder, lines = make_folder(tmp_path, 2), []
    for _ in range(2):
        serve(folder, open_browser=False, announce=lines.append)
    first, second = (urlparse(line.split(" at ")[1]) for line in (lines[0], lines[2]))
    assert first.port == second.port
    assert first.query != second.query


def test_a_port_in_use_is_refused_by_name_and_avoided_by_itself(tmp_path, opened):
    folder = make_folder(tmp_path, 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ExemplaError, match=f"Port {port} is in use"):
            serve(folder, port=port, open_browser=False)
        log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
        log.setting("port", str(port))
        log.close()
        lines: list[str] = []
        serve(folder, open_browser=False, announce=lines.append)
        assert f":{port}/" not in lines[0]


@pytest.mark.parametrize("port", [-1, 70_000])
def test_an_impossible_port_is_refused(tmp_path, port):
    with pytest.raises(ExemplaError, match=f"Port {port}"):
        serve(make_folder(tmp_path, 2), port=port, open_browser=False)


def test_without_a_web_server_it_says_what_to_install(tmp_path, monkeypatch):
    found = server_module.importlib.util.find_spec
    monkeypatch.setattr(
        server_module.importlib.util, "find_spec", lambda n: None if n == "uvicorn" else found(n)
    )
    with pytest.raises(ExemplaError, match=r"needs uvicorn; install it with `pip install"):
        serve(make_folder(tmp_path, 2), open_browser=False)
    assert not (tmp_path / "review" / "decisions.sqlite").exists()


def test_a_new_link_replaces_the_unused_one():
    keys = Keys(token="once")
    new = keys.renew()
    assert [keys.spend("once"), keys.spend(new), keys.spend(new)] == [False, True, False]
