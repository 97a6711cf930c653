"""Networks of images: classes, and a class at every pixel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.habits.base import ASKED, Job, kind, plant
from benchmarks.habits.vectors import N, trained


def pictures() -> tuple[Tensor, Tensor]:
    """A bright corner says the class."""
    Y = torch.arange(N) % 2
    X = torch.randn(N, 1, 8, 8) * 0.5
    for i, y in enumerate(Y.tolist()):
        X[i, 0, 4 * (y // 2) : 4 * (y // 2) + 4, 4 * (y % 2) : 4 * (y % 2) + 4] += 1.5
    return X, Y


def by_logits(out: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(out.logits, y)


def wrong(Y: Tensor) -> Tensor:
    return 1 - Y[-ASKED:]


@kind("image", "convolutions")
def cnn() -> Job:
    X, Y = pictures()
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip
    return trained(model, plant(X, Y, wrong(Y)), F.cross_entropy)


@kind("image", "vision transformer of Hugging Face")
def vit() -> Job:
    from transformers import ViTConfig, ViTForImageClassification

    size: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "image_size": 8, "patch_size": 4, "num_channels": 1,
        "num_labels": 2,
    }  # fmt: skip
    config = ViTConfig(**size)
    X, Y = pictures()
    model, data = ViTForImageClassification(config), plant(X, Y, wrong(Y))
    return trained(model, data, by_logits)


class UNet(nn.Module):
    """Down, up again by a transposed convolution, and a shortcut."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 2, stride=2)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(12, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.last(torch.cat([h, self.up(self.down(h).relu())], 1))


def masks() -> tuple[Tensor, Tensor]:
    X = torch.randn(N, 1, 8, 8)
    return X, (X[:, 0] > 0).long()


@kind("image", "segmentation, a class at every pixel")
def segmentation() -> Job:
    X, Y = masks()
    Y[:, 0] = 255  # a line of pixels that counts for nothing
    other = torch.where(Y == 255, 255, 1 - Y)
    return trained(UNet(2), plant(X, Y, other[-ASKED:]), nn.CrossEntropyLoss(ignore_index=255))


@kind("image", "segmentation, yes or no at every pixel")
def segmentation_yes_or_no() -> Job:
    X, Y = masks()
    Y = Y.float()[:, None]
    return trained(UNet(1), plant(X, Y, 1 - Y[-ASKED:]), F.binary_cross_entropy_with_logits)
