"""What the Triton kernels compute, written out in torch: one slow twin of each."""

from __future__ import annotations

from typing import Any

import torch

from exempla.selection.device.kernels import BLOCK_ROUNDING, MAX_NEAR, scores
from exempla.selection.rows import RELATIVE_TIE, Rule


def plain_catch_up(state: Any) -> None:
    """`kernels.catch_up`."""
    products = state.products.double()
    state.c -= products @ state.pending[0]
    state.n -= (products * products) @ state.pending[1]
    state.pending.zero_()


def plain_sweep(state: Any, directions: Any, picks: Any, marks: Any) -> tuple[Any, Any]:
    """`kernels.sweep`."""
    b, device = len(directions), state.F.device
    coefs, thresholds, slack_c, slack_n = marks[:4, :b]
    plain_catch_up(state)
    reached = [[] for _ in range(b)]
    known = picks.tolist()
    Q = directions.T
    for part, block in state.rows.blocks():
        V = block @ Q
        state.products[part] = V.to(state.products.dtype)
        lengths, norms2 = state.lengths[part, None], state.norms2[part, None]
        c = state.c[part, None] - torch.cumsum(coefs * V, 1)
        n = state.n[part, None] - torch.cumsum(V * V, 1)
        most, error = c.abs() + slack_c * lengths, slack_n * norms2
        alive = n + error > state.floor[part, None]
        if state.rule is Rule.GAIN:
            reach = (most * most >= thresholds * (n - error)) & alive
        else:
            reach = (most * most * state.scale[part, None] >= thresholds) & alive
        asked = thresholds < torch.inf
        least = torch.clamp(n - error, min=1e-300)
        score = most * most * state.scale[part, None]
        score = most * most / least if state.rule is Rule.GAIN else score
        share = torch.where(alive & asked, score / thresholds, -torch.inf)
        state.upper_bounds[part] = share.amax(1).float()
        for row, step in torch.nonzero(reach & asked).tolist():
            if part.start + row not in known[: step + 2]:
                reached[step].append(part.start + row)
    near = torch.full((b, MAX_NEAR), -1, dtype=torch.int64, device=device)
    for step, rows in enumerate(reached):
        near[step, : min(MAX_NEAR, len(rows))] = torch.tensor(rows[:MAX_NEAR], device=device)
    return torch.tensor([len(rows) for rows in reached], device=device), near


def plain_guess(rule: Any, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """`kernels.guess`."""
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


def plain_mark(state: Any, taken: Any, V: Any, picks: Any, numbers: Any) -> tuple[Any, Any]:
    """`kernels.mark`."""
    b = len(V)
    c, n, fresh = taken.T
    valid = torch.cumprod(fresh, 0)
    root = torch.sqrt(torch.where(valid > 0, n, 1.0))
    coefs = torch.where(valid > 0, c / root, 0.0)
    block = torch.tril(V.T, -1) * valid[:b, None] + torch.diag(root[:b])
    norms2 = state.norms2[picks]
    sizes = c.abs() - BLOCK_ROUNDING * state.target_norm * torch.sqrt(norms2)
    least = scores(
        state.rule, torch.clamp(sizes, min=0.0), n + BLOCK_ROUNDING * norms2, state.scale[picks]
    )
    thresholds = torch.where(valid > 0, least * (1 - RELATIVE_TIE), torch.inf).roll(-1)
    drift = numbers[3] + torch.cumsum(coefs.abs(), 0)
    count = numbers[1] + numbers[2] + torch.arange(1, b + 2, device=c.device)
    slack_c, slack_n = state.slack(drift, count)
    return torch.stack([coefs, thresholds, slack_c, slack_n, valid]), block
