"""From uses of parameters in a forward pass to layers and their factors.

A `Use` holds the input x of one operation and turns the gradient g at its output into the
parameter's score, sample by sample. Matrices (Linear, tables, convolutions) stay factored; the
score of a parameter that acts element by element is as long as its gradient and is written out.

Samples may stand on any axis of an output (sequence-first models), or share one with another axis
(frames, windows, heads): the survey finds the `Layout`. If a pass gathers rows by index, no axis
carries the samples: a mixture of experts sends each token where its router says, a packed sequence
leaves padding out. `SampleRows` then holds the sample of each row, which `RowProbe` finds in every
pass.

A `Block` is one layer. A weight and a bias that are always used together form one block: for a
matrix the bias is one more row of inputs equal to one, for element-wise parameters the two stand
side by side. Parameters that the tape could not describe are blocks for the fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.base import Factors, Layer
from exempla.oracles.torch.conv import ConvFactors, ConvShape
from exempla.oracles.torch.factors import (
    DenseFactors,
    OneHot,
    Operand,
    PairFactors,
    Stacked,
    Vectors,
    merge,
    widen,
)

_BASE = 16
"""Values of a digit: factors of up to 2^15, which every type but float16 can represent."""
_HALF_BASE = 4
"""The base for float16: factors of up to 2^3."""
_MAX_LOG_ERROR = 0.02
"""Largest distance of the logarithm of a factor from a whole number; beyond it, a row belongs to
two samples."""


class Layout(NamedTuple):
    """Where samples stand: on `axis`, of size n·m; sample-major unless `inner`."""

    axis: int
    inner: bool = False

    def split(self, t: Tensor, n: int) -> Tensor:
        """Return (n, …) with the axis of the samples reduced to m."""
        axis, inner = self
        sizes = (-1, n) if inner else (n, -1)
        return t.unflatten(axis, sizes).movedim(axis + 1 if inner else axis, 0)


@dataclass(frozen=True, eq=False)
class SampleRows:
    """Rows in any order, each of one sample, and their places among n samples × `most` rows."""

    n: int
    most: int
    kept: Tensor
    """Rows that belong to a sample; no gradient reaches the others."""
    slots: Tensor

    @staticmethod
    def of(samples: Tensor, n: int) -> SampleRows:
        """Build from the sample of each row, −1 for rows without one."""
        kept = samples.argsort(stable=True)[int((samples < 0).sum()) :]
        mine = samples[kept]
        counts = torch.bincount(mine, minlength=n)
        first = counts.cumsum(0) - counts
        rank = torch.arange(len(kept), device=samples.device) - first[mine]
        most = max(int(counts.max()), 1)
        return SampleRows(n, most, kept, mine * most + rank)

    def split(self, t: Tensor, n: int) -> Tensor:
        """Return (rows, …) as (n, most, …), zero where a sample has fewer rows."""
        out = t.new_zeros(self.n * self.most, *t.shape[1:])
        out[self.slots] = t[self.kept]
        return out.unflatten(0, (self.n, self.most))


Place = Layout | SampleRows


def repeated(t: Tensor, n: int, axis: int) -> Tensor:
    """Repeat the values for each of n samples, on an axis of size one (−1: a new first axis)."""
    if axis < 0:
        return t.unsqueeze(0).expand(n, *t.shape)
    return t.expand(*t.shape[:axis], n, *t.shape[axis + 1 :])


def _positions(t: Tensor, n: int, layout: Place) -> Tensor:
    """Return (n, s, d): every axis but the last is samples or positions."""
    t = t.reshape(-1, t.shape[-1]) if isinstance(layout, SampleRows) else t
    return layout.split(t, n).reshape(n, -1, t.shape[-1])


def _channels(t: Tensor, n: int, layout: Place) -> Tensor:
    """Return (n, C), summed over everything but samples and the channel axis."""
    parts = widen(layout.split(t, n))  # (n, m, C, …)
    return parts.flatten(3).sum((1, 3)) if parts.ndim > 3 else parts.sum(1)


def _summed_to(t: Tensor, size: torch.Size) -> Tensor:
    """Sum each sample's tensor over the axes along which `size` was broadcast."""
    extra = t.ndim - 1 - len(size)
    t = t.flatten(1, extra).sum(1) if extra else t
    over = [i + 1 for i, s in enumerate(size) if s == 1 and t.shape[i + 1] != 1]
    return t.sum(over, keepdim=True) if over else t


@dataclass
class Use:
    """One operation with a parameter. `axes` are the axes of the output that can carry samples."""

    weight: str | None
    bias: str | None
    x: Any
    axes: tuple[int, ...]
    edge: Any = None
    shape: torch.Size = field(default_factory=torch.Size)
    repeat: int | None = None
    """The axis on which an output without a sample axis was repeated for every sample."""

    table: ClassVar[bool] = False
    """Whether the weight is stored (d_in, d_out), not transposed."""
    matrix: ClassVar[bool] = False
    by_row: ClassVar[bool] = False
    """Whether rows (all axes but the last) may come in any order."""
    bias_beside: ClassVar[bool] = True
    """Whether the bias can be one more row of the weight's inputs."""

    @cached_property
    def names(self) -> set[str]:
        return {name for name in (self.weight, self.bias) if name}

    def inputs(self, n: int) -> Tensor:
        """Return x, repeated for every sample if the output was."""
        return self.x if self.repeat is None else repeated(self.x, n, self.repeat)

    def vector(self, role: str, g: Tensor, n: int, layout: Place) -> Tensor:
        """Return the score of the parameter in this role, written out: (n, numel)."""
        raise NotImplementedError

    def factors(self, g: Tensor, n: int, layout: Place, bias: bool) -> Factors:
        """Return the score of the weight, with the bias as last row if wanted."""
        raise NotImplementedError


@dataclass
class LinearUse(Use):
    """out = x W (+ b)."""

    table: bool = False  # type: ignore[misc]
    matrix: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def vector(self, role: str, g: Tensor, n: int, layout: Place) -> Tensor:
        return widen(_positions(g, n, layout)).sum(1)  # ∂out/∂b = 1 at every position

    def factors(self, g: Tensor, n: int, layout: Place, bias: bool) -> Factors:
        return PairFactors(self._operand(n, layout, bias), Vectors(_positions(g, n, layout)))

    def _operand(self, n: int, layout: Place, bias: bool) -> Operand:
        x = self.inputs(n)
        written = bias and isinstance(layout, SampleRows)  # a place without a row has no one either
        x = F.pad(x, (0, 1), value=1.0) if written else x
        return Vectors(_positions(x, n, layout), ones=bias and not written)


@dataclass(kw_only=True)
class TableUse(LinearUse):
    """out = W[indices]: an input of unit vectors, stored as indices."""

    size: int
    padding: int | None
    table: bool = True  # type: ignore[misc]

    def factors(self, g: Tensor, n: int, layout: Place, bias: bool) -> Factors:
        indices = _positions(self.inputs(n)[..., None], n, layout)[..., 0]
        values = _positions(g, n, layout)
        if self.padding is not None:  # torch gives the padding row no gradient
            values = values * (indices != self.padding)[:, :, None]
        return PairFactors(OneHot(indices, self.size, widen(values[:0]).dtype), Vectors(values))


@dataclass(kw_only=True)
class StackUse(LinearUse):
    """out = x W[e] for a stack of matrices (experts); `which` (rows,) holds e of each row."""

    pieces: int
    which: Tensor

    def _operand(self, n: int, layout: Place, bias: bool) -> Operand:
        places = _positions(self.which.reshape(*self.x.shape[:-1], 1), n, layout)[..., 0]
        return Stacked(_positions(self.inputs(n), n, layout), places, self.pieces)


@dataclass(kw_only=True)
class ConvUse(Use):
    """out = convolution of x with W (+ b)."""

    conv: ConvShape
    matrix: ClassVar[bool] = True
    turned: ClassVar[bool] = False
    """Whether input and output gradient change places."""

    def vector(self, role: str, g: Tensor, n: int, layout: Place) -> Tensor:
        return _channels(g, n, layout)

    def factors(self, g: Tensor, n: int, layout: Place, bias: bool) -> Factors:
        x, g = (widen(layout.split(t, n).flatten(0, 1)) for t in (self.x, g))
        x, g = (g, x) if self.turned else (x, g)
        return ConvFactors(x, g, replace(self.conv, bias=bias), images=x.shape[0] // n)


@dataclass
class ConvTransposeUse(ConvUse):
    """out = transposed convolution: ⟨g, out⟩ = ⟨conv(g, W), x⟩, so x and g change places."""

    bias_beside: ClassVar[bool] = False
    turned: ClassVar[bool] = True


@dataclass(kw_only=True)
class NormUse(Use):
    """out = x̂ W (+ b), x̂ the normalised input: by channel, or over the last axes."""

    by_channel: bool
    features: int
    normalise: Callable[[Tensor], Tensor]

    @property
    def by_row(self) -> bool:  # type: ignore[override]
        return not self.by_channel and self.shape[-1:].numel() == self.features

    def vector(self, role: str, g: Tensor, n: int, layout: Place) -> Tensor:
        if role == "weight":
            g = widen(g) * widen(self.normalise(self.inputs(n)))
        if self.by_channel:
            return _channels(g, n, layout)
        g = g.reshape(-1, self.features) if isinstance(layout, SampleRows) else g
        return widen(layout.split(g, n).reshape(n, -1, self.features)).sum(1)


@dataclass(kw_only=True)
class ShiftUse(Use):
    """out = something + sign·W, W broadcast over the sample axis (also W expanded or sliced)."""

    size: torch.Size
    sign: float = 1.0
    index: tuple[Any, ...] | None = None

    def vector(self, role: str, g: Tensor, n: int, layout: Place) -> Tensor:
        g = widen(layout.split(g, n))
        if self.index is None:
            return self.sign * _summed_to(g, self.size).reshape(n, -1)
        out = g.new_zeros(n, *self.size)
        out[(slice(None), *self.index)] = g.reshape(out[(slice(None), *self.index)].shape)
        return out.reshape(n, -1)


@dataclass(kw_only=True)
class ScaleUse(Use):
    """out = x ⊙ W, W broadcast over the sample axis."""

    size: torch.Size

    def vector(self, role: str, g: Tensor, n: int, layout: Place) -> Tensor:
        x = self.x.expand(self.shape)
        x = x if self.repeat is None else repeated(x, n, self.repeat)
        return _summed_to(layout.split(widen(g) * widen(x), n), self.size).reshape(n, -1)


Seen = tuple[Use, Tensor, Place]
"""A use, the gradient at its output, and its layout."""


@dataclass(frozen=True)
class Block:
    """One layer: its parameters and how their scores are arranged as (d_in, d_out)."""

    name: str
    kind: Literal["matrix", "vector", "fallback"]
    weight: str
    bias: str | None
    shape: torch.Size
    table: bool = False
    """True if the weight is stored (d_in, d_out), False if (d_out, d_in, …)."""
    stack: bool = False
    """True for a stack of matrices, (pieces, …): the inputs of its pieces stand side by side."""

    @property
    def layer(self) -> Layer:
        d_in, d_out = self.sizes
        return Layer(self.name, d_in, d_out, np.zeros(d_in))

    @property
    def sizes(self) -> tuple[int, int]:
        if self.kind == "vector" or len(self.shape) < 2:
            return 1, self.shape.numel() * (2 if self.bias else 1)
        if self.stack:
            pieces, one, other = self.shape
            return (pieces * one, other) if self.table else (pieces * other, one)
        rest = self.shape[1:].numel()
        d_in, d_out = (self.shape[0], rest) if self.table else (rest, self.shape[0])
        return d_in + (self.bias is not None), d_out

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def pack(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Arrange gradients (n, *shape) of the block's parameters as (n, d_in, d_out)."""
        weight = gradients[self.weight]
        n, (_, d_out) = len(weight), self.sizes
        if self.kind == "vector" or len(self.shape) < 2:
            parts = [gradients[name].reshape(n, -1) for name in self.parameters]
            return torch.cat(parts, 1)[:, None, :]
        if self.stack:
            weight = weight if self.table else weight.transpose(2, 3)
            return weight.reshape(n, -1, d_out)
        matrix = weight.reshape((n, -1, d_out) if self.table else (n, d_out, -1))
        matrix = matrix if self.table else matrix.transpose(1, 2)
        if self.bias is None:
            return matrix
        return torch.cat([matrix, gradients[self.bias].reshape(n, 1, d_out)], 1)

    def factors(self, seen: list[Seen], n: int, like: Tensor) -> Factors:
        """Return the block's scores from the uses of its parameters in one pass."""
        if self.kind == "vector":
            return DenseFactors(self._vector(seen, n, like)[:, None, :])
        parts: list[Factors] = []
        for use, g, layout in seen:
            part = use.factors(g, n, layout, self.bias is not None)
            if use.table != self.table:  # transposed
                assert isinstance(part, PairFactors)
                part = PairFactors(part.outputs, part.inputs)
            parts.append(part)
        if not parts:  # the parameter is not used in this pass
            return PairFactors(*(Vectors(like.new_zeros(n, 1, d)) for d in self.sizes))
        return merge(parts)

    def _vector(self, seen: list[Seen], n: int, like: Tensor) -> Tensor:
        columns = []
        for name in self.parameters:
            total = like.new_zeros(n, self.shape.numel())
            for use, g, layout in seen:
                for role in ("weight", "bias"):
                    if getattr(use, role) == name:
                        total = total + use.vector(role, g, n, layout)
            columns.append(total)
        return torch.cat(columns, 1)


def plan_blocks(
    shapes: Mapping[str, torch.Size], uses: list[Use], fallback: set[str]
) -> tuple[Block, ...]:
    """Return the layers of a model, in the order of its parameters, from the uses of one pass."""
    uses_of: dict[str, list[Use]] = {name: [] for name in shapes}
    for use in uses:
        for name in use.names:
            uses_of[name].append(use)
    blocks: list[Block] = []
    taken: set[str] = set()
    for name, shape in shapes.items():
        if name in taken or not (uses_of[name] or name in fallback):
            continue
        kind = "fallback" if name in fallback else _kind_of(name, uses_of[name])
        bias = None if kind == "fallback" else _partner(name, uses_of, fallback | taken, shapes)
        taken |= {name} | ({bias} if bias else set())
        table = kind == "matrix" and uses_of[name][0].table
        stack = kind == "matrix" and isinstance(uses_of[name][0], StackUse)
        owner = name.removesuffix(".weight")
        title = owner if bias == owner + ".bias" else name
        blocks.append(Block(title, kind, name, bias, shape, table, stack))
    return tuple(blocks)


def _kind_of(name: str, uses: list[Use]) -> Literal["matrix", "vector", "fallback"]:
    as_matrix = [u.matrix and u.weight == name for u in uses]
    if not any(as_matrix):
        return "vector"
    convolutions = {
        isinstance(u, ConvUse) and (type(u), u.conv.kernel, u.conv.groups)  # type: ignore
        for u in uses
    }
    stacks = {isinstance(u, StackUse) and ("stack", u.table) for u in uses}
    alike = len(convolutions) == len(stacks) == 1
    return "matrix" if all(as_matrix) and alike else "fallback"


def _partner(
    name: str, uses_of: dict[str, list[Use]], excluded: set[str], shapes: Mapping[str, torch.Size]
) -> str | None:
    """Return the bias that is always used with this weight, and with nothing else."""
    biases = {u.bias if u.weight == name else None for u in uses_of[name]}
    bias = biases.pop()
    if biases or bias is None or bias in excluded or bias == name:
        return None
    if not uses_of[name][0].bias_beside:
        return None
    together = [id(u) for u in uses_of[bias]] == [id(u) for u in uses_of[name]]
    alike = uses_of[name][0].matrix or shapes[bias] == shapes[name]
    return bias if together and alike else None


# ---- where samples stand in one pass


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


def random_cotangent(outputs: Tensor) -> Tensor:
    """Return a random direction of the outputs, the same at every call."""
    # drawn on the device: a CPU takes seconds for the logits of a language model
    generator = torch.Generator(outputs.device).manual_seed(0)
    directions = torch.randn(
        outputs.shape, generator=generator, device=outputs.device, dtype=torch.float32
    )
    return directions.to(outputs.dtype)


class RowProbe:
    """Find the sample of each row, at every use of one pass.

    The backward pass is linear in the cotangent: with the cotangent of sample i scaled by 2^d, the
    gradient at a row of sample i is scaled by exactly 2^d, in any precision. With the number of a
    sample written to the base B, its digits are found in log_B(n) more backward passes.
    """

    def __init__(self, outputs: Tensor, uses: Sequence[Use], n: int) -> None:
        directions = random_cotangent(outputs)
        self.n, self.base = n, _HALF_BASE if outputs.dtype == torch.float16 else _BASE
        edges = [use.edge for use in uses]
        self.plain = pull_back(outputs, edges, directions, again=True)
        self.scaled, digit = [], 1
        while digit < n:
            factors = 2.0 ** ((torch.arange(n, device=outputs.device) // digit) % self.base)
            along = directions * factors.to(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1))
            self.scaled.append(pull_back(outputs, edges, along, again=True))
            digit *= self.base

    def _samples(self, place: int, rows: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the sample of each row, −1 if no gradient reaches it, and whether none has two.

        `rows` turns a gradient into (rows, numbers). Both results stay on the device.
        """
        first = self.plain[place]
        assert first is not None
        norms = rows(first).double().norm(dim=1)
        reached = norms > 0
        found = torch.zeros(len(norms), dtype=torch.long, device=norms.device)
        sure = torch.ones((), dtype=torch.bool, device=norms.device)
        for digit, gradients in enumerate(self.scaled):
            g = gradients[place]
            assert g is not None
            ratio = rows(g).double().norm(dim=1) / norms
            factor = torch.where(reached, ratio, 1.0).log2()
            sure = sure & ((factor - factor.round()).abs() <= _MAX_LOG_ERROR).all()
            found = found + factor.round().long() * self.base**digit
        sure = sure & ((found >= 0) & (found < self.n)).all()
        return found.masked_fill(~reached, -1), sure

    def layouts(self, known: Sequence[tuple[Use, Place]]) -> list[Place | None]:
        """Return where samples stand at each use in this pass; None if a row has several.

        `known` are the uses with their usual places, which are checked together: the host waits
        for the device once.
        """
        found: list[Place | None] = [place for _, place in known]
        checks, others = {}, []
        for i, (use, usual) in enumerate(known):
            if use.repeat is not None or self.plain[i] is None:
                continue
            others.append(i)
            if isinstance(usual, Layout) and use.axes and use.shape[usual.axis] % self.n == 0:
                samples, sure = self._samples(i, lambda g, at=usual: at.split(g, self.n).flatten(1))
                expected = torch.arange(self.n, device=samples.device)
                checks[i] = sure & ((samples == expected) | (samples < 0)).all()
        right = torch.stack([*checks.values()]).tolist() if checks else []
        for i in set(others) - {i for i, as_usual in zip(checks, right) if as_usual}:
            found[i] = None
            if known[i][0].by_row:
                samples, sure = self._samples(i, lambda g: g.reshape(-1, g.shape[-1]))
                found[i] = SampleRows.of(samples, self.n) if bool(sure) else None
        return found
