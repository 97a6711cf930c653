"""The paper's network for MNIST, a reader of the idx files, and a trainer fast enough to repeat.

Two 5×5 convolutions, each with 2×2 pooling, a fully connected layer of 1024, dropout, softmax:
3 274 634 parameters. On a GPU the whole training set lives on the device, arithmetic is bfloat16
where autocast allows it, and one optimisation step is captured as a CUDA graph and replayed.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Digits", "PaperCNN", "Recipe", "load_mnist", "predict", "train_cnn"]

FILES = {
    "train_x": "train-images-idx3-ubyte.gz",
    "train_y": "train-labels-idx1-ubyte.gz",
    "test_x": "t10k-images-idx3-ubyte.gz",
    "test_y": "t10k-labels-idx1-ubyte.gz",
}
State = dict[str, Tensor]

WARM_UP = 3
"""Ordinary steps before one is captured, as CUDA graphs ask for."""


class PaperCNN(nn.Module):
    """The network; smaller widths make a quick stand-in of the same shape."""

    def __init__(
        self, channels: tuple[int, int] = (32, 64), hidden: int = 1024, classes: int = 10
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels[0], 5, padding=2)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5, padding=2)
        self.fc1 = nn.Linear(49 * channels[1], hidden)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.out(self.drop(x))


@dataclass(frozen=True)
class Digits:
    """MNIST as bytes: images (n, 28, 28) and labels (n,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    def head(self, train: int, test: int) -> Digits:
        """The first rows of each part, for a quick look."""
        return Digits(
            self.train_x[:train], self.train_y[:train], self.test_x[:test], self.test_y[:test]
        )


def load_mnist(folder: Path) -> Digits:
    """The four idx files of MNIST."""
    missing = [name for name in FILES.values() if not (folder / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)}: set EXEMPLA_DATA to a folder whose mnist/ holds "
            "the four original files."
        )
    return Digits(**{part: read_idx(folder / name) for part, name in FILES.items()})


def read_idx(path: Path) -> np.ndarray:
    """An idx file: two zero bytes, type, number of dimensions, sizes, then the bytes."""
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def as_images(x: np.ndarray, device: Any = "cpu") -> Tensor:
    """(n, 1, 28, 28) between 0 and 1."""
    return torch.from_numpy(x.astype(np.float32) / 255.0)[:, None].to(device)


@dataclass(frozen=True)
class Recipe:
    """How every model of an experiment is trained."""

    epochs: int = 10
    batch: int = 500
    rate: float = 2e-3
    channels: tuple[int, int] = (32, 64)
    hidden: int = 1024
    classes: int = 10
    graphs: bool = True
    checkpoints: int = 5
    """Moments of a training whose weights are kept, where the network is to be explained."""


def train_cnn(
    x: Tensor, y: Tensor, keep: Tensor, seed: int, recipe: Recipe, states: list[State] | None = None
) -> PaperCNN:
    """Train on the rows `keep` (positions, on the data's device) from a fresh start.

    `states` receives the weights at `recipe.checkpoints` evenly spaced moments, the last included.
    """
    torch.manual_seed(seed)
    model = PaperCNN(recipe.channels, recipe.hidden, recipe.classes).to(x.device)
    batches = Batches(keep, recipe, seed)
    if states is not None:
        batches.at_checkpoint = lambda: states.append(weights_of(model))
    if x.is_cuda:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        train_on_gpu(model, x, y, batches, recipe)
    else:
        train_plainly(model, x, y, batches, recipe)
    return model.eval()


class Batches:
    """Positions of each batch of each epoch, reshuffled, the same for the same seed."""

    def __init__(self, keep: Tensor, recipe: Recipe, seed: int) -> None:
        self.keep, self.batch = keep, min(recipe.batch, len(keep))
        self.per_epoch, self.epochs = len(keep) // self.batch, recipe.epochs
        self.total = self.per_epoch * self.epochs
        self.checkpoints = recipe.checkpoints
        self.at_checkpoint: Callable[[], None] = lambda: None
        self.generator = torch.Generator(keep.device).manual_seed(seed + 1000)

    def __iter__(self) -> Any:
        for epoch in range(self.epochs):
            order = torch.randperm(
                len(self.keep), generator=self.generator, device=self.keep.device
            )
            rows = self.keep[order]
            for i in range(self.per_epoch):
                yield rows[i * self.batch : (i + 1) * self.batch]
                # asked for the next batch: the step on this one is done
                if self.is_checkpoint(epoch * self.per_epoch + i):
                    self.at_checkpoint()

    def rate(self, step: int, peak: float) -> float:
        """Up over the first tenth, then down to nothing."""
        rise = max(1, self.total // 10)
        return peak * min((step + 1) / rise, (self.total - step) / max(1, self.total - rise))

    def is_checkpoint(self, step: int) -> bool:
        """Whether one of the evenly spaced checkpoints follows this step."""
        return (step + 1) * self.checkpoints // self.total > step * self.checkpoints // self.total


def train_plainly(model: PaperCNN, x: Tensor, y: Tensor, batches: Batches, recipe: Recipe) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    model.train()
    for step, rows in enumerate(batches):
        optimizer.param_groups[0]["lr"] = batches.rate(step, recipe.rate)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def train_on_gpu(model: PaperCNN, x: Tensor, y: Tensor, batches: Batches, recipe: Recipe) -> None:
    """The same steps in bfloat16; after a few of them, one is captured and replayed."""
    rate = torch.tensor(recipe.rate, device=x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=True)
    optimizer.param_groups[0]["lr"] = rate  # the very tensor that is set before each replay
    rows = torch.zeros(batches.batch, dtype=torch.long, device=x.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        images = x[rows].contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(model(images).float(), y[rows])
        loss.backward()
        optimizer.step()

    model.train()
    rates = torch.tensor(
        [batches.rate(i, recipe.rate) for i in range(batches.total)], device=x.device
    )
    graph: Any = None
    side = torch.cuda.Stream()
    for i, chosen in enumerate(batches):
        rows.copy_(chosen)
        rate.copy_(rates[i])
        if graph is not None:
            graph.replay()
        elif not recipe.graphs:
            step()
        elif i < WARM_UP:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
        else:
            optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            graph.replay()  # capturing only records: this batch is still to be learnt
    torch.cuda.synchronize()


def weights_of(model: nn.Module) -> State:
    """A copy of the weights in main memory."""
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
    }


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, batch: int = 2000) -> np.ndarray:
    """Predicted classes, in full precision."""
    model.eval()
    return torch.cat([model(part).argmax(1) for part in x.split(batch)]).cpu().numpy()
