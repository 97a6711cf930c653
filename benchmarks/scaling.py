"""How the cost of a job and of its selection grows: with rows, width, parameters, picks, workers.

    python -m benchmarks.scaling [--quick] [--only jobs] [--out docs/experiments/scaling.csv]

One size is varied at a time, the others stand still; the exponent is the slope of log seconds over
log size, least squares over all sizes. Seconds are the processor's, one thread, the fastest of
several rounds. For workers the parts are in this process behind a modelled wire
(`benchmarks.exchange`): what is measured is the slowest part's own seconds, and what travels.

A job is `Explainer.fit` and `explain` of a logistic regression in a process of its own, with its
rows in memory or in a store: seconds of the fit, of the first question (which whitens the rows) and
of the next one, the most anonymous memory beyond model and data, what was forecast, and the disk.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exchange import measured as exchanged
from benchmarks.exchange import rows_of
from benchmarks.out_of_core import Peak
from benchmarks.speed import so_many_threads
from exempla.selection import SBQ, select
from exempla.selection.select import as_rows

POOLS = 256, 1024


def seconds(t: int, p: int, k: int, rounds: int) -> float:
    """Processor seconds of a selection; rows are wrapped once."""
    array = rows_of("gaussian", t, p)
    target, rows = array[: t // 50].mean(axis=0), as_rows(array)
    best = np.inf
    for turn in range(rounds + 1):
        start = time.process_time()
        select(rows, target, k, SBQ(10.0))
        best = min(best, time.process_time() - start if turn else np.inf)
    return best


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Exponent of a power law."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(quick: bool) -> list[dict[str, Any]]:
    """Every size in turn, and the exponents."""
    small, rounds = (8 if quick else 1), (1 if quick else 3)
    t, p, k = 80_000 // small, 128, 64
    lines = []
    for varied, sizes in (
        ("t", [t // 4, t // 2, t, 2 * t, 4 * t]),
        ("p", [128, 256, 512, 1024]),
        ("k", [16, 32, 64, 128, 256]),
    ):
        taken = [
            seconds(**({"t": t, "p": p, "k": k} | {varied: size}), rounds=rounds) for size in sizes
        ]
        lines += [
            {"varied": varied, "size": size, "value": round(value, 4),
             "exponent": round(slope(sizes, taken), 2)}
            for size, value in zip(sizes, taken)
        ]  # fmt: skip
        print(lines[-1], flush=True)
    return lines + workers(8 * t, p, k)  # parts large enough for several threads


def workers(t: int, p: int, k: int) -> list[dict[str, Any]]:
    """The slowest part's seconds, exchanges, and bytes through the driver."""
    sizes = [1, 2, 4, 8, 16, 32]
    found = [
        min(
            (exchanged("gaussian", t, p, k, count, POOLS, check=False) for _ in range(2)),
            key=lambda one: float(one["slowest_place_s"]),
        )
        for count in sizes
    ]
    lines = []
    for name in ("slowest_place_s", "exchanges", "sent_per_pick_bytes", "received_per_pick_bytes"):
        values = [float(one[name]) for one in found]
        exponent = round(slope(sizes, values), 2)
        lines += [
            {"varied": f"workers: {name}", "size": size, "value": value, "exponent": exponent}
            for size, value in zip(sizes, values)
        ]
        print(lines[-1], flush=True)
    return lines


JOB = {"t": 20_000, "columns": 31, "classes": 8, "sketch": 0, "store": False}
"""Sketch 0 is the exact form, here of 256 parameters."""
MEASURES = ("fit_s", "first_s", "next_s", "memory_mib", "forecast_mib", "disk_mib")


def jobs(quick: bool) -> list[dict[str, Any]]:
    """Whole jobs: by rows in memory and in a store, by width, and by parameters."""
    small, lines = (8 if quick else 1), []
    rows = [t // small for t in (10_000, 20_000, 40_000, 80_000, 160_000)]
    wide = {"columns": 255, "classes": 16}
    for varied, sizes, made in (
        ("rows", rows, [{"t": t} for t in rows]),
        ("stored rows", rows, [{"t": t, "store": True} for t in rows]),
        ("width", [128, 256, 512, 1024], [wide | {"sketch": p} for p in (128, 256, 512, 1024)]),
        (
            "parameters", [1024, 2048, 4096, 8192, 16384],
            [{"columns": d - 1, "classes": 16, "sketch": 256} for d in (64, 128, 256, 512, 1024)],
        ),
    ):  # fmt: skip
        found = []
        for one in made:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scaling", "--job"]
            threads = {"OMP_NUM_THREADS": "1"}
            rounds = [
                json.loads(
                    subprocess.run(
                        [*command, json.dumps(JOB | one)],
                        check=True, stdout=subprocess.PIPE, env=os.environ | threads, text=True,
                    ).stdout.splitlines()[-1]
                )
                for _ in range(1 if quick else 2)
            ]  # fmt: skip
            found.append({name: min(each[name] for each in rounds) for name in MEASURES})
        for name in MEASURES:
            values = [one[name] for one in found]
            exponent = round(slope(sizes, values), 2) if min(values) > 0 else 0.0
            lines += [
                {"varied": f"{varied}: {name}", "size": size, "value": value, "exponent": exponent}
                for size, value in zip(sizes, values)
            ]
            print(lines[-1], flush=True)
    return lines


def job(t: int, columns: int, classes: int, sketch: int, store: bool) -> dict[str, float]:
    """One job in this process."""
    from unittest import mock

    from sklearn.linear_model import LogisticRegression

    import exempla
    from exempla.kernel import embed, stored

    rng = np.random.default_rng(0)
    X = rng.standard_normal((t, columns))
    y = np.argmax(X[:, :classes] + rng.gumbel(size=(t, classes)), axis=1)
    model = LogisticRegression(max_iter=20).fit(X[:4000], y[:4000])
    forecasts, counted = [], embed.announce

    def noting(needed: float, *about: Any) -> Any:
        forecasts.append(needed)
        return counted(needed, *about)

    small = exempla.Explainer(model, progress=False).fit((X[:600], y[:600]))
    small.explain((X[:50], y[:50]), k=5)  # what is imported once
    with tempfile.TemporaryDirectory() as folder:
        place = {"store": folder} if store else {}
        made: Any = exempla.Explainer(model, sketch=sketch or "exact", progress=False, **place)
        peak, times = Peak(), [time.process_time()]
        before = peak.now()
        with (
            mock.patch.object(embed, "announce", noting),
            mock.patch.object(stored, "announce", noting),
        ):
            made.fit((X, y))
        times.append(time.process_time())
        for start in (0, 50):
            made.explain((X[start : start + 50], y[start : start + 50]), k=50)
            times.append(time.process_time())
        most = peak.end() * 2**30
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    seconds = dict(zip(MEASURES, np.diff(times).round(3).tolist()))
    sizes = (most - before, forecasts[0], disk)
    return seconds | {name: round(x / 2**20, 1) for name, x in zip(MEASURES[3:], sizes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("jobs", "selection"), help="keep other lines of --out")
    parser.add_argument("--job", type=json.loads, help="one job, in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(job(**options.job)))
        return
    lines: list[dict[str, Any]] = []
    if options.only and options.out and options.out.exists():
        whole = [f"{name}:" for name in ("rows", "stored rows", "width", "parameters")]
        with options.out.open(newline="") as file:
            lines = [
                line for line in csv.DictReader(file)
                if line["varied"].startswith(tuple(whole)) == (options.only == "selection")
            ]  # fmt: skip
    with so_many_threads(1):
        if options.only != "jobs":
            lines += growth(options.quick)
        if options.only != "selection":
            lines += jobs(options.quick)
    if options.out:
        with options.out.open("w", newline="") as file:
            table = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(lines)


if __name__ == "__main__":
    main()
