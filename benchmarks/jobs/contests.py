"""Who does which job. Every contestant of a job is given the same data and does all of it.

A contestant is a function that loads what it needs and returns the work itself; loading is not
counted, the work is. Its data are made here from a seed: nothing is downloaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["JOBS", "MISSING", "Contestant", "Job"]

PEERS = Path(__file__).parents[1] / "peers"
Work = Callable[[], Any]
"""Does the job; what it returns is judged."""

MISSING = {
    "bayesian-coresets": (
        "pip found no distribution of this name or bayesiancoresets: its GIGA and "
        "Frank–Wolfe are those of experiments/baselines/coresets.py, written from the paper"
    ),
}
"""Peers that cannot be installed, and what stands in for them."""


@dataclass(frozen=True)
class Contestant:
    """`prepare(quick)` gives the work; `library` names the environment it needs, if not ours."""

    name: str
    prepare: Callable[[bool], Work]
    library: str | None = None


@dataclass(frozen=True)
class Job:
    """`judge(answer, quick)` says how good an answer is, in the unit `quality` names."""

    name: str
    title: str
    quality: str
    contestants: tuple[Contestant, ...]
    judge: Callable[[Any, bool], float]

    def contestant(self, name: str) -> Contestant:
        return next(c for c in self.contestants if c.name == name)


# ---- selection: k rows whose span holds a target


def problem(quick: bool) -> tuple[np.ndarray, np.ndarray, int]:
    rows, k = (2_000, 10) if quick else (100_000, 100)
    F = np.random.default_rng(0).standard_normal((rows, 256), dtype=np.float32)
    return F, F[: rows // 100].mean(axis=0), k


def select_exempla(quick: bool) -> Work:
    import exempla

    F, target, k = problem(quick)
    return lambda: exempla.select(F, target, k).indices


def select_numpy(quick: bool) -> Work:
    from benchmarks.selection import plain_numpy

    F, target, k = problem(quick)
    return lambda: plain_numpy(F, np.einsum("ij,ij->i", F, F), target, k)


def select_torch(quick: bool) -> Work:
    import torch

    from benchmarks.speed import plain_torch

    F, target, k = problem(quick)
    rows, wanted = torch.from_numpy(F), torch.from_numpy(target)
    return lambda: plain_torch(rows, (rows * rows).sum(1), wanted, k)


def select_sklearn(quick: bool) -> Work:
    from sklearn.linear_model import orthogonal_mp

    F, target, k = problem(quick)

    def work() -> np.ndarray:
        norms = np.linalg.norm(F, axis=1)
        columns = np.asfortranarray((F / norms[:, None]).T.astype(np.float64))
        found = orthogonal_mp(columns, target.astype(np.float64), n_nonzero_coefs=k)
        return np.flatnonzero(found)

    return work


def explained(answer: Any, quick: bool) -> float:
    """Share of the target's square in the span of the picks; of the plain loops, which return
    nothing, it is that of the same algorithm."""
    if answer is None:
        return float("nan")
    F, target, _ = problem(quick)
    basis = np.linalg.qr(F[answer].T.astype(np.float64))[0]
    return float(np.sum((basis.T @ target) ** 2) / (target @ target))


# ---- influence: every training example on every questioned one


@cache
def digits(quick: bool, flipped: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels, labels of which a share is wrong, and which are."""
    from sklearn.datasets import load_digits

    loaded: Any = load_digits(return_X_y=True)
    X, y = loaded
    count = 300 if quick else len(X)
    X, y = X[:count] / 16, y[:count].copy()
    rng = np.random.default_rng(1)
    wrong = rng.choice(count, int(flipped * count), replace=False)
    y[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
    return X, y, wrong


def trained_digits(quick: bool) -> tuple[Any, Any, Any]:
    """A trained network of 26 000 parameters, its training data and the questioned ones."""
    import torch
    from torch.utils.data import TensorDataset

    from benchmarks.peers.job import network

    torch.set_num_threads(1)
    torch.manual_seed(0)
    X, y, _ = digits(quick)
    inputs, labels = torch.from_numpy(X).float(), torch.from_numpy(y).long()
    cut = len(X) * 4 // 5
    model = network("digits")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2 if quick else 20):
        for batch in torch.randperm(cut).split(64):
            optimizer.zero_grad()
            outputs = model(inputs[batch])
            torch.nn.functional.cross_entropy(outputs, labels[batch]).backward()
            optimizer.step()
    train = TensorDataset(inputs[:cut], labels[:cut])
    return model.eval(), train, TensorDataset(inputs[cut:], labels[cut:])


def influence_of(library: str, method: str, many: bool, **options: Any) -> Callable[[bool], Work]:
    """A peer's own script, as `benchmarks.faithfulness` runs it, at its own damping."""

    def prepare(quick: bool) -> Work:
        sys.path.insert(0, str(PEERS))  # the scripts import their neighbour
        function = getattr(importlib.import_module(f"run_{library}"), method)
        model, train, test = trained_digits(quick)
        damping = {"kronfluence": 1e-8}.get(library, 0.0)
        models = [model] if many else model
        return lambda: next(function(models, train, test, [damping], **options)).detach().numpy()

    return prepare


def own_class(matrix: Any, quick: bool) -> float:
    """Share of questioned digits whose most helpful training example shows the same digit."""
    _, y, _ = digits(quick)
    cut = len(matrix)
    return float(np.mean(y[:cut][matrix.argmax(0)] == y[cut : cut + matrix.shape[1]]))


# ---- wrong labels, found


WRONG = 0.05


def linear() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=300)


def labels_exempla(quick: bool) -> Work:
    import exempla

    X, y, _ = digits(quick, WRONG)
    return lambda: exempla.fix_labels(linear().fit(X, y), (X, y)).indices


def labels_cleanlab(quick: bool) -> Work:
    learning = importlib.import_module("cleanlab.classification").CleanLearning
    X, y, _ = digits(quick, WRONG)

    def work() -> np.ndarray:
        found = learning(linear(), seed=0).find_label_issues(X, y)
        return np.argsort(found["label_quality"].to_numpy(), kind="stable")

    return work


def found(order: Any, quick: bool) -> float:
    """Share of the wrong labels among as many of the most suspicious rows."""
    wrong = digits(quick, WRONG)[2]
    return float(np.isin(order[: len(wrong)], wrong).mean())


# ---- a weighted summary


def table(quick: bool) -> tuple[Any, ...]:
    from sklearn.datasets import make_classification

    rows = 600 if quick else 20_000
    made = make_classification(2 * rows, 30, n_informative=10, flip_y=0.05, random_state=0)
    X, y = made[0], made[1]
    return X[:rows], y[:rows], X[rows:], y[rows:], 20 if quick else 100


def summary_exempla(quick: bool) -> Work:
    from exempla import summarize  # loaded here, as the peers' modules are

    X, y, *_, k = table(quick)
    return lambda: summarize(linear().fit(X, y), (X, y), k)


def summary_coreset(method: Any) -> Callable[[bool], Work]:
    def prepare(quick: bool) -> Work:
        from experiments.baselines.coresets import hilbert_coreset

        X, y, *_, k = table(quick)
        return lambda: hilbert_coreset(linear().fit(X, y), (X, y), k, method=method)

    return prepare


def as_good(summary: Any, quick: bool) -> float:
    """Accuracy on other rows that a model fitted to the summary lacks beside one of all rows."""
    X, y, others, labels, _ = table(quick)
    small = linear().fit(X[summary.indices], y[summary.indices], summary.weights)
    return float(linear().fit(X, y).score(others, labels) - small.score(others, labels))


JOBS = (
    Job("selection", "100 rows of 100 000 × 256", "share explained", (
        Contestant("exempla", select_exempla),
        Contestant("plain NumPy loop", select_numpy),
        Contestant("plain torch loop", select_torch),
        Contestant("scikit-learn OMP", select_sklearn),
    ), explained),
    Job("influence", "digits, 1 437 × 360 influences", "of the same class", (
        Contestant("exempla", influence_of("exempla", "influence", many=True)),
        Contestant("kronfluence", influence_of("kronfluence", "ekfac", many=False), "kronfluence"),
        # its own 2048 dimensions are more than the examples, and its matrix would be singular
        Contestant("TRAK", influence_of("traker", "trak", True, dimensions=512), "traker"),
    ), own_class),
    Job("labels", "wrong labels in 1 797 digits", "share found", (
        Contestant("exempla", labels_exempla),
        Contestant("cleanlab", labels_cleanlab, "cleanlab"),
    ), found),
    Job("summary", "100 weighted rows of 20 000", "accuracy lost", (
        Contestant("exempla", summary_exempla),
        Contestant("GIGA", summary_coreset("giga")),
        Contestant("Frank–Wolfe", summary_coreset("frank-wolfe")),
    ), as_good),
)  # fmt: skip
