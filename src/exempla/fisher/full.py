"""The whole Fisher in sketch space: correlations across layers stay."""

from __future__ import annotations

import numpy as np

from exempla.errors import ExemplaError
from exempla.fisher.base import Metric
from exempla.linalg import inverse_factor, matmul_as, to_numpy
from exempla.types import Array

__all__ = ["FullMetric"]

JITTER = 1e-10
"""Added, relative to the mean eigenvalue, to a metric that is singular without damping."""
SINGULAR = (
    "the Fisher metric is singular without damping: leave damping='auto' or give a positive number."
)


class FullMetric(Metric):
    """M = F + λR + damping·I, applied through one Cholesky factor per damping."""

    name = "full"

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self._cached: tuple[float, np.ndarray, float] | None = None

    def factor(self, damping: float) -> tuple[np.ndarray, float]:
        """W (p, p) with W Wᵀ = M⁻¹, and what had to be added to make M invertible (mostly 0).

        The last factor is kept, as a job asks for it many times.
        """
        if self._cached is None or self._cached[0] != damping:
            W, added = inverse_factor(self._plus(damping)), 0.0
            if W is None:
                added = JITTER * float(np.trace(self.matrix)) / len(self.matrix)
                W = inverse_factor(self._plus(damping + added))
            if W is None:
                raise ExemplaError(SINGULAR)
            self._cached = (damping, W, added)
        return self._cached[1:]

    def _plus(self, value: float) -> np.ndarray:
        damped = self.matrix.copy()
        damped[np.diag_indices_from(damped)] += value
        return damped

    def whiten(self, rows: Array, damping: float) -> Array:
        W, added = self.factor(damping)
        white = matmul_as(rows, W)
        if added:
            # A direction without curvature is harmless (the softmax's common shift) unless a
            # score has a part in it: that part would be blown up by 1/added.
            blown_up = to_numpy((white * white).sum(1)) * added > 1e-6 * to_numpy(
                (rows * rows).sum(1)
            )
            if blown_up.any():
                raise ExemplaError(SINGULAR)
        return white

    def solve(self, rows: Array, damping: float) -> Array:
        W, _ = self.factor(damping)
        return matmul_as(self.whiten(rows, damping), W.T)
