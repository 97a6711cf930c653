"""Second moments of a layer's two sides, streamed, and their eigenbases: the raw stuff of K-FAC.

A side of up to `WHOLE` coordinates has its moment G summed whole. A wider one (a vocabulary) has
only Y = GΩ summed, for a random Ω of `NYSTROM` columns; G ≈ Y (ΩᵀY)⁻¹ Yᵀ (Nyström) then gives its
strongest directions, and the moment itself is never written out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.arrays import Array
from exempla.factors import Factors
from exempla.oracles.base import Layer, ScoreRows, in_float64

__all__ = ["Moments", "Spectrum"]

WHOLE = 2048
NYSTROM = 512


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues, descending and scaled to sum to one, and eigenvectors as columns."""

    values: np.ndarray
    vectors: Array


class Side:
    """One side of one layer: Σ v vᵀ, or its action on a few random directions."""

    def __init__(self, width: int, seed: int) -> None:
        self.width, self.seed = width, seed
        self.total: Any = None
        self.omega: Any = None

    def add(self, moment: Any, action: Any, like: Array) -> None:
        """`moment()` gives Σ v vᵀ of a batch, `action(Ω)` gives Σ v (vᵀΩ)."""
        if self.width <= WHOLE:
            fresh = moment()
        else:
            if self.omega is None:
                self.omega = random_directions(self.width, self.seed, like)
            fresh = action(self.omega)
        self.total = fresh if self.total is None else self.total + fresh

    def eigenbasis(self) -> Spectrum:
        if self.omega is None:
            return descending(*symmetric_eigen(self.total))
        # G ≈ B Bᵀ with B = Y C^{-1/2}, C = ΩᵀY; the singular vectors of B are G's eigenvectors
        core = self.omega.T @ self.total
        values, vectors = symmetric_eigen((core + core.T) / 2)
        good = in_float64(values) > 1e-6 * float(in_float64(values).max())
        root = self.total @ (vectors[:, good] / values[good] ** 0.5)
        inner, rotation = symmetric_eigen(root.T @ root)
        positive = in_float64(inner) > 1e-12 * float(in_float64(inner).max())
        basis = root @ (rotation[:, positive] / inner[positive] ** 0.5)
        return descending(inner[positive], basis)


@dataclass
class Moments:
    """Both sides of one layer, and its share of the Fisher's trace."""

    inputs: Side
    outputs: Side
    trace: Any = 0.0

    @staticmethod
    def of(layers: tuple[Layer, ...], rows: Iterable[ScoreRows]) -> list[Moments]:
        """Accumulated over batches of Fisher rows."""
        total = [
            Moments(Side(layer.d_in, 2 * i), Side(layer.d_out, 2 * i + 1))
            for i, layer in enumerate(layers)
        ]
        for batch in rows:
            for moments, factors in zip(total, batch.factors, strict=True):
                moments.add(factors)
        return total

    def add(self, factors: Factors) -> None:
        energy = factors.norm2()
        self.inputs.add(factors.input_moment, factors.input_action, energy)
        self.outputs.add(factors.output_moment, factors.output_action, energy)
        self.trace = self.trace + energy.sum()  # left on its device: nobody waits for it


def symmetric_eigen(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues (ascending) and eigenvectors; in double, as a long tail of small ones counts."""
    if isinstance(matrix, np.ndarray):
        return np.linalg.eigh(matrix)
    import torch

    values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


def descending(values: Array, vectors: Array) -> Spectrum:
    shares = np.maximum(in_float64(values), 0.0)[::-1]
    flipped = vectors[:, ::-1] if isinstance(vectors, np.ndarray) else vectors.flip(1)
    total = shares.sum()
    return Spectrum(shares / total if total > 0 else shares, flipped)


def random_directions(width: int, seed: int, like: Array) -> Array:
    """A Gaussian (width, NYSTROM) matrix of the kind and device of `like`."""
    if isinstance(like, np.ndarray):
        return np.random.default_rng(seed).standard_normal((width, NYSTROM))
    import torch

    generator = torch.Generator(device=like.device).manual_seed(seed)
    return torch.randn(width, NYSTROM, generator=generator, device=like.device, dtype=like.dtype)
