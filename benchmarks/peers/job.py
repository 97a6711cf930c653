"""What every peer's script shares: read the job, time it, write the matrices.

Runs inside a peer's environment, so it needs numpy and torch and nothing of this project but the
networks of `benchmarks.truths`, which need no more.

    python run_PEER.py JOB.npz OUT.npz --method M [--models K | --checkpoints]
                       [--dampings default none 1e-3 sweep …]

A method is a function `(model, train, test, dampings)` that yields one train × test matrix for
each damping; larger = more helpful, by the sign the library documents. The damping `none` is the
library's own choice from data, where it has one; it is written down as NaN.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

__all__ = ["Method", "machine", "main", "network", "peak_memory"]

Attribute = Callable[..., Iterator[Tensor]]


@dataclass(frozen=True)
class Method:
    """How to run one method of a library; `default` is the library's own damping.

    A library with an ensemble of its own (`many`) is given the list of models; the matrices of
    the others are averaged here.
    """

    attribute: Attribute
    default: float
    sweep: tuple[float, ...] = ()
    many: bool = False

    def dampings(self, wanted: list[str]) -> list[float | None]:
        """The values asked for by name or number."""
        found: list[float | None] = []
        for one in wanted:
            if one == "sweep":
                found += self.sweep
            elif one == "default":
                found.append(self.default)
            else:
                found.append(None if one == "none" else float(one))
        return found


def network(name: str) -> nn.Sequential:
    """The digits MLP, or the CNN of `benchmarks.mnist_truth`, with fresh weights."""
    if name == "digits":
        sizes = ((64, 128), (128, 128), (128, 10))
        layers = [part for size in sizes for part in (nn.Linear(*size), nn.ReLU())]
        return nn.Sequential(*layers[:-1])
    convolutions = [nn.Conv2d(1, 12, 5, stride=2), nn.ReLU()]
    convolutions += [nn.Conv2d(12, 24, 5, stride=2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(24 * 16, 48), nn.ReLU(), nn.Linear(48, 10))


def fresh_network(job: Mapping[str, np.ndarray]) -> nn.Module:
    """The job's network: by its name, or as `benchmarks.truths` makes them."""
    if "kind" not in job:
        return network(str(job["network"]))
    sys.path.append(str(Path(__file__).parents[2]))
    from benchmarks.truths.networks import make_network

    shape, classes = job["X"].shape[1:], int(job["y"].max()) + 1
    return make_network(str(job["kind"]), shape, classes, int(job["words"]))


def read(
    path: Path, models: int, checkpoints: bool
) -> tuple[list[nn.Module], TensorDataset, TensorDataset]:
    """The first `models` trained networks, or the moments of one training, the last one first;
    the training data and the test data."""
    with np.load(path, allow_pickle=False) as job:
        train, test = (
            TensorDataset(torch.from_numpy(job[x]), torch.from_numpy(job[y]))
            for x, y in (("X", "y"), ("X_test", "y_test"))
        )
        moments = {int(name.split("/")[1]) for name in job.files if name.startswith("run/")}
        prefixes = [f"{seed}/" for seed in range(models)]
        if checkpoints:
            prefixes = [f"run/{moment}/" for moment in sorted(moments, reverse=True)]
        trained = []
        for prefix in prefixes:
            model = fresh_network(job)
            state = {name: torch.from_numpy(job[prefix + name]) for name in model.state_dict()}
            model.load_state_dict(state)
            trained.append(model.eval())
    return trained, train, test


def main(methods: dict[str, Method]) -> None:
    """Run the method the command line names; matrices are averaged over the models."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", choices=methods, required=True)
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--checkpoints", action="store_true", help="all moments of one training")
    parser.add_argument("--dampings", nargs="+", default=["default"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    method = methods[options.method]
    dampings = method.dampings(options.dampings)
    models, train, test = read(options.job, options.models, options.checkpoints)

    started, first = time.process_time(), 0.0
    total = [np.zeros((len(train), len(test)), np.float32) for _ in dampings]
    groups = [models] if method.many else models
    for group in groups:
        begun = time.process_time()
        matrices = method.attribute(group, train, test, dampings)
        for i, (matrix, sums) in enumerate(zip(matrices, total, strict=True)):
            sums += matrix.detach().float().numpy() / len(groups)
            if i == 0:
                first += time.process_time() - begun
    finished = time.process_time()

    values = [np.nan if damping is None else damping for damping in dampings]
    np.savez(options.out, dampings=values, matrices=np.stack(total))
    report = {
        "first_seconds": first,  # without the other dampings of a sweep
        "job_seconds": finished - started,
        "cpu_seconds": finished,
        "peak_mb": peak_memory() / 2**20,
        "machine": machine(),
    }
    options.out.with_suffix(".json").write_text(json.dumps(report))


def machine() -> str:
    """What seconds were measured on, in words."""
    return f"{os.cpu_count()} cores, torch {torch.__version__}"


def peak_memory() -> int:
    """Bytes. Not ru_maxrss where Linux says better: that one may carry over the parent's peak."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
