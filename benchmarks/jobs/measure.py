"""All jobs, every contestant in turn, in one run; ratios are to exempla in the same round."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.jobs.contests import JOBS, MISSING, Contestant, Job
from benchmarks.peers.environments import ROOT, make_environment

__all__ = ["measure"]

THREADS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
LIMIT = 300
"""Seconds that one contestant may take."""


def measure(envs: Path, rounds: int, quick: bool, only: list[str] | None = None) -> list[dict]:
    """A row for each contestant of each job; one that cannot run has a reason in it."""
    found = []
    for job in JOBS:
        if only is None or job.name in only:
            for row in measured(job, envs, rounds, quick):
                print(line(row), flush=True)
                found.append(row)
    for name, reason in MISSING.items():
        print(f"{name}: {reason}", flush=True)
    return found


def measured(job: Job, envs: Path, rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Rounds that take every contestant in turn: a busy moment hits all; the fastest counts."""
    runs: dict[str, list[dict[str, Any]]] = {c.name: [] for c in job.contestants}
    problems: dict[str, str] = {}
    for _ in range(rounds):
        for contestant in job.contestants:
            if contestant.name in problems:
                continue
            try:
                runs[contestant.name].append(run(job, contestant, envs, quick))
            except RuntimeError as problem:
                problems[contestant.name] = str(problem)
    ours = best(runs["exempla"])
    for contestant in job.contestants:
        mine = best(runs[contestant.name])
        row = {"job": job.name, "title": job.title, "who": contestant.name}
        if mine is None:
            yield row | {"problem": problems[contestant.name]}
            continue
        yield row | {
            "seconds": round(mine["seconds"], 3),
            "mib": None if mine["bytes"] is None else round(mine["bytes"] / 2**20, 1),
            "times": None if ours is None else round(mine["seconds"] / ours["seconds"], 2),
            "judged_by": job.quality,
            "quality": None if math.isnan(mine["quality"]) else round(mine["quality"], 3),
        }


def best(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(runs, key=lambda run: run["seconds"]) if runs else None


def run(job: Job, contestant: Contestant, envs: Path, quick: bool) -> dict[str, Any]:
    """One contestant in a fresh process of its environment; RuntimeError says why not."""
    library = contestant.library
    python = Path(sys.executable) if library is None else make_environment(library, envs)
    words = [job.name, contestant.name, *(["--quick"] if quick else [])]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    try:
        done = subprocess.run(
            [str(python), "-m", "benchmarks.jobs.alone", *words],
            env=os.environ | THREADS | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"took more than {LIMIT} s") from None
    if done.returncode:
        lines = [text for text in done.stderr.splitlines() if text.strip()]
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def line(row: dict[str, Any]) -> str:
    """One contestant in words."""
    start = f"{row['job']:10} {row['who']:18}"
    if "problem" in row:
        return f"{start} does not run: {row['problem']}"
    memory = "" if row["mib"] is None else f"{row['mib']:8.1f} MiB"
    times = "" if row["times"] is None else f"{row['times']:7.2f} ×"
    quality = "" if row["quality"] is None else f"  {row['judged_by']} {row['quality']:.3f}"
    return f"{start} {row['seconds']:8.3f} s {times} {memory}{quality}"


COLUMNS: tuple[str, ...] = (
    "job",
    "title",
    "who",
    "seconds",
    "mib",
    "times",
    "judged_by",
    "quality",
    "problem",
)


def write(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
