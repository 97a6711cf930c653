"""Three small truths that one core makes in minutes: what retraining on half the data does.

    EXEMPLA_DATA=… python -m benchmarks.sketch_truths --out FOLDER [--only NAME …]

A text classifier, a language model and a convolutional network, each trained on all the examples
and on `SUBSETS` random halves of them. The outcome is the log-likelihood of every test example
under each retrained network. Rules are chosen on the first, and reported on the others.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.truths import data as sets
from benchmarks.truths.networks import make_network
from benchmarks.truths.settings import Setting
from benchmarks.truths.train import State, loaded, train_many

__all__ = ["TRUTHS", "SketchTruth", "load", "make_model"]

SUBSETS, TRAIN, TEST, TOGETHER = 80, 800, 80, 20
CHOSEN_ON = "sst2-transformer"
SETTINGS = {
    "sst2-transformer": Setting(
        "sst2-transformer", "choose", "sst2", "transformer", "adam", 2e-3, 0.0, 8
    ),
    "enron-language": Setting(
        "enron-language", "report", "enron", "language", "adam", 3e-3, 0.0, 8
    ),
    "digits-cnn": Setting("digits-cnn", "report", "digits", "cnn", "sgd", 0.02, 0.0, 30),
}
TRUTHS = tuple(SETTINGS)


class Language(nn.Module):
    """Words predicted from the words before them: one block of causal attention."""

    def __init__(self, words: int, length: int, width: int = 24) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        h = self.words(x) + self.places(torch.arange(length, device=x.device))
        a = self.norm1(h)
        q, k, v = self.query(a), self.key(a), self.value(a)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(length, length, device=x.device).triu(1)
        h = h + self.out(torch.softmax(scores - 1e4 * later, -1) @ v)
        h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.head(self.norm3(h))


@dataclass(frozen=True)
class SketchTruth:
    """Data, the network trained on all of it, and what retraining on halves gave."""

    name: str
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    words: int
    state: State
    subsets: np.ndarray
    """(subsets, examples) mask of the rows trained on."""
    outcomes: np.ndarray
    """(subsets, tests) log-likelihoods."""

    def model(self) -> nn.Module:
        return loaded(make_model(self.name, self.X, self.y, self.words), self.state, "cpu")

    @property
    def likelihood(self) -> str:
        return "tokens" if self.y.ndim == 2 else "categorical"


def make_model(name: str, X: Tensor, y: Tensor, words: int) -> Callable[[], nn.Module]:
    kind = SETTINGS[name].network
    if kind == "language":
        return lambda: Language(words, X.shape[1])
    classes = int(y.max()) + 1
    return lambda: make_network(kind, tuple(X.shape[1:]), classes, words)


def log_prob(outputs: Tensor, y: Tensor) -> Tensor:
    """Of each example; −100 marks a position without a label."""
    if y.ndim == 1:
        return -F.cross_entropy(outputs, y, reduction="none")
    each = F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none", ignore_index=-100)
    return -each.view_as(y).sum(1)


def data_of(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    made = getattr(sets, SETTINGS[name].data)(Path(os.environ["EXEMPLA_DATA"]))
    words = int(made.get("words", 0))
    X, X_test = torch.from_numpy(made["X"][:TRAIN]), torch.from_numpy(made["X_test"][:TEST])
    y, y_test = torch.from_numpy(made["y"][:TRAIN]), torch.from_numpy(made["y_test"][:TEST])
    if SETTINGS[name].network == "language":  # a word and the next; padding has no label
        y, y_test = (torch.where(x[:, 1:] > 0, x[:, 1:], -100) for x in (X, X_test))
        X, X_test = X[:, :-1], X_test[:, :-1]
    return X, y, X_test, y_test, words


def make(name: str) -> dict[str, Any]:
    X, y, X_test, y_test, words = data_of(name)
    rng, count = np.random.default_rng(1), len(X)
    halves = np.stack([np.sort(rng.permutation(count)[: count // 2]) for _ in range(SUBSETS)])
    build, setting = make_model(name, X, y, words), SETTINGS[name]
    loss = lambda outputs, labels: -log_prob(outputs, labels).mean()  # noqa: E731
    ((state,),) = train_many(build, setting, X, y, torch.arange(count)[None], [0], loss=loss)
    mask = np.zeros((SUBSETS, count), bool)
    np.put_along_axis(mask, halves, True, 1)
    outcomes = []
    for start in range(0, SUBSETS, TOGETHER):
        rows = torch.from_numpy(halves[start : start + TOGETHER])
        seeds = list(range(1000 + start, 1000 + start + len(rows)))
        for (one,) in train_many(build, setting, X, y, rows, seeds, loss=loss):
            with torch.no_grad():
                outcomes.append(log_prob(loaded(build, one, "cpu")(X_test), y_test).numpy())
        print(name, start + len(rows), "of", SUBSETS, flush=True)
    model = loaded(build, state, "cpu")
    with torch.no_grad():
        print(name, "train", float(log_prob(model(X), y).mean()), flush=True)
        print(name, "test", float(log_prob(model(X_test), y_test).mean()), flush=True)
    arrays = {"subsets": mask, "outcomes": np.stack(outcomes)}
    return arrays | {f"state/{k}": v.numpy() for k, v in state.items()}


def load(folder: Path, name: str) -> SketchTruth:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        parts = {k: stored[k] for k in stored.files}
    state = {
        k.removeprefix("state/"): torch.from_numpy(v)
        for k, v in parts.items()
        if k.startswith("state/")
    }
    X, y, X_test, y_test, words = data_of(name)
    return SketchTruth(
        name, X, y, X_test, y_test, words, state, parts["subsets"], parts["outcomes"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=TRUTHS, default=list(TRUTHS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        np.savez_compressed(given.out / f"{name}.npz", **make(name))


if __name__ == "__main__":
    main()
