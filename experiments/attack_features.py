"""The network of the attack experiment: frozen features of other digits, a top layer to train."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.paper_cnn import Digits, PaperCNN, Recipe, as_images, predict, train_cnn

__all__ = ["TopLayer", "feature_problem"]

DECAY = 1e-3
"""λ of the top layer: loss = mean cross-entropy + λ/2·‖θ‖². Being known, it is also the damping."""
OTHERS = np.array([0, 1, 2, 3, 5, 6, 7, 8])


class TopLayer(nn.Module):
    """Frozen features and a linear layer of two classes."""

    def __init__(self, body: PaperCNN) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc1 = body.conv1, body.conv2, body.fc1
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.top = nn.Linear(body.fc1.out_features, 2).to(body.fc1.weight.device)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.relu(self.fc1(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.features(x))


def fit(module: TopLayer, X: Tensor, y: Tensor, _: Any) -> TopLayer:
    """Train the top layer to its optimum."""
    with torch.no_grad():
        inputs = module.features(X)
        module.top.weight.zero_()
        module.top.bias.zero_()
    optimizer = torch.optim.LBFGS(
        module.top.parameters(),
        max_iter=200,
        tolerance_grad=1e-7,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        squares = module.top.weight.square().sum() + module.top.bias.square().sum()
        loss = F.cross_entropy(module.top(inputs), y) + DECAY / 2 * squares
        loss.backward()
        return loss

    optimizer.step(closure)
    return module.eval()


def feature_problem(digits: Digits, fast: bool, device: str) -> tuple[Any, ...]:
    """The fields of an attack problem: name, model, train, test, sets, options, fit."""
    from experiments.attack import draw_sets, fours_and_nines

    torch.backends.cudnn.allow_tf32 = False
    body = pretrained(digits, fast, device)
    n, per_set, sets = (200, 2, 1) if fast else (500, 5, 4)
    rng = np.random.default_rng(1)
    X, y = fours_and_nines(digits.train_x, digits.train_y)
    chosen = rng.permutation(len(X))[:n]
    train = images(X[chosen], y[chosen], device)
    test = images(*fours_and_nines(digits.test_x, digits.test_y), device)
    model = fit(TopLayer(body), *train, None)
    labels = test[1].cpu().numpy()
    right = np.flatnonzero(predict(model, test[0]) == labels)
    print(f"top layer on frozen features: accuracy {len(right) / len(labels):.4f}", flush=True)
    found = draw_sets(rng, right, labels, per_set, sets)
    return "network", model, train, test, found, {"damping": DECAY}, fit


def pretrained(digits: Digits, fast: bool, device: str) -> PaperCNN:
    """The paper's network, trained on the eight other digits."""
    mine = np.flatnonzero(np.isin(digits.train_y, OTHERS))[: 1500 if fast else None]
    codes = torch.from_numpy(np.searchsorted(OTHERS, digits.train_y[mine])).to(device)
    small = {"channels": (6, 8), "hidden": 64, "epochs": 3, "batch": 50} if fast else {"epochs": 4}
    recipe = Recipe(classes=len(OTHERS), graphs=False, **small)  # type: ignore[arg-type]
    x = as_images(digits.train_x[mine], device)
    body = train_cnn(x, codes, torch.arange(len(mine), device=device), 0, recipe)
    return body.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]


def images(x: np.ndarray, y: np.ndarray, device: str) -> tuple[Tensor, Tensor]:
    return (
        torch.from_numpy(x.astype(np.float32))[:, None].to(device),
        torch.from_numpy(y).to(device),
    )
