"""Serve the review page on 127.0.0.1 and open it in the browser."""

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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from exempla.errors import ExemplaError
from exempla.review.folder import other_decisions, read_review
from exempla.review.gate import Gate, Keys
from exempla.review.log import DecisionLog
from exempla.review.session import INITIAL_SAMPLE, ReviewSession

if TYPE_CHECKING:
    import uvicorn

_HOST = "127.0.0.1"


def serve(
    directory: str | Path,
    port: int = 0,
    open_browser: bool = True,
    announce: Callable[[str], object] = lambda line: print(line, flush=True),
    stop_below: float | None = None,
    initial_sample: int = INITIAL_SAMPLE,
) -> None:
    """Serve the review page of a folder until interrupted.

    Parameters
    ----------
    directory : path
        A folder written by `write_review` or `exempla fix-labels`.
    port : int
        The port on 127.0.0.1. 0 takes the folder's last port if it is free, so that an open tab
        reconnects after a restart, and any free port otherwise.
    announce : callable
        Receives the address, with a token that works once. In a terminal, Enter announces another.
    stop_below : float
        The fraction of all rows that may stay wrong; the page says when spot checks bound the
        errors left below it.
    initial_sample : int
        The number of random rows to check first; 0 starts with the most suspicious row.

    Examples
    --------
    >>> from exempla.review import serve
    >>> serve("no-such-folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: no-such-folder has no review.json; create one with ...
    """
    review = read_review(directory)
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ExemplaError(
                f"The review page needs {name}; install it with `pip install 'exempla[review]'`."
            )
    log = review.open_log()
    try:
        listener = listen(port, log)
        port = int(listener.getsockname()[1])
        log.setting("port", str(port))
        keys = Keys()
        session = ReviewSession(review, log, stop_below, initial_sample)
        server = make_server(session, port, keys)
        place = f"http://{_HOST}:{port}/?token="
        address = f"{place}{keys.token}"
        announce(f"Review {len(review.suspects)} suspects at {address}")
        announce("The link works once. Every decision is saved at once. Ctrl-C stops the server.")
        if sys.stdin is not None and sys.stdin.isatty():
            announce("Press Enter for another link, for example for another browser.")
            args = (keys, place, announce)
            threading.Thread(target=_new_addresses, args=args, daemon=True).start()
        if notice := other_decisions(log.others()):
            announce(notice)
        if open_browser:
            _open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        log.close()


def _new_addresses(keys: Keys, place: str, announce: Callable[[str], object]) -> None:
    """Announce a new one-time link for each line that is read."""
    for _ in sys.stdin:
        announce(f"New link (works once): {place}{keys.renew()}")


def make_server(session: ReviewSession, port: int, keys: Keys) -> uvicorn.Server:
    """Return the server of the page behind its gate, not yet running."""
    import uvicorn

    from exempla.review.app import build_app

    config = uvicorn.Config(
        Gate(build_app(session), port, keys),
        http="h11",
        access_log=False,  # the first request contains the token
        log_level="error",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def listen(port: int, log: DecisionLog) -> socket.socket:
    """Return a socket on 127.0.0.1: the requested port, the folder's last one, or any."""
    if not 0 <= port <= 65_535:
        raise ExemplaError(f"Port {port} does not exist; choose one up to 65535, or 0 for any.")
    last = log.setting("port") or ""
    choices = [port] if port else [int(last) if last.isdecimal() else 0, 0]
    for choice in choices:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # Accepted sockets inherit it. With Nagle's algorithm, every answer on an open connection
        # waits about 40 ms for the client to acknowledge the headers before the body is sent.
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
    """Open the page without showing the token to other users of the machine.

    A browser's command line is public (`ps`), so it gets the name of a private file that redirects
    to the address. If no browser opens, the printed address still works.
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
