"""A look at the model with three examples: where samples stand, and whether nothing is missed.

For each of the three, a random direction of its own outputs is pulled back alone. At the output
of a use, the gradient can then be non-zero only where that sample stands: this finds the layout
and proves it. The parameters' own gradients, by plain autograd, are compared with the scores the
uses give; a parameter that does not agree goes to the fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from exempla.oracles.torch.tape.backward import pull_back
from exempla.oracles.torch.tape.layers import Block, plan_blocks
from exempla.oracles.torch.tape.tape import CLONE, Tape
from exempla.oracles.torch.tape.uses import Layout, Rows, Use, split

__all__ = ["PROBE", "Survey", "survey"]

PROBE = 3
"""Examples in the survey: an odd number, so that an axis seldom has it by chance."""
ROUNDS = 5


@dataclass
class Survey:
    """What the survey found."""

    blocks: tuple[Block, ...] = ()
    layouts: dict[tuple[str, int], Layout | Rows] = field(default_factory=dict)
    treatments: dict[tuple[str, int], int] = field(default_factory=dict)
    fallback: set[str] = field(default_factory=set)
    routed: bool = False
    """Whether rows were gathered by index before they met parameters."""
    row_bytes: float = 0.0
    """Memory that one example's inputs and gradients take."""
    cotangents: Tensor | None = None
    references: dict[str, Tensor] = field(default_factory=dict)
    """Per fallback parameter, its gradients by plain autograd, to check the fallback with."""

    scale: float = 0.0
    """The largest entry of any gradient."""
    rounding: float = 1e-3
    """Relative difference that is put down to rounding. The survey runs in full precision, so a
    sum of s terms is off by about √s · 6e-8 of their size: 1e-3 leaves room for terms that cancel
    all but a ten-thousandth, and a layer that is truly different is off by its own size."""

    def agrees(self, scores: Tensor, reference: Tensor) -> bool:
        """Equal up to rounding; what cancels to nothing is measured against the whole."""
        allowed = self.rounding * (float(reference.abs().max()) + 1e-2 * self.scale)
        return bool((scores - reference).abs().max() <= allowed)

    def with_more(self, other: Survey) -> Survey:
        """This survey with what another, of other examples, has reached beyond it."""
        known = {name for block in self.blocks for name in block.parameters}
        new = tuple(b for b in other.blocks if known.isdisjoint(b.parameters))
        return replace(
            self,
            blocks=self.blocks + new,
            fallback=self.fallback | (other.fallback - known),
            layouts={**other.layouts, **self.layouts},
            treatments={**other.treatments, **self.treatments},
            row_bytes=max(self.row_bytes, other.row_bytes),
        )

    def layout(self, key: tuple[str, int]) -> Layout | Rows:
        """Of this use; a use the survey did not reach (a longer loop) follows the last it did."""
        name, k = key
        while k > 0 and (name, k) not in self.layouts:
            k -= 1
        return self.layouts.get((name, k), Layout(0))


Forward = Callable[[], Tensor]


def survey(forward: Forward, parameters: Mapping[str, Tensor], n: int) -> Survey:
    """Run the model on n examples, as often as it takes to settle every parameter."""
    found = Survey()
    low = any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters.values())
    if low or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        found.rounding = 5e-2
    names = {id(p): name for name, p in parameters.items()}
    fresh: set[tuple[str, int]] = set()
    rounds = ROUNDS
    while True:
        rounds -= 1
        tape = Tape(names, n, found.treatments)
        try:
            with tape:
                outputs = forward()
        except Exception:
            # perhaps an output repeated for every sample did not suit what follows it
            repeats = {key for key in fresh if found.treatments[key] != CLONE}
            if not repeats:
                raise
            give_up(found, repeats)
            fresh -= repeats
            continue
        found.fallback |= tape.unknown
        pulled = pull_each(outputs, tape, parameters, n)
        fresh = settle(found, tape, pulled, n)
        if fresh and rounds > 0:
            continue
        give_up(found, fresh)
        check(found, tape, pulled, parameters, n)
        found.cotangents, found.routed = pulled.cotangents, tape.routed
        return found


def give_up(found: Survey, uses: set[tuple[str, int]]) -> None:
    found.fallback |= {name for name, _ in uses}
    for key in uses:
        found.treatments.pop(key, None)


@dataclass
class Pulled:
    """Gradients of each sample alone: at each use's output, and of each parameter."""

    cotangents: Tensor
    uses: list[list[Tensor | None]]
    parameters: list[dict[str, Tensor | None]]


def pull_each(outputs: Tensor, tape: Tape, parameters: Mapping[str, Tensor], n: int) -> Pulled:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(outputs.shape, generator=generator, dtype=torch.float32)
    directions = directions.to(outputs.device, outputs.dtype)
    edges = [use.edge for use in tape.uses]
    pulled = Pulled(directions, [], [])
    for i in range(n):
        alone = torch.zeros_like(directions)
        alone[i] = directions[i]
        wanted: Any = [*edges, *parameters.values()]
        g = pull_back(outputs, wanted, alone, again=True)
        pulled.uses.append(list(g[: len(edges)]))
        pulled.parameters.append(dict(zip(parameters, g[len(edges) :])))
    return pulled


def settle(found: Survey, tape: Tape, pulled: Pulled, n: int) -> set[tuple[str, int]]:
    """Find each use's layout; returns the uses that need a treatment and another round."""
    fresh: set[tuple[str, int]] = set()
    for j, (use, key) in enumerate(zip(tape.uses, tape.keys)):
        involved = {name for name in (use.weight, use.bias) if name}
        if involved <= found.fallback:
            continue
        alone = [pulled.uses[i][j] for i in range(n)]
        if all(g is None for g in alone):
            reached = any(p[name] is not None for p in pulled.parameters for name in involved)
            if reached and key not in found.treatments:
                found.treatments[key] = CLONE
                fresh.add(key)
            found.layouts[key] = Layout(0)
            continue
        layout = find_layout(use, alone, n) or (find_rows(use, alone) if tape.routed else None)
        if layout is not None:
            found.layouts[key] = layout
        elif key not in found.treatments:
            found.treatments[key] = next((a for a in use.axes if use.shape[a] == 1), -1)
            fresh.add(key)
        else:
            found.fallback |= involved
    return fresh


def find_layout(use: Use, alone: list[Tensor | None], n: int) -> Layout | None:
    """The first arrangement in which every sample's gradient lies in that sample's part."""
    if use.repeat is not None:
        candidates = [Layout(max(use.repeat, 0))]
    else:
        fits = [a for a in use.axes if use.shape[a] % n == 0 and use.shape[a] > 0]
        candidates = [Layout(a) for a in fits] + [Layout(a, True) for a in fits]
    for layout in candidates:
        if all(g is None or stands_alone(g, i, n, layout) for i, g in enumerate(alone)):
            return layout
    return None


def find_rows(use: Use, alone: list[Tensor | None]) -> Rows | None:
    """Whose each row is, where rows were gathered by index and none has two samples' gradients."""
    shape = next(g.shape for g in alone if g is not None)
    if not use.by_row or not len(shape):
        return None
    nothing = alone[0].new_zeros(shape) if alone[0] is not None else torch.zeros(shape)
    energy = torch.stack(
        [
            (nothing if g is None else g).double().reshape(-1, shape[-1]).square().sum(1)
            for g in alone
        ]
    )
    most, owners = energy.max(0)
    if bool((energy.sum(0) - most > 1e-10 * most).any()):
        return None
    return Rows.of(owners.masked_fill(most == 0, -1), len(alone))


def stands_alone(g: Tensor, i: int, n: int, layout: Layout) -> bool:
    energy = split(g.double(), n, layout).flatten(1).square().sum(1)
    return bool(energy.sum() - energy[i] <= 1e-10 * energy.sum())


def check(
    found: Survey, tape: Tape, pulled: Pulled, parameters: Mapping[str, Tensor], n: int
) -> None:
    """Compare what the uses give with plain autograd; send what disagrees to the fallback."""
    total = [summed([pulled.uses[i][j] for i in range(n)]) for j in range(len(tape.uses))]
    largest = [g.abs().max() for p in pulled.parameters for g in p.values() if g is not None]
    found.scale = float(max(largest, default=torch.zeros(())))
    shapes = {name: p.shape for name, p in parameters.items()}
    seen_names = {name for use in tape.uses for name in (use.weight, use.bias)}
    # compiled code and custom autograd functions use parameters where no mode looks
    reached = {x for p in pulled.parameters for x, g in p.items() if g is not None}
    found.fallback |= reached - seen_names
    for use, key, g in zip(tape.uses, tape.keys, total):
        if g is not None and key not in found.layouts:  # given up: also the bias beside the weight
            found.fallback |= {name for name in (use.weight, use.bias) if name}
    for _ in range(2):  # a second time with what disagreed taken out, now as blocks of its own
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
        wrong: set[str] = set()
        for block in found.blocks:
            if block.kind == "fallback":
                found.fallback.add(block.weight)
                continue
            references = {x: stacked(pulled, x, parameters[x]) for x in block.parameters}
            seen = [
                (use, g, found.layout(key))
                for use, key, g in zip(tape.uses, tape.keys, total)
                if g is not None and {use.weight, use.bias} & set(block.parameters)
            ]
            like = next(iter(references.values())).new_zeros(0)
            scores = block.factors(seen, n, like)
            if not found.agrees(scores.project(None, None), block.pack(references)):
                wrong |= set(block.parameters)
        found.fallback |= wrong
        if not wrong:
            break
    else:
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
    found.references = {x: stacked(pulled, x, parameters[x]) for x in found.fallback}
    held = sum(use.x.nbytes for use in tape.uses if use.x is not None)
    held += sum(g.numel() * 4 for g in total if g is not None)
    found.row_bytes = held / n + 4 * sum(shapes[x].numel() for x in found.fallback)


def summed(parts: list[Tensor | None]) -> Tensor | None:
    present = [p for p in parts if p is not None]
    return torch.stack(present).sum(0) if present else None


def stacked(pulled: Pulled, name: str, parameter: Tensor) -> Tensor:
    rows = [p[name] for p in pulled.parameters]
    wide = [torch.zeros_like(parameter) if r is None else r for r in rows]
    out = torch.stack(wide)
    return out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
