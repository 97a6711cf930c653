"""Survey a model with three examples: find where samples stand, and verify the factored scores.

For each of the three examples, a random direction of its outputs is pulled back alone. At the
output of a use, the gradient can then be non-zero only where that sample stands: this finds the
layout and proves it. The gradients of the parameters by plain autograd are compared with the scores
that the uses give, one example at a time; a parameter that does not agree goes to the fallback.

The survey runs in full single precision. On recent GPUs torch rounds the inputs of convolutions,
and on request of matrix products, to TF32 (10 bits of mantissa instead of 23). Where a gradient is
a small difference of large terms, two orders of summation then disagree by several per cent, and a
correct layer looks wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exempla.oracles.base import Factors
from exempla.oracles.torch.factors import widen
from exempla.oracles.torch.layers import Block, Layout, Rows, Use, plan_blocks
from exempla.oracles.torch.tape import CLONE, Tape

PROBE = 3
"""Examples in the survey: an odd number, so that an axis seldom has it by chance."""
_MAX_ROUNDS = 5
_MAX_LEAK = 1e-10
"""Share of a sample's squared gradient that may lie in the part of another."""


@dataclass
class Survey:
    """The result of a survey."""

    blocks: tuple[Block, ...] = ()
    layouts: dict[tuple[str, int], Layout | Rows] = field(default_factory=dict)
    treatments: dict[tuple[str, int], int] = field(default_factory=dict)
    fallback: set[str] = field(default_factory=set)
    routed: bool = False
    """Whether rows were gathered by index before they met parameters."""
    row_bytes: float = 0.0
    """Memory of one example's inputs and gradients."""
    scale: float = 0.0
    """The largest entry of any gradient."""
    rounding: float = 1e-3
    """Relative difference attributed to rounding. In full precision a sum of s terms is off by
    about √s · 6e-8 of their size: 1e-3 leaves room for terms that cancel all but a ten-thousandth,
    and a layer that is truly different is off by its own size."""

    def allowed(self, largest: float) -> float:
        """Return the difference attributed to rounding, given the largest entry of a reference.

        Entries that cancel to zero are measured against the largest gradient of all.
        """
        return self.rounding * (largest + 1e-2 * self.scale)

    def with_more(self, other: Survey) -> Survey:
        """Return this survey extended by what a survey of other examples has reached."""
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
        """Return the layout of a use; beyond the last one surveyed (a longer loop), of that."""
        name, k = key
        while k > 0 and (name, k) not in self.layouts:
            k -= 1
        return self.layouts.get((name, k), Layout(0))

    def _give_up(self, uses: set[tuple[str, int]]) -> None:
        self.fallback |= {name for name, _ in uses}
        for key in uses:
            self.treatments.pop(key, None)


def survey(forward: Callable[[], Tensor], parameters: Mapping[str, Tensor], n: int) -> Survey:
    """Run the model on n examples until every parameter has a layout or goes to the fallback."""
    found = Survey()
    low = any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters.values())
    if low or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        found.rounding = 5e-2
    names = {id(p): name for name, p in parameters.items()}
    fresh: set[tuple[str, int]] = set()
    rounds = _MAX_ROUNDS
    while True:
        rounds -= 1
        tape = Tape(names, n, found.treatments)
        try:
            with tape:
                outputs = forward()
        except Exception:
            # an output that was repeated for every sample may not suit the code that follows it
            repeats = {key for key in fresh if found.treatments[key] != CLONE}
            if not repeats:
                raise
            found._give_up(repeats)
            fresh -= repeats
            continue
        found.fallback |= tape.unknown
        pulled = _Pulled(outputs, tape.uses, parameters)
        fresh = _find_layouts(found, tape, pulled, n)
        if fresh and rounds > 0:
            continue
        found._give_up(fresh)
        _verify(found, tape, pulled, parameters, n)
        found.routed = tape.routed
        return found


class _Pulled:
    """Gradients of each sample alone: at each use's output, and on request of parameters."""

    def __init__(self, outputs: Tensor, uses: list[Use], parameters: Mapping[str, Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(outputs.shape, generator=generator, dtype=torch.float32)
        self.outputs, self.parameters = outputs, parameters
        self.cotangents = directions.to(outputs.device, outputs.dtype)
        self.uses: list[tuple[Tensor | None, ...]] = []
        self.largest: dict[str, float] = {}
        """The largest entry of a gradient, for each parameter that the outputs depend on."""
        for i in range(len(outputs)):
            found = self._of(i, [*(use.edge for use in uses), *parameters.values()])
            self.uses.append(found[: len(uses)])
            for name, g in zip(parameters, found[len(uses) :], strict=True):
                if g is not None:
                    largest = float(g.abs().max()) if g.numel() else 0.0
                    self.largest[name] = max(largest, self.largest.get(name, 0.0))

    def _of(self, i: int, wanted: Sequence[Any]) -> tuple[Tensor | None, ...]:
        alone = torch.zeros_like(self.cotangents)
        alone[i] = self.cotangents[i]
        return pull_back(self.outputs, wanted, alone, again=True)

    def gradients(self, i: int, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the gradients of these parameters for one sample, (1, *shape) each."""
        wanted = [self.parameters[name] for name in names]
        rows = zip(wanted, self._of(i, wanted) if wanted else (), strict=True)
        whole = [(torch.zeros_like(p) if g is None else g)[None] for p, g in rows]
        return dict(zip(names, whole, strict=True))


def _find_layouts(found: Survey, tape: Tape, pulled: _Pulled, n: int) -> set[tuple[str, int]]:
    """Find each use's layout; return the uses that need a treatment and another round."""
    fresh: set[tuple[str, int]] = set()
    for j, (use, key) in enumerate(zip(tape.uses, tape.keys)):
        if use.names <= found.fallback:
            continue
        alone = [pulled.uses[i][j] for i in range(n)]
        if all(g is None for g in alone):
            if use.names & set(pulled.largest) and key not in found.treatments:
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
            found.fallback |= use.names
    return fresh


def _find_layout(use: Use, alone: list[Tensor | None], n: int) -> Layout | None:
    """Return the first arrangement in which every sample's gradient lies in that sample's part."""
    if use.repeat is not None:
        candidates = [Layout(max(use.repeat, 0))]
    else:
        fits = [a for a in use.axes if use.shape[a] % n == 0 and use.shape[a] > 0]
        candidates = [Layout(a) for a in fits] + [Layout(a, True) for a in fits]
    for layout in candidates:
        if all(g is None or _stands_alone(g, i, n, layout) for i, g in enumerate(alone)):
            return layout
    return None


def _stands_alone(g: Tensor, i: int, n: int, layout: Layout) -> bool:
    energy = layout.split(g.double(), n).flatten(1).square().sum(1)
    return bool(energy.sum() - energy[i] <= _MAX_LEAK * energy.sum())


def _find_rows(use: Use, alone: list[Tensor | None]) -> Rows | None:
    """Return the sample of each row if rows were gathered by index and none has two samples."""
    some = next(g for g in alone if g is not None)
    if not use.by_row or not some.ndim:
        return None
    rows = [torch.zeros_like(some) if g is None else g for g in alone]
    energy = torch.stack([g.double().reshape(-1, g.shape[-1]).square().sum(1) for g in rows])
    most, samples = energy.max(0)
    if bool((energy.sum(0) - most > _MAX_LEAK * most).any()):
        return None
    return Rows.of(samples.masked_fill(most == 0, -1), len(alone))


def _verify(
    found: Survey, tape: Tape, pulled: _Pulled, parameters: Mapping[str, Tensor], n: int
) -> None:
    """Compare the scores with plain autograd; send parameters that disagree to the fallback."""
    columns = zip(*pulled.uses, strict=True)
    parts = [[g for g in column if g is not None] for column in columns]
    total = [torch.stack(part).sum(0) if part else None for part in parts]
    found.scale = max([0.0, *pulled.largest.values()])
    shapes = {name: p.shape for name, p in parameters.items()}
    # compiled code and custom autograd functions use parameters without calling torch functions
    found.fallback |= set(pulled.largest) - {name for use in tape.uses for name in use.names}
    for use, key, g in zip(tape.uses, tape.keys, total):
        if g is not None and key not in found.layouts:  # given up: also the bias of the weight
            found.fallback |= use.names
    for _ in range(2):  # the second time with what disagreed in blocks of its own
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
        found.fallback |= {b.weight for b in found.blocks if b.kind == "fallback"}
        wrong = _disagreeing(found, tape, total, pulled, n)
        found.fallback |= wrong
        if not wrong:
            break
    else:
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
    held = sum(use.x.nbytes for use in tape.uses if use.x is not None)
    held += sum(g.nbytes for g in total if g is not None)
    found.row_bytes = held / n + 4 * sum(shapes[x].numel() for x in found.fallback)


def _disagreeing(
    found: Survey, tape: Tape, total: list[Tensor | None], pulled: _Pulled, n: int
) -> set[str]:
    """Return the parameters of the blocks whose scores are not the gradients by plain autograd.

    Scores are written out for one sample and block at a time: an embedding table may be as large as
    the rest of the model.
    """
    uses = list(zip(tape.uses, total, map(found.layout, tape.keys), strict=True))
    scores: dict[Block, Factors] = {}
    for block in (b for b in found.blocks if b.kind != "fallback"):
        seen: Any = [
            (use, g, layout)
            for use, g, layout in uses
            if g is not None and use.names & set(block.parameters)
        ]
        like = widen(pulled.parameters[block.weight].detach().new_zeros(0))
        scores[block] = block.factors(seen, n, like)
    wrong: set[str] = set()
    for i in range(n):
        gradients = pulled.gradients(i, [x for block in scores for x in block.parameters])
        for block, some in scores.items():
            own = {x: widen(gradients.pop(x)) for x in block.parameters}
            difference = some.take(np.array([i])).project(None, None) - block.pack(own)
            largest = max(pulled.largest.get(x, 0.0) for x in block.parameters)
            if float(difference.abs().max()) > found.allowed(largest):
                wrong |= set(block.parameters)
    return wrong


class _ScalarOf(torch.autograd.Function):
    """A scalar whose gradient at the outputs is the cotangent (its value does not matter).

    Given `grad_outputs`, `torch.autograd.grad` imports sympy to compare two shapes: a second and
    60 MB in every fresh process. The gradient of a scalar needs none, and costs no memory.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, cotangent: Tensor) -> Tensor:
        ctx.save_for_backward(cotangent)
        return outputs.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *one: Tensor) -> tuple[Tensor, None]:
        (cotangent,) = ctx.saved_tensors
        return cotangent, None


def pull_back(
    outputs: Tensor, wanted: Sequence[Any], cotangent: Tensor, again: bool = False
) -> tuple[Tensor | None, ...]:
    """Return the gradient of ⟨outputs, cotangent⟩ at each tensor wanted; None where unused."""
    with torch.inference_mode(False), torch.enable_grad():
        cotangent = cotangent.clone() if cotangent.is_inference() else cotangent
        scalar = _ScalarOf.apply(outputs, cotangent)
    return torch.autograd.grad(scalar, wanted, retain_graph=again, allow_unused=True)  # type: ignore


_PRECISION_LOCK = RLock()
"""The settings belong to the process: two threads must not restore each other's values."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Use no TF32 or bfloat16 inside float32 operations; restore every setting at the end."""
    backends: Any = torch.backends
    operations = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    operations += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    with _PRECISION_LOCK:
        each = [operation.fp32_precision for operation in operations]
        # the older settings cover whole libraries; torch refuses to read one if the newer ones
        # below it contradict each other, and the newer ones then suffice
        matmul: Any = None
        cudnn: Any = None
        with suppress(RuntimeError):
            matmul = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            cudnn = backends.cudnn.allow_tf32
        try:
            if matmul is not None:
                torch.set_float32_matmul_precision("highest")
            if cudnn is not None:
                backends.cudnn.allow_tf32 = False
            for operation in operations:
                operation.fp32_precision = "ieee"
            yield
        finally:
            if matmul is not None:
                torch.set_float32_matmul_precision(matmul)
            if cudnn is not None:
                backends.cudnn.allow_tf32 = cudnn
            for operation, value in zip(operations, each, strict=True):
                operation.fp32_precision = "none"  # inherit, if that gives the value found before
                if operation.fp32_precision != value:
                    operation.fp32_precision = value
