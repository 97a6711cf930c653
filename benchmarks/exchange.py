"""What travels when rows are in a thousand places: the real engine over a modelled wire.

Run `python -m benchmarks.exchange` (`--out docs/experiments/exchange.csv` keeps the table).

Every part is a `Part` with rows of its own; every message is packed, counted, unpacked and answered
by the code that runs on a cluster. Only the wire is modelled: an exchange takes a round trip's
latency, the driver's network card passes all bytes to and from the places one after the other, and
the places compute at the same time, so that the slowest counts. Picks are compared with those of
one array.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np

from exempla.selection import SBQ, select
from exempla.selection.select import wrap
from exempla.selection.sharded import (
    Part,
    ShardedCandidates,
    ShardedRows,
    Transport,
    cuts_of,
    packed,
    unpacked,
)

LATENCY = 0.5e-3
"""Seconds of a round trip through Ray between two machines of one rack; 1 to 2 ms under load."""
BANDWIDTH = 1.25e9
"""Bytes a second of the driver's network card (10 Gbit/s)."""


@dataclass
class Wire:
    """What the modelled network took."""

    latency: float = LATENCY
    bandwidth: float = BANDWIDTH
    seconds: float = 0.0
    """Latency and bytes."""
    slowest: float = 0.0
    """Processor seconds of the slowest place of each exchange."""


class ModelledExchange(Transport):
    """Places in this process; the time on the wire is computed."""

    def __init__(self, array: np.ndarray, parts: int) -> None:
        cuts = cuts_of(len(array), parts)
        self.here = [Part(wrap(array[a:b])) for a, b in pairwise(cuts)]
        self.wire = Wire()
        super().__init__(len(self.here))

    def _deliver(self, messages: dict[int, bytes], stateless: bool) -> dict[int, bytes]:
        answers, taken = {}, []
        for place, message in messages.items():
            start = time.process_time()
            answers[place] = packed(self.here[place].answer(unpacked(message)))
            taken.append(time.process_time() - start)
        carried = sum(map(len, messages.values())) + sum(map(len, answers.values()))
        self.wire.seconds += self.wire.latency + carried / self.wire.bandwidth
        self.wire.slowest += max(taken)
        return answers


def rows_of(kind: str, t: int, p: int, seed: int = 0) -> np.ndarray:
    """Gaussian rows, or rows whose spectrum falls as 1/i, which Fisher rows resemble."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((t, p), dtype=np.float32)
    if kind == "falling":
        rows *= 1 / np.arange(1, p + 1, dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1)[:, None]
    return rows


def measured(
    kind: str, t: int, p: int, k: int, parts: int, pool_sizes: tuple[int, int], check: bool = True
) -> dict[str, object]:
    """One selection: what travelled a pick, once the rows are in place."""
    array = rows_of(kind, t, p)
    target = array[: max(1, t // 50)].astype(np.float64).mean(axis=0)
    exchange = ModelledExchange(array, parts)
    with mock.patch.object(ShardedCandidates, "pool_sizes", pool_sizes):
        rows = ShardedRows(exchange)
        opened = replace(exchange.traffic)
        start = time.perf_counter()
        exchange.wire.seconds = exchange.wire.slowest = 0.0
        found = select(rows, target, k, SBQ(10.0 if kind == "gaussian" else 0.1))
        wall = time.perf_counter() - start
        moved = exchange.traffic.since(opened)
    same = ""
    if check:
        whole = select(array, target, k, SBQ(10.0 if kind == "gaussian" else 0.1))
        same = bool(np.array_equal(whole.indices, found.indices))
    return {
        "rows": kind, "t": t, "p": p, "k": k, "places": parts, "pool": pool_sizes[1],
        "exchanges": moved.exchanges,
        "exchanges_per_pick": round(moved.exchanges / k, 3),
        "to_each_place_per_pick_bytes": round(moved.sent / parts / k),
        "sent_per_pick_bytes": round(moved.sent / k),
        "received_per_pick_bytes": round(moved.received / k),
        "wire_s": round(exchange.wire.seconds, 3),
        "slowest_place_s": round(exchange.wire.slowest, 3),
        "wall_here_s": round(wall, 2),
        "same_picks": same,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    t, k = (10_000, 10) if options.quick else (100_000, 50)
    cases = [("gaussian", t, 128, k, places, (256, 1024)) for places in (4, 32, 100, 1000)]
    cases += [("gaussian", t, 128, k, 100, (256, pool)) for pool in (256, 4096)]
    cases += [("falling", t, 128, k, places, (256, 1024)) for places in (4, 100)]
    lines = []
    for case in cases:
        lines.append(measured(*case))
        print(lines[-1], flush=True)
        if options.out:
            with options.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)


if __name__ == "__main__":
    main()
