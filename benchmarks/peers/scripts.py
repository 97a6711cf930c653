"""Run a peer's script in a process of its own, and read what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import tokenize
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["SCRIPTS", "Answer", "run_script", "user_lines"]

SCRIPTS = Path(__file__).parent


@dataclass(frozen=True)
class Answer:
    """What one run of a peer's script left behind; seconds are those of the processor."""

    dampings: np.ndarray
    matrices: np.ndarray
    cpu_seconds: float
    job_seconds: float
    first_seconds: float
    peak_mb: float
    machine: str


def run_script(python: Path, library: str, job: Path, out: Path, options: list[str]) -> Answer:
    """Run a peer's script once; an answer already in `out` is taken as it is."""
    report = out.with_suffix(".json")
    if not report.exists():
        script = SCRIPTS / f"run_{library}.py"
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        command = [str(python), str(script), str(job), str(out), *options]
        done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    with np.load(out, allow_pickle=False) as saved:
        return Answer(saved["dampings"], saved["matrices"], **json.loads(report.read_text()))


def user_lines(script: Path) -> int:
    """Lines a user must write: code between the two marks, without comments and blank lines."""
    text = script.read_text()
    first = text[: text.index("# user code")].count("\n") + 1
    last = text[: text.index("# end of user code")].count("\n") + 1
    aside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    with script.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            if token.type not in aside:
                lines.update(range(token.start[0], token.end[0] + 1))
    only_for_the_sweep = {n for n, line in enumerate(text.splitlines(), 1) if "# sweep" in line}
    return len({n for n in lines if first < n < last} - only_for_the_sweep)
