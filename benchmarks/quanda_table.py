"""Why this prediction? exempla beside TracIn, TRAK and kronfluence on the metrics of quanda 0.5.

A small network on the digits of scikit-learn, trained anew for every setting and seed. The question
is always about one test prediction, and all attributions are for the predicted class:

- *class*: of the first five training images, the share of the predicted class.
- *cardinality*: distinct first images over the number of test images. Below 1, the same images come
  first for many predictions.
- *shortcut*: a bright corner is added to half the training images of class 0. The test images have
  the corner, belong to another class and are taken for a 0. Average precision of the images with
  the corner.
- *mixed*: patches of a photograph, labelled 7, are mixed into the training set. Average precision
  of the patches for test patches that are taken for a 7.
- *subclass*: the ten digits in five classes of two; the share of the same digit among the first
  five.

It runs in an environment of its own (Python 3.11): quanda 0.5, captum, kronfluence, traker and
exempla with torch, NumPy 2 and omegaconf. Where torchvision comes without its compiled operators,
they are declared here.

    python -m benchmarks.quanda_table        # about ten minutes on one core
"""

from __future__ import annotations

import contextlib
import copy
import csv
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_image

for _name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # torchvision is complete
        torch.library.define(f"torchvision::{_name}", "(Tensor a, Tensor b, float c) -> Tensor")

from quanda.explainers.wrappers import TRAK, CaptumTracInCP, Kronfluence  # noqa: E402
from quanda.metrics.downstream_eval import (  # noqa: E402
    ClassDetectionMetric,
    ShortcutDetectionMetric,
    SubclassDetectionMetric,
)
from quanda.metrics.heuristics import MixedDatasetsMetric, TopKCardinalityMetric  # noqa: E402

import exempla  # noqa: E402

OUT = Path(os.environ.get("OUT", "docs/experiments"))
TRAIN, TEST, SEEDS = 800, 60, 5
SHORTCUT_CLASS, PATCH_CLASS, PATCHES = 0, 7, 60
Tensors = tuple[torch.Tensor, torch.Tensor]


def network(classes: int) -> torch.nn.Module:
    """Return a small convolutional network for 8 × 8 images."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def trained(data: Tensors, classes: int, seed: int) -> torch.nn.Module:
    """Train the network for thirty epochs."""
    torch.manual_seed(seed)
    model = network(classes)
    step = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    for _ in range(30):
        for part in torch.randperm(len(data[0])).split(64):
            step.zero_grad()
            torch.nn.functional.cross_entropy(model(data[0][part]), data[1][part]).backward()
            step.step()
    return model.eval()


def attributions(
    model: torch.nn.Module, train: Tensors, test: torch.Tensor, said: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return one (test, train) matrix per method, for the predicted classes."""
    data = torch.utils.data.TensorDataset(*train)
    explainer = exempla.Explainer(model, likelihood="categorical", progress=False).fit(train)
    found = {
        "exempla, relative": explainer.influence((test, said), relative=True).T,
        "exempla, influence": explainer.influence((test, said)).T,
    }
    folder = tempfile.mkdtemp()
    torch.save(model.state_dict(), f"{folder}/model.pt")
    more: Any = {"batch_size": 64}
    tracin = CaptumTracInCP(
        copy.deepcopy(model), data, [f"{folder}/model.pt"],
        checkpoints_load_func=lambda m, path: m.load_state_dict(torch.load(path)) and 1.0, **more,
    )  # fmt: skip
    found["TracIn"] = tracin.explain(test, said)
    trak = TRAK(copy.deepcopy(model), data, "net", cache_dir=f"{folder}/trak", proj_dim=256, **more)
    found["TRAK"] = trak.explain(test, said)
    few: Any = {"cache_dir": f"{folder}/kron", "batch_size": min(10, len(test))}
    kron = Kronfluence(copy.deepcopy(model), _task(), data, **few)
    found["kronfluence"] = kron.explain(test, said)
    mine, other = _gradients(model, train[0], train[1]), _gradients(model, test, said)
    found["gradient cosine"] = other @ mine.T
    found["random"] = torch.rand(len(test), len(train[0]))
    return {name: torch.as_tensor(np.asarray(values.detach() if hasattr(values, "detach")
            else values), dtype=torch.float32) for name, values in found.items()}  # fmt: skip


def _gradients(model: torch.nn.Module, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the gradients of single losses as unit rows."""
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, values, (x[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, X, y)
    flat = torch.cat([values.flatten(1) for values in found.values()], dim=1)
    return torch.nn.functional.normalize(flat.detach(), dim=1)


def _task() -> Any:
    from kronfluence.task import Task

    class Classification(Task):
        def compute_train_loss(self, batch: Any, model: Any, sample: bool = False) -> Any:
            logits = model(batch[0])
            labels = batch[1]
            if sample:
                labels = torch.multinomial(logits.detach().softmax(1), 1).flatten()
            return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: Any) -> Any:
            return self.compute_train_loss(batch, model)

    return Classification()


def digits(seed: int) -> tuple[Tensors, Tensors]:
    """Return a random training and test part."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    images = torch.tensor(X[order].reshape(-1, 1, 8, 8) / 16, dtype=torch.float32)
    labels = torch.tensor(y[order])
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def with_corner(images: torch.Tensor) -> torch.Tensor:
    """Return images with a bright lower right corner."""
    images = images.clone()
    images[:, :, 6:, 6:] = 1.0
    return images


def patches(seed: int, count: int) -> torch.Tensor:
    """Return random patches of a photograph, 8 × 8."""
    photo = load_sample_image("flower.jpg").mean(2)[::4, ::4] / 255
    rng = np.random.default_rng(seed)
    places = zip(
        rng.integers(0, photo.shape[0] - 8, count), rng.integers(0, photo.shape[1] - 8, count)
    )
    cut = np.stack([photo[a : a + 8, b : b + 8] for a, b in places])
    return torch.tensor(cut[:, None], dtype=torch.float32)


def clean(seed: int) -> dict[tuple[str, str], float]:
    """Class detection and cardinality."""
    train, (X, _) = digits(seed)
    model, test = trained(train, 10, seed), X[:TEST]
    said = model(test).argmax(1)
    return _scores(
        attributions(model, train, test, said),
        {
            "class": lambda: ClassDetectionMetric(model, _set(train)),
            "cardinality": lambda: TopKCardinalityMetric(model, _set(train)),
        },
        {"class": (said,), "cardinality": ()},
    )


def shortcut(seed: int) -> dict[tuple[str, str], float]:
    """Training images that share a shortcut with the test image."""
    train, (X, y) = digits(seed)
    zeros = torch.nonzero(train[1] == SHORTCUT_CLASS).flatten()
    marked = zeros[: len(zeros) // 2]
    images = train[0].clone()
    images[marked] = with_corner(images[marked])
    train = images, train[1]
    model = trained(train, 10, seed)
    other = with_corner(X[y != SHORTCUT_CLASS])
    test = other[model(other).argmax(1) == SHORTCUT_CLASS][:TEST]
    said = torch.full((len(test),), SHORTCUT_CLASS)
    metric: Any = {"shortcut_indices": marked, "shortcut_cls": SHORTCUT_CLASS}
    plain: Any = {"filter_by_non_shortcut": False, "filter_by_shortcut_pred": False}
    return _scores(
        attributions(model, train, test, said),
        {"shortcut": lambda: ShortcutDetectionMetric(model, _set(train), **metric, **plain)},
        {"shortcut": ()},
    )


def mixed(seed: int) -> dict[tuple[str, str], float]:
    """Training patches for test patches."""
    train, _ = digits(seed)
    train = (
        torch.cat([train[0], patches(seed, PATCHES)]),
        torch.cat([train[1], torch.full((PATCHES,), PATCH_CLASS)]),
    )
    model, test = trained(train, 10, seed), patches(100 + seed, 2 * TEST)
    test = test[model(test).argmax(1) == PATCH_CLASS][:TEST]
    said = torch.full((len(test),), PATCH_CLASS)
    added = (torch.arange(TRAIN + PATCHES) >= TRAIN).int()
    return _scores(
        attributions(model, train, test, said),
        {"mixed": lambda: MixedDatasetsMetric(model, _set(train), added)},
        {"mixed": ()},
    )


def subclass(seed: int) -> dict[tuple[str, str], float]:
    """Training images of the same digit, where the model knows pairs of digits only."""
    train, (X, y) = digits(seed)
    model = trained((train[0], train[1] // 2), 5, seed)
    test, digit = X[:TEST], y[:TEST]
    said = model(test).argmax(1)
    return _scores(
        attributions(model, (train[0], train[1] // 2), test, said),
        {"subclass": lambda: SubclassDetectionMetric(model, _set(train), train[1])},
        {"subclass": (digit,)},
    )


def _set(data: Tensors) -> torch.utils.data.Dataset:
    return torch.utils.data.TensorDataset(*data)


def _scores(
    found: dict[str, torch.Tensor],
    metrics: dict[str, Callable[[], Any]],
    given: dict[str, tuple[Any, ...]],
) -> dict[tuple[str, str], float]:
    out = {}
    for method, matrix in found.items():
        for name, make in metrics.items():
            metric = make()
            metric.update(matrix, *given[name])
            out[method, name] = float(metric.compute()["score"])
    return out


def run() -> None:
    """Write docs/experiments/quanda.csv: one line per setting, method and seed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    lines = []
    for seed in range(SEEDS):
        for setting in (clean, shortcut, mixed, subclass):
            for (method, metric), value in setting(seed).items():
                lines.append({"metric": metric, "method": method, "seed": seed, "value": value})
                print(lines[-1], flush=True)
    with open(OUT / "quanda.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["metric", "method", "seed", "value", "commit", "date"])
        writer.writeheader()
        for line in lines:
            writer.writerow(line | {"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}"})


if __name__ == "__main__":
    run()
