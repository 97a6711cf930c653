"""What a sketch promises: score rows of any length become feature rows of one fixed width.

A sketch is an orthonormal basis V of part of parameter space, applied to factors: row = Vᵀs. It
also says what the model's L2 penalty looks like in that basis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from exempla.arrays import Array
from exempla.oracles.base import ScoreRows

__all__ = ["FisherSum", "Sketch"]


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
    outside: float | None = None
    """The penalty on every direction outside the basis, where the basis holds all training
    scores, so that what lies outside can only belong to a questioned example; else None."""
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
