"""What a Fisher metric promises: to whiten rows for any damping, without embedding again."""

from __future__ import annotations

from abc import ABC, abstractmethod

from exempla.arrays import Array

__all__ = ["Metric"]


class Metric(ABC):
    """M = Fisher + λR + damping·I in sketch space."""

    name: str

    @abstractmethod
    def whiten(self, rows: Array, damping: float) -> Array:
        """rows · W with W Wᵀ = M⁻¹: dot products of the result are the kernel."""

    @abstractmethod
    def solve(self, rows: Array, damping: float) -> Array:
        """rows · M⁻¹: dot products of the result with plain rows are the kernel."""

    def outside(self, penalty: float, damping: float) -> float:
        """1 / metric in directions no training score and no Fisher row reaches."""
        total = penalty + damping
        return 1.0 / total if total > 0 else 0.0
