"""Row-normalised matching pursuit: nearly SBQ, and what most coreset methods do."""

from __future__ import annotations

from dataclasses import dataclass

from exempla.selection.candidates.base import Rule
from exempla.selection.selector import Outcome, Problem, Selector, check_noise
from exempla.selection.selectors.sbq import pursue

__all__ = ["MatchingPursuit"]


@dataclass(frozen=True)
class MatchingPursuit(Selector):
    """Pick the row most correlated with the residual, c²/(‖f‖² + σ²); then refit all weights.

    SBQ asks how much of the residual a row explains by what is *new* in it; matching pursuit
    divides by the whole row instead. The weights are optimal for the picked rows, as with SBQ.

    >>> import numpy as np
    >>> from exempla.selection import MatchingPursuit, select
    >>> select(np.eye(3), np.array([0.5, 2.0, 1.0]), 2, MatchingPursuit()).indices
    array([1, 2])
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        check_noise(self.noise)

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        return pursue(problem, k, float(self.noise), Rule.PURSUIT)
