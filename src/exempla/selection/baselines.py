"""Selectors that look at no other pick: the largest influence, and chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.errors import ExemplaError
from exempla.selection.engine import TIE
from exempla.selection.selector import Outcome, Problem, Selector

__all__ = ["Random", "TopInfluence", "check_seed"]


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
        return [take_in_order(problem, i, _descending(row), k) for i, row in enumerate(strength)]


@dataclass(frozen=True)
class Random(Selector):
    """k candidates by chance, the same ones for the same seed; weights as for TopInfluence.

    >>> import numpy as np
    >>> from exempla.selection import Random, select
    >>> len(select(np.eye(9), np.ones(9), 4, Random(seed=1)))
    4
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        orders = []
        for i in range(len(problem.targets)):
            # One order of all rows, then the side's candidates in it: the first k of a longer
            # run are the shorter run.
            order = np.random.default_rng(self.seed).permutation(problem.rows.t)
            mine = problem.candidates[i][order]
            orders.append(take_in_order(problem, i, np.r_[order[mine], order[~mine]], k))
        return orders


def _descending(strength: np.ndarray) -> np.ndarray:
    """Strongest first; among equals (to rounding) the lowest index first."""
    order = np.argsort(-strength, kind="stable")
    ranked = strength[order]
    step = ranked[1:] < ranked[:-1] * (1.0 - TIE)
    group = np.concatenate([[0], np.cumsum(step)])
    return order[np.lexsort((order, group))]


def take_in_order(problem: Problem, i: int, order: np.ndarray, k: int) -> Outcome:
    """The first k candidates of an order, weighted optimally."""
    available = int(problem.candidates[i].sum())
    indices = order[: min(k, available)]
    basis = problem.basis(i, 0.0)
    for row in problem.rows.take(indices):
        basis.add(row)
    return Outcome.of(indices, basis, "k" if len(indices) == k else "candidates")


def check_seed(seed: int) -> None:
    """A seed numpy accepts."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ExemplaError(f"seed is {seed!r}; give a whole number of at least 0")
