"""Whose row is it? In a pass that gathers rows by index, no axis carries the samples.

A mixture of experts sends each token where its router says, a packed sequence leaves out what is
padding: the rows that meet a weight then come in an order that only this pass knows. But the
backward pass is linear in the cotangent. With the cotangent of sample i times 2^d, the gradient at
a row of sample i is 2^d times what it was, exactly, in any precision. Written to the base B, the
number of a sample is found digit by digit, in log_B(n) more backward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exempla.oracles.torch.tape.backward import pull_back
from exempla.oracles.torch.tape.uses import Layout, Rows, Use, split

__all__ = ["Probe", "layout_of", "probe"]

BASE = 16
"""Values of a digit: factors of up to 2^15, which every type but float16 has room for …"""
HALF_BASE = 4
"""… and of 2^3 in float16."""
CLEAR = 0.02
"""How far the logarithm of a factor may be from a whole number: further, a row has two owners."""


@dataclass(frozen=True)
class Probe:
    """The gradients at every use under one cotangent, and under those scaled by each digit."""

    n: int
    base: int
    plain: Sequence[Tensor | None]
    scaled: Sequence[Sequence[Tensor | None]]

    def owners(self, place: int, rows: Any) -> Tensor | None:
        """The sample of each row (−1: no gradient reaches it); None if a row has several.

        `rows` turns a gradient into (rows, numbers).
        """
        first = self.plain[place]
        if first is None:
            return None
        norms = rows(first).double().norm(dim=1)
        reached = norms > 0
        found = torch.zeros(len(norms), dtype=torch.long, device=norms.device)
        for digit, gradients in enumerate(self.scaled):
            g = gradients[place]
            if g is None:
                return None
            factor = (rows(g).double().norm(dim=1)[reached] / norms[reached]).log2()
            if bool(((factor - factor.round()).abs() > CLEAR).any()):
                return None
            found[reached] += factor.round().long() * self.base**digit
        if bool((found >= self.n).any()) or bool((found < 0).any()):
            return None
        return found.masked_fill(~reached, -1)


def probe(outputs: Tensor, uses: Sequence[Use], n: int) -> Probe:
    """Pull random directions back to the uses, plain and scaled by the digits of the samples."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(outputs.shape, generator=generator).to(outputs.device, outputs.dtype)
    base = HALF_BASE if outputs.dtype == torch.float16 else BASE
    edges = [use.edge for use in uses]
    numbers = torch.arange(n, device=outputs.device)
    scaled, digit = [], 1
    while digit < n:
        factors = 2.0 ** ((numbers // digit) % base)
        along = directions * factors.to(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1))
        scaled.append(pull_back(outputs, edges, along, again=True))
        digit *= base
    return Probe(n, base, pull_back(outputs, edges, directions, again=True), scaled)


def layout_of(seen: Probe, place: int, use: Use, usual: Layout | Rows) -> Layout | Rows | None:
    """Where samples stand at this use in this pass; None if that cannot be said."""
    if use.repeat is not None or seen.plain[place] is None:
        return usual
    n = seen.n
    if isinstance(usual, Layout) and use.axes and use.shape[usual.axis] % n == 0:
        owners = seen.owners(place, lambda g: split(g, n, usual).flatten(1))
        known = torch.arange(n, device=None if owners is None else owners.device)
        if owners is not None and bool(((owners == known) | (owners < 0)).all()):
            return usual
    if not use.by_row:
        return None
    owners = seen.owners(place, lambda g: g.reshape(-1, g.shape[-1]))
    return None if owners is None else Rows.of(owners, n)
