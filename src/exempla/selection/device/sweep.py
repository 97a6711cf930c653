"""The pass that checks guesses: tensors in, tensors out, nothing of the size t × b written.

`sweep` takes a tile of rows times all directions, follows c and n through the steps in float64
and keeps maxima and the few rows that reach a bar. In Triton a tile lives in registers; the
fallback does the same for blocks of rows, in float64 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exempla.selection.candidates.base import Rule
from exempla.selection.device.state import State

__all__ = ["LIMIT", "Checks", "Found", "error_of", "sweep"]

LIMIT = 128
"""Rows that may reach a bar and are handed out, after each step."""


@dataclass(frozen=True)
class Checks:
    """`candidates.base.Steps` on the device."""

    directions: Any
    coefs: Any
    signs: Any
    bars: Any
    slack_c: Any
    slack_n: Any

    def __len__(self) -> int:
        return len(self.coefs)

    def part(self, start: int, stop: int, sign: float) -> Checks:
        """Some of the steps, taken (1) or taken back (−1), with nothing to look for."""
        one = slice(start, stop)
        nothing = torch.full_like(self.bars[one], torch.inf)
        return Checks(
            self.directions[one], sign * self.coefs[one], sign * self.signs[one], nothing,
            self.slack_c[one], self.slack_n[one],
        )  # fmt: skip

    def and_then(self, others: Checks) -> Checks:
        """These steps, then the others."""
        both = zip(vars(self).values(), vars(others).values(), strict=True)
        return Checks(*(torch.cat(pair) for pair in both))


@dataclass(frozen=True)
class Found:
    """What a sweep found, on the device."""

    counts: Any
    """(b,) rows that may reach each bar."""
    near: Any
    """(b, LIMIT) the first of them, in no order."""
    hope: Any
    """(t,) the largest share of a bar that a row came up to; −inf if it is out."""


def error_of(rows: Any) -> float:
    """Bound on the error of a product in `sweep`, in units of ‖f‖."""
    return fused_error() if fused(rows.array) else 0.0


def fused(array: Any) -> bool:
    """Whether the Triton kernel can be used for these rows."""
    if array.device.type != "cuda" or not array.is_contiguous():
        return False
    from exempla.selection.device.fused import installed

    return installed()


def fused_error() -> float:
    """Bound on the error of a product in the Triton kernel."""
    from exempla.selection.device.fused import ERROR

    return ERROR


def sweep(state: State, checks: Checks, keep: int) -> Found:
    """Try the steps; c and n stay as they are after the first `keep`."""
    if fused(state.F):
        from exempla.selection.device.fused import fused_sweep

        return fused_sweep(state, checks, keep)
    return plain_sweep(state, checks, keep)


def plain_sweep(state: State, checks: Checks, keep: int) -> Found:
    """The same in torch: the fallback, and the reference for tests."""
    b = len(checks)
    hope = torch.full_like(state.c, -torch.inf)
    reached = [[] for _ in range(b)]
    Q = checks.directions.T
    for part, block in state.rows.blocks():
        V = block @ Q
        lengths, norms2 = state.lengths[part, None], state.norms2[part, None]
        c = state.c[part, None] - torch.cumsum(checks.coefs * V, 1)
        n = state.n[part, None] - torch.cumsum(checks.signs * V * V, 1)
        state.c[part], state.n[part] = c[:, keep - 1], n[:, keep - 1]
        most, error = c.abs() + checks.slack_c * lengths, checks.slack_n * norms2
        alive = n + error > state.floor[part, None]
        if state.rule is Rule.GAIN:
            reach = (most * most >= checks.bars * (n - error)) & alive
        else:
            reach = (most * most * state.scale[part, None] >= checks.bars) & alive
        asked = checks.bars < torch.inf
        least = torch.clamp(n - error, min=1e-300)
        score = most * most * state.scale[part, None]
        score = most * most / least if state.rule is Rule.GAIN else score
        share = torch.where(alive & asked, score / checks.bars, -torch.inf)
        hope[part] = share.amax(1)
        for row, step in torch.nonzero(reach & asked).tolist():
            reached[step].append(part.start + row)
    near = torch.full((b, LIMIT), -1, dtype=torch.int64, device=hope.device)
    for step, rows in enumerate(reached):
        near[step, : min(LIMIT, len(rows))] = torch.tensor(rows[:LIMIT], device=hope.device)
    counts = torch.tensor([len(rows) for rows in reached], device=hope.device)
    return Found(counts, near, hope)
