"""Second moments of a layer's two sides, streamed, and their eigenbases: the raw stuff of K-FAC.

A side of up to `WHOLE` coordinates has its moment G summed whole. A wider one (a vocabulary) has
only Y = GΩ summed, for a random Ω of a few columns; G ≈ Y (ΩᵀY)⁻¹ Yᵀ (Nyström) then gives its
strongest directions, and the moment itself is never written out. The columns are half as many as
the layer's other side is wide: then moving along them costs no more than the layer itself.

Of a large model a layer keeps a few directions out of thousands. All eigenvectors of a moment of
2048 coordinates take longer than the passes its sum came from, so only as many as Nyström would
give are found there, by subspace iteration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exempla.arrays import Array, is_tensor
from exempla.errors import ExemplaError
from exempla.oracles.base import Layer, ScoreRows, in_float64
from exempla.oracles.factors import MANY, Factors

WHOLE = 2048
"""Coordinates of a side up to which its moment is summed whole."""
NYSTROM = 64, 512
"""Columns of Ω: so many at least, and at most."""
MEASURED = 4
"""Of rows with `MANY` positions one of so many is measured for the layer's trace: a norm takes as
long as a good part of a backward pass."""
LARGE, LONG_SIDE = 2**20, 256
"""From so many parameters on, sides of more than so many coordinates have their strongest
eigenvectors found alone …"""
FEW_TIMES, ROUNDS = 16, 3
"""… so many times what a layer keeps on average, in so many products with the moment."""


def columns(other: int, directions: int) -> int:
    """How many directions stand for a wide side whose layer's other side has this width, where so
    many will be kept: half as many as the other side has, or twice what is needed for them."""
    least, most = NYSTROM
    return min(max(other // 2, 2 * directions // max(other, 1), least), most)


def few_columns(other: int, directions: int, layers: int) -> int:
    """Eigenvectors found of a side that is summed whole, of a large model with so many layers."""
    return min(columns(other, directions), max(FEW_TIMES * directions // layers, NYSTROM[0]))


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues, descending and scaled to sum to one, and eigenvectors as columns."""

    values: np.ndarray
    vectors: Array


class _StreamedMoment:
    """One side of one layer: Σ v vᵀ, or its action on a few random directions."""

    def __init__(
        self, width: int, other: int, seed: int, directions: int, layers: int, whole: int
    ) -> None:
        self.width, self.columns, self.seed = width, columns(other, directions), seed
        self.whole = width <= whole
        few = few_columns(other, directions, layers) if layers else width
        self.few = few if self.whole and width > max(LONG_SIDE, 2 * few) else 0
        """How many eigenvectors are found, where not all are; of a model that is not large, with
        `layers` 0, all."""
        self.total: Any = None
        self.omega: Any = None
        self.last: tuple[Array, Array] | None = None
        """The vectors seen last, and what they added: kept, so that their memory stays theirs."""
        self.repeats: bool | None = None
        """Whether the same vectors come several times; if not, they are not kept either."""

    def add(self, moment: Any, action: Any, like: Array, vectors: Array | None = None) -> None:
        """`moment()` gives Σ v vᵀ of a batch, `action(Ω)` gives Σ v (vᵀΩ); of the same vectors
        again (another class of the same examples) it is not taken again."""
        if self.last is not None and _same_memory(self.last[0], vectors):
            fresh, self.repeats = self.last[1], True
        else:
            fresh = self._fresh(moment, action, like)
            self.repeats = False if self.last is not None and not self.repeats else self.repeats
        keep = vectors is not None and self.repeats is not False
        self.last = (vectors, fresh) if keep else None
        self.total = fresh if self.total is None else self.total + fresh

    def _fresh(self, moment: Any, action: Any, like: Array) -> Array:
        if self.whole:
            return moment()
        if self.omega is None:
            self.omega = _random_directions(self.width, self.columns, self.seed, like)
        return action(self.omega)

    def eigenbasis(self) -> Spectrum:
        if self.few:
            start = _random_directions(self.width, self.few, self.seed, self.total)
            total = float(in_float64(self.total.diagonal()).sum())
            return _descending(*_leading_eigen(self.total, start), total)
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
        return _descending(inner[positive], basis)


@dataclass
class Moments:
    """Both sides of one layer, and its share of the Fisher's trace."""

    inputs: _StreamedMoment
    outputs: _StreamedMoment
    trace: Any = 0.0

    @cached_property
    def spectra(self) -> tuple[Spectrum, Spectrum]:
        """Eigenbases of inputs and outputs, once all rows have been added; their sums make room."""
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
        """Accumulated over batches of Fisher rows; `directions` is how many will be kept. Sides of
        more than `whole` coordinates (`WHOLE`) are not summed whole."""
        large = sum(layer.size for layer in layers) >= LARGE
        kind = (directions, len(layers) if large else 0, whole or WHOLE)
        total = [
            Moments(
                _StreamedMoment(layer.d_in, layer.d_out, 2 * i, *kind),
                _StreamedMoment(layer.d_out, layer.d_in, 2 * i + 1, *kind),
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
        self.inputs.add(factors.input_moment, factors.input_action, energy, factors.given_inputs)
        self.outputs.add(factors.output_moment, factors.output_action, energy)
        # left on its device: nobody waits for it
        self.trace = self.trace + energy.mean() * len(factors) if len(some) else self.trace


def moments_bytes(
    layers: tuple[Layer, ...], directions: int, itemsize: int, whole: int | None = None
) -> int:
    """Memory that the moments take together, and the eigenvectors found of them.

    >>> layer = Layer("head", 2048, 32_000, np.zeros(2048))
    >>> moments_bytes((layer,), 2048, 4) // 2**20
    207
    """
    numbers = 0
    for layer in layers:
        for width, other in ((layer.d_in, layer.d_out), (layer.d_out, layer.d_in)):
            few = min(columns(other, directions), width)
            # the sum and the eigenvectors; of a wide side the directions it is seen along besides
            is_whole = width <= (whole or WHOLE)
            numbers += width * (width + few) if is_whole else 3 * width * few
    return numbers * itemsize


def _leading_eigen(matrix: Array, start: Array) -> tuple[Array, Array]:
    """The largest eigenvalues (ascending) and their eigenvectors, as many as `start` has columns,
    by subspace iteration: exact for those that stand out, near for those in a flat tail."""
    _refuse_overflow(matrix)
    basis = _orthonormal(start)
    for _ in range(ROUNDS):
        basis = _orthonormal(matrix @ basis)
    small = basis.T @ (matrix @ basis)
    values, rotation = _symmetric_eigen((small + small.T) / 2)
    return values, basis @ rotation


def _orthonormal(columns: Array) -> Array:
    """An orthonormal basis of what these columns span."""
    if isinstance(columns, np.ndarray):
        return np.linalg.qr(columns)[0]
    import torch

    return torch.linalg.qr(columns)[0]


def _same_memory(one: Array, other: Array | None) -> bool:
    """Whether these are the same numbers in the same place."""
    if one is other:
        return True
    if other is None or not (is_tensor(one) and is_tensor(other)):
        return False
    places = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in (one, other)]
    return places[0] == places[1]


def _refuse_overflow(matrix: Array) -> None:
    """Checked on the sum alone: one number to wait for."""
    if not np.isfinite(float(matrix.sum())):
        raise ExemplaError(
            "squares of the model's inputs or scores overflow: scale its inputs, and check them "
            "and its weights for NaN and infinity."
        )


def _symmetric_eigen(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues (ascending) and eigenvectors; in double, as a long tail of small ones counts."""
    _refuse_overflow(matrix)
    if isinstance(matrix, np.ndarray):
        return np.linalg.eigh(matrix)
    import torch

    values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


def _descending(values: Array, vectors: Array, total: float | None = None) -> Spectrum:
    """Return shares of the total, largest first; the total is the sum unless it is given."""
    shares = np.maximum(in_float64(values), 0.0)[::-1]
    flipped = vectors[:, ::-1] if isinstance(vectors, np.ndarray) else vectors.flip(1)
    whole = float(shares.sum()) if total is None else total
    return Spectrum(shares / whole if whole > 0 else shares, flipped)


def _random_directions(width: int, count: int, seed: int, like: Array) -> Array:
    """A Gaussian (width, count) matrix of the kind and device of `like`."""
    if isinstance(like, np.ndarray):
        return np.random.default_rng(seed).standard_normal((width, count))
    import torch

    generator = torch.Generator(device=like.device).manual_seed(seed)
    return torch.randn(width, count, generator=generator, device=like.device, dtype=like.dtype)
