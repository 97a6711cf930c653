"""One use of a parameter in a forward pass: what was multiplied with it, and where g appears.

A `Use` keeps the input x of one operation and says how the gradient g at its output becomes the
parameter's score, sample by sample. Matrices (Linear, tables, convolutions) stay factored; a
parameter that acts element by element is as long as its gradient, so that is written out.

Samples may stand on any axis of an output (sequence-first models), or be folded with another
axis (frames, windows, heads): `Layout` says where, and is found by the survey, never assumed.
Where rows were gathered by index (experts, packed sequences), `Rows` says whose each one is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from exempla.factors import Factors
from exempla.oracles.torch.factors.conv import ConvFactors, ConvShape
from exempla.oracles.torch.factors.factors import PairFactors
from exempla.oracles.torch.factors.operands import OneHot, Stacked, Vectors

__all__ = [
    "ConvTransposeUse",
    "ConvUse",
    "Layout",
    "LinearUse",
    "NormUse",
    "Rows",
    "ScaleUse",
    "ShiftUse",
    "StackUse",
    "TableUse",
    "Use",
]


class Layout(NamedTuple):
    """Where samples stand: on `axis`, of size n·m; sample-major unless `inner`."""

    axis: int
    inner: bool = False


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in any order, each of one sample: where each goes among n samples × `most` positions."""

    n: int
    most: int
    kept: Tensor
    """Rows that belong to a sample: no gradient reaches the others."""
    slots: Tensor

    @staticmethod
    def of(owners: Tensor, n: int) -> Rows:
        """From the sample of each row, −1 where it has none.

        >>> Rows.of(torch.tensor([1, 0, 1, -1]), 2).split(torch.tensor([[5.0], [6], [7], [8]]))
        tensor([[[6.],
                 [0.]],
        <BLANKLINE>
                [[5.],
                 [7.]]])
        """
        kept = owners.argsort(stable=True)[int((owners < 0).sum()) :]
        mine = owners[kept]
        counts = torch.bincount(mine, minlength=n)
        first = counts.cumsum(0) - counts
        rank = torch.arange(len(kept), device=owners.device) - first[mine]
        most = max(int(counts.max()), 1)
        return Rows(n, most, kept, mine * most + rank)

    def split(self, t: Tensor) -> Tensor:
        """(rows, …) as (n, most, …), nothing (0) where a sample has fewer rows."""
        out = t.new_zeros(self.n * self.most, *t.shape[1:])
        out[self.slots] = t[self.kept]
        return out.unflatten(0, (self.n, self.most))


def split(t: Tensor, n: int, layout: Layout | Rows) -> Tensor:
    """Samples first: (n, …) with the axis they stood on reduced to m."""
    if isinstance(layout, Rows):
        return layout.split(t)
    axis, inner = layout
    sizes = (-1, n) if inner else (n, -1)
    return t.unflatten(axis, sizes).movedim(axis + 1 if inner else axis, 0)


def wide(t: Tensor) -> Tensor:
    """At least single precision: sums over samples and positions need it."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


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
    """Set when the output had no sample axis and was repeated for every sample: on which axis."""

    matrix: ClassVar[bool] = False
    by_row: ClassVar[bool] = False
    """Whether rows (all axes but the last) may come in any order."""
    bias_beside: ClassVar[bool] = True
    """Whether the bias can be one more row of the weight's inputs."""

    @property
    def key(self) -> str:
        return self.weight or self.bias or ""

    def inputs(self, n: int) -> Tensor:
        """x, repeated for every sample if the output was."""
        return self.x if self.repeat is None else repeated(self.x, n, self.repeat)

    def vector(self, role: str, g: Tensor, n: int, layout: Layout | Rows) -> Tensor:
        """The score of the parameter in this role, written out: (n, numel)."""
        raise TypeError(f"{type(self).__name__} has no {role} to write out")

    def factors(self, g: Tensor, n: int, layout: Layout | Rows, bias: bool) -> Factors:
        """The score of the weight, with the bias as last row if wanted."""
        raise TypeError(f"{type(self).__name__} has no weight matrix")


def repeated(t: Tensor, n: int, axis: int) -> Tensor:
    """The same values for each of n samples, on an axis of size one (−1: a new first axis)."""
    if axis < 0:
        return t.unsqueeze(0).expand(n, *t.shape)
    return t.expand(*t.shape[:axis], n, *t.shape[axis + 1 :])


@dataclass
class LinearUse(Use):
    """out = x W (+ b); `table` if W is stored (d_in, d_out), not transposed."""

    table: bool = False
    matrix: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def vector(self, role: str, g: Tensor, n: int, layout: Layout | Rows) -> Tensor:
        return positions(g, n, layout).sum(1)  # ∂out/∂b = 1 at every position

    def factors(self, g: Tensor, n: int, layout: Layout | Rows, bias: bool) -> Factors:
        x = self.inputs(n)
        written = bias and isinstance(layout, Rows)  # a place without a row has no one either
        x = torch.nn.functional.pad(x, (0, 1), value=1.0) if written else x
        a = Vectors(positions(x, n, layout), ones=bias and not written)
        return PairFactors(a, Vectors(positions(g, n, layout)))


def positions(t: Tensor, n: int, layout: Layout | Rows) -> Tensor:
    """(n, s, d): every axis but the last is samples or positions."""
    if isinstance(layout, Rows):
        return wide(layout.split(t.reshape(-1, t.shape[-1])))
    return wide(split(t, n, layout).reshape(n, -1, t.shape[-1]))


@dataclass
class TableUse(Use):
    """out = W[indices]: an input of unit vectors, kept as indices."""

    size: int = 0
    padding: int | None = None
    table: ClassVar[bool] = True
    matrix: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def factors(self, g: Tensor, n: int, layout: Layout | Rows, bias: bool) -> Factors:
        x = self.inputs(n)
        x = x.reshape(-1) if isinstance(layout, Rows) else x
        indices = split(x, n, layout).reshape(n, -1)
        values = positions(g, n, layout)
        if self.padding is not None:  # torch gives the padding row no gradient
            values = values * (indices != self.padding)[:, :, None]
        return PairFactors(OneHot(indices, self.size, values.dtype), Vectors(values))


@dataclass
class StackUse(Use):
    """out = x W[e] for a stack of matrices (experts): e the same for all rows, or one for each."""

    pieces: int = 0
    which: Tensor | None = None
    """(rows,) numbers of the matrices."""
    table: bool = False
    matrix: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def factors(self, g: Tensor, n: int, layout: Layout | Rows, bias: bool) -> Factors:
        assert self.which is not None
        which = self.which if isinstance(layout, Rows) else self.which.reshape(self.x.shape[:-1])
        places = split(which, n, layout).reshape(n, -1)
        values = positions(self.inputs(n), n, layout)
        return PairFactors(Stacked(values, places, self.pieces), Vectors(positions(g, n, layout)))


@dataclass
class ConvUse(Use):
    """out = convolution of x with W (+ b)."""

    conv: ConvShape | None = None
    table: ClassVar[bool] = False
    matrix: ClassVar[bool] = True

    def vector(self, role: str, g: Tensor, n: int, layout: Layout | Rows) -> Tensor:
        return channels(g, n, layout)

    def factors(self, g: Tensor, n: int, layout: Layout | Rows, bias: bool) -> Factors:
        assert self.conv is not None
        x, g = (wide(split(t, n, layout).flatten(0, 1)) for t in (self.x, g))
        kind = self.conv
        shape = ConvShape(kind.kernel, kind.stride, kind.padding, kind.dilation, kind.groups, bias)
        return ConvFactors(x, g, shape, images=x.shape[0] // n)


@dataclass
class ConvTransposeUse(ConvUse):
    """out = transposed convolution: ⟨g, out⟩ = ⟨conv(g, W), x⟩, so x and g change places."""

    bias_beside: ClassVar[bool] = False

    def factors(self, g: Tensor, n: int, layout: Layout | Rows, bias: bool) -> Factors:
        assert self.conv is not None
        x, g = (wide(split(t, n, layout).flatten(0, 1)) for t in (self.x, g))
        return ConvFactors(g, x, self.conv, images=x.shape[0] // n)


def channels(t: Tensor, n: int, layout: Layout | Rows) -> Tensor:
    """(n, C): summed over everything but samples and the channel axis."""
    parts = wide(split(t, n, layout))  # (n, m, C, …)
    return parts.flatten(3).sum((1, 3)) if parts.ndim > 3 else parts.sum(1)


@dataclass
class NormUse(Use):
    """out = x̂ W (+ b), x̂ the normalised input: by channel, or over the last axes."""

    by_channel: bool = False
    features: int = 0
    normalise: Callable[[Tensor], Tensor] | None = None

    @property
    def by_row(self) -> bool:  # type: ignore[override]
        return not self.by_channel and self.shape[-1:].numel() == self.features

    def vector(self, role: str, g: Tensor, n: int, layout: Layout | Rows) -> Tensor:
        if role == "weight":
            assert self.normalise is not None
            g = wide(g) * wide(self.normalise(self.inputs(n)))
        if self.by_channel:
            return channels(g, n, layout)
        g = g.reshape(-1, self.features) if isinstance(layout, Rows) else g
        return wide(split(g, n, layout).reshape(n, -1, self.features)).sum(1)


@dataclass
class ShiftUse(Use):
    """out = something + sign·W, W broadcast over the sample axis (also W expanded or sliced)."""

    size: torch.Size = field(default_factory=torch.Size)
    sign: float = 1.0
    index: tuple[Any, ...] | None = None

    def vector(self, role: str, g: Tensor, n: int, layout: Layout | Rows) -> Tensor:
        g = wide(split(g, n, layout))
        if self.index is None:
            return self.sign * summed_to(g, self.size).reshape(n, -1)
        out = g.new_zeros(n, *self.size)
        out[(slice(None), *self.index)] = g.reshape(out[(slice(None), *self.index)].shape)
        return out.reshape(n, -1)


@dataclass
class ScaleUse(Use):
    """out = x ⊙ W, W broadcast over the sample axis."""

    size: torch.Size = field(default_factory=torch.Size)

    def vector(self, role: str, g: Tensor, n: int, layout: Layout | Rows) -> Tensor:
        x = self.x.expand(self.shape)
        x = x if self.repeat is None else repeated(x, n, self.repeat)
        return summed_to(split(wide(g) * wide(x), n, layout), self.size).reshape(n, -1)


def summed_to(t: Tensor, size: torch.Size) -> Tensor:
    """Each sample's tensor summed over the axes that `size` was broadcast along."""
    extra = t.ndim - 1 - len(size)
    t = t.flatten(1, extra).sum(1) if extra else t
    over = [i + 1 for i, s in enumerate(size) if s == 1 and t.shape[i + 1] != 1]
    return t.sum(over, keepdim=True) if over else t
