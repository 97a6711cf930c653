"""Sequential Bayesian Quadrature (the paper's Algorithm 1), exact."""

from __future__ import annotations

from dataclasses import dataclass

from exempla.selection.candidates.base import Rule
from exempla.selection.engine import Run, greedy
from exempla.selection.selector import Outcome, Problem, Selector, check_noise

__all__ = ["SBQ", "pursue"]


@dataclass(frozen=True)
class SBQ(Selector):
    """Pick the row that lowers the posterior variance of the quadrature most.

    The weights are those of Bayesian quadrature, w = (K_SS + σ²I)⁻¹ z_S.

    Parameters
    ----------
    noise : float
        Observation noise σ², in units of squared row norm. 0 asks for the most diverse set and
        stops at the rank; a large value ranks by influence alone.

    >>> import numpy as np
    >>> from exempla.selection import SBQ, select
    >>> rows = np.array([[2.0, 0.0, 0.0], [2.0, 0.0, 0.1], [0.0, 1.0, 0.0]])
    >>> select(rows, np.array([1.0, 0.5, 0.0]), 2, SBQ()).indices
    array([0, 2])
    >>> select(rows, np.array([1.0, 0.5, 0.0]), 2, SBQ(noise=100.0)).indices
    array([0, 1])
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        check_noise(self.noise)

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        return pursue(problem, k, float(self.noise), Rule.GAIN)


def pursue(problem: Problem, k: int, noise: float, rule: Rule) -> list[Outcome]:
    """Run the greedy loop from where each target's start left it."""
    runs = []
    for i, start in enumerate(problem.starts):
        fresh = start is None
        basis = problem.basis(i, noise) if fresh else start.state.basis.copy()
        indices = [] if fresh else [int(j) for j in start.indices]
        runs.append(Run(basis, int(problem.candidates[i].sum()), indices))
    greedy(problem.rows, problem.candidates, runs, k, noise=noise, rule=rule)
    return [Outcome.of(run.indices, run.basis, run.stopped) for run in runs]
