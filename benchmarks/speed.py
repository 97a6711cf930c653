"""Speed in one run: a pick in readings of the rows beside other loops, and growth with the size.

    python -m benchmarks.speed [--quick] [--out docs/experiments]

Every contestant of a comparison is measured in turn, several rounds, and the fastest round counts:
a busy moment hits all of them, and none can be faster than it is. With one thread, seconds are the
processor's; with several, "longest path" is those of the loop's own thread and of the slowest
thread of every part of the work that is shared out: what an idle machine would take, but for
handing over. "Reading" is the sum of squares of all entries by BLAS. Writes speed.json, speed.csv
(a pick), speed_whole.csv (whole calls), speed_growth.csv and speed.svg.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.selection import engine, plain_numpy, read
from exempla.arrays import available, in_parts
from exempla.selection import SBQ, select
from exempla.selection import rows as row_module
from exempla.selection.rows import ArrayRows

Row = dict[str, Any]
SIZES = [
    (400_000, 256, 100, 0.0),
    (20_000, 1024, 200, 0.0),
    (150_000, 384, 100, 0.0),
    (80_000, 640, 100, 0.5),
]
"""Rows, their width, picks, and how their spectrum decays. The first two were looked at while the
pass was designed, the last two were not."""


@contextmanager
def so_many_threads(count: int):
    """Let selection use so many threads, and BLAS one."""
    before = os.environ.get("EXEMPLA_THREADS")
    os.environ["EXEMPLA_THREADS"] = str(count)
    try:
        with threadpool_limits(1):
            yield
    finally:
        os.environ.pop("EXEMPLA_THREADS")
        if before is not None:
            os.environ["EXEMPLA_THREADS"] = before


def fastest(
    works: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of the fastest round of each, all taken in turn; the first round is not counted."""
    best = dict.fromkeys(works, np.inf)
    for turn in range(rounds + 1):
        for name, work in works.items():
            start = clock()
            work()
            best[name] = min(best[name], clock() - start if turn else np.inf)
    return best


def plain_torch(F: Any, norms2: Any, target: Any, k: int) -> None:
    """The loop of `plain_numpy` in torch."""
    import torch

    c, n = F @ target, norms2.clone()
    Q = torch.zeros((0, F.shape[1]))
    for _ in range(k):
        j = int(torch.argmax(c * c / n))
        q = (F[j] - (Q @ F[j]) @ Q) / torch.sqrt(n[j])
        v = F @ q
        c, n = c - (c[j] / torch.sqrt(n[j])) * v, n - v * v
        n[j] = np.inf
        Q = torch.cat([Q, q[None]])


def problem(t: int, p: int, seed: int = 0, decay: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian rows and a target; the i-th coordinate is i to the power of −decay as large as the
    first, as features of real data are."""
    F = np.random.default_rng(seed).standard_normal((t, p), dtype=np.float32)
    F *= (np.arange(1, p + 1) ** -decay).astype(np.float32)
    return F, F[: max(1, t // 100)].mean(axis=0)


def a_pick(t: int, p: int, k: int, decay: float, rounds: int) -> list[Row]:
    """Readings a pick, on one thread and on all: a whole run less a run of one pick."""
    import torch

    F, target = problem(t, p, decay=decay)
    with so_many_threads(1):
        rows = ArrayRows(F)
    norms2, targets = rows.norms2.astype(np.float32), target[None].astype(np.float64)
    few = min(k, 10)  # the plain loops cost the same each time
    tensors = torch.from_numpy(F), torch.from_numpy(norms2), torch.from_numpy(target)
    works: dict[str, Callable[[], object]] = {"reading": lambda: read(F)}
    for noise in (0.0, 10.0):
        works[f"exempla noise {noise:g}, 1"] = lambda s=noise: engine(rows, targets, 1, s)
        works[f"exempla noise {noise:g}, k"] = lambda s=noise: engine(rows, targets, k, s)
    works["plain NumPy loop"] = lambda: plain_numpy(F, norms2, target, few)
    works["plain torch loop"] = lambda: plain_torch(*tensors, few)
    found: list[Row] = []
    torch.set_num_threads(1)
    with so_many_threads(1):
        taken = fastest(works, rounds, time.process_time)
    once = taken["reading"]
    for name in ("plain NumPy loop", "plain torch loop"):
        found.append(_row(t, p, few, name, 1, taken[name] / few, once))
    for noise in (0.0, 10.0):
        name = f"exempla noise {noise:g}"
        each = (taken[f"{name}, k"] - taken[f"{name}, 1"]) / (k - 1)
        found.append(_row(t, p, k, name, 1, each, once))
    found.extend(_threads(rows, targets, k, rounds, once))
    return [{"rows": "decaying" if decay else "Gaussian"} | row for row in found]


def _threads(rows: ArrayRows, targets: np.ndarray, k: int, rounds: int, once: float) -> list[Row]:
    """Whole runs on one thread and on all, in turn: the clock on the wall, and the longest path.

    "products alone" multiplies all rows by eight directions and does nothing else: what two threads
    can reach on this machine.
    """
    Q = rows.directions(np.eye(8, rows.p), exact=False)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "exempla noise 10": (lambda: engine(rows, targets, k, 10.0), k),
        "products alone": (lambda: rows.over_blocks(lambda _, part: rows.multiply(part, Q)), 8),
    }
    best: dict[tuple[str, int], float] = {}
    for _ in range(2 * rounds):
        for count in sorted({1, available()}):
            for name, (work, picks) in works.items():
                with so_many_threads(count):
                    start = time.perf_counter()
                    work()
                    taken = {
                        "wall": time.perf_counter() - start,
                        "longest path": longest_path(work),
                    }
                for clock, seconds in taken.items():
                    at = f"{name}, {clock}", count
                    best[at] = min(best.get(at, np.inf), seconds / picks)
    return [
        _row(rows.t, rows.p, k, name, count, seconds, once)
        for (name, count), seconds in sorted(best.items())
    ]


def longest_path(work: Callable[[], object]) -> float:
    """Processor seconds of this thread, and of the slowest one wherever work is shared out."""
    slower = []  # by how much the slowest thread takes longer than this one

    def timed(work: Callable[[int, int], object], *size: int) -> list[object]:
        taken: defaultdict[int, float] = defaultdict(float)

        def part(start: int, stop: int) -> object:
            begun = time.thread_time()
            found = work(start, stop)
            taken[threading.get_ident()] += time.thread_time() - begun
            return found

        found = in_parts(part, *size)
        slower.append(max(taken.values()) - taken[threading.get_ident()])
        return found

    with mock.patch.object(row_module, "in_parts", timed):
        begun = time.thread_time()
        work()
        return time.thread_time() - begun + sum(slower)


def _row(t: int, p: int, k: int, name: str, count: int, each: float, once: float) -> Row:
    return {
        "t": t, "p": p, "k": k, "loop": name, "threads": count,
        "ms_a_pick": round(each * 1e3, 3), "readings_a_pick": round(each / once, 3),
        "ms_a_reading": round(once * 1e3, 3),
    }  # fmt: skip


def whole_calls(t: int, p: int, k: int, rounds: int) -> list[Row]:
    """Whole calls on unit rows, checking the input included, beside scikit-learn's OMP."""
    from sklearn.linear_model import orthogonal_mp

    F, _ = problem(t, p, 2)
    unit = F / np.linalg.norm(F, axis=1)[:, None]
    target = np.random.default_rng(3).standard_normal(p)
    columns = np.asfortranarray(unit.T.astype(np.float64))
    ones = np.ones(t, dtype=np.float32)
    works: dict[str, Callable[[], object]] = {
        "exempla select, SBQ()": lambda: select(unit, target, k),
        "exempla select, SBQ(10)": lambda: select(unit, target, k, SBQ(10.0)),
        "plain NumPy loop": lambda: plain_numpy(unit, ones, target.astype(np.float32), k),
        "sklearn orthogonal_mp": lambda: orthogonal_mp(columns, target, n_nonzero_coefs=k),
    }
    with so_many_threads(1):
        taken = fastest(works, rounds, time.process_time)
    return [
        {"t": t, "p": p, "k": k, "call": name, "seconds": round(s, 4)} for name, s in taken.items()
    ]


def growth(scale: int, rounds: int) -> list[Row]:
    """How the seconds of a run grow with one size, the others held."""
    t, p, k = 40_000 // scale, 256, 50
    sizes = {
        "rows": [(t * f, p, k, 1) for f in (1, 2, 4, 8)],
        "width": [(t, p * f // 2, k, 1) for f in (1, 2, 4, 8)],
        "picks": [(t, p, k * f, 1) for f in (1, 2, 4)],
        "targets": [(t // 4, p, 10, f) for f in (8, 32, 128)],
    }
    found = []
    for name, cases in sizes.items():
        seconds = []
        for case in cases:
            F, _ = problem(case[0], case[1])
            rng = np.random.default_rng(1)
            targets = np.stack([F[rng.choice(case[0], 50)].mean(0) for _ in range(case[3])])
            with so_many_threads(1):
                work = partial(engine, ArrayRows(F), targets.astype(float), case[2], 10.0)
                seconds.append(fastest({"run": work}, rounds, time.process_time)["run"])
        varied = [case[["rows", "width", "picks", "targets"].index(name)] for case in cases]
        slope = float(np.polyfit(np.log(varied), np.log(seconds), 1)[0])
        for size, taken in zip(varied, seconds):
            row = {"varied": name, "size": size, "seconds": round(taken, 4)}
            found.append(row | {"exponent": round(slope, 2)})
    return found


def plot(picks: list[Row], grown: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    one = [row for row in picks if "," not in row["loop"]]
    sizes = list(dict.fromkeys((row["t"], row["p"]) for row in one))
    loops = list(dict.fromkeys(row["loop"] for row in one))
    for i, loop in enumerate(loops):
        heights = [
            next(r["readings_a_pick"] for r in one if (r["t"], r["p"]) == s and r["loop"] == loop)
            for s in sizes
        ]
        left.bar(np.arange(len(sizes)) + 0.2 * (i - 1.5), heights, 0.18, label=loop)
    left.axhline(1, color="0.4", linewidth=0.8, linestyle=":")
    left.set_xticks(range(len(sizes)), [f"{t // 1000} k × {p}" for t, p in sizes], fontsize=8)
    left.set_ylabel("readings of the rows a pick")
    left.set_title("One pick, one thread", fontsize=10)
    left.margins(y=0.3)  # room for the legend
    left.legend(fontsize=7, frameon=False, ncols=2)
    for name in dict.fromkeys(row["varied"] for row in grown):
        mine = [row for row in grown if row["varied"] == name]
        base = mine[0]
        right.plot(
            [row["size"] / base["size"] for row in mine],
            [row["seconds"] / base["seconds"] for row in mine],
            marker="o", label=f"{name}: exponent {base['exponent']:.2f}",
        )  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="times the size", ylabel="times the seconds")
    right.set_title("Growth of a run", fontsize=10)
    right.legend(fontsize=7, frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def measure(out: Path, rounds: int, quick: bool) -> None:
    """Everything, written as it is measured."""
    warnings.simplefilter("ignore")
    scale, out = (20 if quick else 1), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    picks = []
    for t, p, k, decay in SIZES:
        picks += a_pick(t // scale, p, k if not quick else 20, decay, rounds)
        print(*picks[-12:], sep="\n", flush=True)
    write_csv(out / "speed.csv", picks)
    calls = whole_calls(40_000 // scale, 128, 50, rounds)
    for row in calls:
        print(row, flush=True)
    write_csv(out / "speed_whole.csv", calls)
    grown = growth(scale, rounds)
    for row in grown:
        print(row, flush=True)
    write_csv(out / "speed_growth.csv", grown)
    everything = {"a_pick": picks, "whole_calls": calls, "growth": grown}
    (out / "speed.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    plot(picks, grown, out / "speed.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("docs/experiments"))
    options = parser.parse_args()
    measure(options.out, options.rounds, options.quick)


if __name__ == "__main__":
    main()
