"""Where dividing the logits, or asking earlier checkpoints, helps and where it hurts.

    EXEMPLA_DATA=… python -m benchmarks.recipes [--only "SGD 10"]

The digits MLP under several recipes of training, and logistic regression at its optimum. For each,
50 half-subsets are retrained (networks twice), all networks of a recipe at once as one batched
network. Nothing is chosen: LDS on all subsets, with exempla's automatic damping.

`growth` is (θᵀ·mean score)/‖θ‖² ÷ weight decay: 1 where the penalty holds the weights at rest,
far from it where training was stopped while they still moved.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import exempla
from benchmarks.beyond_ggn import Tempered
from benchmarks.lds_digits_model import lds_data
from benchmarks.peers.job import network

TEMPERATURES = (1.0, 1.5, 2.0, 3.0)
SUBSETS, RETRAININGS, BATCH = 50, 2, 64


@dataclass(frozen=True)
class Recipe:
    epochs: int
    weight_decay: float = 1e-4
    sgd: bool = False

    def optimizer(self, weights: list[Tensor]) -> torch.optim.Optimizer:
        if self.sgd:
            return torch.optim.SGD(weights, 0.05, momentum=0.9, weight_decay=self.weight_decay)
        return torch.optim.Adam(weights, 1e-3, weight_decay=self.weight_decay)


RECIPES = {
    "Adam 10 epochs": Recipe(10),
    "Adam 160 epochs": Recipe(160),
    "Adam 160 epochs, decay 1e-3": Recipe(160, weight_decay=1e-3),
    "Adam 40 epochs, decay 1e-2": Recipe(40, weight_decay=1e-2),
    "SGD 10 epochs": Recipe(10, sgd=True),
    "SGD 40 epochs": Recipe(40, sgd=True),
}
CONVEX = {"logistic regression, C = 1": 1.0, "logistic regression, C = 100": 100.0}


class Many:
    """Several copies of the digits MLP, trained side by side on rows of their own."""

    def __init__(self, copies: int, generator: torch.Generator) -> None:
        self.weights: list[Tensor] = []
        for inputs, outputs in ((64, 128), (128, 128), (128, 10)):
            for rows in (inputs, 1):  # the weight, then the bias
                start = torch.rand(copies, rows, outputs, generator=generator) * 2 - 1
                self.weights.append((start / inputs**0.5).requires_grad_())

    def __call__(self, x: Tensor) -> Tensor:
        for layer in range(3):
            weight, bias = self.weights[2 * layer : 2 * layer + 2]
            x = torch.baddbmm(bias, x if layer == 0 else x.relu(), weight)
        return x

    def first(self) -> nn.Module:
        """The first copy as an ordinary network."""
        model = network("digits")
        names = list(model.state_dict())
        values = [w[0].detach().T.reshape(-1, w.shape[1]).clone() for w in self.weights]
        shapes = [v.squeeze(1) if name.endswith("bias") else v for name, v in zip(names, values)]
        model.load_state_dict(dict(zip(names, shapes)))
        return model.eval()


def train(
    recipe: Recipe,
    X: Tensor,
    y: Tensor,
    subsets: Tensor,
    seed: int,
    after: Callable[[int, Many], None] = lambda epoch, networks: None,
) -> Many:
    """One network per subset; `after` is called at the end of each epoch."""
    generator = torch.Generator().manual_seed(seed)
    networks = Many(len(subsets), generator)
    optimizer = recipe.optimizer(networks.weights)
    for epoch in range(recipe.epochs):
        shuffled = torch.argsort(torch.rand(subsets.shape, generator=generator), 1)
        for rows in torch.gather(subsets, 1, shuffled).split(BATCH, 1):
            optimizer.zero_grad(set_to_none=True)
            logits = networks(X[rows]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, y[rows].flatten(), reduction="sum")
            (loss / rows.shape[1]).backward()
            optimizer.step()
        after(epoch + 1, networks)
    return networks


def growth(model: nn.Module, X: Tensor, y: Tensor, decay: float) -> float:
    weights = list(model.parameters())
    slopes = torch.autograd.grad(-nn.functional.cross_entropy(model(X), y), weights)
    along = sum(float((s * w.detach()).sum()) for s, w in zip(slopes, weights))
    return along / sum(float(w.detach().square().sum()) for w in weights) / decay


def scored(model: nn.Module, data: tuple[Tensor, ...], subsets: Tensor, truth: np.ndarray) -> str:
    """LDS at every temperature."""
    train_set, test_set = TensorDataset(*data[:2]), TensorDataset(*data[2:])
    found = []
    for T in TEMPERATURES:
        explainer = exempla.Explainer(Tempered(model, T), progress=False).fit(train_set)
        found.append(exempla.metrics.lds(explainer.influence(test_set), subsets, truth))
    return " | ".join(f"{value:.3f}" for value in found)


def network_line(name: str, recipe: Recipe, data: tuple[Tensor, ...], subsets: Tensor) -> str:
    X, y, X_test, y_test = data
    truth = np.zeros((SUBSETS, len(X_test)))
    for seed in range(RETRAININGS):
        networks = train(recipe, X, y, subsets, seed)
        with torch.no_grad():
            log_p = torch.log_softmax(networks(X_test.expand(SUBSETS, -1, -1)).double(), -1)
        truth += log_p[:, torch.arange(len(y_test)), y_test].numpy() / RETRAININGS
    moments = {round(recipe.epochs * part / 5) for part in (1, 2, 3, 4, 5)}
    kept: list[nn.Module] = []

    def keep(epoch: int, networks: Many) -> None:
        if epoch in moments:
            kept.append(networks.first())

    train(recipe, X, y, torch.arange(len(X))[None], seed=RETRAININGS, after=keep)
    explainer = exempla.Explainer(kept, progress=False).fit(TensorDataset(X, y))
    five = exempla.metrics.lds(explainer.influence(TensorDataset(X_test, y_test)), subsets, truth)
    rest = growth(kept[-1], X, y, recipe.weight_decay)
    return f"| {name} | {rest:.1f} | {scored(kept[-1], data, subsets, truth)} | {five:.3f} |"


def convex_line(name: str, C: float, data: tuple[Tensor, ...], subsets: Tensor) -> str:
    X, y, X_test, y_test = (array.numpy() for array in data)

    def fit(rows: np.ndarray) -> LogisticRegression:
        share = len(rows) / len(X)  # the penalty of the mean loss stays the same
        return LogisticRegression(C=C / share, max_iter=1000, tol=1e-5).fit(X[rows], y[rows])

    chosen = np.arange(len(y_test)), y_test
    truth = np.stack([fit(s.numpy()).predict_log_proba(X_test)[chosen] for s in subsets])
    full, model = fit(np.arange(len(X))), nn.Linear(X.shape[1], 10)
    state = {"weight": torch.tensor(full.coef_), "bias": torch.tensor(full.intercept_)}
    model.load_state_dict(state)
    return f"| {name} | 1 | {scored(model.eval(), data, subsets, truth)} | – |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a recipe's name")
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        sys.exit("benchmarks.recipes needs EXEMPLA_DATA, the folder with lds_digits.")
    torch.set_num_threads(1)
    arrays = lds_data(Path(os.environ["EXEMPLA_DATA"]) / "lds_digits")
    data = tuple(torch.from_numpy(array) for array in arrays)
    rng = np.random.default_rng(11)
    halves = [rng.choice(len(data[0]), len(data[0]) // 2, replace=False) for _ in range(SUBSETS)]
    subsets = torch.from_numpy(np.stack(halves))
    print("| recipe | growth | " + " | ".join(f"T = {T:g}" for T in TEMPERATURES) + " | five |")
    print("|---" * (len(TEMPERATURES) + 3) + "|")
    for name, recipe in RECIPES.items():
        if options.only in name:
            print(network_line(name, recipe, data, subsets), flush=True)
    for name, C in CONVEX.items():
        if options.only in name:
            print(convex_line(name, C, data, subsets), flush=True)


if __name__ == "__main__":
    main()
