"""The dual form: when examples are fewer than parameters, the scores span few directions.

The basis is V = Jᵀ L⁻ᵀ with J the landmark rows and J Jᵀ = L Lᵀ, so Vᵀs = L⁻¹ (J s): only dot
products of scores are ever needed, and those come straight from the factors. Landmarks are the
model's own Fisher rows, pruned to an independent set by pivoted Cholesky, plus any training score
they do not span. Nothing that a training example can express is lost.
"""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, as_like, is_sparse, pivoted_cholesky, solve_lower
from exempla.factors import Factors
from exempla.oracles.base import Layer, ScoreRows
from exempla.progress import counter
from exempla.sketch.base import FisherSum, Sketch

__all__ = ["SpanSketch"]

TOLERANCES = {True: 1e-10, False: 1e-6}
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
        free = unpenalised_directions(layers, like=fisher)
        start = ScoreRows.join([fisher, free]) if free is not None else fisher
        tolerance, energy = TOLERANCES[self.double], start.norm2()
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
        self.outside = max(float(layer.penalty.max()) for layer in layers)
        self.penalty = self._penalty(layers)

    def _span(self, rows: ScoreRows) -> np.ndarray:
        """Take a basis from these rows r; returns Σ r rᵀ in it."""
        products = dot_products(rows, rows, f"dot products of {len(rows)} scores")
        factor, order = pivoted_cholesky(products, TOLERANCES[self.double])
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
        products = dot_products(rows, self.landmarks, f"{len(rows)} scores in the basis")
        return solve_lower(self.lower, products, overwrite=True)


def dot_products(one: ScoreRows, other: ScoreRows, what: str) -> np.ndarray:
    """The Gram matrix, with a bar in per cent where it takes long."""
    done = 0.0

    def tell(share: float) -> None:
        nonlocal done
        before, done = int(done), done + 100 * share
        bar.update(int(done) - before)

    with counter(what, 100, "%") as bar:
        return one.gram(other, tell)


def unpenalised_directions(layers: tuple[Layer, ...], like: ScoreRows) -> ScoreRows | None:
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
