"""Data sets of single examples, as users write them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["Items", "Noisy"]


class Items(Dataset):
    """The rows of X with their labels, one at a time."""

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        self.X, self.Y = X, Y

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.X[i], int(self.Y[i])


class Noisy(Items):
    """Other inputs whenever they are read."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(i)
        return x + 0.01 * torch.randn_like(x), y
