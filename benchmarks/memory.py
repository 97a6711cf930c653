"""What each job says it will take of memory beside what it takes, in a process of its own.

    python -m benchmarks.memory [--rows 100000 400000] [--columns 40] [--jobs explain clean …]

Data and a fitted model are there before the measuring begins: a job speaks of what it takes beside
them. The peak is the process's own high-water mark (Linux).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import exempla
from exempla import progress

__all__ = ["JOBS", "Measured", "measured"]

Data = tuple[np.ndarray, np.ndarray]
JOBS: dict[str, Callable[[Any, Data, Data], Any]] = {
    "explain": lambda model, train, test: exempla.explain(model, train, test, k=20),
    "clean": lambda model, train, test: exempla.clean(model, train, test, 20, ask="all"),
    "summarize": lambda model, train, test: exempla.summarize(model, train, 100),
    "attack": lambda model, train, test: exempla.attack(model, train, test, steps=5),
    "fix_labels": lambda model, train, test: exempla.fix_labels(model, train, test),
}


@dataclass(frozen=True)
class Measured:
    """Bytes said and taken."""

    said: float
    taken: float

    @property
    def ratio(self) -> float:
        return self.said / self.taken


def measured(job: str, rows: int, columns: int) -> Measured:
    """One job in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--alone", job]
    run = subprocess.run(
        [*command, str(rows), str(columns)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    said = re.findall(r"about ([\d.e+-]+) GiB of memory", run.stderr)
    if len(said) != 1:
        raise RuntimeError(f"{job} spoke of memory {len(said)} times:\n{run.stderr}")
    return Measured(float(said[0]) * 2**30, float(run.stdout))


def alone(job: str, rows: int, columns: int) -> None:
    """Do the job here, and print the bytes it took at its peak."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = (X[:, 0] + rng.normal(size=rows) > 0).astype(int)
    model = LogisticRegression(max_iter=20).fit(X[:2000], y[:2000])
    progress.MIN_ANNOUNCED_BYTES = 0
    before = resident("VmRSS")
    JOBS[job](model, (X, y), (X[:500], y[:500]))
    print(resident("VmHWM") - before)


def resident(which: str) -> int:
    """Not getrusage, whose peak begins with that of the process that started this one."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(which))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        job, rows, columns = given.alone
        alone(job, int(rows), int(columns))
        return
    for job in given.jobs:
        for rows in given.rows:
            found = measured(job, rows, given.columns)
            print(
                f"{job:12} {rows:8} rows  said {found.said / 2**20:6.0f} MiB"
                f"  taken {found.taken / 2**20:6.0f} MiB  said/taken {found.ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
