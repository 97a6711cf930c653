"""Second moments of the two sides of every layer, and their eigenbases: the factors of K-FAC.

A side with up to `WHOLE` coordinates has its moment G summed in full. For a wider one (a
vocabulary) only Y = GΩ is summed, with a random Ω of a few columns; G ≈ Y (ΩᵀY)⁻¹ Yᵀ (Nyström)
gives its leading directions. Ω has half as many columns as the layer's other side has coordinates,
so that multiplying by it costs no more than the layer itself.

A layer of a large model keeps a few directions out of thousands, and moments of 2048 coordinates
would take more memory than the model. So all sides above `LARGE_WHOLE` are summed as GΩ there, with
an Ω of `FEW_TIMES` as many columns as a layer keeps on average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exempla.arrays import Array, is_tensor
from exempla.errors import ExemplaError
from exempla.oracles.base import MANY, Factors, Layer, ScoreRows, Side, in_float64

WHOLE = 2048
"""Coordinates of a side up to which its moment is summed in full."""
NYSTROM = 64, 512
"""Smallest and largest number of columns of Ω."""
MEASURED = 4
"""Of rows with `MANY` positions, every fourth is measured for the trace of the layer: a norm takes
as long as a good part of a backward pass."""
LARGE, LARGE_WHOLE, FEW_TIMES = 2**20, 256, 16
"""Parameters of a large model; the coordinates up to which its moments are summed in full; and
columns of Ω per direction that a layer keeps on average."""


def limits(
    parameters: int, layers: int, directions: int, whole: int | None = None
) -> tuple[int, int]:
    """Return the widest side that is summed in full, and the largest number of columns of Ω."""
    least, most = NYSTROM
    if parameters < LARGE:
        return whole or WHOLE, most
    return LARGE_WHOLE, min(max(FEW_TIMES * directions // max(layers, 1), least), most)


def columns(other: int, directions: int, most: int) -> int:
    """Return the number of columns of Ω for a wide side.

    It is half the width of the `other` side, or twice what `directions` kept directions need.
    """
    return min(max(other // 2, 2 * directions // max(other, 1), NYSTROM[0]), most)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues, descending and scaled to sum to one, and eigenvectors as columns."""

    values: np.ndarray
    vectors: Array


class _StreamedMoment:
    """One side of one layer: Σ v vᵀ, or its product with a few random directions."""

    def __init__(
        self, side: Side, layer: Layer, seed: int, directions: int, whole: int, most: int
    ) -> None:
        width, other = layer.d_in, layer.d_out
        width, other = (width, other) if side == "inputs" else (other, width)
        self.side: Side = side
        self.width, self.columns, self.seed = width, columns(other, directions, most), seed
        self.whole = width <= whole
        self.total: Any = None
        self.omega: Any = None
        self.last: tuple[Array, Array] | None = None
        """The last vectors, kept alive so that their address stays unique, and what they added."""

    def add(self, factors: Factors, like: Array, vectors: Array | None = None) -> None:
        """Add a batch.

        If the same `vectors` come again (another class of the same examples), their moment is not
        computed again. Random directions have the type and device of `like`.
        """
        if self.last is not None and _same_memory(self.last[0], vectors):
            fresh = self.last[1]
        else:
            fresh = self._fresh(factors, like)
        self.last = None if vectors is None else (vectors, fresh)
        self.total = fresh if self.total is None else self.total + fresh

    def _fresh(self, factors: Factors, like: Array) -> Array:
        if self.whole:
            return factors.moment(self.side)
        if self.omega is None:
            self.omega = _random_directions(self.width, self.columns, self.seed, like)
        return factors.action(self.side, self.omega)

    def eigenbasis(self) -> Spectrum:
        if self.omega is None:
            return _descending(*_symmetric_eigen(self.total))
        # G ≈ B Bᵀ with B = Y C^{-1/2}, C = ΩᵀY; the singular vectors of B are G's eigenvectors
        core = self.omega.T @ self.total
        values, vectors = _symmetric_eigen((core + core.T) / 2)
        good = in_float64(values) > 1e-6 * float(in_float64(values).max())
        root = self.total @ (vectors[:, good] / values[good] ** 0.5)
        inner, rotation = _symmetric_eigen(root.T @ root)
        positive = in_float64(inner) > 1e-12 * float(in_float64(inner).max())
        basis = root @ (rotation[:, positive] / inner[positive] ** 0.5)
        # E[ωᵀGω] = tr G: shares are of the whole trace, not of the part that Ω sees
        trace = float(in_float64((self.omega * self.total).sum())) / self.columns
        return _descending(inner[positive], basis, max(trace, float(inner[positive].sum())))


@dataclass
class Moments:
    """The moments of both sides of one layer, and its part of the trace of the Fisher."""

    inputs: _StreamedMoment
    outputs: _StreamedMoment
    trace: Any = 0.0

    @cached_property
    def spectra(self) -> tuple[Spectrum, Spectrum]:
        """Eigenbases of inputs and outputs, once all rows have been added; the sums are freed."""
        found = self.inputs.eigenbasis(), self.outputs.eigenbasis()
        self.inputs.total = self.inputs.omega = self.outputs.total = self.outputs.omega = None
        return found

    @staticmethod
    def of(
        layers: tuple[Layer, ...],
        rows: Iterable[ScoreRows],
        directions: int = NYSTROM[1],
        whole: int | None = None,
    ) -> list[Moments]:
        """Accumulate the moments of all layers over batches of Fisher rows.

        `directions` is the number that will be kept. Sides with up to `whole` coordinates are
        summed in full.
        """
        size = sum(layer.size for layer in layers)
        kind = (directions, *limits(size, len(layers), directions, whole))
        total = [
            Moments(
                _StreamedMoment("inputs", layer, 2 * i, *kind),
                _StreamedMoment("outputs", layer, 2 * i + 1, *kind),
            )
            for i, layer in enumerate(layers)
        ]
        for batch in rows:
            for moments, factors in zip(total, batch.factors, strict=True):
                moments.add(factors)
        for moments in total:
            moments.inputs.last = None
        return total

    def add(self, factors: Factors) -> None:
        step = MEASURED if factors.work.positions >= MANY else 1
        some = factors if step == 1 else factors.take(np.arange(0, len(factors), step))
        energy = some.norm2()
        self.inputs.add(factors, energy, factors.given_inputs)
        self.outputs.add(factors, energy)
        # stays on its device, so that no batch waits for a transfer
        self.trace = self.trace + energy.mean() * len(factors) if len(some) else self.trace


def moments_bytes(
    layers: tuple[Layer, ...], directions: int, itemsize: int, whole: int | None = None
) -> int:
    """Return the memory of all moments and their eigenvectors."""
    numbers, size = 0, sum(layer.size for layer in layers)
    whole, most = limits(size, len(layers), directions, whole)
    for layer in layers:
        for width, other in ((layer.d_in, layer.d_out), (layer.d_out, layer.d_in)):
            few = min(columns(other, directions, most), width)
            # the sum and the eigenvectors; for a wide side also Ω
            numbers += width * (width + few) if width <= whole else 3 * width * few
    return numbers * itemsize


def _same_memory(one: Array, other: Array | None) -> bool:
    """Return True if the two are the same array, or tensors on the same memory."""
    if one is other:
        return True
    if other is None or not (is_tensor(one) and is_tensor(other)):
        return False
    places = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in (one, other)]
    return places[0] == places[1]


def _refuse_overflow(matrix: Array) -> None:
    """Raise if the sum of the matrix is not finite."""
    if not np.isfinite(float(matrix.sum())):
        raise ExemplaError(
            "squares of the model's inputs or scores overflow: scale its inputs, and check them "
            "and its weights for NaN and infinity."
        )


def _symmetric_eigen(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues (ascending) and eigenvectors, computed in double precision."""
    _refuse_overflow(matrix)
    if isinstance(matrix, np.ndarray):
        return np.linalg.eigh(matrix)
    import torch

    values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


def _descending(values: Array, vectors: Array, total: float | None = None) -> Spectrum:
    """Return the spectrum in descending order, divided by `total` (by default its own sum)."""
    shares = np.maximum(in_float64(values), 0.0)[::-1]
    flipped = vectors[:, ::-1] if isinstance(vectors, np.ndarray) else vectors.flip(1)
    whole = float(shares.sum()) if total is None else total
    return Spectrum(shares / whole if whole > 0 else shares, flipped)


def _random_directions(width: int, count: int, seed: int, like: Array) -> Array:
    """Return a Gaussian (width, count) matrix with the type and device of `like`."""
    if isinstance(like, np.ndarray):
        return np.random.default_rng(seed).standard_normal((width, count))
    import torch

    generator = torch.Generator(device=like.device).manual_seed(seed)
    return torch.randn(width, count, generator=generator, device=like.device, dtype=like.dtype)
