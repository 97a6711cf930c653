"""How many may connect, how long they may take, and how much is said about it.

A page for one person needs a handful of connections, but any program on the machine may open some
and leave them hanging, until no file handles are left and every attempt is logged. So a connection
has `PATIENCE` seconds to send a whole request, and there are at most `MOST` of them: for each one
more, the one that has kept us waiting longest is closed. Whoever comes last and speaks is heard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BACKLOG", "MOST", "PATIENCE", "Connection", "sparing_logs"]

MOST = 64
BACKLOG = 64
"""Connections that the system holds for us; asyncio accepts as many in one go."""
PATIENCE = 10.0
LINES = 20
"""Lines a minute that a logger may write."""


class Connection(H11Protocol):
    """HTTP on one connection, with an end to our patience."""

    since = 0.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for it, and begin to wait."""
        super().connection_made(transport)
        self._wait()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    @property
    def waiting(self) -> bool:
        """Whether it is the client's turn: no request, one that has not ended, or one answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _wait(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.since = self.loop.time()
        self.timer = self.loop.call_later(PATIENCE, self._give_up)

    def _give_up(self) -> None:
        if self.waiting:
            self._drop()

    def _make_room(self) -> None:
        while len(self.connections) > MOST:
            idle = [c for c in self.connections if isinstance(c, Connection) and c.waiting]
            others = [c for c in idle if c is not self]
            min(others, key=lambda c: c.since, default=self)._drop()

    def _drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


class _Sparing(logging.Filter):
    """The first lines of every minute, and then one that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.minute, self.lines = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self.minute > 60:
            self.minute, self.lines = now, 0
        self.lines += 1
        if self.lines == LINES:
            record.msg = f"{record.getMessage()} (what follows within this minute is left out)"
            record.args = ()
        return self.lines <= LINES


@contextmanager
def sparing_logs() -> Iterator[None]:
    """While the server runs, no flood of requests becomes a flood of log lines."""
    loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error")]
    filters = [_Sparing() for _ in loggers]
    for logger, spare in zip(loggers, filters, strict=True):
        logger.addFilter(spare)
    try:
        yield
    finally:
        for logger, spare in zip(loggers, filters, strict=True):
            logger.removeFilter(spare)
