"""How the cost of a selection grows: with rows, width, picks and workers.

    python -m benchmarks.scaling [--quick] [--out docs/experiments/scaling.csv]

One size is varied at a time, the others stand still; the exponent is the slope of log seconds over
log size, least squares over all sizes. Seconds are the processor's, one thread, the fastest of
several rounds. For workers the parts are in this process behind a modelled wire
(`benchmarks.exchange`): what is measured is the slowest part's own seconds, and what travels.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exchange import measured as exchanged
from benchmarks.exchange import rows_of
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
    return lines + workers(8 * t, p, k)  # parts large enough for the compiled pass


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with so_many_threads(1):
        lines = growth(options.quick)
    if options.out:
        with options.out.open("w", newline="") as file:
            table = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(lines)


if __name__ == "__main__":
    main()
