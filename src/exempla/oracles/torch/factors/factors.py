"""`Factors` of torch layers that are not two plain arrays: each keeps the smallest form it can.

    PairFactors   Linear, Embedding: two operands (operands.py)
    ConvFactors   convolutions: image and output gradient; patches are never written out to project
    DenseFactors  a gradient without structure: norms, bare parameters, the fallback
    SumFactors    one parameter used in several ways (tied weights): the sum of its uses

Layout everywhere: a score is a (d_in, d_out) matrix, flattened row by row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exempla.factors import Factors, Pairs, Work
from exempla.oracles.torch.factors.chunks import gram_in_pieces, norms_in_pieces, pieces
from exempla.oracles.torch.factors.operands import OneHot, Operand, Stacked, Vectors

__all__ = ["DenseFactors", "PairFactors", "StructuredFactors", "SumFactors"]


class StructuredFactors(Factors, ABC):
    """What the subclasses share: anything not done better is done on the written-out scores."""

    @property
    def given_inputs(self) -> Tensor | None:
        return None

    def project_pairs(self, basis_in: Tensor, basis_out: Tensor, pairs: Pairs) -> Tensor:
        return self.project(basis_in, basis_out).flatten(1)[:, pairs.flat]

    @abstractmethod
    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor: ...

    @abstractmethod
    def take(self, positions: np.ndarray) -> StructuredFactors: ...

    @property
    @abstractmethod
    def work(self) -> Work: ...

    @property
    def _width(self) -> int:
        """Numbers that writing out one row makes on the way."""
        return self.take(np.arange(1)).dense().numel()

    def compact(self) -> Factors:
        """Written out, where many positions make the two sides longer than the score itself."""
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

    def input_action(self, directions: Tensor) -> Tensor:
        return self.input_moment() @ directions

    def output_action(self, directions: Tensor) -> Tensor:
        return self.output_moment() @ directions

    def scale_inputs(self, factor: Any) -> Factors:
        matrix = self.project(None, None)
        return DenseFactors(matrix * torch.as_tensor(factor).to(matrix)[:, None])


@dataclass(frozen=True, init=False)
class DenseFactors(StructuredFactors):
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

    def input_moment(self) -> Tensor:
        # without positions to sum over, the score itself gives the two sides: Σ M Mᵀ and Σ Mᵀ M
        flat = self.g.transpose(0, 1).flatten(1)
        return flat @ flat.T

    def output_moment(self) -> Tensor:
        flat = self.g.flatten(0, 1)
        return flat.T @ flat


@dataclass(frozen=True, init=False)
class PairFactors(StructuredFactors):
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
        """Whether dot products are cheaper of scores written out than by pairs of positions."""
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
        """Σ_s e_{k(s)} v_sᵀ: each position's vector added to its row of the table."""
        out = values.new_zeros(values.shape[0], table.width, values.shape[2])
        return out.scatter_add_(1, table.indices[:, :, None].expand_as(values), values)

    def take(self, positions: np.ndarray) -> PairFactors:
        return PairFactors(self.inputs.take(positions), self.outputs.take(positions))

    def flip(self) -> PairFactors:
        """The transposed scores."""
        return PairFactors(self.outputs, self.inputs)

    def input_moment(self) -> Tensor:
        return self.inputs.moment()

    def output_moment(self) -> Tensor:
        return self.outputs.moment()

    def input_action(self, directions: Tensor) -> Tensor:
        return self.inputs.action(directions)

    def output_action(self, directions: Tensor) -> Tensor:
        return self.outputs.action(directions)

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
        """Dot products of row i here with row i there, (n,)."""
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
class SumFactors(StructuredFactors):
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

    def input_moment(self) -> Tensor:
        return torch.stack([f.input_moment() for f in self.parts]).sum(0)

    def output_moment(self) -> Tensor:
        return torch.stack([f.output_moment() for f in self.parts]).sum(0)

    def input_action(self, directions: Tensor) -> Tensor:
        return torch.stack([f.input_action(directions) for f in self.parts]).sum(0)

    def output_action(self, directions: Tensor) -> Tensor:
        return torch.stack([f.output_action(directions) for f in self.parts]).sum(0)

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
    """The side with empty positions added."""
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
    """Rows of all sides, one after the other."""
    first = sides[0]
    if isinstance(first, OneHot):
        return OneHot(torch.cat([s.indices for s in sides]), first.width, first.dtype)
    if isinstance(first, Stacked):
        values, part = (torch.cat([getattr(s, x) for s in sides]) for x in ("values", "part"))
        return Stacked(values, part, first.pieces)
    return Vectors(torch.cat([s.values for s in sides]), first.ones)
