"""How much a Recorder slows training down: the MNIST networks with and without it, side by side.

    python -m benchmarks.recorder [--network small|paper] [--steps N] [--rounds N]

Random pixels of MNIST's shape, which train as fast as digits do. In each round two networks are
trained, one of them recorded; they take turns every few steps, so that whatever else the machine
does befalls both. `finish()` is counted. Printed are the ratios of their times, and the share of
the recorded training that was spent in the Recorder itself, clocked around its calls.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from time import perf_counter, process_time

import numpy as np
import torch
from torch import Tensor, nn

import exempla
from benchmarks.mnist_truth import small_cnn
from experiments.paper_cnn import PaperCNN

NETWORKS = {"small": small_cnn, "paper": PaperCNN}
BATCH, TURN = 64, 5


class Clocked(exempla.Recorder):
    """Also knows how long its own calls took, by wall and processor."""

    spent = np.zeros(2)

    def _check(self) -> None:
        begun = now(self.model)
        super()._check()
        self.spent = self.spent + now(self.model) - begun

    def finish(self) -> None:
        begun = now(self.model)
        super().finish()
        self.spent = self.spent + now(self.model) - begun


class Training:
    """One network on its way, and the wall and processor seconds it has taken."""

    def __init__(self, name: str, X: Tensor, y: Tensor, folder: str | None) -> None:
        torch.manual_seed(0)
        self.model = NETWORKS[name]().to(X.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.batches = endless(X, y)
        self.record = None
        if folder is not None:
            self.record = Clocked(self.model, folder, self.optimizer)
        self.taken = np.zeros(2)

    def turn(self, steps: int, last: bool) -> None:
        """A few steps; the last turn also finishes the record."""
        begun = now(self.model)
        for _ in range(steps):
            x, y = next(self.batches)
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            if self.record is not None:
                self.record.step()
        if last and self.record is not None:
            self.record.finish()
        self.taken += now(self.model) - begun


def endless(X: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from zip(X.split(BATCH), y.split(BATCH), strict=True)


def now(model: nn.Module) -> np.ndarray:
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return np.array([perf_counter(), process_time()])


def side_by_side(name: str, X: Tensor, y: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds with the recorder over seconds without, and the recorder's own share."""
    with tempfile.TemporaryDirectory() as folder:
        plain, recorded = Training(name, X, y, None), Training(name, X, y, folder)
        for start in range(0, steps, TURN):
            pair = (plain, recorded) if start // TURN % 2 else (recorded, plain)
            for training in pair:
                training.turn(min(TURN, steps - start), last=start + TURN >= steps)
        assert recorded.record is not None
        return recorded.taken / plain.taken, recorded.record.spent / recorded.taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="small")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    X, y = torch.rand(4096, 1, 28, 28, device=device), torch.randint(10, (4096,), device=device)
    side_by_side(options.network, X, y, 50)  # warm up
    ratios, shares = [], []
    for _ in range(options.rounds):
        ratio, share = side_by_side(options.network, X, y, options.steps)
        ratios.append(ratio)
        shares.append(share)
        print(f"wall {ratio[0]:.4f}, processor {ratio[1]:.4f}", flush=True)
    print(f"{options.network}, {options.steps} steps, {device}, medians of {options.rounds}:")
    for i, clock in enumerate(("wall", "processor")):
        ratio, share = np.median(ratios, axis=0)[i], np.median(shares, axis=0)[i]
        print(f"  {clock} time: ratio {ratio:.4f}; in the Recorder itself {share:.2%}")


if __name__ == "__main__":
    main()
