"""Access control of the review page: checks of every request, and headers of every response.

The page listens on 127.0.0.1, but any site open in the same browser can send requests there. The
gate handles these cases:
  - DNS rebinding, a name that resolves to 127.0.0.1: the Host header must be ours, with the port.
  - Another local server that the same browser visits: cookies ignore ports and would be sent to it,
    so there are none. The page keeps a session key in the storage of its origin, which includes the
    port, and sends it in the header X-Exempla.
  - Another page that reads, posts or embeds: it does not have the key, and no form, image, frame or
    script tag can send that header. In addition, Sec-Fetch-Site must be same-origin (another port
    of localhost is the same *site*), Origin must match, and bodies must be JSON.
  - Another user of the machine: a token that works once is exchanged for the session key.
Only the empty page and its scripts, which contain no data, are served without the key.
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
    """The secrets of one server: a token that works once, exchanged for the session key."""

    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def spend(self, token: str) -> bool:
        """Return True for the right token, the first time."""
        if self.token is None or not _same(token, self.token):
            return False
        self.token = None
        return True

    def renew(self) -> str:
        """Return a new token, for another browser; an unused earlier one becomes invalid."""
        self.token = secrets.token_urlsafe(32)
        return self.token


class Gate:
    """ASGI middleware that passes only requests which satisfy the checks above."""

    def __init__(self, app: Any, port: int, keys: Keys) -> None:
        self.app = app
        self.keys = keys
        names = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass a request to the application, or refuse it."""
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
        """Return why a request is refused and the status code; None if it is allowed."""
        reading, path = scope["method"] in ("GET", "HEAD"), scope["path"]
        fetch_site = head.get("sec-fetch-site")
        if fetch_site not in (None, "none", "same-origin"):
            # Following a link from another page is harmless: it only opens this page.
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
        """Exchange the token, sent in the header of the key, for the key."""
        if not self.keys.spend(head.get("x-exempla", "")):
            return await _refuse(
                send,
                "This link has expired or is invalid. Press Enter in the window where it was "
                "printed to get a new one, or start `exempla review` again.",
            )
        body = json.dumps({"session": self.keys.session}).encode()
        return await _answer(send, body, 200, b"application/json")


def _single_headers(scope: _Scope) -> dict[str, str] | None:
    """Return the headers by name; None if a security-relevant one is sent twice."""
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
