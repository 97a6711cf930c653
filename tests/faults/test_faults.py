"""No fault of the disk, at any call, leaves a half-written file under a final name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOST = int(os.environ.get("EXEMPLA_FAULTS", "3"))
"""Trials per scenario and kind of fault; `make fuzz` sets it so high that every call is tried."""
NAMES = (
    "save", "store", "tables", "explain", "clean", "summarize", "fix-labels", "attack", "embed",
    "decide", "export", "record",
)  # fmt: skip
KILLS = int(os.environ.get("EXEMPLA_KILLS", "8"))
"""Random moments in all at which jobs are killed; `make fuzz` sets 200."""
KILLED = {"store": 0.35, "save": 0.2, "decide": 0.2, "export": 0.15, "embed-store": 0.1}
"""Which jobs, and their share of the moments."""


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each trial is a fork")
@pytest.mark.parametrize("name", KILLED)
def test_a_kill_at_any_moment_loses_nothing(name, record_property):
    count = max(1, round(KILLED[name] * KILLS))
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.runner", name, "moment", str(count)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    *problems, summary = [json.loads(line) for line in run.stdout.splitlines()]
    assert not problems, "\n".join(map(str, problems)) + run.stderr
    assert summary["kills"] >= 1
    record_property("kills", summary["kills"])


@pytest.mark.parametrize("kind", ["kill", "full", "broken", "short"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_half_written(shim, name, kind, record_property):
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.runner", name, kind, str(MOST)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env={**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    *problems, summary = [json.loads(line) for line in run.stdout.splitlines()]
    assert not problems, "\n".join(map(str, problems)) + run.stderr
    assert summary["trials"] >= 1
    record_property("kills" if kind == "kill" else "disk faults", summary["trials"])
    assert summary["calls"] >= 3
