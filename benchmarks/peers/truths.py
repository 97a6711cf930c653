"""The two truths of `benchmarks.faithfulness`: what retraining on half of the data did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import exempla

__all__ = ["CHOOSE", "REPORT", "Truth", "digits_truth", "mnist_truth"]

CHOOSE, REPORT = slice(0, 50), slice(50, 100)
"""Subsets a sweep may look at, and those every figure is reported on."""


@dataclass(frozen=True)
class Truth:
    """Subsets that were trained on, and each test point's log-likelihood afterwards."""

    name: str
    models: int
    subsets: np.ndarray
    outcomes: np.ndarray
    job: dict[str, np.ndarray]

    def lds(self, matrix: np.ndarray, part: slice) -> float:
        """LDS on some of the subsets; 0 for a matrix that is not finite."""
        if not np.isfinite(matrix).all():
            return 0.0
        return exempla.metrics.lds(matrix, self.subsets[part], self.outcomes[part])

    def best(self, matrices: np.ndarray) -> int:
        """The matrix with the largest LDS on the subsets meant for choosing."""
        return int(np.argmax([self.lds(matrix, CHOOSE) for matrix in matrices]))


def digits_truth(folder: Path) -> Truth:
    """An MLP on digits: 100 half-subsets × 5 retrainings, ten models."""
    with np.load(folder / "data.npz", allow_pickle=False) as data:
        names = {"X": "xtr", "y": "ytr", "X_test": "xte", "y_test": "yte"}
        job = {name: data[stored] for name, stored in names.items()}
    for seed in range(10):
        with np.load(folder / f"model_seed{seed}.npz", allow_pickle=False) as weights:
            job |= {f"{seed}/{name}": weights[name] for name in weights.files}
    with np.load(folder / "truth.npz", allow_pickle=False) as truth:
        outcomes = -truth["loss"].mean(1)
        return Truth("digits", 10, truth["subsets"], outcomes, job)


def mnist_truth(mnist: Path, file: Path) -> Truth:
    """A small CNN on MNIST: 100 half-subsets × 3 retrainings, five models."""
    from benchmarks.mnist_truth import chosen_images

    job = dict(zip(("X", "y", "X_test", "y_test"), chosen_images(mnist), strict=True))
    with np.load(file, allow_pickle=False) as truth:
        for name in truth.files:
            if name.startswith("model"):
                seed, _, parameter = name.removeprefix("model").partition(".")
                job[f"{seed}/{parameter}"] = truth[name]
        outcomes = truth["log_likelihood"].mean(1)
        return Truth("mnist", 5, truth["subsets"], outcomes, job)
