"""Start the review page on this machine, for this user, and open it."""

from __future__ import annotations

import atexit
import contextlib
import html
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from exempla.errors import ExemplaError
from exempla.review.folder import Review, read_review
from exempla.review.gate import Gate, Keys, elsewhere
from exempla.review.log import DecisionLog

if TYPE_CHECKING:
    import uvicorn

__all__ = ["serve"]

_HOST = "127.0.0.1"


def serve(
    directory: str | Path,
    port: int = 0,
    open_browser: bool = True,
    announce: Callable[[str], object] = lambda line: print(line, flush=True),
    stop_below: float | None = None,
) -> None:
    """Serve the review page of a folder until interrupted.

    It listens on 127.0.0.1 only. `port` 0 takes the folder's last port if it is free (so that an
    open tab finds the page again after a restart) and any free one otherwise. The address, with a
    token that works once, goes to `announce` and nowhere else; where the input is a terminal,
    Enter announces another one. `stop_below` is the share of all rows that may stay wrong: the page
    says so when its spot checks bound what is left below it.

    >>> from exempla.review import serve
    >>> serve("no-such-folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: no-such-folder holds no review.json; make one with ...
    """
    review = read_review(directory)
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ExemplaError(
                f"The review page needs {name}; install it with `pip install 'exempla[review]'`."
            )
    from exempla.review.log import sparing_logs

    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        listener = listen(port, log)
        port = int(listener.getsockname()[1])
        log.setting("port", str(port))
        keys = Keys()
        server = make_server(review, log, port, keys, stop_below)
        place = f"http://{_HOST}:{port}/?token="
        address = f"{place}{keys.token}"
        announce(f"Review {len(review.suspects)} suspects at {address}")
        announce("The address works once. Decisions are saved at once; Ctrl-C ends the server.")
        if sys.stdin is not None and sys.stdin.isatty():
            announce("For another browser, press Enter here.")
            told = (sys.stdin, keys, place, announce)
            threading.Thread(target=_new_addresses, args=told, daemon=True).start()
        if said := elsewhere(log.others()):
            announce(said)
        if open_browser:
            _open(address)
        # An interrupt is the way a person ends it.
        with sparing_logs(), contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        log.close()


def _new_addresses(
    lines: Iterable[str], keys: Keys, place: str, announce: Callable[[str], object]
) -> None:
    """For each line that comes, announce an address that works once.

    >>> _new_addresses(["\\n"], Keys(), "http://127.0.0.1:80/?token=", lambda s: print(s[:34]))
    Another address, which works once:
    """
    for _ in lines:
        announce(f"Another address, which works once: {place}{keys.renew()}")


def make_server(
    review: Review, log: DecisionLog, port: int, keys: Keys, stop_below: float | None = None
) -> uvicorn.Server:
    """The server of the page behind its gate, not yet running."""
    import uvicorn

    from exempla.review.app import build_app
    from exempla.review.log import BACKLOG, Connection

    config = uvicorn.Config(
        Gate(build_app(review, log, stop_below), port, keys),
        http=Connection,
        backlog=BACKLOG,
        access_log=False,  # the first request's address holds the token
        log_level="error",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def listen(port: int, log: DecisionLog) -> socket.socket:
    """A socket on this machine alone: the port asked for, or the folder's last, or any."""
    if not 0 <= port <= 65_535:
        raise ExemplaError(f"Port {port} does not exist; choose one up to 65535, or 0 for any.")
    last = log.setting("port") or ""
    choices = [port] if port else [int(last) if last.isdecimal() else 0, 0]
    for choice in choices:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # Accepted sockets inherit it. Without, every answer on an open connection waits some 40 ms
        # for the client to acknowledge the headers before the body is sent (Nagle's algorithm).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if os.name == "posix":  # elsewhere the option would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, choice))
            # A port that another server listens on fails here at the latest.
            listener.listen(128)
            return listener
        except (OSError, OverflowError):
            listener.close()
    raise ExemplaError(f"Port {port} is in use; choose another one, or 0 for any free port.")


def _open(address: str) -> None:
    """Open the page without showing the token to every user of the machine.

    A browser's command line is public (`ps`), so it gets the name of a private file that leads to
    the address. Where no browser opens, the printed address still works.
    """
    folder = Path(tempfile.mkdtemp(prefix="exempla-review-"))  # mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    page = folder / "open.html"
    target = html.escape(address, quote=True)
    page.write_text(
        '<!doctype html><meta charset="utf-8"><title>exempla review</title>'
        f'<meta http-equiv="refresh" content="0;url={target}"><a href="{target}">Open the page</a>',
        encoding="utf-8",
    )
    page.chmod(0o600)
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(page.as_uri())
