"""The two sides of a layer's score Σ_s a_s g_sᵀ: inputs a and output gradients g.

Each side is an `Operand`: n rows × s positions × d numbers. `Vectors` holds the numbers (with an
implied column of ones if the layer has a bias). `OneHot` holds, for an embedding table, only the
position of the single one. `Stacked` holds, for a stack of matrices (experts), the numbers and
which matrix they met. A tied weight used once as a table and once as a matrix swaps its two sides.

Scores are written out a few rows at a time, which bounds memory and keeps the cache warm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.factors import Factors


class Operand(ABC):
    """n rows × s positions of vectors of one width."""

    rows: int
    positions: int
    width: int
    tensor: Tensor
    """The tensor in memory."""

    @property
    def multiplied(self) -> int:
        """Numbers of one vector that arithmetic touches."""
        return self.width

    @abstractmethod
    def project(self, basis: Tensor | None) -> Tensor:
        """Return Uᵀv at every position, (n, s, r); None writes the vectors out."""

    @abstractmethod
    def moment(self) -> Tensor:
        """Return Σ v vᵀ over rows and positions, (d, d)."""

    @abstractmethod
    def action(self, directions: Tensor) -> Tensor:
        """Return (Σ v vᵀ) times a few directions, (d, r), for moments too wide to write out."""

    @abstractmethod
    def take(self, rows: object) -> Operand:
        """Return some of the rows."""

    @abstractmethod
    def pair(self, other: Operand) -> Tensor:
        """Return v_is · v'_is' for the same row i on both sides, (n, s, s')."""

    @abstractmethod
    def cross(self, other: Operand) -> Tensor:
        """Return v_is · v'_js' for all rows, (n, s, m, s')."""


@dataclass(frozen=True)
class _Held(Operand):
    """Vectors held as numbers, (n, s, d)."""

    values: Tensor

    @property
    def tensor(self) -> Tensor:  # type: ignore[override]
        return self.values

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self.values.shape[0]

    @property
    def positions(self) -> int:  # type: ignore[override]
        return self.values.shape[1]


@dataclass(frozen=True)
class Vectors(_Held):
    """Vectors held as numbers, (n, s, d); `ones` adds a last coordinate equal to one."""

    ones: bool = False

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.values.shape[2] + self.ones

    def project(self, basis: Tensor | None) -> Tensor:
        if basis is None:
            return F.pad(self.values, (0, 1), value=1.0) if self.ones else self.values
        if self.ones:  # Uᵀ[v; 1] without writing the ones out
            return self.values @ basis[:-1] + basis[-1]
        return self.values @ basis

    def moment(self) -> Tensor:
        flat = self.values.flatten(0, 1)
        moment = flat.T @ flat
        if not self.ones:
            return moment
        out = moment.new_empty(self.width, self.width)
        out[:-1, :-1] = moment
        out[-1, :-1] = out[:-1, -1] = flat.sum(0)
        out[-1, -1] = len(flat)
        return out

    def action(self, directions: Tensor) -> Tensor:
        flat, along = self.values.flatten(0, 1), self.project(directions).flatten(0, 1)
        if not self.ones:
            return flat.T @ along
        return torch.cat([flat.T @ along, along.sum(0, keepdim=True)])

    def take(self, rows: object) -> Vectors:
        return Vectors(self.values[rows], self.ones)  # type: ignore[index]

    def pair(self, other: Operand) -> Tensor:
        if isinstance(other, OneHot):
            return other.pair(self).transpose(1, 2)
        assert isinstance(other, Vectors)
        if self.ones and other.ones:
            return self.values @ other.values.transpose(1, 2) + 1.0
        return self.project(None) @ other.project(None).transpose(1, 2)

    def cross(self, other: Operand) -> Tensor:
        if isinstance(other, OneHot):
            return other.cross(self).permute(2, 3, 0, 1)
        left, right = self.project(None).flatten(0, 1), other.project(None).flatten(0, 1)
        return (left @ right.T).reshape(self.rows, self.positions, other.rows, other.positions)


@dataclass(frozen=True)
class OneHot(Operand):
    """Unit vectors, (n, s) indices of where the one stands among `width` coordinates."""

    indices: Tensor
    width: int  # type: ignore[misc]
    dtype: torch.dtype = torch.float32

    @property
    def tensor(self) -> Tensor:  # type: ignore[override]
        return self.indices

    @property
    def multiplied(self) -> int:
        return 1  # looked up

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self.indices.shape[0]

    @property
    def positions(self) -> int:  # type: ignore[override]
        return self.indices.shape[1]

    def project(self, basis: Tensor | None) -> Tensor:
        if basis is None:
            return F.one_hot(self.indices, self.width).to(self.dtype)
        return basis[self.indices]

    def moment(self) -> Tensor:
        counts = torch.bincount(self.indices.flatten(), minlength=self.width)
        return torch.diag(counts.to(self.dtype))

    def action(self, directions: Tensor) -> Tensor:
        counts = torch.bincount(self.indices.flatten(), minlength=self.width)
        return counts.to(directions)[:, None] * directions

    def take(self, rows: object) -> OneHot:
        return OneHot(self.indices[rows], self.width, self.dtype)  # type: ignore[index]

    def pair(self, other: Operand) -> Tensor:
        if isinstance(other, OneHot):
            return (self.indices[:, :, None] == other.indices[:, None, :]).to(self.dtype)
        values = other.project(None)  # (n, s', d): e_k · v = v[k]
        where = self.indices[:, None, :].expand(-1, values.shape[1], -1)
        return values.gather(2, where).transpose(1, 2)

    def cross(self, other: Operand) -> Tensor:
        if isinstance(other, OneHot):
            return (self.indices[:, :, None, None] == other.indices).to(self.dtype)
        values = other.project(None)
        return (
            values[:, :, self.indices.flatten()]
            .permute(2, 0, 1)
            .reshape(self.rows, self.positions, other.rows, other.positions)
        )


@dataclass(frozen=True)
class Stacked(_Held):
    """Vectors (n, s, d), each in one of `pieces` parts of a longer vector; `part` is (n, s)."""

    part: Tensor
    pieces: int

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.pieces * self.values.shape[2]

    @property
    def multiplied(self) -> int:
        return self.values.shape[2]

    def _parts(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield where each part occurs, and its place among the coordinates."""
        size = self.values.shape[2]
        for e in self.part.unique().tolist():
            yield self.part == e, slice(e * size, (e + 1) * size)

    def project(self, basis: Tensor | None) -> Tensor:
        wide = self.width if basis is None else basis.shape[1]
        out = self.values.new_zeros(self.rows, self.positions, wide)
        for here, place in self._parts():
            if basis is None:
                out[..., place][here] = self.values[here]
            else:
                out[here] = self.values[here] @ basis[place]
        return out

    def moment(self) -> Tensor:
        out = self.values.new_zeros(self.width, self.width)
        for here, place in self._parts():
            flat = self.values[here]
            out[place, place] = flat.T @ flat
        return out

    def action(self, directions: Tensor) -> Tensor:
        out = torch.zeros_like(directions)
        for here, place in self._parts():
            flat = self.values[here]
            out[place] = flat.T @ (flat @ directions[place])
        return out

    def take(self, rows: object) -> Stacked:
        return Stacked(self.values[rows], self.part[rows], self.pieces)  # type: ignore[index]

    def pair(self, other: Operand) -> Tensor:
        if not isinstance(other, Stacked):
            return self.project(None) @ other.project(None).transpose(1, 2)
        same = self.part[:, :, None] == other.part[:, None, :]
        return (self.values @ other.values.transpose(1, 2)) * same

    def cross(self, other: Operand) -> Tensor:
        if not isinstance(other, Stacked):
            return Vectors(self.project(None)).cross(other)
        same = self.part[:, :, None, None] == other.part
        return Vectors(self.values).cross(Vectors(other.values)) * same


def beside(sides: Sequence[Operand]) -> Operand | None:
    """Return one operand with the positions of all; None if they are not of one kind."""
    first = sides[0]
    if isinstance(first, Vectors):
        alike = [s for s in sides if isinstance(s, Vectors) and s.ones == first.ones]
        values = torch.cat([s.values for s in alike], 1)
        return Vectors(values, first.ones) if len(alike) == len(sides) else None
    if isinstance(first, Stacked):
        stacked = [s for s in sides if isinstance(s, Stacked)]
        if len(stacked) < len(sides):
            return None
        values, part = (torch.cat([getattr(s, x) for s in stacked], 1) for x in ("values", "part"))
        return Stacked(values, part, first.pieces)
    return None


PIECE = 2**26
"""Numbers written out at one time on a GPU; one 16th of it on a CPU."""
GRAM_TIMES = 8
"""Multiple of `PIECE` for a Gram matrix on a CPU, where each piece is written out again for every
other: with pieces of one row that would cost more than the products."""


def pieces(rows: int, width: int, like: Tensor, times: int = 1) -> list[np.ndarray]:
    """Split rows into consecutive pieces of at most `rows_at_once`."""
    step = rows_at_once(width, like, times)
    return [np.arange(i, min(i + step, rows)) for i in range(0, rows, step)]


def rows_at_once(width: int, like: Tensor, times: int = 1) -> int:
    """Return how many rows of this width are written out at one time."""
    limit = PIECE if like.is_cuda else times * PIECE // 16
    return max(1, limit // width)


def norms_in_pieces(factors: Factors, width: int) -> Tensor:
    """Return the squared norms of the scores."""
    parts = pieces(len(factors), width, factors.g)
    some = [factors] if len(parts) == 1 else (factors.take(p) for p in parts)
    return torch.cat([f.dense().square().sum(1) for f in some])


def gram_in_pieces(one: Factors, other: Factors, width: int) -> Tensor:
    """Return the dot products of the scores."""
    rows = []
    for left in pieces(len(one), width, one.g, GRAM_TIMES):
        some = one.take(left).dense()
        right = pieces(len(other), width, one.g, GRAM_TIMES)
        rows.append(torch.cat([some @ other.take(p).dense().T for p in right], 1))
    return torch.cat(rows)
