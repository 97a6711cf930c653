"""Scores written out a few rows at a time: memory stays bounded, and a processor's cache warm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from exempla.factors import Factors

__all__ = ["gram_in_pieces", "norms_in_pieces", "pieces", "rows_at_once"]

PIECE = 2**26
"""Numbers written out at one time on a GPU; a 16th of that elsewhere."""
GRAM_TIMES = 8
"""… but so many times as much for a Gram matrix, where each piece is written out again for every
other: with pieces of one row that would cost more than the products."""


def pieces(rows: int, width: int, like: Tensor, times: int = 1) -> list[np.ndarray]:
    """Consecutive rows, so many at a time that rows × width stays within bounds."""
    step = rows_at_once(width, like, times)
    return [np.arange(i, min(i + step, rows)) for i in range(0, rows, step)]


def rows_at_once(width: int, like: Tensor, times: int = 1) -> int:
    """How many rows of this width are written out at one time."""
    limit = PIECE if like.is_cuda else times * PIECE // 16
    return max(1, limit // width)


def norms_in_pieces(factors: Factors, width: int) -> Tensor:
    """Squared norms of the scores."""
    parts = pieces(len(factors), width, factors.g)
    some = [factors] if len(parts) == 1 else (factors.take(p) for p in parts)
    return torch.cat([f.dense().square().sum(1) for f in some])


def gram_in_pieces(one: Factors, other: Factors, width: int) -> Tensor:
    """Dot products of the scores."""
    rows = []
    for left in pieces(len(one), width, one.g, GRAM_TIMES):
        some = one.take(left).dense()
        right = pieces(len(other), width, one.g, GRAM_TIMES)
        rows.append(torch.cat([some @ other.take(p).dense().T for p in right], 1))
    return torch.cat(rows)
