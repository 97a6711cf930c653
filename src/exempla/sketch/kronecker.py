"""The K-FAC eigenbasis, kept in factored form: for models too large to write a score out.

Per layer the inputs' second moment and the outputs' second moment (under the model's own labels)
are diagonalised; the product u_in ⊗ u_out is a direction, and its Fisher is close to the product
of the two eigenvalues. The p best directions of all layers together make the basis: layers get
width by what the Fisher says matters. A score is projected from its factors, (U_inᵀa)(U_outᵀg)ᵀ,
and never written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from exempla.arrays import Array, concatenate, to_numpy
from exempla.factors import Factors, Pairs
from exempla.oracles.base import Layer, ScoreRows, in_float64
from exempla.progress import track
from exempla.sketch.base import Sketch
from exempla.sketch.moments import Moments, Spectrum

__all__ = ["KroneckerSketch"]


@dataclass(frozen=True)
class LayerBasis:
    """Kept directions of one layer: columns of U_in and U_out, and which pairs of them."""

    inputs: Array
    outputs: Array
    pairs: Pairs

    @property
    def width(self) -> int:
        return len(self.pairs.flat)

    def project(self, factors: Factors) -> Array:
        return factors.project_pairs(self.inputs, self.outputs, self.pairs)

    def coordinates(self, matrix: Array) -> Array:
        """Of a (d_in, d_out) block of parameter space, in the kept directions: (width,)."""
        return (self.inputs.T @ matrix @ self.outputs).reshape(-1)[self.pairs.flat]

    def lifted(self, row: Array) -> Array:
        """The block that has these coordinates, and nothing outside the kept directions."""
        block = row.new_zeros(self.inputs.shape[1] * self.outputs.shape[1])
        block[self.pairs.flat] = row
        small = block.reshape(self.inputs.shape[1], self.outputs.shape[1])
        return self.inputs @ small @ self.outputs.T


class KroneckerSketch(Sketch):
    """The strongest directions of the K-FAC eigenbasis."""

    exact = False

    def __init__(
        self,
        layers: tuple[Layer, ...],
        bases: tuple[LayerBasis | None, ...],
    ) -> None:
        self.bases = bases
        kept = [b for b in bases if b is not None]
        self.width = sum(b.width for b in kept)
        self.kept_bytes = sum(b.inputs.nbytes + b.outputs.nbytes for b in kept)
        self.note = f"K-FAC eigenbasis, {self.width} of {sum(x.size for x in layers)} directions"
        self.penalty = penalty_matrix(layers, self.bases)
        self.shapes = tuple((layer.d_in, layer.d_out) for layer in layers)

    @classmethod
    def of(cls, layers: tuple[Layer, ...], moments: list[Moments], width: int) -> KroneckerSketch:
        """The strongest directions by these moments."""
        each = track(moments, "finding the directions of each layer", len(moments))
        spectra = [m.spectra for m in each]
        found = [
            strongest(*sides, width, float(m.trace))
            for sides, m in zip(spectra, moments, strict=True)
        ]
        everything = np.concatenate([f.strengths for f in found])
        lead = min(width, int(np.count_nonzero(everything > 0)))
        cut = np.partition(everything, len(everything) - lead)[len(everything) - lead]
        chosen = [f.above(max(cut, np.finfo(float).tiny)) for f in found]
        bases = tuple(keep(*sides, best) for sides, best in zip(spectra, chosen, strict=True))
        return cls(layers, bases)

    def arrays(self) -> dict[str, np.ndarray]:
        """The basis as arrays that a file can hold."""
        out = {}
        for i, basis in enumerate(self.bases):
            if basis is not None:
                out[f"{i}.inputs"] = to_numpy(basis.inputs)
                out[f"{i}.outputs"] = to_numpy(basis.outputs)
                pairs = (basis.pairs.inputs, basis.pairs.outputs, basis.pairs.flat)
                out[f"{i}.pairs"] = np.stack([to_numpy(p).astype(np.int64) for p in pairs])
        return out

    @classmethod
    def from_arrays(
        cls, layers: tuple[Layer, ...], arrays: Mapping[str, np.ndarray], like: Array | None
    ) -> KroneckerSketch:
        """The basis that `arrays` gave, as tensors like this one, or in NumPy."""

        def placed(i: int) -> LayerBasis | None:
            if f"{i}.pairs" not in arrays:
                return None
            sides = [arrays[f"{i}.inputs"], arrays[f"{i}.outputs"]]
            places: Any = list(arrays[f"{i}.pairs"])
            if like is not None:
                sides = [like.new_tensor(side) for side in sides]
                places = [like.new_tensor(p, dtype=int) for p in places]
            inputs, outputs = sides
            return LayerBasis(inputs, outputs, Pairs(*places))

        return cls(layers, tuple(placed(i) for i in range(len(layers))))

    def project(self, rows: ScoreRows) -> Array:
        each = zip(self.bases, rows.factors, strict=True)
        return concatenate([b.project(factors) for b, factors in each if b is not None], axis=1)

    def coordinates(self, vector: Array) -> Array:
        """Vᵀv of a vector of all layers' blocks (torch), (p,)."""
        blocks = zip(self.bases, self._blocks(vector), strict=True)
        return concatenate([b.coordinates(block) for b, block in blocks if b is not None])

    def lifted(self, row: Array) -> Array:
        """V z of coordinates z: the vector of all layers' blocks (torch), (P,)."""
        parts, start = [], 0
        for basis, (d_in, d_out) in zip(self.bases, self.shapes, strict=True):
            if basis is None:
                parts.append(row.new_zeros(d_in * d_out))
                continue
            parts.append(basis.lifted(row[start : start + basis.width]).reshape(-1))
            start += basis.width
        return concatenate(parts)

    def _blocks(self, vector: Array) -> list[Array]:
        blocks, start = [], 0
        for d_in, d_out in self.shapes:
            blocks.append(vector[start : start + d_in * d_out].reshape(d_in, d_out))
            start += d_in * d_out
        return blocks


class Strongest(NamedTuple):
    """Pairs of an input and an output direction of one layer, and their eigenvalues."""

    inputs: np.ndarray
    outputs: np.ndarray
    strengths: np.ndarray

    def above(self, cut: float) -> Strongest:
        """Those of at least this strength, inputs the slow index."""
        good = self.strengths >= cut
        return Strongest(self.inputs[good], self.outputs[good], self.strengths[good])


def strongest(inputs: Spectrum, outputs: Spectrum, width: int, trace: float) -> Strongest:
    """Pairs among which the `width` strongest are: of eigenvalues in descending order, the pair
    (i, j) has (i + 1)(j + 1) − 1 that are as strong, so few pairs have to be looked at."""
    most = np.minimum(
        width // np.arange(1, min(len(inputs.values), width) + 1), len(outputs.values)
    )
    first = np.repeat(np.arange(len(most)), most)
    second = np.arange(len(first)) - np.repeat(np.cumsum(most) - most, most)
    return Strongest(first, second, inputs.values[first] * outputs.values[second] * trace)


def keep(inputs: Spectrum, outputs: Spectrum, pairs: Strongest) -> LayerBasis | None:
    """These directions; None if there are none."""
    if not len(pairs.inputs):
        return None
    rows, first = np.unique(pairs.inputs, return_inverse=True)
    columns, second = np.unique(pairs.outputs, return_inverse=True)
    places: Any = (first, second, first * len(columns) + second)
    if not isinstance(inputs.vectors, np.ndarray):  # indices on the device: no transfer per batch
        places = [inputs.vectors.new_tensor(p, dtype=int) for p in places]
    return LayerBasis(inputs.vectors[:, rows], outputs.vectors[:, columns], Pairs(*places))


def penalty_matrix(layers: tuple[Layer, ...], bases: tuple[LayerBasis | None, ...]) -> np.ndarray:
    """λR in the kept directions: its diagonal where that is all there is, else (p, p).

    R acts on inputs only, so uᵀRu′ couples directions that share their output side.
    """
    kept = [(layer, basis) for layer, basis in zip(layers, bases, strict=True) if basis]
    if all(np.ptp(layer.penalty) == 0 for layer, _ in kept):
        return np.concatenate([np.full(b.width, x.penalty[0]) for x, b in kept])
    blocks = []
    for layer, basis in kept:
        U = in_float64(basis.inputs)
        side_in, side_out = to_numpy(basis.pairs.inputs), to_numpy(basis.pairs.outputs)
        coupling = U.T @ (layer.penalty[:, None] * U)
        same_output = side_out[:, None] == side_out[None, :]
        blocks.append(np.where(same_output, coupling[np.ix_(side_in, side_in)], 0.0))
    return block_diag(*blocks)
