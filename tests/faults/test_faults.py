"""No fault of the disk, at any call, leaves a half-written file under a final name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scenarios import SCENARIOS

HERE = Path(__file__).parent
TRIALS = int(os.environ.get("EXEMPLA_FAULTS", "2"))
"""Calls tried per scenario and kind of fault; `make fuzz` sets it so high that all are tried."""
KILLS = int(os.environ.get("EXEMPLA_KILLS", "8"))
"""Random moments in all at which jobs are killed; `make fuzz` sets 250."""
KILLED = {
    "store": 0.25, "save": 0.15, "decide": 0.15, "export": 0.15, "embed-store": 0.1, "record": 0.2
}  # fmt: skip
"""Which jobs are killed at random moments, and their share of the moments."""
ALIKE = ("clean", "summarize", "attack")
"""Commands that write as `explain` does: `make fuzz` tries them, `make test` does not."""
NAMES = [name for name in SCENARIOS if TRIALS > 10 or name not in ALIKE]


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("faults are injected through a preloaded library: needs Linux and a C compiler")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", made, HERE / "shim.c", "-ldl"], check=True
    )
    return made


@pytest.mark.parametrize("name", NAMES)
def test_no_fault_or_kill_loses_anything(shim, name, record_property):
    """A kill, a full disk, a failing disk or a short write at a call; a kill at any moment."""
    kills = max(1, round(KILLED[name] * KILLS)) if name in KILLED else 0
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.runner", name, str(TRIALS), str(kills)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env={**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    *problems, counts = [json.loads(line) for line in run.stdout.splitlines()]
    assert not problems, "\n".join(map(str, problems)) + run.stderr
    assert counts["calls"] >= 3
    assert counts["disk faults"] >= 3
    assert counts["kills"] >= 1 + (kills > 0)
    for kind in ("kills", "disk faults"):
        record_property(kind, counts[kind])
