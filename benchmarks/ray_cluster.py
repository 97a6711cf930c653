"""Selection on a Ray cluster of four nodes on this machine, one of which is killed on the way.

    python -m benchmarks.ray_cluster [--out docs/experiments/ray_cluster.csv]

For every number of workers: the picks beside those of one process, exchanges and bytes a pick, and
seconds. Then the same with a node killed (SIGKILL) in the middle of the selection. All nodes share
the processors of one machine: the seconds tell what Ray adds, not what it gains.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.exchange import rows_of
from exempla.distributed import OnRay, in_files
from exempla.distributed.ray_backend import RayTransport
from exempla.selection import SBQ, select

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
NODES = 4
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


def cluster() -> Any:
    """Four nodes of two processors each, of which the first holds the driver."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
    made = Cluster(
        initialize_head=True,
        head_node_args={**size, "include_dashboard": False, "_system_config": QUICK},
    )
    made.others = [made.add_node(**size) for _ in range(NODES - 1)]
    return made


def measured(rows: Any, target: np.ndarray, k: int, whole: np.ndarray, **about: Any) -> dict:
    """One selection on rows that are in place."""
    before, start = replace(rows.transport.traffic), time.perf_counter()
    found = select(rows, target, k, SBQ(10.0))
    seconds = time.perf_counter() - start
    moved = rows.transport.traffic.since(before)
    return {
        **about, "t": rows.t, "p": rows.p, "k": k, "workers": len(rows.transport.actors),
        "same_picks": bool(np.array_equal(found.indices, whole)),
        "restarts": moved.restarts,
        "exchanges": moved.exchanges,
        "exchanges_per_pick": round(moved.exchanges / k, 3),
        "to_each_worker_per_pick_bytes": round(moved.sent / len(rows.transport.actors) / k),
        "received_per_pick_bytes": round(moved.received / k),
        "seconds": round(seconds, 2),
    }  # fmt: skip


def killing(made: Any, at: int) -> Any:
    """Kill a node when so many messages have been sent."""
    sent, deliver = [], RayTransport._send

    def counted(self: RayTransport, messages: Any) -> Any:
        sent.append(1)
        if len(sent) == at:
            made.remove_node(made.others.pop(), allow_graceful=False)
            print(f"killed a node at message {at}", flush=True)
        return deliver(self, messages)

    return mock.patch.object(RayTransport, "_send", counted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("-t", type=int, default=100_000)
    parser.add_argument("-p", type=int, default=128)
    parser.add_argument("-k", type=int, default=100)
    options = parser.parse_args()
    import ray

    array = rows_of("gaussian", options.t, options.p)
    target = array[: options.t // 50].astype(np.float64).mean(axis=0)
    select(array, target, options.k, SBQ(10.0))  # caches are filled
    start = time.perf_counter()
    whole = select(array, target, options.k, SBQ(10.0)).indices
    alone = round(time.perf_counter() - start, 2)
    lines = []
    made = cluster()
    try:
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
        with tempfile.TemporaryDirectory() as folder:
            stored = in_files(array, folder, 8)
            on = OnRay(cpus=0.5, patience=120)
            for workers in (1, 2, 4):
                with on.opened(stored, workers) as rows:
                    select(rows, target, 5, SBQ(10.0))  # every worker is awake
                    lines.append(measured(rows, target, options.k, whole, case="undisturbed"))
                    print(lines[-1], flush=True)
            for at in (8, 20):
                with on.opened(stored, 4) as rows, killing(made, at):
                    case = f"a node killed at message {at}"
                    lines.append(measured(rows, target, options.k, whole, case=case))
                    print(lines[-1], flush=True)
    finally:
        ray.shutdown()
        made.shutdown()
    for line in lines:
        line["seconds_in_one_process"] = alone
    if options.out:
        with options.out.open("w", newline="") as file:
            table = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(lines)


if __name__ == "__main__":
    main()
