"""A last line that counts what was tried: strange calls, broken files, kills and disk faults."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import Any

if shutil.which("nvidia-smi") is None:  # before Triton is imported: its kernels then run on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

COUNTED = (
    "API cases", "files read", "command runs", "kills", "confirmed decisions", "Ray kills",
    "disk faults",
)  # fmt: skip
"""What tests report with `record_property`."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Sum what the tests have counted, those that failed included."""
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, count in report.user_properties:
                    totals[name] += count if name in COUNTED else 0
    if any(totals.values()):
        failed = len(terminalreporter.stats.get("failed", []))
        tried = ", ".join(f"{totals[name]:,} {name}" for name in COUNTED if totals[name])
        terminalreporter.write_line(f"tried: {tried}; {failed} tests failed")
