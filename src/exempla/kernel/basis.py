"""What a sketch promises: score rows of any length become feature rows of one fixed width.

A sketch is an orthonormal basis V of part of parameter space, applied to factors: row = Vᵀs. It
also says what the model's L2 penalty looks like in that basis.

No sketch at all: the scores written out, for models with few parameters.

The dual form: when examples are fewer than parameters, the scores span few directions.

The basis is V = Jᵀ L⁻ᵀ with J the landmark rows and J Jᵀ = L Lᵀ, so Vᵀs = L⁻¹ (J s): only dot
products of scores are ever needed, and those come straight from the factors. Landmarks are the
model's own Fisher rows, pruned to an independent set by pivoted Cholesky, plus any training score
they do not span. Nothing that a training example can express is lost.

The K-FAC eigenbasis, kept in factored form: for models too large to write a score out.

Per layer the inputs' second moment and the outputs' second moment (under the model's own labels)
are diagonalised; the product u_in ⊗ u_out is a direction, and its Fisher is close to the product
of the two eigenvalues. The p best directions of all layers together make the basis: layers get
width by what the Fisher says matters. A score is projected from its factors, (U_inᵀa)(U_outᵀg)ᵀ,
and never written out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    is_sparse,
    pivoted_cholesky,
    solve_lower,
    to_numpy,
)
from exempla.kernel.moments import Moments, Spectrum
from exempla.oracles.base import Layer, ScoreRows, in_float64
from exempla.oracles.factors import Factors, Pairs
from exempla.progress import counter, track


@dataclass(frozen=True)
class FisherSum:
    """What a pass over the Fisher rows r leaves behind."""

    matrix: np.ndarray
    """Σ r rᵀ in the basis, (p, p), or its diagonal (p,)."""
    energy: float
    """Σ ‖r‖² over whole rows, the part outside the basis too."""
    energy2: float
    """Σ ‖r‖⁴, likewise."""
    rows: int
    """How many rows carry probability."""


class Sketch(ABC):
    """Directions of the parameter space, and how score rows are projected onto them."""

    width: int
    """p, the number of directions kept."""
    exact: bool
    """Whether the basis holds every training score whole."""
    note: str
    """What the basis is, in words."""
    penalty: np.ndarray
    """The L2 penalty λR in this basis: its diagonal (p,), or the whole (p, p)."""
    residual_penalty: float | None = None
    """The penalty on every direction outside an exact span of the training scores, where only test
    scores can have a residual; None for other bases."""
    fisher_sum: FisherSum | None = None
    """The model's Fisher in this basis, where finding the basis has given it."""
    score_rows: np.ndarray | None = None
    """The training rows in this basis, likewise."""
    in_double: bool = False
    """Whether rows in this basis are float64 whatever the scores are."""
    kept_bytes: int = 0
    """Memory that the basis itself takes."""
    built_bytes: int = 0
    """Memory that finding it took at its peak."""

    @abstractmethod
    def project(self, rows: ScoreRows) -> Array:
        """Vᵀs for each row, (n, p)."""


class IdentitySketch(Sketch):
    """V = I: exact, p = number of parameters."""

    exact = True

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.width = sum(layer.size for layer in layers)
        self.penalty = np.concatenate([np.repeat(x.penalty, x.d_out) for x in layers])
        self.note = f"exact: all {self.width} parameters"

    def project(self, rows: ScoreRows) -> Array:
        return concatenate([f.dense() for f in rows.factors], axis=1)


_TOLERANCES = {True: 1e-10, False: 1e-6}
"""Relative squared residual below which a landmark counts as spanned: in float64, in float32.
Below it a pivot is made of rounding, and dividing by it would make directions out of noise."""


class SpanSketch(Sketch):
    """An exact basis of the span of Fisher rows and training scores."""

    exact = True
    in_double = True

    def __init__(self, layers: tuple[Layer, ...], fisher: ScoreRows, scores: ScoreRows) -> None:
        # A direction without penalty must lie inside the basis: then the metric outside it is a
        # multiple of the identity and the two parts do not mix.
        self.double = all(str(f.norm2().dtype).endswith("float64") for f in scores.factors)
        free = _unpenalised_directions(layers, like=fisher)
        start = ScoreRows.join([fisher, free]) if free is not None else fisher
        tolerance, energy = _TOLERANCES[self.double], start.norm2()
        alive = energy > tolerance * energy.max()  # the others could never become a pivot
        matrix = self._span(start if alive.all() else start.take(np.flatnonzero(alive)))
        if free is None:
            rows = len(fisher) if fisher.counted is None else fisher.counted
            self.fisher_sum = FisherSum(matrix, float(energy.sum()), float(energy @ energy), rows)
        inside, energy_of_scores = self.project(scores), scores.norm2()
        self.score_rows = inside
        residual = energy_of_scores - np.einsum("ij,ij->i", inside, inside)
        outside = (residual > 100 * tolerance * energy_of_scores) & (
            residual > tolerance * energy.max()
        )
        if outside.any():
            self.fisher_sum = self.score_rows = None
            self._span(ScoreRows.join([self.landmarks, scores.take(np.flatnonzero(outside))]))
        self.width = len(self.lower)
        held = self.landmarks.nbytes
        self.kept_bytes = self.lower.nbytes + held
        # the Gram matrix of all rows, their sum of squares, and the factor; with all their factors
        given = start.nbytes + scores.nbytes
        self.built_bytes = 8 * len(start) ** 2 + 2 * self.lower.nbytes + held + given
        self.note = f"exact: the span of {self.width} scores (dual form)"
        self.residual_penalty = max(float(layer.penalty.max()) for layer in layers)
        self.penalty = self._penalty(layers)

    def _span(self, rows: ScoreRows) -> np.ndarray:
        """Take a basis from these rows r; returns Σ r rᵀ in it."""
        products = _dot_products(rows, rows, f"dot products of {len(rows)} scores")
        factor, order = pivoted_cholesky(products, _TOLERANCES[self.double])
        rank = factor.shape[1]
        # the rows of the factor are the rows r in the basis, landmarks first
        total = factor.T @ factor
        self.lower, self.landmarks = factor[:rank].copy(order="F"), rows.take(order[:rank])
        return total

    def _penalty(self, layers: tuple[Layer, ...]) -> np.ndarray:
        values = {float(v) for layer in layers for v in np.unique(layer.penalty)}
        if len(values) == 1:
            return np.full(self.width, values.pop())
        scaled = ScoreRows(
            self.landmarks.sample,
            tuple(
                f.scale_inputs(layer.penalty)
                for f, layer in zip(self.landmarks.factors, layers, strict=True)
            ),
        )
        half = solve_lower(self.lower, self.landmarks.gram(scaled), overwrite=True)
        return solve_lower(self.lower, half.T, overwrite=True)

    def project(self, rows: ScoreRows) -> Array:
        """Vᵀs in NumPy and float64 wherever the model lives: the dual form is small."""
        products = _dot_products(rows, self.landmarks, f"{len(rows)} scores in the basis")
        return solve_lower(self.lower, products, overwrite=True)


def _dot_products(one: ScoreRows, other: ScoreRows, what: str) -> np.ndarray:
    """The Gram matrix, with a bar in per cent where it takes long."""
    done = 0.0

    def tell(share: float) -> None:
        nonlocal done
        before, done = int(done), done + 100 * share
        bar.update(int(done) - before)

    with counter(what, 100, "%") as bar:
        return one.gram(other, tell)


def _unpenalised_directions(layers: tuple[Layer, ...], like: ScoreRows) -> ScoreRows | None:
    """Unit scores for every parameter the penalty spares, if it spares some and not all."""
    if not any((x.penalty > 0).any() for x in layers):
        return None
    free = [np.flatnonzero(x.penalty == 0) for x in layers]
    count = sum(len(f) * x.d_out for f, x in zip(free, layers, strict=True))
    if count == 0:
        return None
    factors, start = [], 0
    for columns, layer, kind in zip(free, layers, like.factors, strict=True):
        a, g = np.zeros((count, layer.d_in)), np.zeros((count, layer.d_out))
        for column in columns:
            for output in range(layer.d_out):
                a[start, column] = g[start, output] = 1.0
                start += 1
        factors.append(matching(a, g, kind))
    return ScoreRows(np.full(count, -1), tuple(factors))


def matching(a: np.ndarray, g: np.ndarray, kind: Factors) -> Factors:
    """Factors of the same kind of array as `kind`."""
    if is_sparse(kind.a):
        from scipy.sparse import csr_matrix

        return Factors(csr_matrix(a), g)
    if kind.g.ndim == 3:
        a, g = a[:, None, :], g[:, None, :]
    return Factors(as_like(a, kind.a), as_like(g, kind.g))


@dataclass(frozen=True)
class _LayerBasis:
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
        bases: tuple[_LayerBasis | None, ...],
    ) -> None:
        self.bases = bases
        kept = [b for b in bases if b is not None]
        self.width = sum(b.width for b in kept)
        self.kept_bytes = sum(b.inputs.nbytes + b.outputs.nbytes for b in kept)
        self.note = f"K-FAC eigenbasis, {self.width} of {sum(x.size for x in layers)} directions"
        self.penalty = _penalty_matrix(layers, self.bases)
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

        def placed(i: int) -> _LayerBasis | None:
            if f"{i}.pairs" not in arrays:
                return None
            sides = [arrays[f"{i}.inputs"], arrays[f"{i}.outputs"]]
            places: Any = list(arrays[f"{i}.pairs"])
            if like is not None:
                sides = [like.new_tensor(side) for side in sides]
                places = [like.new_tensor(p, dtype=int) for p in places]
            inputs, outputs = sides
            return _LayerBasis(inputs, outputs, Pairs(*places))

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


class _Strongest(NamedTuple):
    """Pairs of an input and an output direction of one layer, and their eigenvalues."""

    inputs: np.ndarray
    outputs: np.ndarray
    strengths: np.ndarray

    def above(self, cut: float) -> _Strongest:
        """Those of at least this strength, inputs the slow index."""
        good = self.strengths >= cut
        return _Strongest(self.inputs[good], self.outputs[good], self.strengths[good])


def strongest(inputs: Spectrum, outputs: Spectrum, width: int, trace: float) -> _Strongest:
    """Pairs among which the `width` strongest are: of eigenvalues in descending order, the pair
    (i, j) has (i + 1)(j + 1) − 1 that are as strong, so few pairs have to be looked at."""
    most = np.minimum(
        width // np.arange(1, min(len(inputs.values), width) + 1), len(outputs.values)
    )
    first = np.repeat(np.arange(len(most)), most)
    second = np.arange(len(first)) - np.repeat(np.cumsum(most) - most, most)
    return _Strongest(first, second, inputs.values[first] * outputs.values[second] * trace)


def keep(inputs: Spectrum, outputs: Spectrum, pairs: _Strongest) -> _LayerBasis | None:
    """These directions; None if there are none."""
    if not len(pairs.inputs):
        return None
    rows, first = np.unique(pairs.inputs, return_inverse=True)
    columns, second = np.unique(pairs.outputs, return_inverse=True)
    places: Any = (first, second, first * len(columns) + second)
    if not isinstance(inputs.vectors, np.ndarray):  # indices on the device: no transfer per batch
        places = [inputs.vectors.new_tensor(p, dtype=int) for p in places]
    return _LayerBasis(inputs.vectors[:, rows], outputs.vectors[:, columns], Pairs(*places))


def _penalty_matrix(layers: tuple[Layer, ...], bases: tuple[_LayerBasis | None, ...]) -> np.ndarray:
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
