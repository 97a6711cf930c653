"""`nn.MultiheadAttention` in the open: the same sums, with each projection a plain Linear.

torch computes the three input projections inside one function, where their outputs cannot be
seen. Here each is a Linear with the packed weight as it stands, of which a third is used; when
query, key and value are one tensor (self-attention) a single one serves all three.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["attention"]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """torch's multi_head_attention_forward; None if a rarer option is asked for."""
    rare = (bias_k, bias_v, static_k, static_v)
    if any(t is not None for t in rare) or add_zero_attn or query.ndim != 3 or training:
        return None
    if use_separate_proj_weight or in_proj_weight is None:
        return None
    length, batch, width = query.shape

    def heads(t: Tensor) -> Tensor:  # (L, N, E) → (N, heads, L, E/heads)
        return t.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)

    projected: dict[int, tuple[Tensor, ...]] = {}
    for source in (query, key, value):
        if id(source) not in projected:
            packed = F.linear(source, in_proj_weight, in_proj_bias)
            projected[id(source)] = packed.chunk(3, dim=-1)
    sources = enumerate((query, key, value))
    q, k, v = (heads(projected[id(source)][i]) for i, source in sources)
    scores = q @ k.transpose(2, 3) / math.sqrt(width // num_heads)
    scores = scores + mask(scores, attn_mask, key_padding_mask, num_heads)
    weights = scores.softmax(-1)
    mixed = (weights @ v).permute(2, 0, 1, 3).reshape(length, batch, -1)
    out = F.linear(mixed, out_proj_weight, out_proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def mask(scores: Tensor, attn_mask: Any, key_padding_mask: Any, heads: int) -> Tensor | float:
    """What is added to the scores: −∞ where a boolean mask forbids, else the mask's own value."""
    total: Tensor | float = 0.0
    if attn_mask is not None:
        m = as_float(attn_mask, scores)
        total = m.unflatten(0, (-1, heads)) if m.ndim == 3 else m
    if key_padding_mask is not None:
        total = total + as_float(key_padding_mask, scores)[:, None, None, :]
    return total


def as_float(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
