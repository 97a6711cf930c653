"""Firefox for the tests, spoken to directly: WebDriver BiDi, which it has built in, as JSON over a
web socket. No driver, no library: only the few commands that the tests need.

https://w3c.github.io/webdriver-bidi and RFC 6455 are the two languages.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Firefox", "Tab", "started"]

KEYS = {"Shift": "\ue008", "Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "Space": " "}
WAIT = 20.0
"""Seconds until what is waited for counts as missing."""
PREFERENCES = {
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.normandy.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.proxy.type": 0,
}


class Socket:
    """One web socket: text messages, whole."""

    def __init__(self, port: int, path: str) -> None:
        self.wire = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
        key = base64.b64encode(os.urandom(16)).decode()
        self.wire.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self._read(1)
        assert b" 101 " in answer.splitlines()[0], answer

    def send(self, text: str) -> None:
        """One masked frame, as a client has to."""
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x81, 0x80 | size)
        elif size < 2**16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self.wire.sendall(head + mask + masked)

    def receive(self) -> str:
        """The next message, its frames joined."""
        message = b""
        while True:
            first, size = self._read(2)
            size &= 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._read(8))
            data = self._read(size)
            if first & 0x0F in (0, 1):  # pings and the like need no answer in a test's time
                message += data
                if first & 0x80:
                    return message.decode()

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.wire.recv(min(size, 2**16))
            assert part, "Firefox has hung up"
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Firefox:
    """A session with a running Firefox."""

    def __init__(self, port: int) -> None:
        self.socket, self.numbers = Socket(port, "/session"), count(1)
        self.problems: list[str] = []
        self.version = self.ask("session.new", capabilities={})["capabilities"]["browserVersion"]
        self.ask("session.subscribe", events=["log.entryAdded"])

    def ask(self, method: str, **params: Any) -> Any:
        """One command, and its answer; what the pages log on the way is kept."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self.socket.receive())
            if said.get("method") == "log.entryAdded" and said["params"]["level"] == "error":
                self.problems.append(said["params"]["text"])
            if said.get("id") == number:
                assert said["type"] == "success", (method, said.get("message"))
                return said["result"]

    def open(self, address: str, width: int = 1280, height: int = 800) -> Tab:
        """A new tab with this page in it, loaded."""
        tab = Tab(self, self.ask("browsingContext.create", type="tab")["context"])
        size = {"width": width, "height": height}
        self.ask("browsingContext.setViewport", context=tab.context, viewport=size)
        tab.go(address)
        return tab


class Tab:
    """One page."""

    def __init__(self, firefox: Firefox, context: str) -> None:
        self.firefox, self.context = firefox, context

    def go(self, address: str) -> None:
        self._ask("browsingContext.navigate", url=address, wait="complete")

    def reload(self) -> None:
        self._ask("browsingContext.reload", wait="complete")

    def value(self, expression: str) -> Any:
        """What an expression gives in the page; promises are awaited."""
        code = f"Promise.resolve({expression}).then((found) => JSON.stringify(found ?? null))"
        said = self.firefox.ask(
            "script.evaluate", expression=code, target={"context": self.context}, awaitPromise=True
        )
        assert said["type"] == "success", said
        return json.loads(said["result"]["value"])

    def until(self, expression: str) -> Any:
        """Its value as soon as it is true."""
        end = time.monotonic() + WAIT
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"waited in vain for {expression}"
            time.sleep(0.02)
        return found

    def press(self, *keys: str) -> None:
        """Keys, one after the other; "Shift+Z" holds the first one."""
        for key in keys:
            parts = [KEYS.get(part, part) for part in key.split("+")]
            moves = [{"type": "keyDown", "value": part} for part in parts]
            moves += [{"type": "keyUp", "value": part} for part in reversed(parts)]
            source = {"type": "key", "id": "keyboard", "actions": moves}
            self._ask("input.performActions", actions=[source])

    def picture(self, path: Path) -> Path:
        """What is to be seen, as a PNG file."""
        data = self._ask("browsingContext.captureScreenshot")["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def _ask(self, method: str, **params: Any) -> Any:
        return self.firefox.ask(method, context=self.context, **params)


@contextmanager
def started(folder: Path) -> Iterator[Firefox]:
    """Firefox without a window, with a profile of its own; skips the test where there is none."""
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        pytest.skip("no Firefox: install it with `apt-get install firefox-esr` to run this test")
    profile = folder / "profile"
    profile.mkdir()
    lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in PREFERENCES.items()]
    (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
    words = [path, "--headless", "--no-remote", "--profile", str(profile)]
    log = folder / "firefox.log"
    environment = {**os.environ, "HOME": str(folder), "MOZ_HEADLESS": "1"}
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*words, "--remote-debugging-port", "0", "about:blank"],
            stdout=out, stderr=out, env=environment,
        )  # fmt: skip
    try:
        yield Firefox(_port(process, log))
    finally:
        process.terminate()
        process.wait(timeout=WAIT)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Where it listens, which it says itself."""
    end = time.monotonic() + 3 * WAIT
    while time.monotonic() < end and process.poll() is None:
        said = log.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"WebDriver BiDi listening on ws://127\.0\.0\.1:(\d+)", said):
            return int(found.group(1))
        time.sleep(0.1)
    pytest.fail(
        f"Firefox did not start: {log.read_text(encoding='utf-8', errors='replace')[-500:]}"
    )
