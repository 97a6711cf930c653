"""Selection on a GPU: readings a pick beside a plain torch loop, and many targets at once.

    python -m benchmarks.speed_gpu [--out DIR]

A reading is one sum of all entries by torch. Every figure is the fastest of three runs; compiling
is not counted. Writes speed_gpu.json.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from exempla.selection import SBQ, select
from exempla.selection.engine import Basis, Run, greedy
from exempla.selection.rows import ArrayRows, Rule

SIZES = [(1_000_000, 1024, 500), (60_000, 2048, 300), (400_000, 256, 200)]


def fastest(work: Callable[[], object], runs: int = 3) -> float:
    best = np.inf
    for _ in range(runs):
        torch.cuda.synchronize()
        start = perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, perf_counter() - start)
    return best


def plain_loop(F: Any, target: Any, k: int) -> None:
    """The algorithm as one would write it first."""
    c, n, Q = F @ target, (F * F).sum(1), F[:0]
    for _ in range(k):
        j = torch.argmax(c * c / n)
        q = (F[j] - (Q @ F[j]) @ Q) / torch.sqrt(n[j])
        v = F @ q
        c, n = c - (c[j] / torch.sqrt(n[j])) * v, n - v * v
        n[j] = torch.inf
        Q = torch.cat([Q, q[None]])


def a_pick(t: int, p: int, k: int, noise: float) -> dict[str, float]:
    """Readings a pick: a run of k picks less a run of one."""
    F = torch.randn((t, p), device="cuda")
    rows, mean = ArrayRows(F), F[: t // 100].mean(0)
    target = mean.double().cpu().numpy()

    def go(picks: int) -> None:
        run = Run(Basis(target, noise, rows.tolerance), t)
        greedy(rows, np.ones((1, t), bool), [run], picks, noise=noise, rule=Rule.GAIN)

    go(k)
    reading = fastest(lambda: F.sum(), 5)
    each = (fastest(lambda: go(k)) - fastest(lambda: go(1))) / (k - 1)
    plain = fastest(lambda: plain_loop(F, mean, 50)) / 50
    return {
        "t": t, "p": p, "k": k, "noise": noise, "ms_a_reading": reading * 1e3,
        "readings_a_pick": each / reading, "plain_readings_a_pick": plain / reading,
    }  # fmt: skip


def many_targets(t: int, p: int, k: int, count: int) -> dict[str, float]:
    """Seconds of a whole call for many targets, and readings a pick for all of them."""
    F = torch.nn.functional.normalize(torch.randn((t, p), device="cuda"))
    targets = F[torch.randint(t, (count,), device="cuda")].double().cpu().numpy()
    targets = targets + 0.01 * np.random.default_rng(0).standard_normal(targets.shape)
    select(F, targets, 3, SBQ(10.0))
    whole, first = (fastest(lambda k=k: select(F, targets, k, SBQ(10.0))) for k in (k, 1))
    each = (whole - first) / (k - 1) / fastest(lambda: F.sum(), 5)
    return {
        "t": t, "p": p, "k": k, "targets": count, "seconds": whole, "seconds_of_first": first,
        "readings_a_pick": each,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    found = [a_pick(*size, noise) for size in SIZES for noise in (0.0, 10.0)]
    found += [many_targets(t, p, 50, 64) for t, p, _ in SIZES]
    found.append(many_targets(60_000, 2048, 50, 1000))
    for row in found:
        print(row, flush=True)
    (options.out / "speed_gpu.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
