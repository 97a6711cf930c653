"""`Factors` of torch layers that are not two plain arrays: each keeps the smallest form it can.

    PairFactors   Linear, Embedding: two operands (operands.py)
    ConvFactors   convolutions: image and output gradient
    DenseFactors  a gradient without structure: norms, bare parameters, the fallback
    SumFactors    one parameter used in several ways (tied weights): the sum of its uses

A score is a (d_in, d_out) matrix, flattened row by row.

In a convolution, a is the patch under the kernel and g the gradient at the output. Writing the
patches out multiplies memory by the kernel's size (9 for 3×3). Projecting them needs no patches:
Uᵀa at every position is itself a convolution, with the columns of U as kernels. With groups, group
c of the outputs sees only group c of the inputs: the score is a matrix of (d_in, d_out) =
(C_in/groups · kernel [+1], C_out), each output column made by its own group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.base import GRAM_BLOCK
from exempla.oracles.factors import Factors, Pairs, Side, Work
from exempla.oracles.torch.operands import (
    GRAM_TIMES,
    OneHot,
    Operand,
    Stacked,
    Vectors,
    gram_in_pieces,
    norms_in_pieces,
    pieces,
    rows_at_once,
)


class _StructuredFactors(Factors, ABC):
    """Defaults of the subclasses, computed on the written-out scores."""

    @property
    def given_inputs(self) -> Tensor | None:
        return None

    def project_pairs(self, basis_in: Tensor, basis_out: Tensor, pairs: Pairs) -> Tensor:
        return self.project(basis_in, basis_out).flatten(1)[:, pairs.flat]

    @abstractmethod
    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor: ...

    @abstractmethod
    def take(self, positions: np.ndarray) -> _StructuredFactors: ...

    @property
    @abstractmethod
    def work(self) -> Work: ...

    @property
    def _width(self) -> int:
        """Numbers that writing out one row takes."""
        return self.take(np.arange(1)).dense().numel()

    def compact(self) -> Factors:
        """Write the scores out if many positions make the two sides longer than the scores."""
        if len(self) == 0 or len(self) * self.take(np.arange(1)).dense().nbytes >= self.nbytes:
            return self
        parts = pieces(len(self), self._width, self.g)
        return DenseFactors(torch.cat([self.take(p).project(None, None) for p in parts]))

    def gram(self, other: Factors) -> Tensor:
        return self.dense() @ other.dense().T

    def norm2(self) -> Tensor:
        return self.dense().square().sum(1)

    def join(self, others: list[Factors]) -> Factors:
        parts = [self.project(None, None), *(f.project(None, None) for f in others)]
        return DenseFactors(torch.cat(parts))

    def action(self, side: Side, directions: Tensor) -> Tensor:
        return self.moment(side) @ directions

    def scale_inputs(self, factor: Any) -> Factors:
        matrix = self.project(None, None)
        return DenseFactors(matrix * torch.as_tensor(factor).to(matrix)[:, None])


@dataclass(frozen=True, init=False)
class DenseFactors(_StructuredFactors):
    """Scores written out as (n, d_in, d_out) matrices."""

    def __init__(self, matrix: Tensor) -> None:
        object.__setattr__(self, "a", None)
        object.__setattr__(self, "g", matrix)

    @property
    def work(self) -> Work:
        d_in, d_out = self.g.shape[1:]
        return Work(1, d_in, d_out, 2.0 * d_in * d_out)

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        matrix = self.g if basis_out is None else self.g @ basis_out
        return matrix if basis_in is None else basis_in.T @ matrix

    def take(self, positions: np.ndarray) -> DenseFactors:
        return DenseFactors(self.g[positions])

    def moment(self, side: Side) -> Tensor:
        # without positions to sum over, the score itself gives the two sides: Σ M Mᵀ and Σ Mᵀ M
        matrix = self.g.transpose(1, 2) if side == "inputs" else self.g
        flat = matrix.flatten(0, 1)
        return flat.T @ flat


@dataclass(frozen=True, init=False)
class PairFactors(_StructuredFactors):
    """Scores Σ_s a_s g_sᵀ with a and g each an `Operand`."""

    inputs: Operand
    outputs: Operand

    def __init__(self, inputs: Operand, outputs: Operand) -> None:
        for name, value in (
            ("inputs", inputs),
            ("outputs", outputs),
            ("a", inputs.tensor),
            ("g", outputs.tensor if isinstance(outputs, Vectors) else inputs.tensor),
        ):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return self.inputs.rows

    @property
    def given_inputs(self) -> Tensor:
        return self.inputs.tensor

    @property
    def work(self) -> Work:
        s, inputs, outputs = self.inputs.positions, self.inputs, self.outputs
        d_in, d_out = inputs.multiplied, outputs.multiplied
        if self._written_out(s * s):
            return Work(s, d_in, d_out, 2.0 * inputs.width * outputs.width)
        return Work(s, d_in, d_out, 2.0 * s * s * (d_in + d_out))

    def _written_out(self, positions: int) -> bool:
        """Return True if dot products are cheaper on written-out scores than by positions."""
        d_in, d_out = self.inputs.width, self.outputs.width
        return d_in * d_out <= positions * (d_in + d_out)

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        if basis_in is None and isinstance(self.inputs, OneHot):
            return self._scatter(self.outputs.project(basis_out), self.inputs)
        if basis_out is None and isinstance(self.outputs, OneHot):
            return self._scatter(self.inputs.project(basis_in), self.outputs).transpose(1, 2)
        a, g = self.inputs.project(basis_in), self.outputs.project(basis_out)
        if a.shape[1] == 1:
            return a.transpose(1, 2) * g
        return a.transpose(1, 2) @ g

    def project_pairs(self, basis_in: Tensor, basis_out: Tensor, pairs: Pairs) -> Tensor:
        if self.inputs.positions > 1:
            return super().project_pairs(basis_in, basis_out, pairs)
        # one position: the block around the pairs need not be written out
        a, g = self.inputs.project(basis_in)[:, 0], self.outputs.project(basis_out)[:, 0]
        return a[:, pairs.inputs] * g[:, pairs.outputs]

    @staticmethod
    def _scatter(values: Tensor, table: OneHot) -> Tensor:
        """Return Σ_s e_{k(s)} v_sᵀ: add each position's vector to its row of the table."""
        out = values.new_zeros(values.shape[0], table.width, values.shape[2])
        return out.scatter_add_(1, table.indices[:, :, None].expand_as(values), values)

    def take(self, positions: np.ndarray) -> PairFactors:
        return PairFactors(self.inputs.take(positions), self.outputs.take(positions))

    def flip(self) -> PairFactors:
        """Return the transposed scores."""
        return PairFactors(self.outputs, self.inputs)

    def moment(self, side: Side) -> Tensor:
        return getattr(self, side).moment()

    def action(self, side: Side, directions: Tensor) -> Tensor:
        return getattr(self, side).action(directions)

    def gram(self, other: Factors) -> Tensor:
        if not isinstance(other, PairFactors):
            return other.gram(self).T
        positions = self.inputs.positions * other.inputs.positions
        if self._written_out(positions):
            return gram_in_pieces(self, other, self.inputs.width * self.outputs.width)
        # Σ_{s,s'} (a_s·a'_s')(g_s·g'_s'), a few rows at a time
        out = []
        for piece in pieces(len(self), positions * len(other), self.g):
            some = self.take(piece)
            inputs, outputs = some.inputs.cross(other.inputs), some.outputs.cross(other.outputs)
            out.append((inputs * outputs).sum((1, 3)))
        return torch.cat(out)

    def scale_inputs(self, factor: Any) -> Factors:
        scale = torch.as_tensor(factor).to(self.g)
        if isinstance(self.inputs, OneHot):  # e_k scaled by f_k is f_k times what stands opposite
            outputs = self.outputs.project(None) * scale[self.inputs.indices][:, :, None]
            return PairFactors(self.inputs, Vectors(outputs))
        return PairFactors(Vectors(self.inputs.project(None) * scale), self.outputs)

    def pair(self, other: PairFactors) -> Tensor:
        """Return the dot products of row i here with row i there, (n,)."""
        return (self.inputs.pair(other.inputs) * self.outputs.pair(other.outputs)).sum((1, 2))

    def norm2(self) -> Tensor:
        # multiplied out: s·d_in·d_out a row; as products of positions: s²·(d_in + d_out)
        if self._written_out(self.inputs.positions):
            return norms_in_pieces(self, self.inputs.width * self.outputs.width)
        return self.pair(self)

    def join(self, others: list[Factors]) -> Factors:
        parts = [self, *others]
        if not all(isinstance(f, PairFactors) for f in parts):
            return super().join(others)
        longest = max(f.inputs.positions for f in parts)
        # an empty position must count in no moment, so implied ones are written out if any pads,
        # or has done so before
        pads = any(f.inputs.positions < longest for f in parts)
        pads = pads or len({getattr(f.inputs, "ones", None) for f in parts}) > 1
        sides = [
            [_padded(getattr(f, side), longest, pads) for f in parts]
            for side in ("inputs", "outputs")
        ]
        return PairFactors(*(_joined(s) for s in sides))


@dataclass(frozen=True, init=False)
class SumFactors(_StructuredFactors):
    """One parameter used in several places: its score is the sum of theirs."""

    parts: tuple[Factors, ...]

    def __init__(self, parts: list[Factors]) -> None:
        for name, value in (("parts", tuple(parts)), ("a", parts[0].a), ("g", parts[0].g)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def nbytes(self) -> int:
        return sum(f.nbytes for f in self.parts)

    @property
    def work(self) -> Work:
        each = [f.work for f in self.parts]
        positions, first = sum(w.positions for w in each), each[0]
        return Work(positions, first.d_in, first.d_out, len(each) * sum(w.gram for w in each))

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        first, *rest = (f.project(basis_in, basis_out) for f in self.parts)
        for more in rest:
            first = first + more
        return first

    def take(self, positions: np.ndarray) -> SumFactors:
        return SumFactors([f.take(positions) for f in self.parts])

    def moment(self, side: Side) -> Tensor:
        return torch.stack([f.moment(side) for f in self.parts]).sum(0)

    def action(self, side: Side, directions: Tensor) -> Tensor:
        return torch.stack([f.action(side, directions) for f in self.parts]).sum(0)

    def gram(self, other: Factors) -> Tensor:
        others = other.parts if isinstance(other, SumFactors) else (other,)
        return torch.stack([f.gram(h) for f in self.parts for h in others]).sum(0)

    def norm2(self) -> Tensor:
        pairs = [f for f in self.parts if isinstance(f, PairFactors)]
        if len(pairs) < len(self.parts):
            return super().norm2()
        return torch.stack([f.pair(h) for f in pairs for h in pairs]).sum(0)

    def join(self, others: list[Factors]) -> Factors:
        sums = [f for f in others if isinstance(f, SumFactors) and len(f.parts) == len(self.parts)]
        if len(sums) < len(others):
            return super().join(others)
        columns = zip(self.parts, *(f.parts for f in sums), strict=True)
        return SumFactors([first.join(list(rest)) for first, *rest in columns])


def _padded(side: Operand, positions: int, write_out: bool) -> Operand:
    """Return the side with empty positions added."""
    missing = positions - side.positions
    if isinstance(side, OneHot):
        padded = torch.nn.functional.pad(side.indices, (0, missing))
        return OneHot(padded, side.width, side.dtype)
    if isinstance(side, Stacked):
        part = torch.nn.functional.pad(side.part, (0, missing))
        values = torch.nn.functional.pad(side.values, (0, 0, 0, missing))
        return Stacked(values, part, side.pieces)
    assert isinstance(side, Vectors)
    values, ones = (side.project(None), False) if write_out else (side.values, side.ones)
    return Vectors(torch.nn.functional.pad(values, (0, 0, 0, missing)), ones)


def _joined(sides: list[Any]) -> Operand:
    """Concatenate the rows of all sides."""
    first = sides[0]
    if isinstance(first, OneHot):
        return OneHot(torch.cat([s.indices for s in sides]), first.width, first.dtype)
    if isinstance(first, Stacked):
        values, part = (torch.cat([getattr(s, x) for s in sides]) for x in ("values", "part"))
        return Stacked(values, part, first.pieces)
    return Vectors(torch.cat([s.values for s in sides]), first.ones)


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class ConvShape:
    """The arguments of torch's convolution."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    bias: bool

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        function = _CONVOLUTIONS[len(self.kernel)]
        padding: Any = self.padding
        return function(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def margins(self) -> list[tuple[int, int]]:
        """Return the number of zeros before and after each spatial axis."""
        if self.padding == "valid":
            return [(0, 0)] * len(self.kernel)
        if self.padding == "same":  # torch puts the odd one after
            spare = [d * (k - 1) for k, d in zip(self.kernel, self.dilation)]
            return [(total // 2, total - total // 2) for total in spare]
        return [(int(p), int(p)) for p in self.padding]

    def patches(self, x: Tensor) -> Tensor:
        """Return the patch at each position, (nm, groups, C/groups·kernel, L)."""
        flat_margins = [end for pair in reversed(self.margins()) for end in pair]
        view, dims = F.pad(x, flat_margins), len(self.kernel)
        if dims == 2 and not x.is_cuda:  # torch's own, which on a GPU starts a kernel per image
            patches = F.unfold(view, self.kernel, self.dilation, stride=self.stride)
            return patches.unflatten(1, (self.groups, -1))
        for axis, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation), start=2):
            view = view.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        # (nm, C, positions…, kernel…) → (nm, groups, C/groups, kernel…, positions…)
        view = view.unflatten(1, (self.groups, -1)).movedim(
            tuple(range(3, 3 + dims)), tuple(range(-dims, 0))
        )
        return view.reshape(x.shape[0], self.groups, -1, int(np.prod(view.shape[-dims:])))


@dataclass(frozen=True, init=False)
class ConvFactors(_StructuredFactors):
    """Scores of a convolution: images (n·m, C, …) and output gradients (n·m, O, …), m per row."""

    shape: ConvShape
    images: int

    def __init__(self, x: Tensor, g: Tensor, shape: ConvShape, images: int = 1) -> None:
        for name, value in (("a", x), ("g", g), ("shape", shape), ("images", images)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return self.g.shape[0] // self.images

    @property
    def given_inputs(self) -> Tensor:
        return self.a

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        if basis_in is None:
            return self._project(None, basis_out)
        # a few rows at a time: projected patches may be many times the image
        width = self.shape.groups * basis_in.shape[1] * self.positions
        step = self.images * rows_at_once(width, self.g)
        starts = range(0, max(len(self.g), 1), step)
        parts = [
            ConvFactors(self.a[i : i + step], self.g[i : i + step], self.shape, self.images)
            for i in starts
        ]
        return torch.cat([part._project(basis_in, basis_out) for part in parts])

    def _project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        groups, a = self.shape.groups, self._patches(basis_in)  # (nm, groups, r_in, L)
        g = self.g.flatten(2).unflatten(1, (groups, -1))  # (nm, groups, O/groups, L)
        # one (r_in, O/groups) block a group: Σ over positions
        blocks = a @ g.transpose(2, 3)
        if basis_in is None and self.shape.bias:  # the ones under the bias: Σ g
            blocks = torch.cat([blocks, g.sum(3)[:, :, None, :]], 2)
        if basis_out is None:
            out = blocks.transpose(1, 2).flatten(2)
        elif groups == 1:
            out = blocks[:, 0] @ basis_out
        else:
            out = torch.einsum("ngio,gor->nir", blocks, basis_out.unflatten(0, (groups, -1)))
        return out if self.images == 1 else out.unflatten(0, (-1, self.images)).sum(1)

    def _patches(self, basis: Tensor | None) -> Tensor:
        """Return Uᵀ(patch) at every position, (nm, groups, r, L): the convolution of x with U."""
        shape, groups = self.shape, self.shape.groups
        if basis is None:
            return shape.patches(self.a)
        kernel = (self.a.shape[1] // groups, *shape.kernel)
        size = int(np.prod(kernel))
        weight = basis[:size].T.reshape(-1, *kernel)
        bias = basis[size] if shape.bias else None
        if groups > 1:
            weight = weight.repeat(groups, *[1] * len(kernel))
            bias = None if bias is None else bias.repeat(groups)
        return shape.convolve(self.a, weight, bias).flatten(2).unflatten(1, (groups, -1))

    def take(self, positions: np.ndarray) -> ConvFactors:
        if self.images > 1:
            positions = (
                np.asarray(positions)[:, None] * self.images + np.arange(self.images)
            ).ravel()
        return ConvFactors(self.a[positions], self.g[positions], self.shape, self.images)

    # ---- dot products: of scores written out, or position by position where those are few

    @property
    def positions(self) -> int:
        return self.images * self.g.shape[2:].numel()

    @property
    def _sizes(self) -> tuple[int, int]:
        """(d_in, d_out) of the score."""
        kernel = self.a.shape[1] // self.shape.groups * int(np.prod(self.shape.kernel))
        return kernel + self.shape.bias, self.g.shape[1]

    @property
    def _width(self) -> int:
        """Numbers in one score, or in one row's patches if those are more."""
        d_in = self.a.shape[1] * int(np.prod(self.shape.kernel)) + self.shape.bias
        return d_in * max(self.g.shape[1] // self.shape.groups, self.positions)

    @property
    def _patch_width(self) -> int:
        """Numbers in one row's patches and output gradients."""
        d_in = self.a.shape[1] * int(np.prod(self.shape.kernel)) + self.shape.bias
        return self.positions * (d_in + self.g.shape[1])

    def _by_positions(self, positions: int) -> float:
        """Return the cost of Σ (a_s·a'_t)(g_s·g'_t) over this many pairs of positions s, t."""
        d_in, d_out = self._sizes
        return 2.0 * positions * (self.shape.groups * d_in + d_out)

    @property
    def work(self) -> Work:
        d_in, d_out = self._sizes
        # the other score is written out once for as many rows of this as fit at one time
        shared = min(rows_at_once(self._width, self.g, GRAM_TIMES), GRAM_BLOCK)
        written = 2.0 * d_in * d_out * (1 + self.positions / shared)
        gram = min(written, self._by_positions(self.positions**2))
        return Work(self.positions, d_in, d_out, gram)

    def gram(self, other: Factors) -> Tensor:
        if isinstance(other, ConvFactors) and self._few_positions(other):
            return self._gram_of_positions(other)
        return gram_in_pieces(self, other, self._width)

    def _few_positions(self, other: ConvFactors) -> bool:
        """Return True if dot products by positions are cheaper."""
        return self._by_positions(self.positions * other.positions) <= self.work.gram

    def _gram_of_positions(self, other: ConvFactors) -> Tensor:
        right = pieces(len(other), other._patch_width, self.g)
        products = self.positions * other.positions * len(right[0])
        out = []
        for piece in pieces(len(self), max(self._patch_width, products), self.g):
            a, g = self.take(piece)._sides()
            parts = []
            for others in right:
                b, h = other.take(others)._sides()
                inputs = torch.einsum("znsd,zmtd->znsmt", a, b)
                outputs = torch.einsum("znsd,zmtd->znsmt", g, h)
                parts.append((inputs * outputs).sum((0, 2, 4)))
            out.append(torch.cat(parts, 1))
        return torch.cat(out)

    def norm2(self) -> Tensor:
        d_in, d_out = self._sizes
        # written out, a score costs 2·s·d_in·d_out
        if self._by_positions(self.positions) >= 2.0 * d_in * d_out:
            return norms_in_pieces(self, self._width)
        out = []
        for piece in pieces(len(self), self._patch_width, self.g):
            a, g = self.take(piece)._sides()
            out.append(((a @ a.transpose(2, 3)) * (g @ g.transpose(2, 3))).sum((0, 2, 3)))
        return torch.cat(out)

    def _sides(self) -> tuple[Tensor, Tensor]:
        """Return patches (and ones for the bias) and output gradients, (groups, n, s, d) each."""
        a = self.shape.patches(self.a)  # (nm, groups, d, L)
        a = F.pad(a, (0, 0, 0, 1), value=1.0) if self.shape.bias else a
        g = self.g.flatten(2).unflatten(1, (self.shape.groups, -1))

        def arranged(side: Tensor) -> Tensor:
            return side.unflatten(0, (-1, self.images)).permute(2, 0, 1, 4, 3).flatten(2, 3)

        return arranged(a), arranged(g)

    def join(self, others: list[Factors]) -> Factors:
        parts = [self, *others]
        alike = all(
            isinstance(f, ConvFactors)
            and f.a.shape[1:] == self.a.shape[1:]
            and f.images == self.images
            for f in parts
        )
        if not alike:
            return super().join(others)
        x, g = (torch.cat([getattr(f, side) for f in parts]) for side in "ag")
        return ConvFactors(x, g, self.shape, self.images)

    # ---- moments of the two sides

    def _flat_patches(self) -> Iterator[Tensor]:
        """Yield every patch as a column, (C/groups·kernel, columns), some images at a time."""
        width = self.a.shape[1] * int(np.prod(self.shape.kernel)) * self.g[0, 0].numel()
        for piece in pieces(len(self.a), width, self.a):
            patches = self.shape.patches(self.a[piece[0] : piece[-1] + 1])
            yield patches.transpose(0, 2).flatten(1)

    def moment(self, side: Side) -> Tensor:
        if side == "outputs":
            flat = self.g.transpose(0, 1).flatten(1)
            return flat @ flat.T
        moment: Any = 0
        total: Any = 0
        count = 0
        for flat in self._flat_patches():
            moment, total = moment + flat @ flat.T, total + flat.sum(1)
            count += flat.shape[1]
        if not self.shape.bias:
            return moment
        last = torch.cat([total, total.new_tensor([float(count)])])
        return torch.cat([torch.cat([moment, total[:, None]], 1), last[None]])

    def action(self, side: Side, directions: Tensor) -> Tensor:
        if side == "outputs":
            flat = self.g.transpose(0, 1).flatten(1)
            return flat @ (flat.T @ directions)
        out: Any = 0
        ones: Any = 0  # the last row, where the bias's ones meet the directions
        for flat in self._flat_patches():
            along = flat.T @ directions[: len(flat)]
            if self.shape.bias:
                along = along + directions[-1]
                ones = ones + along.sum(0)
            out = out + flat @ along
        return torch.cat([out, ones[None]]) if self.shape.bias else out
