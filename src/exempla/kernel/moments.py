"""Second moments of the two sides of every layer, and their eigenbases.

A side of a layer with up to `WHOLE` coordinates has its moment G summed in full.
For a wider one (a vocabulary) only Y = GΩ is summed, with a random Ω of a few columns;
G ≈ Y (ΩᵀY)⁻¹ Yᵀ (Nyström) gives its leading directions. Ω has half as many columns as the layer's
other side has coordinates, so that multiplying by it costs no more than the layer itself. A layer
of a large model keeps a few directions out of thousands, and moments of 2048 coordinates would take
more memory than the model. So all sides above `LARGE_WHOLE` are summed as GΩ there, with an Ω of
`FEW_TIMES` as many columns as a layer keeps on average.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exempla.arrays import Array, as_like, in_double
from exempla.errors import ExemplaError
from exempla.oracles.base import MANY, Factors, Layer, ScoreRows, Side, in_float64

WHOLE = 2048
"""Coordinates of a side up to which its moment is summed in full."""
MAX_EIGEN = 384
"""Coordinates up to which all eigenvectors of a whole moment are computed (`plan_side`)."""
_SHIFT, _MIN_SHIFT = {4: 1e-6, 8: 1e-12}, 1e-30
"""Shift of a wide moment relative to its trace, by the bytes of a number, and if it is zero."""
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


def plan_side(width: int, other: int, directions: int, whole: int, most: int) -> tuple[bool, int]:
    """Return whether the moment of a side is summed in full, and how many eigenvectors it gets.

    A wide side is summed as GΩ, unless Ω would have as many columns as the side has coordinates,
    and gets one eigenvector per column. Of a moment that is summed in full, all are computed, or as
    many as Ω would have columns, or a quarter of the directions kept in all if that is more. No
    layer measured kept a sixteenth of those.
    """
    few = columns(other, directions, most)
    if width > max(whole, few):
        return False, few
    few = max(few, min(width, directions) // 4)
    return True, width if width <= max(MAX_EIGEN, 2 * few) else few


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
        d_in, d_out = layer.d_in, layer.d_out
        width, other = (d_in, d_out) if side == "inputs" else (d_out, d_in)
        self.side: Side = side
        self.width, self.seed = width, seed
        self.whole, self.count = plan_side(width, other, directions, whole, most)
        self.total: Any = None
        self.omega: Any = None

    def add(self, factors: Factors, like: Array) -> None:
        """Add a batch. Random directions have the type and device of `like`."""
        if self.whole:
            fresh = factors.moment(self.side)
        else:
            if self.omega is None:
                self.omega = _random_directions(self.width, self.count, self.seed, like)
            fresh = factors.action(self.side, self.omega)
        self.total = fresh if self.total is None else self.total + fresh

    def eigenbasis(self) -> Spectrum:
        _refuse_overflow(self.total)
        if self.omega is None:
            if self.count == self.width:
                return _descending(*_symmetric_eigen(self.total))
            trace = float(self.total.trace())
            start = self.total @ _random_directions(self.width, self.count, self.seed, self.total)
            self.omega = _linalg(start).qr(start)[0]
            self.total = self.total @ self.omega
        else:  # E[ωᵀGω] = tr G: shares are of the whole trace, not of the part that Ω sees
            trace = float(in_float64((self.omega * self.total).sum())) / self.count
        # G + ν ≈ B Bᵀ with B = Y L⁻ᵀ, Y = (G + ν)Ω and L Lᵀ = ΩᵀY; B's singular vectors are those
        # of G. The shift ν, which is subtracted at the end, covers rounding.
        linalg, omega = _linalg(self.total), self.omega
        scale = float((omega * omega).sum()) / omega.shape[1]
        core, gram = in_double(omega.T @ self.total), in_double(omega.T @ omega)
        shift = max(_SHIFT[self.total.itemsize] * float(core.trace()) / scale, _MIN_SHIFT)
        lower = None
        while lower is None:
            try:
                lower = linalg.cholesky((core + core.T) / 2 + shift * gram)
            except linalg.LinAlgError:  # products less precise than their type
                shift *= 10.0
        root = in_double(self.total + shift * omega) @ linalg.inv(lower).T
        inner, rotation = _symmetric_eigen(root.T @ root)
        first = int(np.searchsorted(in_float64(inner), 2 * shift))  # the others are rounding
        values, rotation = inner[first:], rotation[:, first:]
        basis = as_like(root @ (rotation / values**0.5), omega)
        return _descending(values - shift, basis, max(trace, float((values - shift).sum())))


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
        known = np.zeros(0, dtype=np.int64)
        for batch in rows:
            samples, first = np.unique(batch.sample, return_index=True)
            fresh = first[~np.isin(samples, known)]
            known = np.union1d(known, samples)
            for moments, factors in zip(total, batch.factors, strict=True):
                moments.add(factors, fresh)
            batch = factors = None  # the next pass needs their memory
        return total

    def add(self, factors: Factors, fresh: np.ndarray) -> None:
        """Add a batch; inputs that all classes of an example share count once.

        `fresh` are the rows of examples that no earlier batch had.
        """
        step = MEASURED if factors.work.positions >= MANY else 1
        some = factors if step == 1 else factors.take(np.arange(0, len(factors), step))
        energy = some.norms2
        if not factors.shares_inputs or len(fresh) == len(factors):
            self.inputs.add(factors, energy)
        elif len(fresh):
            self.inputs.add(factors.take(fresh), energy)
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
            in_full, count = plan_side(width, other, directions, whole, most)
            # the sum and the eigenvectors; for a side that is not summed in full also Ω
            numbers += width * (width + count) if in_full else 3 * width * count
    return numbers * itemsize


def _symmetric_eigen(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues (ascending) and eigenvectors, computed in double precision."""
    if isinstance(matrix, np.ndarray):
        return np.linalg.eigh(matrix)
    values, vectors = _linalg(matrix).eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


def _refuse_overflow(matrix: Array) -> None:
    if not np.isfinite(float(matrix.sum())):
        raise ExemplaError(
            "squares of the model's inputs or scores overflow: scale its inputs, and check them "
            "and its weights for NaN and infinity."
        )


def _linalg(array: Array) -> Any:
    """Return NumPy's or torch's linear algebra, whichever takes this array."""
    return np.linalg if isinstance(array, np.ndarray) else sys.modules["torch"].linalg


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
