"""Selection by two ranks of torch.distributed, beside one process, on one GPU or on the CPU.

    python -m benchmarks.two_ranks [--device cuda] [--out docs/experiments/two_ranks.csv]

The ranks talk over gloo, because NCCL refuses two ranks on one GPU; the rows of both are on it. For
each case: whether both ranks have the picks of one process, wall seconds of either way (the fastest
of three), exchanges, and the bytes that one rank sends. Two ranks share one machine, so the seconds
tell what the exchanges add, not what a second machine gains. The exit code is 1 if a pick differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.exchange import rows_of
from exempla.distributed import OnTorch
from exempla.selection import SBQ, select
from exempla.selection.sharded import cuts_of

RANKS, ROUNDS = 2, 3
NOISE = {"gaussian": 10.0, "falling": 0.1}
CASES = [("gaussian", 1), ("falling", 1), ("falling", 8)]
"""Kind of rows, and number of targets."""


def problem(kind: str, targets: int, t: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and the mean of some of them for each target."""
    rows = rows_of(kind, t, p)
    size = max(1, t // 100)
    means = [
        rows[i * size : (i + 1) * size].astype(np.float64).mean(axis=0) for i in range(targets)
    ]
    return rows, np.stack(means) if targets > 1 else means[0]


def fastest(rows: Any, target: np.ndarray, k: int, noise: float, device: str) -> tuple[float, list]:
    """Seconds of the fastest of some selections, after one that compiles, and the picks."""
    best, found = np.inf, None
    for turn in range(ROUNDS + 1):
        start = time.perf_counter()
        found = select(rows, target, k, SBQ(noise))
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start if turn else np.inf)
    picks = found if isinstance(found, list) else [found]
    return best, [one.indices.tolist() for one in picks]  # type: ignore[union-attr]


def rank_main(rank: int, folder: str, options: argparse.Namespace) -> None:
    """One rank: all cases, with its share of the rows on the device."""
    if options.device == "cpu":
        torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    lines = []
    for kind, targets in CASES:
        rows, target = problem(kind, targets, options.t, options.p)
        start, stop = cuts_of(len(rows), RANKS)[rank : rank + 2]
        mine: Any = rows[start:stop]
        if options.device != "cpu":
            mine = torch.from_numpy(mine).to(options.device)
        with OnTorch().opened(mine, 1) as placed:
            before = replace(placed.transport.traffic)
            seconds, picks = fastest(placed, target, options.k, NOISE[kind], options.device)
            moved = placed.transport.traffic.since(before)
        each = ROUNDS + 1
        lines.append({
            "picks": picks, "seconds": seconds,
            "exchanges": moved.exchanges // each, "sent": moved.sent // each,
        })  # fmt: skip
        del rows, mine
    Path(folder, f"{rank}.json").write_text(json.dumps(lines))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case by one process, then by the ranks."""
    alone = []
    for kind, targets in CASES:
        rows, target = problem(kind, targets, options.t, options.p)
        here: Any = rows if options.device == "cpu" else torch.from_numpy(rows).to(options.device)
        alone.append(fastest(here, target, options.k, NOISE[kind], options.device))
        del rows, here
    if options.device != "cpu":
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (folder, options), nprocs=RANKS)
        ranks = [json.loads(Path(folder, f"{i}.json").read_text()) for i in range(RANKS)]
    lines = []
    for (kind, targets), (seconds, picks), *found in zip(CASES, alone, *ranks, strict=True):
        lines.append({
            "device": options.name, "rows": kind, "t": options.t, "p": options.p,
            "k": options.k, "targets": targets, "ranks": RANKS,
            "same_picks": all(one["picks"] == picks for one in found),
            "seconds_one_process": round(seconds, 3),
            "seconds_ranks": round(max(one["seconds"] for one in found), 3),
            "exchanges": found[0]["exchanges"],
            "exchanges_per_pick": round(found[0]["exchanges"] / options.k, 3),
            "sent_by_a_rank_bytes": found[0]["sent"],
        })  # fmt: skip
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("-t", type=int, default=200_000)
    parser.add_argument("-p", type=int, default=256)
    parser.add_argument("-k", type=int, default=64)
    options = parser.parse_args()
    options.name = "CPU" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    # Both ranks are here; the name of an isolated machine may not resolve.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.device == "cpu":
        os.environ.setdefault("EXEMPLA_THREADS", "1")
    lines = measure(options)
    if options.out:
        with options.out.open("w", newline="") as file:
            table = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(lines)
    return 0 if all(line["same_picks"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
