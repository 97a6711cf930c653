"""Where rows are worked on: beside the model if its GPU has room, else where they are."""

from __future__ import annotations

import numpy as np

from exempla.embedding import Embedding
from exempla.linalg import to_numpy
from exempla.types import Array

__all__ = ["beside", "near_the_model", "products"]


def beside(rows: Array, others: Array) -> Array:
    """The rows where the others are: few rows move, many stay."""
    return rows if isinstance(rows, np.ndarray) else rows.to(others.device)


def products(many: Array, few: Array) -> np.ndarray:
    """Dot products of the many rows with the few, (many, few), taken where the many are."""
    return to_numpy(many @ beside(few, many).T)


def near_the_model(embedding: Embedding) -> Array:
    """The training rows on the model's GPU, if it has one with room for them and their copy."""
    rows, device = embedding.rows, getattr(embedding.oracle, "device", None)
    if isinstance(rows, np.ndarray) or getattr(device, "type", "cpu") != "cuda":
        return rows
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return rows.to(device) if 3 * rows.nbytes < free else rows
