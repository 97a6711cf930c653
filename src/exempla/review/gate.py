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

Which decisions belong together: those about one column of one file, read in one way.

A decision says "row 17 is wrong". That means something only together with the bytes of the file,
how they were cut into rows, the column whose label it is, and the classes to choose from. All of it
is in the key that each decision is kept under, so one folder can hold decisions about several
columns, or versions of a file, and never mixes them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
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


def key_of(header: Mapping[str, Any]) -> str:
    """The key of the review that a review.json describes; it names file and column in the open.

    >>> source = {"name": "a.csv", "fingerprint": "4f", "label": "smoker", "options": {}}
    >>> first = key_of({"source": source, "classes": ["no", "yes"]})
    >>> other = key_of({"source": source | {"label": "diabetic"}, "classes": ["no", "yes"]})
    >>> first != other, told(other)
    (True, "the column 'diabetic' of 'a.csv'")
    """
    source = header["source"]
    name, label = str(source["name"]), source["label"]
    # Names of columns move no row, and the label's own is there anyway.
    options = sorted((k, v) for k, v in dict(source["options"]).items() if k != "names")
    meaning = [name, str(source["fingerprint"]), list(header["classes"]), label, options]
    return f"{_digest(meaning)} {json.dumps([name, label])}"


def earlier_key(header: Mapping[str, Any]) -> str:
    """The key of the same review until the label column was part of it."""
    source = header["source"]
    return _digest([str(source["name"]), str(source["fingerprint"]), list(header["classes"])])


def told(key: str) -> str:
    """What a key is about, for a sentence.

    >>> told("0123456789abcdef")
    'an earlier analysis'
    """
    try:
        name, label = json.loads(key.partition(" ")[2])
    except ValueError:
        return "an earlier analysis"
    return f"the column {label!r} of {name!r}" if label else repr(name)


def elsewhere(others: Mapping[str, int]) -> str:
    """One sentence about decisions in the same folder that are about something else; "" if none.

    >>> elsewhere({'4f ["a.csv", "smoker"]': 5}).partition(";")[0]
    "Kept in this folder and not used here: 5 decisions about the column 'smoker' of 'a.csv'"
    """
    if not others:
        return ""
    parts = [f"{n:,} decision{'s' * (n != 1)} about {told(key)}" for key, n in others.items()]
    return (
        f"Kept in this folder and not used here: {', '.join(parts)}; they come back when that is "
        "analysed into this folder again."
    )


def _digest(meaning: list[Any]) -> str:
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:32]
