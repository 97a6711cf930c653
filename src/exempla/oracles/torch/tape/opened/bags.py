"""`nn.EmbeddingBag` in the open: the rows of the table looked up, then summed or averaged."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

__all__ = ["embedding_bag"]


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> Tensor | None:
    """torch's embedding_bag for bags of one size; None if a rarer option is asked for."""
    rare = offsets is not None or max_norm is not None or scale_grad_by_freq
    if rare or input.ndim != 2 or mode not in ("sum", "mean") or per_sample_weights is not None:
        return None
    rows = F.embedding(input, weight, padding_idx)
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    counts = (input != padding_idx % weight.shape[0])[:, :, None].to(rows.dtype)
    total = (rows * counts).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp_min(1)
