"""Greedy picks inside a pool, from the products of its rows with each other."""

from __future__ import annotations

from typing import Any

import torch

from exempla.selection.device.state import State, scores
from exempla.selection.device.sweep import fused

__all__ = ["guess_in"]


def guess_in(state: State, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """b picks in a pool (G, c, n, floor, scale), from its first row on, and the one after them.

    Returns the positions (b + 1,), what was there (b + 1, 3: c, n, whether it adds anything), and
    the products of each new direction with all pool rows (b, size). G is FFᵀ − (FQᵀ)(FQᵀ)ᵀ.
    """
    if fused(state.F):
        from exempla.selection.device.fused import fused_guess

        return fused_guess(state.rule, pool, b)
    return plain_guess(state.rule, pool, b)


def plain_guess(rule: Any, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """The same in torch: the fallback, and the reference for tests."""
    G, c, n, floor, scale = pool
    V = torch.zeros((b, len(c)), dtype=c.dtype, device=c.device)
    at, taken = [], []
    j = torch.zeros(1, dtype=torch.int64, device=c.device)
    for s in range(b + 1):
        if s:
            alive = torch.where(n > floor, scores(rule, c, n, scale), -torch.inf)
            j = torch.argmax(alive, dim=0, keepdim=True)
        cj, nj = c[j], n[j]
        fresh = nj > floor[j]
        at.append(j)
        taken.append(torch.cat([cj, nj, fresh.double()]))
        if s < b:
            root = torch.sqrt(torch.where(fresh, nj, 1.0))
            before = V[:s].index_select(1, j)[:, 0] @ V[:s]
            v = torch.where(fresh, (G.index_select(0, j)[0] - before) / root, 0.0)
            V[s] = v
            c = c - torch.where(fresh, cj / root, 0.0) * v
            n = (n - v * v).index_fill(0, j, -torch.inf)
    return torch.cat(at), torch.stack(taken), V
