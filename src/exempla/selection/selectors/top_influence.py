"""Classical influence ranking: the rows of largest |z|, whatever else was picked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.selection.selector import Outcome, Problem, Selector
from exempla.selection.ties import descending

__all__ = ["TopInfluence", "take_in_order"]


@dataclass(frozen=True)
class TopInfluence(Selector):
    """The k rows of largest |z|, z = f·μ: classical influence ranking.

    Copies of a row are all taken. The weights are optimal for the picked rows (noise 0); a row
    that depends linearly on earlier picks has weight and gain 0.

    >>> import numpy as np
    >>> from exempla.selection import TopInfluence, select
    >>> select(np.array([[1.0], [-3.0], [2.0]]), np.array([1.0]), 2, TopInfluence()).indices
    array([1, 2])
    """

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        strength = np.where(problem.candidates, np.abs(problem.alignment), -np.inf)
        return [take_in_order(problem, i, descending(row), k) for i, row in enumerate(strength)]


def take_in_order(problem: Problem, i: int, order: np.ndarray, k: int) -> Outcome:
    """The first k candidates of an order, weighted optimally."""
    available = int(problem.candidates[i].sum())
    indices = order[: min(k, available)]
    basis = problem.basis(i, 0.0)
    for row in problem.rows.take(indices):
        basis.add(row)
    return Outcome.of(indices, basis, "k" if len(indices) == k else "candidates")
