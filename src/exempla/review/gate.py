"""Who may talk to the page: the checks every request passes, and the headers every answer bears.

The page listens on 127.0.0.1, yet any site open in the same browser can send requests there.
  - A name that resolves to 127.0.0.1 (DNS rebinding): the Host header must be ours, port included.
  - A foreign page that posts: Sec-Fetch-Site must be same-origin (another port on localhost counts
    as the same *site*, so a SameSite cookie alone does not stop it), Origin must match, and the
    request must be JSON with a header that no plain form can send.
  - A foreign page that embeds: every route needs the cookie, and the answers may not be embedded.
  - Another user of the machine: a token, valid once, is exchanged for a cookie.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

__all__ = ["CSP", "Gate", "Keys"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
LARGEST_BODY = 65_536
AGAIN = (
    b'<!doctype html><meta http-equiv="refresh" content="0;url=/">'
    b'<title>exempla review</title><link rel="icon" href="data:,">'
)


@dataclass
class Keys:
    """The secrets of one start: a token that opens the door once, and the cookie it is traded for.

    >>> keys = Keys(token="once", cookie="c")
    >>> keys.spend("guess"), keys.spend("once"), keys.spend("once")
    (False, True, False)
    """

    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def spend(self, token: str) -> bool:
        """True for the right token, the first time."""
        if self.token is None or not _same(token, self.token):
            return False
        self.token = None
        return True


class Gate:
    """ASGI middleware: nothing reaches `app` that did not pass the checks above."""

    def __init__(self, app: Any, port: int, keys: Keys) -> None:
        self.app = app
        self.keys = keys
        self.cookie_name = f"exempla-review-{port}"  # cookies ignore ports; the name must not
        names = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k.decode().lower() not in HEADERS]
                message["headers"] = kept + [(k.encode(), v.encode()) for k, v in HEADERS.items()]
            await send(message)

        head = _single_headers(scope)
        if head is None or head.get("host") not in self.hosts:
            return await _refuse(guarded_send, "This address is not served here.")
        if scope["path"] == "/" and scope["method"] == "GET" and b"token=" in scope["query_string"]:
            return await self._enter(scope, guarded_send)
        fetch_site = head.get("sec-fetch-site")
        if fetch_site not in (None, "none", "same-origin"):
            return await _turn_away(scope, head, guarded_send)
        if not self._known(head):
            return await _refuse(
                guarded_send, "Open the address that `exempla review` printed when it started."
            )
        if scope["method"] not in ("GET", "HEAD"):
            origin = f"http://{head['host']}"
            if fetch_site != "same-origin" or head.get("origin") != origin:
                return await _refuse(guarded_send, "Requests from other pages are refused.")
            if "x-exempla" not in head:
                return await _refuse(guarded_send, "The X-Exempla header is missing.")
            if head.get("content-type", "").split(";")[0].strip() != "application/json":
                return await _refuse(guarded_send, "Send JSON.", 415)
            length = head.get("content-length", "")
            if not length.isdecimal() or int(length) > LARGEST_BODY:
                return await _refuse(guarded_send, "The request is too large.", 413)
        return await self.app(scope, receive, guarded_send)

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Trade the token for the cookie and go to the address without it."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if not self.keys.spend(query.get("token", [""])[0]):
            await _refuse(
                send,
                "This address has been used, or is not right. If this browser is signed in "
                "already, leave out the part from the question mark on; if not, start "
                "`exempla review` again for a new address.",
            )
            return
        cookie = f"{self.cookie_name}={self.keys.cookie}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _known(self, head: dict[str, str]) -> bool:
        try:
            morsel = SimpleCookie(head.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return morsel is not None and _same(morsel.value, self.keys.cookie)


def _single_headers(scope: Scope) -> dict[str, str] | None:
    """Headers by name; None if one that we judge by is sent twice."""
    head: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in head and name in ("host", "origin", "sec-fetch-site", "content-type"):
            return None
        joined = f"{head[name]}; " if name == "cookie" and name in head else ""
        head[name] = joined + raw_value.decode("latin-1")
    return head


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())


async def _turn_away(scope: Scope, head: dict[str, str], send: Send) -> None:
    """403 to what another page asked for.

    A navigation that began elsewhere (the file our own start-up opened, a link in a mail) comes
    without the strict cookie even where there is one: the answer then asks again from here.
    """
    if scope["path"] == "/" and head.get("sec-fetch-mode") == "navigate":
        await _answer(send, AGAIN, 403, b"text/html; charset=utf-8")
    else:
        await _refuse(send, "Requests from other pages are refused.")


async def _refuse(send: Send, why: str, status: int = 403) -> None:
    await _answer(send, why.encode(), status, b"text/plain; charset=utf-8")


async def _answer(send: Send, body: bytes, status: int, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
