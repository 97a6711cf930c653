"""A look at the model with three examples: where samples stand, and whether nothing is missed.

For each of the three, a random direction of its own outputs is pulled back alone. At the output
of a use, the gradient can then be non-zero only where that sample stands: this finds the layout
and proves it. The parameters' own gradients, by plain autograd, are compared with the scores the
uses give; a parameter that does not agree goes to the fallback. Of a large model these gradients
are not held together: those of some blocks are pulled again when their turn comes.

Single precision with all its digits, for as long as two ways to one gradient are compared.

On recent GPUs torch rounds what enters a convolution, and on request a matrix product, to TF32:
10 bits of mantissa instead of 23. Where a gradient is a small difference of large terms, two
orders of summation then disagree by per cents, and a sound layer looks like a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from exempla.oracles.factors import Factors
from exempla.oracles.torch.layers import Block, Layout, Rows, Use, plan_blocks, split
from exempla.oracles.torch.tape import CLONE, Tape, pull_back

PROBE = 3
"""Examples in the survey: an odd number, so that an axis seldom has it by chance."""
_ROUNDS = 5
HELD_BYTES = 2**30
"""Gradients of parameters, of all examples, that are held together."""


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
        """Equal up to rounding."""
        return bool((scores - reference).abs().max() <= self.allowed(float(reference.abs().max())))

    def allowed(self, largest: float) -> float:
        """The difference that is rounding, where a reference has entries up to this; what cancels
        to nothing is measured against the whole."""
        return self.rounding * (largest + 1e-2 * self.scale)

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


_Forward = Callable[[], Tensor]


def survey(forward: _Forward, parameters: Mapping[str, Tensor], n: int) -> Survey:
    """Run the model on n examples, as often as it takes to settle every parameter."""
    found = Survey()
    low = any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters.values())
    if low or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        found.rounding = 5e-2
    names = {id(p): name for name, p in parameters.items()}
    fresh: set[tuple[str, int]] = set()
    rounds = _ROUNDS
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
            _give_up(found, repeats)
            fresh -= repeats
            continue
        found.fallback |= tape.unknown
        pulled = _pull_each(outputs, tape, parameters, n)
        fresh = settle(found, tape, pulled, n)
        if fresh and rounds > 0:
            continue
        _give_up(found, fresh)
        check(found, tape, pulled, parameters, n)
        found.cotangents, found.routed = pulled.cotangents, tape.routed
        return found


def _give_up(found: Survey, uses: set[tuple[str, int]]) -> None:
    found.fallback |= {name for name, _ in uses}
    for key in uses:
        found.treatments.pop(key, None)


@dataclass
class _Pulled:
    """Gradients of each sample alone: at each use's output, and of each parameter."""

    outputs: Tensor
    cotangents: Tensor
    parameters: Mapping[str, Tensor]
    uses: list[list[Tensor | None]] = field(default_factory=list)
    kept: list[dict[str, Tensor | None]] = field(default_factory=list)
    """Those of the parameters, sample by sample, where they take little memory."""
    reached: set[str] = field(default_factory=set)
    """Parameters that any of the outputs depends on."""
    largest: float = 0.0
    """The largest entry of any gradient of a parameter."""

    def alone(self, i: int) -> Tensor:
        """The cotangent of one sample."""
        one = torch.zeros_like(self.cotangents)
        one[i] = self.cotangents[i]
        return one

    def rows(self, names: Sequence[str]) -> list[dict[str, Tensor]]:
        """The gradients of these parameters, sample by sample, zeros where there are none."""
        found = self.kept
        if not found:
            wanted = [self.parameters[name] for name in names]
            count = range(len(self.uses))
            each = (pull_back(self.outputs, wanted, self.alone(i), again=True) for i in count)
            found = [dict(zip(names, g, strict=True)) for g in each]
        return [{x: _as_row(one[x], self.parameters[x]) for x in names} for one in found]


def _as_row(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """(1, …), in single precision at least."""
    out = (torch.zeros_like(parameter) if gradient is None else gradient)[None]
    return out.float() if out.dtype in (torch.float16, torch.bfloat16) else out


def _pull_each(outputs: Tensor, tape: Tape, parameters: Mapping[str, Tensor], n: int) -> _Pulled:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(outputs.shape, generator=generator, dtype=torch.float32)
    directions = directions.to(outputs.device, outputs.dtype)
    edges = [use.edge for use in tape.uses]
    pulled = _Pulled(outputs, directions, parameters)
    little = n * sum(p.nbytes for p in parameters.values()) <= HELD_BYTES
    for i in range(n):
        wanted: Any = [*edges, *parameters.values()]
        g = pull_back(outputs, wanted, pulled.alone(i), again=True)
        pulled.uses.append(list(g[: len(edges)]))
        own = dict(zip(parameters, g[len(edges) :], strict=True))
        pulled.reached |= {name for name, x in own.items() if x is not None}
        sizes = (float(x.abs().max()) for x in own.values() if x is not None and x.numel())
        pulled.largest = max(pulled.largest, *sizes, 0.0)
        if little:
            pulled.kept.append(own)
    return pulled


def settle(found: Survey, tape: Tape, pulled: _Pulled, n: int) -> set[tuple[str, int]]:
    """Find each use's layout; returns the uses that need a treatment and another round."""
    fresh: set[tuple[str, int]] = set()
    for j, (use, key) in enumerate(zip(tape.uses, tape.keys)):
        involved = {name for name in (use.weight, use.bias) if name}
        if involved <= found.fallback:
            continue
        alone = [pulled.uses[i][j] for i in range(n)]
        if all(g is None for g in alone):
            if involved & pulled.reached and key not in found.treatments:
                found.treatments[key] = CLONE
                fresh.add(key)
            found.layouts[key] = Layout(0)
            continue
        layout = _find_layout(use, alone, n) or (_find_rows(use, alone) if tape.routed else None)
        if layout is not None:
            found.layouts[key] = layout
        elif key not in found.treatments:
            found.treatments[key] = next((a for a in use.axes if use.shape[a] == 1), -1)
            fresh.add(key)
        else:
            found.fallback |= involved
    return fresh


def _find_layout(use: Use, alone: list[Tensor | None], n: int) -> Layout | None:
    """The first arrangement in which every sample's gradient lies in that sample's part."""
    if use.repeat is not None:
        candidates = [Layout(max(use.repeat, 0))]
    else:
        fits = [a for a in use.axes if use.shape[a] % n == 0 and use.shape[a] > 0]
        candidates = [Layout(a) for a in fits] + [Layout(a, True) for a in fits]
    for layout in candidates:
        if all(g is None or _stands_alone(g, i, n, layout) for i, g in enumerate(alone)):
            return layout
    return None


def _find_rows(use: Use, alone: list[Tensor | None]) -> Rows | None:
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


def _stands_alone(g: Tensor, i: int, n: int, layout: Layout) -> bool:
    energy = split(g.double(), n, layout).flatten(1).square().sum(1)
    return bool(energy.sum() - energy[i] <= 1e-10 * energy.sum())


def check(
    found: Survey, tape: Tape, pulled: _Pulled, parameters: Mapping[str, Tensor], n: int
) -> None:
    """Compare what the uses give with plain autograd; send what disagrees to the fallback."""
    total = [summed([pulled.uses[i][j] for i in range(n)]) for j in range(len(tape.uses))]
    found.scale = pulled.largest
    shapes = {name: p.shape for name, p in parameters.items()}
    seen_names = {name for use in tape.uses for name in (use.weight, use.bias)}
    # compiled code and custom autograd functions use parameters where no mode looks
    found.fallback |= pulled.reached - seen_names
    for use, key, g in zip(tape.uses, tape.keys, total):
        if g is not None and key not in found.layouts:  # given up: also the bias beside the weight
            found.fallback |= {name for name in (use.weight, use.bias) if name}
    for _ in range(2):  # a second time with what disagreed taken out, now as blocks of its own
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
        found.fallback |= {b.weight for b in found.blocks if b.kind == "fallback"}
        wrong: set[str] = set()
        for group in _held_together(found.blocks, parameters, n):
            rows = pulled.rows([x for block in group for x in block.parameters])
            for block in group:
                seen = [
                    (use, g, found.layout(key))
                    for use, key, g in zip(tape.uses, tape.keys, total)
                    if g is not None and {use.weight, use.bias} & set(block.parameters)
                ]
                scores = block.factors(seen, n, rows[0][block.parameters[0]].new_zeros(0))
                references = [{x: row[x] for x in block.parameters} for row in rows]
                if not _one_by_one(found, scores, block, references):
                    wrong |= set(block.parameters)
        found.fallback |= wrong
        if not wrong:
            break
    else:
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
    rows = pulled.rows(sorted(found.fallback)) if found.fallback else []
    found.references = {x: torch.cat([row[x] for row in rows]) for x in found.fallback}
    held = sum(use.x.nbytes for use in tape.uses if use.x is not None)
    held += sum(g.numel() * 4 for g in total if g is not None)
    found.row_bytes = held / n + 4 * sum(shapes[x].numel() for x in found.fallback)


def summed(parts: list[Tensor | None]) -> Tensor | None:
    present = [p for p in parts if p is not None]
    return torch.stack(present).sum(0) if present else None


def _held_together(
    blocks: Sequence[Block], parameters: Mapping[str, Tensor], n: int
) -> Iterator[list[Block]]:
    """Blocks in factored form, as many at a time as their gradients may be held of."""
    group: list[Block] = []
    size = 0
    for block in (b for b in blocks if b.kind != "fallback"):
        own = 4 * n * sum(parameters[x].numel() for x in block.parameters)
        if group and size + own > HELD_BYTES:
            yield group
            group, size = [], 0
        group, size = [*group, block], size + own
    if group:
        yield group


def _one_by_one(
    found: Survey, scores: Factors, block: Block, references: list[dict[str, Tensor]]
) -> bool:
    """Whether the scores are the gradients: written out for one sample at a time, as a table of
    words may take as much as the rest of the model."""
    largest = max(float(block.pack(row).abs().max()) for row in references)
    allowed = found.allowed(largest)
    return all(
        float((scores.take(np.array([i])).project(None, None) - block.pack(row)).abs().max())
        <= allowed
        for i, row in enumerate(references)
    )


_ALONE = RLock()
"""The switches are the whole process's: two threads must not restore each other's values."""


class _Switch(NamedTuple):
    """One setting of torch, and its value for full precision."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    full: Any


def _older_switches() -> list[_Switch]:
    """The settings of matrix products and of cuDNN as a whole; writing one writes the newer too."""
    matmul = _Switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    )
    return [matmul, attribute(torch.backends.cudnn, "allow_tf32", False)]


def _newer_switches() -> list[_Switch]:
    """A setting for each operation of each library; "none" means that the library's decides."""
    backends: Any = torch.backends
    operations = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    operations += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    return [attribute(one, "fp32_precision", "ieee") for one in operations]


def attribute(owner: Any, name: str, full: Any) -> _Switch:
    """A setting that is an attribute of a module of torch."""
    return _Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), full)


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 nor bfloat16 inside float32 operations; every setting is put back at the end.

    >>> with full_precision():
    ...     torch.backends.cudnn.allow_tf32
    False
    """
    with _ALONE:
        newer = [(switch, switch.read()) for switch in _newer_switches()]
        older = readable(_older_switches())
        try:
            for switch, _ in older + newer:
                switch.write(switch.full)
            yield
        finally:
            for switch, value in older:
                switch.write(value)
            for switch, value in newer:
                switch.write("none")  # as found, where what it inherits is what was found
                if switch.read() != value:
                    switch.write(value)


def readable(wanted: list[_Switch]) -> list[tuple[_Switch, Any]]:
    """The switches with their values, less those of which torch refuses to say one, because the
    newer settings below them contradict each other."""
    found = []
    for switch in wanted:
        try:
            found.append((switch, switch.read()))
        except RuntimeError:
            continue
    return found
