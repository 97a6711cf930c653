"""The diagonal of the Fisher: one number a direction, cross-correlations dropped."""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, as_like
from exempla.errors import ExemplaError
from exempla.fisher.base import Metric

__all__ = ["DiagonalMetric"]


class DiagonalMetric(Metric):
    """M = diag(Fisher) + diag(λR) + damping."""

    name = "diagonal"

    def __init__(self, diagonal: np.ndarray) -> None:
        self.diagonal = diagonal

    def whiten(self, rows: Array, damping: float) -> Array:
        total = self.diagonal + damping
        if not (total > 0).all():
            raise ExemplaError(
                "the Fisher's diagonal has zeros: leave damping='auto' or give a positive number."
            )
        return rows * as_like(1.0 / np.sqrt(total), rows)

    def solve(self, rows: Array, damping: float) -> Array:
        return self.whiten(self.whiten(rows, damping), damping)
