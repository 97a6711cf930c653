"""Greedy picks inside a pool, from its rows' products, and what other rows would have to reach."""

from __future__ import annotations

from typing import Any

import torch

from exempla.selection.device.state import SPARE, State, scores
from exempla.selection.ties import TIE

__all__ = ["guess_in", "mark"]


def guess_in(state: State, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """b picks in a pool (G, c, n, floor, scale), from its first row on, and the one after them.

    Returns the positions (b + 1,), what was there (b + 1, 3: c, n, whether it adds anything), and
    the products of each new direction with all pool rows (b, size). G is FFᵀ − (FQᵀ)(FQᵀ)ᵀ.
    """
    if state.parts:
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


def mark(state: State, taken: Any, V: Any, picks: Any, said: Any) -> tuple[Any, Any]:
    """What the guessed steps are, and what other rows would have to reach.

    `taken` as from `guess_in`, V (b, b) its products with the picks, `said` as in `single`. Returns
    marks (5, b + 1): coefficients; bars for the pick after each step; slacks of c and of n; whether
    this and all before it have anything new. And the block (b, b) of L.
    """
    if state.parts:
        from exempla.selection.device.fused import fused_mark

        return fused_mark(state, taken, V, picks, said)
    return plain_mark(state, taken, V, picks, said)


def plain_mark(state: State, taken: Any, V: Any, picks: Any, said: Any) -> tuple[Any, Any]:
    """The same in torch: the fallback, and the reference for tests."""
    b = len(V)
    c, n, fresh = taken.T
    valid = torch.cumprod(fresh, 0)
    root = torch.sqrt(torch.where(valid > 0, n, 1.0))
    coefs = torch.where(valid > 0, c / root, 0.0)
    block = torch.tril(V.T, -1) * valid[:b, None] + torch.diag(root[:b])
    norms2 = state.norms2[picks]
    sizes = c.abs() - SPARE * state.target_norm * torch.sqrt(norms2)
    least = scores(state.rule, torch.clamp(sizes, min=0.0), n + SPARE * norms2, state.scale[picks])
    bars = torch.where(valid > 0, least * (1 - TIE), torch.inf).roll(-1)
    drift = said[3] + torch.cumsum(coefs.abs(), 0)
    count = said[1] + said[2] + torch.arange(1, b + 2, device=c.device)
    slack_c, slack_n = state.slack(drift, count)
    return torch.stack([coefs, bars, slack_c, slack_n, valid]), block
