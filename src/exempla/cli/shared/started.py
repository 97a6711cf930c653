"""When this process began: what a person waits for starts with their keystroke, not with ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["process_age"]

OLDEST = 600.0
"""Seconds; no start takes longer, so an older process was not started for this command."""


def process_age() -> float:
    """Seconds since this process was started, by the clock on the wall where the system tells it
    (Linux); elsewhere the processor time so far, which is never more.

    >>> 0 < process_age()
    True
    """
    busy = time.process_time()
    try:
        # the 22nd field, in clock ticks since boot; the name of the command may hold spaces
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):
        return busy
    return age if busy - 0.1 <= age < OLDEST else busy
