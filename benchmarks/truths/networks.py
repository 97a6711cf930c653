"""The networks of the suite: a few thousand to a few ten thousand parameters each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["make_network"]


def mlp(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
        nn.Linear(32, classes),
    )  # fmt: skip


class Cnn(nn.Module):
    """Two convolutions and two linear layers, for 8 × 8 or 14 × 14 pictures."""

    def __init__(self, side: int, classes: int, channels: int = 8, hidden: int = 48) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.fc1 = nn.Linear(2 * channels * (side // 4) ** 2, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    """conv, norm, relu, conv, norm, plus the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Residual(nn.Module):
    """A stem and two residual blocks with batch norm."""

    def __init__(self, classes: int, channels: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.block1, self.block2 = Block(channels), Block(channels)
        self.fc = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.bn(self.stem(x))), 2)
        x = F.avg_pool2d(self.block1(x), 2)
        x = self.block2(x)
        side = x.shape[-1] // 2
        return self.fc(F.avg_pool2d(x[..., : 2 * side, : 2 * side], side).flatten(1))


class Transformer(nn.Module):
    """Word embeddings, one block of self-attention, the mean over words, a linear layer."""

    def __init__(self, words: int, length: int, classes: int, width: int = 24) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        here = (x > 0).to(torch.float32)  # 0 is padding
        h = self.words(x) + self.places(torch.arange(x.shape[-1], device=x.device))
        a = self.norm1(h)
        q, k, v = self.query(a), self.key(a), self.value(a)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores - 1e4 * (1 - here)[:, None, :]
        h = h + self.out(torch.softmax(scores, -1) @ v)
        h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.head((h * here[..., None]).sum(1) / here.sum(1, keepdim=True).clamp_min(1))


def make_network(kind: str, shape: tuple[int, ...], classes: int, words: int = 0) -> nn.Module:
    """A fresh network for examples of this shape."""
    if kind == "mlp":
        return mlp(int(torch.tensor(shape).prod()), classes)
    if kind == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.tensor(shape).prod()), classes))
    if kind == "cnn":
        return Cnn(shape[-1], classes)
    if kind == "wide cnn":
        return Cnn(shape[-1], classes, channels=16, hidden=128)
    if kind == "residual":
        return Residual(classes)
    if kind == "transformer":
        return Transformer(words, shape[0], classes)
    raise ValueError(f"no network called {kind!r}")
