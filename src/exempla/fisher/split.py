"""A metric in two parts: the kept directions as they were measured, and one number for each random
direction of the rest."""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, as_like, concatenate
from exempla.fisher.base import Metric

__all__ = ["SplitMetric"]


class SplitMetric(Metric):
    """M of the first columns, and ρ + damping of the others, whose products count by a weight."""

    def __init__(self, lead: Metric, columns: int, scales: np.ndarray, weight: float) -> None:
        self._lead, self.columns, self.scales, self.weight = lead, columns, scales, weight
        self.name = lead.name

    @property
    def lead(self) -> Metric:
        return self._lead

    def whiten(self, rows: Array, damping: float) -> Array:
        first, others = rows[:, : self.columns], rows[:, self.columns :]
        scale = as_like(np.sqrt(self._inverse(damping)), rows)
        return concatenate([self._lead.whiten(first, damping), others * scale], axis=1)

    def solve(self, rows: Array, damping: float) -> Array:
        first, others = rows[:, : self.columns], rows[:, self.columns :]
        scale = as_like(self._inverse(damping), rows)
        return concatenate([self._lead.solve(first, damping), others * scale], axis=1)

    def _inverse(self, damping: float) -> np.ndarray:
        total = self.scales + damping
        return np.divide(self.weight, total, out=np.zeros_like(total), where=total > 0)
