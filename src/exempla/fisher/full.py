"""The whole Fisher in sketch space: correlations across layers stay."""

from __future__ import annotations

import numpy as np

from exempla.fisher.base import Metric
from exempla.linalg import inverse_factor, matmul_as
from exempla.types import Array

__all__ = ["FullMetric"]


class FullMetric(Metric):
    """M = F + λR + damping·I, applied through one Cholesky factor per damping."""

    name = "full"

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self._cached: tuple[float, np.ndarray] | None = None

    def factor(self, damping: float) -> np.ndarray:
        """W (p, p) with W Wᵀ = M⁻¹; the last one is kept, as a job asks for it many times."""
        if self._cached is None or self._cached[0] != damping:
            damped = self.matrix.copy()
            damped[np.diag_indices_from(damped)] += damping
            self._cached = (damping, inverse_factor(damped))
        return self._cached[1]

    def whiten(self, rows: Array, damping: float) -> Array:
        return matmul_as(rows, self.factor(damping))
