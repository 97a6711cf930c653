"""Chance: what every other selector must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.checks import check_seed
from exempla.selection.selector import Outcome, Problem, Selector
from exempla.selection.selectors.top_influence import take_in_order

__all__ = ["Random"]


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
