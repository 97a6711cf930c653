"""The pass that checks guesses: tensors in, tensors out.

`sweep` takes a tile of rows times all directions, follows c and n through the steps in float64
and keeps the few rows that reach a bar. The products themselves are kept, too: an eighth or less of
what the rows take, so that what was right need not be computed again. In Triton a tile lives in
registers; the fallback does the same for blocks of rows, in float64 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exempla.selection.candidates.base import Rule
from exempla.selection.device.state import State

__all__ = ["LIMIT", "Checks", "fused", "sweep"]

LIMIT = 128
"""Rows that may reach a bar and are handed out, after each step."""


@dataclass(frozen=True)
class Checks:
    """What a pass has to look for, on the device; `marks` are those of `guess`."""

    directions: Any
    """(b, p)"""
    picks: Any
    """(b + 1,) rows that are known of: after a step only others than the next are looked for."""
    marks: Any


def fused(array: Any) -> bool:
    """Whether the Triton kernels can be used for these rows."""
    if array.device.type != "cuda" or not array.is_contiguous():
        return False
    from exempla.selection.device.fused import installed

    return installed()


def sweep(state: State, checks: Checks) -> tuple[Any, Any]:
    """Bring c and n up to date and try the steps from there.

    Returns how many other rows may reach each bar (b,) and the first of them (b, LIMIT), in no
    order. `state.hope` is the largest share of a bar that a row came up to, `state.tried` the
    products.
    """
    if state.parts:
        from exempla.selection.device.fused import fused_sweep

        return fused_sweep(state, checks)
    return plain_sweep(state, checks)


def plain_sweep(state: State, checks: Checks) -> tuple[Any, Any]:
    """The same in torch: the fallback, and the reference for tests."""
    b, device = len(checks.directions), state.F.device
    coefs, bars, slack_c, slack_n = checks.marks[:4, :b]
    state.catch_up()
    reached = [[] for _ in range(b)]
    known = checks.picks.tolist()
    Q = checks.directions.T
    for part, block in state.rows.blocks():
        V = block @ Q
        state.tried[part] = V.to(state.tried.dtype)
        lengths, norms2 = state.lengths[part, None], state.norms2[part, None]
        c = state.c[part, None] - torch.cumsum(coefs * V, 1)
        n = state.n[part, None] - torch.cumsum(V * V, 1)
        most, error = c.abs() + slack_c * lengths, slack_n * norms2
        alive = n + error > state.floor[part, None]
        if state.rule is Rule.GAIN:
            reach = (most * most >= bars * (n - error)) & alive
        else:
            reach = (most * most * state.scale[part, None] >= bars) & alive
        asked = bars < torch.inf
        least = torch.clamp(n - error, min=1e-300)
        score = most * most * state.scale[part, None]
        score = most * most / least if state.rule is Rule.GAIN else score
        share = torch.where(alive & asked, score / bars, -torch.inf)
        state.hope[part] = share.amax(1).float()
        for row, step in torch.nonzero(reach & asked).tolist():
            if part.start + row not in known[: step + 2]:
                reached[step].append(part.start + row)
    near = torch.full((b, LIMIT), -1, dtype=torch.int64, device=device)
    for step, rows in enumerate(reached):
        near[step, : min(LIMIT, len(rows))] = torch.tensor(rows[:LIMIT], device=device)
    return torch.tensor([len(rows) for rows in reached], device=device), near
