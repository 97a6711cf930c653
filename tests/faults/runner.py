"""Repeat a scenario with a fault at each of its file calls (run under the preloaded shim).

    LD_PRELOAD=shim.so python -m tests.faults.runner SCENARIO TRIALS KILLS

Everything heavy is imported once; each trial is a fork that is armed, acts, and ends. At most
TRIALS calls are tried for each kind of fault, and KILLS random moments. What does not hold
afterwards is printed, one JSON line each; a last line counts the trials.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

KINDS = {"count": 0, "kill": 1, "full": 2, "broken": 3, "short": 4}
UNEXPECTED = 70
"""Exit code of a child that ended with something else than one of our errors."""


def shim():
    library = ctypes.CDLL(None)
    library.fault_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
    library.fault_seen.restype = ctypes.c_long
    return library


def trial(scenario, folder: Path, kind: str, at: int) -> tuple[int, int]:
    """Run the scenario once in a fork; its exit code (negative: killed) and the calls it made."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.close(reader)
            library = shim()
            library.fault_arm(KINDS[kind], at, str(folder).encode())
            code = scenario.act(folder) or 0
            seen = library.fault_seen()
            library.fault_arm(0, 0, b"")
            os.write(writer, str(seen).encode())
        except BaseException as error:
            from exempla.errors import ExemplaError

            shim().fault_arm(0, 0, b"")
            code = 2 if isinstance(error, ExemplaError | OSError) else UNEXPECTED
            if code == UNEXPECTED:
                traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    counted = os.read(reader, 64)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return code, int(counted or 0)


def at_moment(scenario, folder: Path, seconds: float | None) -> int:
    """Run the scenario once in a fork that is killed so long after; its exit code."""
    child = os.fork()
    if child == 0:
        code = UNEXPECTED
        try:
            code = scenario.act(folder) or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # a zombie until it is waited for: never somebody else
    _, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def moments(scenario, base: Path, most: int) -> tuple[int, int]:
    """Kill it at up to `most` random moments before its end; return the kills and the runs."""
    took = []
    for _ in range(2):  # the first one warms caches up
        start = time.perf_counter()
        assert at_moment(scenario, fresh(base / "ready", base / "counted"), None) == 0
        took.append(time.perf_counter() - start)
    killed, runs, rng = 0, 0, np.random.default_rng()
    while killed < most and runs < 4 * most + 4:
        runs += 1
        at = rng.uniform(0.0, took[1])
        folder = fresh(base / "ready", base / "trial")
        code = at_moment(scenario, folder, at)
        killed += code == -signal.SIGKILL
        problems = scenario.check(folder, code)
        if code not in (0, -signal.SIGKILL):
            problems.append(f"ended with {code}")
        for problem in problems:
            print(json.dumps({"kind": "moment", "seconds": at, "code": code, "problem": problem}))
    return killed, runs


def faults(scenario, base: Path, kind: str, most: int) -> tuple[int, int]:
    """Fail at up to `most` of its calls, one per run; return the runs and the number of calls."""
    _, calls = trial(scenario, fresh(base / "ready", base / "counted"), "count", 0)
    assert calls > 0, "the scenario makes no file call that the shim sees"
    places = np.arange(1, calls + 1)
    if kind == "short":
        places = np.array([0])
    elif len(places) > most:
        places = np.unique(np.linspace(1, calls, most).astype(int))
    for at in places.tolist():
        folder = fresh(base / "ready", base / "trial")
        code, _ = trial(scenario, folder, kind, at)
        problems = scenario.check(folder, code)
        if code == UNEXPECTED or (code < 0 and -code != signal.SIGKILL):
            problems.append(f"ended with {code}")
        for problem in problems:
            print(json.dumps({"kind": kind, "call": at, "code": code, "problem": problem}))
    return len(places), calls


def main() -> int:
    from tests.faults.scenarios import SCENARIOS

    name, most, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    scenario = SCENARIOS[name]()
    base = Path(tempfile.mkdtemp(prefix="exempla-faults-")).resolve()
    counts = {"kills": 0, "disk faults": 0, "calls": 0}
    try:
        (base / "ready").mkdir()
        scenario.prepare(base / "ready")
        for kind in KINDS if most else ():
            if kind != "count":
                tried, counts["calls"] = faults(scenario, base, kind, most)
                counts["kills" if kind == "kill" else "disk faults"] += tried
        if kills:
            counts["kills"] += moments(scenario, base, kills)[0]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(counts))
    return 0


def fresh(ready: Path, folder: Path) -> Path:
    """A copy of the prepared state."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ready, folder, symlinks=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
