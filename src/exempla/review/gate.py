"""Who may talk to the page: the checks every request passes, and the headers every answer bears.

The page listens on 127.0.0.1, yet any site open in the same browser can send requests there.
  - A name that resolves to 127.0.0.1 (DNS rebinding): the Host header must be ours, port included.
  - Another program on this machine that the same browser visits: cookies ignore ports and would be
    sent to it, so there are none. The page keeps a session key in the storage of its own origin,
    which ports do keep apart, and sends it in the header X-Exempla. Nothing else ever sends it.
  - A foreign page that reads, posts or embeds: it does not have the key, and no form, image, frame
    or script tag can send that header. Besides, Sec-Fetch-Site must be same-origin (another port
    on localhost counts as the same *site*), Origin must match, and what is posted must be JSON.
  - Another user of the machine: a token, valid once, is traded for the session key.
Only the empty page and its scripts are served without the key: they hold nothing of the data.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob: data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "content-security-policy": CSP,
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_LARGEST_BODY = 65_536
_SESSION = "/api/session"
_DECISIVE = {"host", "origin", "sec-fetch-site", "content-type", "content-length", "x-exempla"}


@dataclass
class Keys:
    """The secrets of one start: a token that opens the door once, and the key it is traded for.

    >>> keys = Keys(token="once", session="s")
    >>> keys.spend("guess"), keys.spend("once"), keys.spend("once")
    (False, True, False)
    """

    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def spend(self, token: str) -> bool:
        """True for the right token, the first time."""
        if self.token is None or not _same(token, self.token):
            return False
        self.token = None
        return True

    def renew(self) -> str:
        """Another token, for another browser; one that was not used is worth nothing any more.

        >>> keys = Keys(token="once")
        >>> new = keys.renew()
        >>> keys.spend("once"), keys.spend(new)
        (False, True)
        """
        self.token = secrets.token_urlsafe(32)
        return self.token


class Gate:
    """ASGI middleware: nothing reaches `app` that did not pass the checks above."""

    def __init__(self, app: Any, port: int, keys: Keys) -> None:
        self.app = app
        self.keys = keys
        names = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Let a request pass, or answer it here."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k.decode().lower() not in _HEADERS]
                message["headers"] = kept + [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
            await send(message)

        head = _single_headers(scope)
        if head is None or head.get("host") not in self.hosts:
            return await _refuse(guarded_send, "This address is not served here.")
        if problem := self._problem(scope, head):
            return await _refuse(guarded_send, *problem)
        if scope["path"] == _SESSION and scope["method"] == "POST":
            return await self._enter(head, guarded_send)
        return await self.app(scope, receive, guarded_send)

    def _problem(self, scope: _Scope, head: dict[str, str]) -> tuple[str, int] | None:
        """Why a request is turned away, and with which status."""
        reading, path = scope["method"] in ("GET", "HEAD"), scope["path"]
        fetch_site = head.get("sec-fetch-site")
        if fetch_site not in (None, "none", "same-origin"):
            # A link from elsewhere is harmless: the person lands on the page, in the open.
            opened = head.get("sec-fetch-mode") == "navigate" and reading and path == "/"
            if not opened or head.get("sec-fetch-dest", "document") != "document":
                return "Requests from other pages are refused.", 403
        if reading and (path == "/" or path.startswith("/static/")):
            return None
        entering = path == _SESSION and scope["method"] == "POST"
        if not entering and not _same(head.get("x-exempla", ""), self.keys.session):
            return "Open the address that `exempla review` printed when it started.", 403
        if reading:
            return None
        if fetch_site != "same-origin" or head.get("origin") != f"http://{head['host']}":
            return "Requests from other pages are refused.", 403
        if head.get("content-type", "").split(";")[0].strip() != "application/json":
            return "Send JSON.", 415
        length = head.get("content-length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > _LARGEST_BODY:
            return "The request is too large.", 413
        return None

    async def _enter(self, head: dict[str, str], send: _Send) -> None:
        """Trade the token, which comes in the key's header, for the key."""
        if not self.keys.spend(head.get("x-exempla", "")):
            return await _refuse(
                send,
                "This address has been used, or is not right; press Enter in the window where it "
                "was printed, or start `exempla review` again, for a new one.",
            )
        body = json.dumps({"session": self.keys.session}).encode()
        return await _answer(send, body, 200, b"application/json")


def _single_headers(scope: _Scope) -> dict[str, str] | None:
    """Headers by name; None if one that decides is sent twice."""
    head: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in head and name in _DECISIVE:
            return None
        head[name] = raw_value.decode("latin-1")
    return head


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())


async def _refuse(send: _Send, why: str, status: int = 403) -> None:
    await _answer(send, why.encode(), status, b"text/plain; charset=utf-8")


async def _answer(send: _Send, body: bytes, status: int, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
