"""Ctrl-C and SIGTERM in the middle of a store: what was made stays, and how to go on is said."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exempla.progress import say
from exempla.store import RowSet

__all__ = ["Terminated", "goes_on_from"]


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where the work is, so that it ends as by Ctrl-C."""


@contextmanager
def goes_on_from(rows: RowSet) -> Iterator[None]:
    """Whoever stops the block is told what is kept."""
    try:
        with _terminable():
            yield
    except KeyboardInterrupt as stopped:
        every = len(rows.ranges)
        told = (
            f"{every - len(rows.absent())} of {every} shards are kept in {rows.folder}: the same "
            "call with the same store goes on from there"
        )
        stopped.add_note(told)
        say(f"stopped; {told}")
        raise


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is an exception for the time of the block, where nobody else handles it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
