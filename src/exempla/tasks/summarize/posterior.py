"""Scores over the posterior: what a summary has to match.

At the optimum θ̂ the mean score is zero, so there is nothing to match there. A weighted set that
has the data's mean score at many parameters around θ̂ has the data's likelihood around θ̂, up to a
constant, and a refit on it ends where a fit on the data does. The parameters are draws
θ ~ N(θ̂, I⁻¹/(2k)): the width of what k examples leave open. I is the mean Fisher with the penalty
as k examples feel it (n/k times as strong as in the mean over n), so that directions which a fit
on k examples leaves to the penalty do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from exempla.arrays import Array, is_sparse
from exempla.errors import ExemplaError
from exempla.tasks.summarize.head import Head

__all__ = ["Posterior", "posterior"]

DRAWS = 30
FULL_FISHER = 2500
"""Up to so many parameters the Fisher is a full matrix; beyond, only its diagonal is used."""
WIDTH = 4096
"""Longest feature row: longer ones (draws × parameters) are hashed down to it."""
NEGLIGIBLE = 1e-9
"""Directions whose Fisher is below this share of the largest carry no information."""


@dataclass(frozen=True)
class Posterior:
    """Draws around θ̂ and the whitening that makes their scores comparable."""

    thetas: np.ndarray
    """(draws, d_in, d_out)"""
    whitening: np.ndarray
    """W with W Wᵀ = I⁻¹: (p, q), or (p,) where the Fisher is diagonal."""
    hashing: csr_array | None
    """(draws·q, WIDTH) signed hashing, None where rows are short enough."""

    @property
    def width(self) -> int:
        """Length of a feature row."""
        full = len(self.thetas) * self.whitening.shape[-1]
        return full if self.hashing is None else WIDTH

    def mean(self, head: Head) -> np.ndarray:
        """Mean feature row of the examples, without writing their rows out."""
        total = np.zeros(self.thetas.shape)
        for part in head.batches():
            for s, theta in enumerate(self.thetas):
                g = part.residuals(theta)
                total[s] += part.a.T @ (g if part.counts is None else g * part.counts[:, None])
        return self._finish(self._whiten(total.reshape(len(total), -1) / head.size)[None])[0]

    def leverage(self, head: Head) -> np.ndarray:
        """Squared norm of each example's whitened score at θ̂: how much it alone can move."""
        found = []
        for part in head.batches():
            g = part.residuals(head.theta)
            scores = self._scores(part.a, self._whitened_inputs(part.a), g)
            found.append(np.einsum("ij,ij->i", scores, scores))
        return np.concatenate(found)

    def fill(self, rows: np.ndarray, head: Head) -> None:
        """Write each example's whitened scores at every draw, side by side, into its row."""
        start = 0
        for part in head.batches():
            rows[start : start + len(part), : self.width] = self._rows(part)
            start += len(part)

    def _rows(self, part: Head) -> np.ndarray:
        blocks = []
        whitened = self._whitened_inputs(part.a)
        for theta in self.thetas:
            g = part.residuals(theta)
            blocks.append(self._scores(part.a, whitened, g).astype(np.float32))
        return self._finish(np.stack(blocks, axis=1)).astype(np.float32)

    def _whitened_inputs(self, a: Array) -> np.ndarray | None:
        """aᵀW, which all draws share, where the layer has one output."""
        single = self.thetas.shape[2] == 1 and self.whitening.ndim == 2
        return np.asarray(a @ self.whitening) if single else None

    def _scores(self, a: Array, whitened: np.ndarray | None, g: np.ndarray) -> np.ndarray:
        if whitened is not None:
            return whitened * g
        a = a.toarray() if is_sparse(a) else a
        return self._whiten((a[:, :, None] * g[:, None, :]).reshape(len(g), -1))

    def _whiten(self, scores: np.ndarray) -> np.ndarray:
        return scores @ self.whitening if self.whitening.ndim == 2 else scores * self.whitening

    def _finish(self, blocks: np.ndarray) -> np.ndarray:
        """(n, draws, q) scaled so that kernels are means over the draws, hashed if too long."""
        rows = blocks.reshape(len(blocks), -1) / np.sqrt(len(self.thetas))
        return rows if self.hashing is None else rows @ self.hashing


def posterior(
    head: Head,
    k: int,
    rng: np.random.Generator,
    draws: int = DRAWS,
    spread: float = 0.5,
    damping: float = 0.0,
) -> Posterior:
    """Draw parameters around θ̂, with `spread` times the variance that k examples leave open."""
    penalty = np.repeat(head.penalty, head.theta.shape[1]) * head.size / k + damping
    if head.theta.size <= FULL_FISHER:
        values, vectors = np.linalg.eigh(head.fisher() + np.diag(penalty))
        kept = values > NEGLIGIBLE * values.max()
        whitening = vectors[:, kept] / np.sqrt(values[kept])
    else:
        values = head.fisher_diagonal() + penalty
        kept = values > NEGLIGIBLE * values.max()
        whitening = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
    if not kept.any() or not np.isfinite(values).all():
        raise ExemplaError(
            "the model's Fisher is zero or not finite, so its training data cannot be told apart: "
            "check its inputs and parameters."
        )
    q = whitening.shape[-1]
    noise = rng.standard_normal((draws, q)) * np.sqrt(spread / k)
    steps = noise @ whitening.T if whitening.ndim == 2 else noise * whitening
    thetas = head.theta[None] + steps.reshape(draws, *head.theta.shape)
    return Posterior(thetas, whitening, signed_hashing(draws * q, rng))


def signed_hashing(length: int, rng: np.random.Generator) -> csr_array | None:
    """Each coordinate added, with a random sign, to one of WIDTH: keeps dot products on average."""
    if length <= WIDTH:
        return None
    signs = rng.choice([-1.0, 1.0], length)
    columns = rng.integers(0, WIDTH, length)
    return csr_array((signs, (np.arange(length), columns)), shape=(length, WIDTH))
