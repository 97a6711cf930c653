"""`Factors` of torch layers that are not two plain arrays: each keeps the smallest form it can.

    PairFactors   Linear, Embedding: two operands, inputs a and output gradients g
    ConvFactors   convolutions: image and output gradient (conv.py)
    DenseFactors  a gradient without structure: norms, bare parameters, the fallback
    SumFactors    one parameter used in several ways (tied weights): the sum of its uses

A score is a (d_in, d_out) matrix, flattened row by row. Each side of Σ_s a_s g_sᵀ is an `Operand`
of n rows × s positions × d numbers: `Vectors` (the numbers), `OneHot` (of an embedding table, only
the position of the single one) or `Stacked` (of a stack of matrices, such as experts: the numbers
and which matrix they met). A tied weight used once as a table and once as a matrix swaps its sides.

Scores are written out a few rows at a time, which bounds memory and keeps the cache warm. Numbers
stay in the precision of the pass (bfloat16, say) and are widened when they are used: the sides of
all layers together are the largest thing in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.base import Factors, Pairs, Side, Work, as_slice

_LOW = (torch.float16, torch.bfloat16)
_PIECE = 2**26
"""Numbers written out at one time on a GPU; one 16th of it on a CPU."""
GRAM_TIMES = 8
"""Multiple of `_PIECE` for a Gram matrix on a CPU, where each piece is written out again for every
other: with pieces of one row that would cost more than the products."""


def rows_at_once(width: int, like: Tensor, times: int = 1) -> int:
    """Return how many rows of this width are written out at one time."""
    return max(1, (_PIECE if like.is_cuda else times * _PIECE // 16) // max(width, 1))


def pieces_of(rows: int, width: int, like: Tensor, times: int = 1) -> list[np.ndarray]:
    """Split rows into consecutive pieces of at most `rows_at_once`."""
    step = rows_at_once(width, like, times)
    return [np.arange(i, min(i + step, rows)) for i in range(0, rows, step)]


def widen(t: Tensor) -> Tensor:
    """Return at least single precision, which sums over samples and positions need."""
    return t.float() if t.dtype in _LOW else t


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of matrices, (n, s, d) with (n, d, r), in single precision at least.

    A GPU multiplies low-precision numbers many times faster than their widened copies, and sums
    the products in single precision: the result is the same.
    """
    if left.is_cuda and left.dtype == right.dtype and left.dtype in _LOW:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return widen(left) @ widen(right)


# ---- one side of a score


@dataclass(frozen=True)
class Operand(ABC):
    """n rows × s positions of vectors; every tensor it holds has these two axes first."""

    values: Tensor

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of a vector."""

    @property
    def positions(self) -> int:
        return self.values.shape[1]

    @property
    def multiplied(self) -> int:
        """Numbers of one vector that arithmetic touches."""
        return self.width

    @abstractmethod
    def written(self) -> Tensor:
        """Return the vectors, (n, s, d), in the precision in which they are held."""

    def project(self, basis: Tensor | None) -> Tensor:
        """Return Uᵀv at every position, (n, s, r); None writes the vectors out."""
        return widen(self.written()) if basis is None else self._along(basis)

    @abstractmethod
    def _along(self, basis: Tensor) -> Tensor: ...

    def moment(self) -> Tensor:
        """Return Σ v vᵀ over rows and positions, (d, d)."""
        flat = self.written().flatten(0, 1)[None]
        return _product(flat.transpose(1, 2), flat)[0]

    def action(self, directions: Tensor) -> Tensor:
        """Return (Σ v vᵀ) times a few directions, (d, r), for moments too wide to write out."""
        flat = self.project(None).flatten(0, 1)
        return flat.T @ (flat @ directions)

    def pair(self, other: Operand) -> Tensor:
        """Return v_is · v'_is' for the same row i on both sides, (n, s, s')."""
        if isinstance(other, OneHot):
            return other.pair(self).transpose(1, 2)
        return _product(self.written(), other.written().transpose(1, 2))

    def cross(self, other: Operand) -> Tensor:
        """Return v_is · v'_js' for all rows, (n, s, m, s')."""
        one, two = (side.each(lambda t: t.flatten(0, 1)[None]) for side in (self, other))
        return one.pair(two).reshape(*self.values.shape[:2], *other.values.shape[:2])

    def each(self, function: Callable[..., Tensor], *others: Operand) -> Any:
        """Return the operand with the function applied to each tensor, beside those of others."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {
            name: function(value, *(getattr(other, name) for other in others))
            for name, value in held.items()
            if isinstance(value, Tensor)
        }
        return replace(self, **changed)

    def take(self, rows: Any) -> Any:
        """Return some of the rows."""
        return self.each(lambda t: t[rows])

    def pad(self, missing: int) -> Any:
        """Return the operand with empty positions added."""
        return self.each(lambda t: F.pad(t, (0, 0) * (t.ndim - 2) + (0, missing)))

    def join(self, others: Sequence[Operand], axis: int) -> Any:
        """Concatenate the rows (axis 0) or positions (axis 1) of operands of one kind."""
        return self.each(lambda *tensors: torch.cat(tensors, axis), *others)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Everything about the operand but its tensors."""
        held = (getattr(self, f.name) for f in fields(self))
        return type(self), *(value for value in held if not isinstance(value, Tensor))


@dataclass(frozen=True)
class Vectors(Operand):
    """Vectors held as numbers, (n, s, d); `ones` adds a last coordinate equal to one."""

    ones: bool = False

    @property
    def width(self) -> int:
        return self.values.shape[2] + self.ones

    def written(self) -> Tensor:
        return F.pad(self.values, (0, 1), value=1.0) if self.ones else self.values

    def moment(self) -> Tensor:
        if not self.ones:
            return super().moment()
        flat, sums = replace(self, ones=False), widen(self.values).sum((0, 1))[None]
        count = torch.full_like(sums[:, :1], self.values.shape[:2].numel())
        return torch.cat([torch.cat([flat.moment(), sums]), torch.cat([sums, count], 1).T], 1)

    def pair(self, other: Operand) -> Tensor:
        if not (self.ones and isinstance(other, Vectors) and other.ones):
            return super().pair(other)
        return _product(self.values, other.values.transpose(1, 2)) + 1.0

    def _along(self, basis: Tensor) -> Tensor:
        if self.ones:  # Uᵀ[v; 1] without writing the ones out
            return widen(self.values) @ basis[:-1] + basis[-1]
        return widen(self.values) @ basis


@dataclass(frozen=True)
class OneHot(Operand):
    """Unit vectors: `values` (n, s) says where the one stands among `size` coordinates."""

    size: int
    dtype: torch.dtype = torch.float32

    @property
    def width(self) -> int:
        return self.size

    @property
    def multiplied(self) -> int:
        return 1  # looked up

    def written(self) -> Tensor:
        return F.one_hot(self.values, self.size).to(self.dtype)

    def _along(self, basis: Tensor) -> Tensor:
        return basis[self.values]

    def moment(self) -> Tensor:
        return torch.diag(self._counts().to(self.dtype))

    def action(self, directions: Tensor) -> Tensor:
        return self._counts().to(directions)[:, None] * directions

    def _counts(self) -> Tensor:
        return torch.bincount(self.values.flatten(), minlength=self.size)

    def pair(self, other: Operand) -> Tensor:
        if isinstance(other, OneHot):
            return (self.values[:, :, None] == other.values[:, None, :]).to(self.dtype)
        vectors = other.project(None)  # (n, s', d): e_k · v = v[k]
        where = self.values[:, None, :].expand(-1, vectors.shape[1], -1)
        return vectors.gather(2, where).transpose(1, 2)


@dataclass(frozen=True)
class Stacked(Operand):
    """Vectors (n, s, d), each in one of `pieces` parts of a longer vector; `part` is (n, s)."""

    part: Tensor
    pieces: int

    @property
    def width(self) -> int:
        return self.pieces * self.values.shape[2]

    @property
    def multiplied(self) -> int:
        return self.values.shape[2]

    def _parts(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield where each part occurs, and its place among the coordinates."""
        size = self.values.shape[2]
        for e in self.part.unique().tolist():
            yield self.part == e, slice(e * size, (e + 1) * size)

    def written(self) -> Tensor:
        out = self.values.new_zeros(*self.part.shape, self.width)
        for here, place in self._parts():
            out[..., place][here] = self.values[here]
        return out

    def _along(self, basis: Tensor) -> Tensor:
        out = basis.new_zeros(*self.part.shape, basis.shape[1])
        for here, place in self._parts():
            out[here] = widen(self.values[here]) @ basis[place]
        return out

    def moment(self) -> Tensor:
        out = widen(self.values.new_zeros(self.width, self.width))
        for here, place in self._parts():
            out[place, place] = Vectors(self.values[here][None]).moment()
        return out

    def action(self, directions: Tensor) -> Tensor:
        out = torch.zeros_like(directions)
        for here, place in self._parts():
            out[place] = Vectors(self.values[here][None]).action(directions[place])
        return out

    def pair(self, other: Operand) -> Tensor:
        if not isinstance(other, Stacked):
            return super().pair(other)
        same = self.part[:, :, None] == other.part[:, None, :]
        return _product(self.values, other.values.transpose(1, 2)) * same


# ---- scores


class StructuredFactors(Factors, ABC):
    """Defaults of the subclasses, computed on scores written out a few rows at a time."""

    def _hold(self, a: Tensor | None, g: Tensor, **others: Any) -> None:
        vars(self).update(a=a, g=g, **others)  # the base class is frozen

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """(d_in, d_out) of the score."""

    @property
    def _width(self) -> int:
        """Numbers that writing out one row takes."""
        return self.sizes[0] * self.sizes[1]

    def project_pairs(self, basis_in: Tensor, basis_out: Tensor, pairs: Pairs) -> Tensor:
        return self.project(basis_in, basis_out).flatten(1)[:, pairs.flat]

    def compact(self) -> Factors:
        """Write the scores out if many positions make the two sides longer than the scores."""
        written = len(self) * self.sizes[0] * self.sizes[1] * widen(self.g[:0]).element_size()
        if len(self) == 0 or written >= self.nbytes:
            return self
        parts = pieces_of(len(self), self._width, self.g)
        return DenseFactors(torch.cat([self.take(p).project(None, None) for p in parts]))

    def gram(self, other: Factors) -> Tensor:
        ours, theirs = (pieces_of(len(f), self._width, self.g, GRAM_TIMES) for f in (self, other))
        rows = []
        for left in ours:
            some = self.take(left).dense()
            rows.append(torch.cat([some @ other.take(right).dense().T for right in theirs], 1))
        return torch.cat(rows)

    def norm2(self) -> Tensor:
        parts = pieces_of(len(self), self._width, self.g)
        some = [self] if len(parts) == 1 else (self.take(p) for p in parts)
        return torch.cat([f.dense().square().sum(1) for f in some])

    def join(self, others: list[Factors]) -> Factors:
        parts = [self.project(None, None), *(f.project(None, None) for f in others)]
        return DenseFactors(torch.cat(parts))

    def action(self, side: Side, directions: Tensor) -> Tensor:
        return self.moment(side) @ directions

    def scale_inputs(self, factor: Any) -> Factors:
        matrix = self.project(None, None)
        return DenseFactors(matrix * torch.as_tensor(factor).to(matrix)[:, None])


class DenseFactors(StructuredFactors):
    """Scores written out as (n, d_in, d_out) matrices."""

    def __init__(self, matrix: Tensor) -> None:
        self._hold(None, matrix)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.g.shape[1], self.g.shape[2]

    @property
    def work(self) -> Work:
        return Work(1, *self.sizes, 2.0 * self._width)

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        matrix = self.g if basis_out is None else self.g @ basis_out
        return matrix if basis_in is None else basis_in.T @ matrix

    def take(self, positions: np.ndarray) -> DenseFactors:
        return DenseFactors(self.g[as_slice(positions)])

    def moment(self, side: Side) -> Tensor:
        # without positions to sum over, the score itself gives the two sides: Σ M Mᵀ and Σ Mᵀ M
        matrix = self.g.transpose(1, 2) if side == "inputs" else self.g
        flat = matrix.flatten(0, 1)
        return flat.T @ flat


class PairFactors(StructuredFactors):
    """Scores Σ_s a_s g_sᵀ with a and g each an `Operand`."""

    shares_inputs = True
    inputs: Operand
    outputs: Operand

    def __init__(self, inputs: Operand, outputs: Operand) -> None:
        numbers = outputs if isinstance(outputs, Vectors) else inputs
        self._hold(inputs.values, numbers.values, inputs=inputs, outputs=outputs)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.inputs.width, self.outputs.width

    @property
    def work(self) -> Work:
        s, d_in, d_out = self.inputs.positions, self.inputs.multiplied, self.outputs.multiplied
        written_out = self._written_out(s * s)
        return Work(s, d_in, d_out, 2.0 * (self._width if written_out else s * s * (d_in + d_out)))

    def _written_out(self, positions: int) -> bool:
        """Return True if dot products are cheaper on written-out scores than by positions."""
        return self._width <= positions * sum(self.sizes)

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        if basis_in is None and isinstance(self.inputs, OneHot):
            return self._scatter(self.outputs.project(basis_out), self.inputs)
        if basis_out is None and isinstance(self.outputs, OneHot):
            return self._scatter(self.inputs.project(basis_in), self.outputs).transpose(1, 2)
        if basis_in is basis_out is None and self.inputs.positions > 1:
            return _product(self.inputs.written().transpose(1, 2), self.outputs.written())
        a, g = self.inputs.project(basis_in), self.outputs.project(basis_out)
        return a.transpose(1, 2) * g if a.shape[1] == 1 else a.transpose(1, 2) @ g

    def project_pairs(self, basis_in: Tensor, basis_out: Tensor, pairs: Pairs) -> Tensor:
        if self.inputs.positions > 1:
            return super().project_pairs(basis_in, basis_out, pairs)
        # one position: the block around the pairs need not be written out
        a, g = self.inputs.project(basis_in)[:, 0], self.outputs.project(basis_out)[:, 0]
        return a[:, pairs.inputs] * g[:, pairs.outputs]

    @staticmethod
    def _scatter(values: Tensor, table: OneHot) -> Tensor:
        """Return Σ_s e_{k(s)} v_sᵀ: add each position's vector to its row of the table."""
        out = values.new_zeros(values.shape[0], table.size, values.shape[2])
        return out.scatter_add_(1, table.values[:, :, None].expand_as(values), values)

    def take(self, positions: np.ndarray) -> PairFactors:
        rows = as_slice(positions)
        return PairFactors(self.inputs.take(rows), self.outputs.take(rows))

    def moment(self, side: Side) -> Tensor:
        return getattr(self, side).moment()

    def action(self, side: Side, directions: Tensor) -> Tensor:
        return getattr(self, side).action(directions)

    def gram(self, other: Factors) -> Tensor:
        if not isinstance(other, PairFactors):
            return other.gram(self).T
        positions = self.inputs.positions * other.inputs.positions
        if self._written_out(positions):
            return super().gram(other)
        # Σ_{s,s'} (a_s·a'_s')(g_s·g'_s'), a few rows at a time
        out = []
        for piece in pieces_of(len(self), positions * len(other), self.g):
            some = self.take(piece)
            inputs, outputs = some.inputs.cross(other.inputs), some.outputs.cross(other.outputs)
            out.append((inputs * outputs).sum((1, 3)))
        return torch.cat(out)

    def pair(self, other: PairFactors) -> Tensor:
        """Return the dot products of row i here with row i there, (n,)."""
        return (self.inputs.pair(other.inputs) * self.outputs.pair(other.outputs)).sum((1, 2))

    def norm2(self) -> Tensor:
        # multiplied out: s·d_in·d_out a row; as products of positions: s²·(d_in + d_out)
        return super().norm2() if self._written_out(self.inputs.positions) else self.pair(self)

    def join(self, others: list[Factors]) -> Factors:
        parts: list[Any] = [self, *others]
        if not all(isinstance(f, PairFactors) for f in parts):
            return super().join(others)
        longest = max(f.inputs.positions for f in parts)
        # an empty position must count in no moment, so implied ones are written out if any pads,
        # or has done so before
        pads = any(f.inputs.positions < longest for f in parts)
        pads = pads or len({getattr(f.inputs, "ones", None) for f in parts}) > 1
        sides = []
        for name in ("inputs", "outputs"):
            side = [getattr(f, name) for f in parts]
            if pads:
                side = [Vectors(x.written()) if isinstance(x, Vectors) else x for x in side]
                side = [x.pad(longest - x.positions) for x in side]
            sides.append(side[0].join(side[1:], 0))
        return PairFactors(*sides)


class SumFactors(StructuredFactors):
    """One parameter used in several places: its score is the sum of theirs."""

    parts: tuple[Any, ...]

    def __init__(self, parts: Sequence[Factors]) -> None:
        self._hold(parts[0].a, parts[0].g, parts=tuple(parts))

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def sizes(self) -> tuple[int, int]:
        return self.parts[0].sizes

    @property
    def nbytes(self) -> int:
        return sum(f.nbytes for f in self.parts)

    @property
    def work(self) -> Work:
        each = [f.work for f in self.parts]
        positions, first = sum(w.positions for w in each), each[0]
        return Work(positions, first.d_in, first.d_out, len(each) * sum(w.gram for w in each))

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        return reduce(add, (f.project(basis_in, basis_out) for f in self.parts))

    def take(self, positions: np.ndarray) -> SumFactors:
        return SumFactors([f.take(positions) for f in self.parts])

    def moment(self, side: Side) -> Tensor:
        return reduce(add, (f.moment(side) for f in self.parts))

    def action(self, side: Side, directions: Tensor) -> Tensor:
        return reduce(add, (f.action(side, directions) for f in self.parts))

    def gram(self, other: Factors) -> Tensor:
        others = other.parts if isinstance(other, SumFactors) else (other,)
        return reduce(add, (f.gram(h) for f in self.parts for h in others))

    def norm2(self) -> Tensor:
        if not all(isinstance(f, PairFactors) for f in self.parts):
            return super().norm2()
        return reduce(add, (f.pair(h) for f in self.parts for h in self.parts))

    def join(self, others: list[Factors]) -> Factors:
        sums = [f for f in others if isinstance(f, SumFactors) and len(f.parts) == len(self.parts)]
        if len(sums) < len(others):
            return super().join(others)
        columns = zip(self.parts, *(f.parts for f in sums), strict=True)
        return SumFactors([first.join(list(rest)) for first, *rest in columns])


def merge(parts: Sequence[Any]) -> Factors:
    """Merge the uses of one parameter: positions side by side where possible, otherwise a sum."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, PairFactors) for p in parts):
        sides = [[getattr(p, name) for p in parts] for name in ("inputs", "outputs")]
        if all(len({x.kind for x in side}) == 1 for side in sides):
            return PairFactors(*(side[0].join(side[1:], 1) for side in sides))
    return SumFactors(parts)
