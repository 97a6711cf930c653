"""Scores over the posterior: what a summary has to match.

At the optimum θ̂ the mean score is zero, so there is nothing to match there. A weighted set that
has the data's mean score at many parameters around θ̂ has the data's likelihood around θ̂, up to a
constant, and a refit on it ends where a fit on the data does. The parameters are draws
θ ~ N(θ̂, I⁻¹/(2k)): the width of what k examples leave open. I is the mean Fisher with the penalty
as k examples feel it (n/k times as strong as in the mean over n), so that directions which a fit
on k examples leaves to the penalty do not count.

Eigenvectors are free in their signs, and in more where eigenvalues are equal; the last bit of a
sum decides. The symmetric root I^(−1/2) is not, so draws and rows are made with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from exempla.arrays import Array, is_sparse
from exempla.errors import ExemplaError
from exempla.tasks.summarize.last_layer import LastLayer

__all__ = ["Posterior", "posterior"]

DRAWS = 30
FULL_FISHER = 2500
"""Up to so many parameters the Fisher is a full matrix; beyond, only its diagonal is used."""
WIDTH = 4096
"""Longest feature row: longer ones (draws × parameters) are hashed down to it."""
NEGLIGIBLE = 1e-9
"""Directions whose Fisher is below this share of the largest carry no information."""
BATCH_BYTES = 2**25
"""Scores at all draws are written out for so many bytes of examples at a time."""


@dataclass(frozen=True)
class Posterior:
    """Draws around θ̂ and the whitening that makes their scores comparable."""

    thetas: np.ndarray
    """(draws, d_in, d_out)"""
    whitening: np.ndarray
    """I^(−1/2): (p, p) and symmetric, or (p,) where the Fisher is diagonal."""
    hashing: csr_array | None
    """(draws·p, WIDTH) signed hashing, None where rows are short enough."""

    @property
    def width(self) -> int:
        """Length of a feature row."""
        return self.thetas.size if self.hashing is None else WIDTH

    def mean(self, layer: LastLayer) -> np.ndarray:
        """Mean feature row of the examples, without writing their rows out."""
        total = np.zeros(self.thetas.shape)
        for part in layer.batches():
            for s, theta in enumerate(self.thetas):
                g = part.residuals(theta)
                total[s] += part.a.T @ (g if part.counts is None else g * part.counts[:, None])
        whitened = self._whiten(total.reshape(len(total), -1) / layer.size)
        return self._finish(whitened.reshape(1, -1))[0]

    def leverage(self, layer: LastLayer) -> np.ndarray:
        """Squared norm of each example's whitened score at θ̂: how much it alone can move."""
        found = [np.empty(0)]
        for part in self._batches(layer):
            scores = self._scores(part, layer.theta[None])
            squares = scores.multiply(scores) if is_sparse(scores) else scores * scores
            found.append(np.asarray(squares.sum(axis=1)))
        return np.concatenate(found)

    def fill(self, rows: np.ndarray, layer: LastLayer) -> None:
        """Write each example's whitened scores at every draw, side by side, into its row."""
        start = 0
        for part in self._batches(layer):
            scores = self._scores(part, self.thetas)
            rows[start : start + len(part), : self.width] = self._finish(scores)
            start += len(part)

    def _batches(self, layer: LastLayer) -> Iterator[LastLayer]:
        """The examples, as many at a time as BATCH_BYTES allow."""
        draws, _, d_out = self.thetas.shape
        if is_sparse(layer.a) and self.whitening.ndim == 1:
            # only what is not zero is written out: value, place, and a copy of each on the way
            scores = 5 * draws * d_out * layer.a.nnz / max(1, len(layer))
        else:
            scores = self.thetas.size
        return layer.batches(max(1, int(BATCH_BYTES / (8 * (self.width + scores)))))

    def _scores(self, part: LastLayer, thetas: np.ndarray) -> Array:
        """(n, draws·p) whitened scores at these parameters; CSR where nothing makes them dense."""
        g = np.stack([part.residuals(theta) for theta in thetas], axis=1)
        n, draws, d_out = g.shape
        if self.whitening.ndim == 1:
            scores, whitening = products(part.a, g), np.tile(self.whitening, draws)
            if not is_sparse(scores):
                return scores * whitening
            scores.data *= whitening[scores.indices]
            return scores
        if d_out == 1:
            # (a g)ᵀW = g (aᵀW), and aᵀW is the same at every draw
            return (g * np.asarray(part.a @ self.whitening)[:, None, :]).reshape(n, -1)
        a = part.a.toarray() if is_sparse(part.a) else part.a
        return self._whiten(products(a, g).reshape(n * draws, -1)).reshape(n, -1)

    def _whiten(self, scores: np.ndarray) -> np.ndarray:
        return scores @ self.whitening if self.whitening.ndim == 2 else scores * self.whitening

    def _finish(self, scores: Array) -> np.ndarray:
        """(n, draws·p) scaled so that kernels are means over the draws, hashed if too long."""
        rows = scores if self.hashing is None else scores @ self.hashing
        rows = rows.toarray() if is_sparse(rows) else rows
        return rows / np.sqrt(len(self.thetas))


def products(a: Array, g: np.ndarray) -> Array:
    """Each example's a gᵀ at every draw, (n, draws·d_in·d_out) in that order; CSR if `a` is.

    >>> products(np.array([[1.0, 2.0]]), np.array([[[3.0, 4.0]]]))
    array([[3., 4., 6., 8.]])
    """
    n, draws, d_out = g.shape
    if not is_sparse(a):
        return (a[:, None, :, None] * g[:, :, None, :]).reshape(n, -1)
    d_in = a.shape[1]
    lengths = np.diff(a.indptr)
    of_entry = np.repeat(np.arange(n), lengths)
    values = a.data[:, None, None] * g[of_entry]
    columns = np.arange(draws)[:, None] * d_in * d_out + np.arange(d_out)
    columns = a.indices.astype(np.int64)[:, None, None] * d_out + columns
    starts = a.indptr.astype(np.int64) * (draws * d_out)
    shape = (n, draws * d_in * d_out)
    return csr_array((values.ravel(), columns.ravel(), starts), shape=shape)


def posterior(
    layer: LastLayer,
    k: int,
    rng: np.random.Generator,
    draws: int = DRAWS,
    spread: float = 0.5,
    damping: float = 0.0,
) -> Posterior:
    """Draw parameters around θ̂, with `spread` times the variance that k examples leave open."""
    penalty = np.repeat(layer.penalty, layer.theta.shape[1]) * layer.size / k + damping
    if layer.theta.size <= FULL_FISHER:
        whitening = inverse_root(layer.fisher() + np.diag(penalty))
    else:
        whitening = _inverse_roots(layer.fisher_diagonal() + penalty)
    noise = rng.standard_normal((draws, layer.theta.size)) * np.sqrt(spread / k)
    steps = noise @ whitening if whitening.ndim == 2 else noise * whitening
    thetas = layer.theta[None] + steps.reshape(draws, *layer.theta.shape)
    return Posterior(thetas, whitening, signed_hashing(thetas.size, rng))


def inverse_root(metric: np.ndarray) -> np.ndarray:
    """The symmetric I^(−1/2), zero along negligible directions.

    >>> inverse_root(np.diag([4.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    if not np.isfinite(metric).all():
        raise _useless()
    values, vectors = np.linalg.eigh(metric)
    return (vectors * _inverse_roots(values)) @ vectors.T


def _inverse_roots(values: np.ndarray) -> np.ndarray:
    """1/√λ, zero where negligible."""
    kept = values > NEGLIGIBLE * values.max()
    if not kept.any() or not np.isfinite(values).all():
        raise _useless()
    return np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)


def _useless() -> ExemplaError:
    return ExemplaError(
        "the model's Fisher is zero or not finite, so its training data cannot be told apart: "
        "check its inputs and parameters."
    )


def signed_hashing(length: int, rng: np.random.Generator) -> csr_array | None:
    """Each coordinate added, with a random sign, to one of WIDTH: keeps dot products on average."""
    if length <= WIDTH:
        return None
    signs = rng.choice([-1.0, 1.0], length)
    columns = rng.integers(0, WIDTH, length)
    return csr_array((signs, (np.arange(length), columns)), shape=(length, WIDTH))
