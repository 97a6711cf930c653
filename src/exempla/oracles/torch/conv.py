"""Scores of convolutions, without writing patches out.

In a convolution, a is the patch under the kernel and g the gradient at the output. Writing the
patches out multiplies memory by the kernel's size (9 for 3×3). Projecting them needs no patches:
Uᵀa at every position is itself a convolution, with the columns of U as kernels. With groups, group
c of the outputs sees only group c of the inputs: the score is a matrix of (d_in, d_out) =
(C_in/groups · kernel [+1], C_out), each output column made by its own group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.base import GRAM_BLOCK, Factors, Side, Work, as_slice
from exempla.oracles.torch.factors import (
    GRAM_TIMES,
    PairFactors,
    StructuredFactors,
    Vectors,
    pieces_of,
    rows_at_once,
)


@dataclass(frozen=True)
class ConvShape:
    """The arguments of torch's convolution."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    bias: bool = False
    """Whether a last row of inputs equal to one is added, for the bias."""

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel) - 1]
        padding: Any = self.padding
        return function(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def _margins(self) -> list[int]:
        """Return the number of zeros before and after each spatial axis, the last axis first."""
        if self.padding == "valid":
            return [0, 0] * len(self.kernel)
        if self.padding == "same":  # torch puts the odd one after
            spare = [d * (k - 1) for k, d in zip(self.kernel, self.dilation)]
            return [end for total in reversed(spare) for end in (total // 2, total - total // 2)]
        return [int(p) for p in reversed(self.padding) for _ in range(2)]

    def patches(self, x: Tensor) -> Tensor:
        """Return the patch at each position, (nm, groups, C/groups·kernel, L)."""
        view, dims = F.pad(x, self._margins()), len(self.kernel)
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


class ConvFactors(StructuredFactors):
    """Scores of a convolution: images (n·m, C, …) and output gradients (n·m, O, …), m per row."""

    shares_inputs = True
    shape: ConvShape
    images: int

    def __init__(self, x: Tensor, g: Tensor, shape: ConvShape, images: int = 1) -> None:
        self._hold(x, g, shape=shape, images=images)

    def __len__(self) -> int:
        return self.g.shape[0] // self.images

    @property
    def sizes(self) -> tuple[int, int]:
        kernel = self.a.shape[1] // self.shape.groups * int(np.prod(self.shape.kernel))
        return kernel + self.shape.bias, self.g.shape[1]

    @property
    def positions(self) -> int:
        return self.images * self.g.shape[2:].numel()

    @property
    def _patch(self) -> int:
        """Numbers in the patches of one position, over all groups."""
        return self.a.shape[1] * int(np.prod(self.shape.kernel)) + self.shape.bias

    @property
    def _width(self) -> int:
        """Numbers in one score, or in one row's patches if those are more."""
        return self._patch * max(self.g.shape[1] // self.shape.groups, self.positions)

    def project(self, basis_in: Tensor | None, basis_out: Tensor | None) -> Tensor:
        if basis_in is None:
            return self._project(None, basis_out)
        # a few rows at a time: projected patches may be many times the image
        width = self.shape.groups * basis_in.shape[1] * self.positions
        step = self.images * rows_at_once(width, self.g)
        pairs = zip(self.a.split(step), self.g.split(step), strict=True)
        parts = [ConvFactors(a, g, self.shape, self.images) for a, g in pairs]
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
        first = np.asarray(positions)[:, None] * self.images
        rows = as_slice((first + np.arange(self.images)).ravel())
        return ConvFactors(self.a[rows], self.g[rows], self.shape, self.images)

    # ---- by positions: patches and output gradients as two operands, a few rows at a time

    def _by_positions(self) -> Iterator[PairFactors]:
        """Yield the rows as pairs of operands; with groups, only the inputs are meaningful."""
        for piece in pieces_of(len(self), self.positions * (self._patch + self.g.shape[1]), self.g):
            some = self.take(piece)
            g = some.g.flatten(2).unflatten(1, (self.shape.groups, -1))
            a, g = (
                t.unflatten(0, (-1, self.images)).transpose(3, 4).flatten(1, 3)
                for t in (self.shape.patches(some.a), g)
            )
            yield PairFactors(Vectors(a, ones=self.shape.bias), Vectors(g))

    def _cost_by_positions(self, positions: int) -> float:
        """Return the cost of Σ (a_s·a'_t)(g_s·g'_t) over this many pairs of positions s, t."""
        return 2.0 * positions * sum(self.sizes) if self.shape.groups == 1 else np.inf

    @property
    def work(self) -> Work:
        d_in, d_out = self.sizes
        # the other score is written out once for as many rows of this as fit at one time
        shared = min(rows_at_once(self._width, self.g, GRAM_TIMES), GRAM_BLOCK)
        written = 2.0 * d_in * d_out * (1 + self.positions / shared)
        gram = min(written, self._cost_by_positions(self.positions**2))
        return Work(self.positions, d_in, d_out, gram)

    def gram(self, other: Factors) -> Tensor:
        if not isinstance(other, ConvFactors):
            return super().gram(other)
        if self._cost_by_positions(self.positions * other.positions) > self.work.gram:
            return super().gram(other)
        parts = (
            torch.cat([one.gram(two) for two in other._by_positions()], 1)
            for one in self._by_positions()
        )
        return torch.cat([*parts])

    def norm2(self) -> Tensor:
        # written out, a score costs 2·s·d_in·d_out
        if self._cost_by_positions(self.positions) >= 2.0 * self.sizes[0] * self.sizes[1]:
            return super().norm2()
        return torch.cat([some.pair(some) for some in self._by_positions()])

    def moment(self, side: Side) -> Tensor:
        if side == "inputs":
            return torch.stack([x.inputs.moment() for x in self._by_positions()]).sum(0)
        flat = self.g.transpose(0, 1).flatten(1)
        return flat @ flat.T

    def action(self, side: Side, directions: Tensor) -> Tensor:
        if side == "inputs":
            parts = [x.inputs.action(directions) for x in self._by_positions()]
            return torch.stack(parts).sum(0)
        flat = self.g.transpose(0, 1).flatten(1)
        return flat @ (flat.T @ directions)

    def join(self, others: list[Factors]) -> Factors:
        form = (self.a.shape[1:], self.images)
        if any(not isinstance(f, ConvFactors) or (f.a.shape[1:], f.images) != form for f in others):
            return super().join(others)
        x, g = (torch.cat([getattr(f, side) for f in (self, *others)]) for side in "ag")
        return ConvFactors(x, g, self.shape, self.images)
