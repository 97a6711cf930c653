"""Sketches: bases of a part of parameter space, on which scores are projected.

A sketch is an orthonormal basis V; the row of a score s is Vᵀs. There are three:

* `IdentitySketch`: V = I. Scores are written out, for models with few parameters.
* `SpanSketch` (the dual form): when there are fewer examples than parameters, scores span few
  directions. With J the landmark rows and J Jᵀ = L Lᵀ the basis is V = Jᵀ L⁻ᵀ, so Vᵀs = L⁻¹ (J s)
  needs only dot products of scores, which the factors give. Landmarks are an independent set of
  the model's Fisher rows and the training scores, found by pivoted Cholesky.
* `KroneckerSketch`: the leading directions of the K-FAC eigenbasis, for models too large to write a
  score out. For each layer, the second moments of the inputs and of the output gradients (under the
  model's own labels) are diagonalised. The Fisher eigenvalue of u_in ⊗ u_out is close to the
  product of the two eigenvalues; the p largest over all layers are kept. A score is projected from
  its factors, (U_inᵀa)(U_outᵀg)ᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from exempla.oracles.base import Factors, Layer, Pairs, ScoreRows, in_float64
from exempla.progress import counter, track


@dataclass(frozen=True)
class FisherSum:
    """Sums over the Fisher rows r of some examples."""

    matrix: np.ndarray
    """Σ r rᵀ in the basis, (p, p), or its diagonal (p,)."""
    energy: float
    """Σ ‖r‖² over all parameters."""
    energy2: float
    """Σ ‖r‖⁴ over all parameters."""
    rows: int
    """Number of rows with a probability above the cut."""


class Sketch:
    """A basis of a part of parameter space, and the projection of score rows onto it."""

    width: int
    """p, the number of directions."""
    exact: bool
    """Whether every training score lies in the span of the basis."""
    note: str
    """Description for progress lines and details."""
    given_up: str = ""
    """What the budget did not allow, in words."""
    penalty: np.ndarray
    """The L2 penalty λR in this basis: its diagonal (p,), or the full (p, p) matrix."""
    residual_penalty: float | None = None
    """Penalty of all directions outside an exact span of the training scores, where only test
    scores can have a residual; None for other bases."""
    fisher_sum: FisherSum | None = None
    """The Fisher rows of the training set in this basis, if building the basis computed them."""
    score_rows: np.ndarray | None = None
    """The training scores in this basis, if building the basis computed them."""
    seen: np.ndarray | None = None
    """Positions, in the sample, of the examples that the basis was computed from, if their Fisher
    rows were kept."""
    seen_rows: tuple[ScoreRows, ...] = ()
    """Fisher rows of those examples; `estimate_fisher` uses them once."""
    in_double: bool = False
    """Whether rows are float64 whatever the precision of the scores."""
    kept_bytes: int = 0
    """Memory of the basis."""
    built_bytes: int = 0
    """Peak memory while it was built."""

    def project(self, rows: ScoreRows) -> Array:
        """Return Vᵀs of each row, (n, p)."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the basis as NumPy arrays, to be stored."""
        return {}


class IdentitySketch(Sketch):
    """All parameters: V = I."""

    exact = True

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.width = sum(layer.size for layer in layers)
        self.penalty = np.concatenate([np.repeat(x.penalty, x.d_out) for x in layers])
        self.note = f"exact: all {self.width} parameters"

    def project(self, rows: ScoreRows) -> Array:
        return concatenate([f.dense() for f in rows.factors], axis=1)


_TOLERANCES = {True: 1e-10, False: 1e-6}
"""Relative squared residual below which a row counts as spanned, in float64 and in float32. A
smaller pivot consists of rounding errors."""


class SpanSketch(Sketch):
    """An exact basis of the span of the Fisher rows and the training scores.

    `fisher` are the Fisher rows of all training examples, `scores` the scores of those at positions
    `scored`. The scores of the others are Fisher rows times their `to_score`.
    """

    exact = True
    in_double = True

    def __init__(
        self,
        layers: tuple[Layer, ...],
        fisher: ScoreRows,
        scores: ScoreRows | None,
        scored: np.ndarray,
        n_train: int,
    ) -> None:
        # Directions without a penalty must lie inside the basis: then the metric outside it is a
        # multiple of the identity, and the two parts do not mix.
        free = _unpenalised_directions(layers, like=fisher)
        rows = ScoreRows.join([part for part in (fisher, scores, free) if part is not None])
        double = all(str(f.norm2().dtype).endswith("float64") for f in fisher.factors)
        n_fisher, tolerance = len(fisher), _TOLERANCES[double]
        # The row of an improbable label is much shorter than its score: it is taken at the length
        # of the longer one, so that the tolerance cuts off nothing that matters in the score.
        scale = np.ones(len(rows))
        if fisher.to_score is not None:
            np.maximum(np.abs(fisher.to_score), 1.0, out=scale[:n_fisher])
        norm2 = rows.norm2()
        used = np.flatnonzero(scale**2 * norm2 > tolerance * (scale**2 * norm2).max())
        some = rows.take(used)  # the others never become pivots
        gram = _dot_products(some, some, f"dot products of {len(some)} scores")
        gram *= scale[used]
        gram *= scale[used][:, None]
        factor, order = pivoted_cholesky(gram, tolerance)
        order, rank = used[order], factor.shape[1]
        factor /= scale[order][:, None]  # row i of the factor is row order[i] in the basis
        self.lower, self.landmarks = factor[:rank].copy(order="F"), rows.take(order[:rank])
        own, energy = factor[order < n_fisher], norm2[:n_fisher]
        count = n_fisher if fisher.counted is None else fisher.counted
        self.fisher_sum = FisherSum(own.T @ own, float(energy.sum()), float(energy @ energy), count)
        self.score_rows = np.zeros((n_train, rank))
        place = np.full(len(rows), -1)
        place[order] = np.arange(len(order))
        # the scores at positions `scored` follow the Fisher rows
        found = [(n_fisher + np.arange(len(scored)), scored, np.ones(len(scored)))]
        if fisher.to_score is not None:
            at = np.flatnonzero(fisher.to_score)
            found.append((at, fisher.sample[at], fisher.to_score[at]))
        for at, examples, times in found:
            known = place[at] >= 0
            self.score_rows[examples[known]] = times[known, None] * factor[place[at[known]]]
            if not known.all():
                short = self.project(rows.take(at[~known]))
                self.score_rows[examples[~known]] = times[~known, None] * short
        self.width, held = rank, self.landmarks.nbytes
        self.kept_bytes = self.lower.nbytes + held
        # the Gram matrix of all rows, their sum of squares, the factor, and the rows themselves
        self.built_bytes = 8 * len(rows) ** 2 + 2 * self.lower.nbytes + held + rows.nbytes
        self.note = f"exact: the span of {rank} scores (dual form)"
        self.residual_penalty = max(float(layer.penalty.max()) for layer in layers)
        self.penalty = self._penalty(layers)

    def _penalty(self, layers: tuple[Layer, ...]) -> np.ndarray:
        values = {float(v) for layer in layers for v in np.unique(layer.penalty)}
        if len(values) == 1:
            return np.full(self.width, values.pop())
        pairs = zip(self.landmarks.factors, layers, strict=True)
        scaled = ScoreRows(
            self.landmarks.sample, tuple(f.scale_inputs(layer.penalty) for f, layer in pairs)
        )
        half = solve_lower(self.lower, self.landmarks.gram(scaled), overwrite=True)
        return solve_lower(self.lower, half.T, overwrite=True)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"lower": self.lower}

    def project(self, rows: ScoreRows) -> np.ndarray:
        """Return Vᵀs in NumPy and float64 wherever the model is: the dual form is small."""
        products = _dot_products(rows, self.landmarks, f"{len(rows)} scores in the basis")
        return solve_lower(self.lower, products, overwrite=True)


def _dot_products(one: ScoreRows, other: ScoreRows, what: str) -> np.ndarray:
    """Return the Gram matrix; show a progress bar if it takes long."""
    with counter(what, 1) as bar:
        return one.gram(other, bar.update)


def _unpenalised_directions(layers: tuple[Layer, ...], like: ScoreRows) -> ScoreRows | None:
    """Return a unit score for every unpenalised parameter; None if there are none, or only such."""
    if not any((x.penalty > 0).any() for x in layers):
        return None
    free = [np.argwhere(np.repeat((x.penalty == 0)[:, None], x.d_out, axis=1)) for x in layers]
    count = sum(map(len, free))
    if count == 0:
        return None
    factors, start = [], 0
    for places, layer, kind in zip(free, layers, like.factors, strict=True):
        a, g = np.zeros((count, layer.d_in)), np.zeros((count, layer.d_out))
        rows = start + np.arange(len(places))
        a[rows, places[:, 0]] = g[rows, places[:, 1]] = 1.0
        start += len(places)
        if is_sparse(kind.a):
            from scipy.sparse import csr_matrix

            factors.append(Factors(csr_matrix(a), g))
        else:
            factors.append(Factors(as_like(a, kind.a), as_like(g, kind.g)))
    return ScoreRows(np.full(count, -1), tuple(factors))


# ---- the K-FAC eigenbasis


@dataclass(frozen=True)
class _LayerBasis:
    """The kept directions of one layer: columns of U_in and U_out, and the pairs of them."""

    inputs: Array
    outputs: Array
    pairs: Pairs

    @classmethod
    def of(
        cls, inputs: Spectrum, outputs: Spectrum, first: np.ndarray, second: np.ndarray
    ) -> _LayerBasis:
        """Return the basis of these pairs of an input and an output direction."""
        rows, first = np.unique(first, return_inverse=True)
        columns, second = np.unique(second, return_inverse=True)
        places: Any = (first, second, first * len(columns) + second)
        if not isinstance(inputs.vectors, np.ndarray):  # on the device: no transfer per batch
            places = [inputs.vectors.new_tensor(p, dtype=int) for p in places]
        return cls(inputs.vectors[:, rows], outputs.vectors[:, columns], Pairs(*places))

    @property
    def width(self) -> int:
        return len(self.pairs.flat)

    def project(self, factors: Factors) -> Array:
        return factors.project_pairs(self.inputs, self.outputs, self.pairs)

    def coordinates(self, matrix: Array) -> Array:
        """Return a (d_in, d_out) block of parameter space in the kept directions, (width,)."""
        return (self.inputs.T @ matrix @ self.outputs).reshape(-1)[self.pairs.flat]

    def lifted(self, row: Array) -> Array:
        """Return the block with these coordinates, zero outside the kept directions."""
        block = row.new_zeros(self.inputs.shape[1] * self.outputs.shape[1])
        block[self.pairs.flat] = row
        small = block.reshape(self.inputs.shape[1], self.outputs.shape[1])
        return self.inputs @ small @ self.outputs.T


class KroneckerSketch(Sketch):
    """The leading directions of the K-FAC eigenbasis."""

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
        """Build the basis of the `width` leading directions from the moments of all layers."""
        each = track(moments, "finding the directions of each layer", len(moments))
        spectra = [m.spectra for m in each]
        found = [
            strongest(*sides, width, float(m.trace))
            for sides, m in zip(spectra, moments, strict=True)
        ]
        everything = np.concatenate([values for *_, values in found])
        lead = min(width, int(np.count_nonzero(everything > 0)))
        cut = np.partition(everything, len(everything) - lead)[len(everything) - lead]
        bases = []
        for sides, (first, second, values) in zip(spectra, found, strict=True):
            kept = values >= max(cut, np.finfo(float).tiny)
            bases.append(_LayerBasis.of(*sides, first[kept], second[kept]) if kept.any() else None)
        return cls(layers, tuple(bases))

    def arrays(self) -> dict[str, np.ndarray]:
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
        """Rebuild a stored basis, as tensors on the device of `like`, or in NumPy."""

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
        """Return Vᵀv of a vector of all parameters (torch), (p,)."""
        blocks = vector.split([d_in * d_out for d_in, d_out in self.shapes])
        each = zip(self.bases, self.shapes, blocks, strict=True)
        return concatenate([b.coordinates(x.reshape(shape)) for b, shape, x in each if b])

    def lifted(self, row: Array) -> Array:
        """Return V z as a vector of all parameters (torch), (P,)."""
        parts = row.split([b.width if b else 0 for b in self.bases])
        each = zip(self.bases, self.shapes, parts, strict=True)
        return concatenate(
            [
                b.lifted(part).reshape(-1) if b else row.new_zeros(d_in * d_out)
                for b, (d_in, d_out), part in each
            ]
        )


def strongest(
    inputs: Spectrum, outputs: Spectrum, width: int, trace: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of directions that include the `width` leading ones, and their eigenvalues.

    With eigenvalues in descending order, (i + 1)(j + 1) − 1 pairs are at least as large as (i, j),
    so only pairs with (i + 1)(j + 1) ≤ width are needed.
    """
    most = np.minimum(
        width // np.arange(1, min(len(inputs.values), width) + 1), len(outputs.values)
    )
    first = np.repeat(np.arange(len(most)), most)
    second = np.arange(len(first)) - np.repeat(np.cumsum(most) - most, most)
    return first, second, inputs.values[first] * outputs.values[second] * trace


def _penalty_matrix(layers: tuple[Layer, ...], bases: tuple[_LayerBasis | None, ...]) -> np.ndarray:
    """Return λR in the kept directions: its diagonal (p,) if it is diagonal, otherwise (p, p).

    R acts on inputs only, so uᵀRu′ couples directions with the same output side.
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
