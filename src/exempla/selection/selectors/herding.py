"""Kernel herding: equal weights, each pick chosen so that the average comes closer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from exempla.selection.candidates.base import Rule
from exempla.selection.engine import lowest_leader
from exempla.selection.selector import Outcome, Problem, Selector

__all__ = ["Herding"]


@dataclass(frozen=True)
class Herding(Selector):
    """Pick argmax f·(μ − Σ_S f/(|S|+1)), each row at most once; all weights are 1/k.

    `mmd2` is that of the equal weights. Gains, `variance` and `explained` belong to the picked
    set, whatever its weights: what it would explain with optimal ones. Opponents point away
    from the target, so they are herded towards −μ and weigh −1/k.

    >>> import numpy as np
    >>> from exempla.selection import Herding, select
    >>> result = select(np.eye(3), np.array([0.4, 0.1, 0.5]), 2, Herding())
    >>> result.indices, result.weights
    (array([2, 0]), array([0.5, 0.5]))
    """

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        return [self._one(problem.only(i), k) for i in range(len(problem.targets))]

    def _one(self, problem: Problem, k: int) -> Outcome:
        rows, target, start = problem.rows, problem.targets[0], problem.starts[0]
        sign = -1.0 if problem.sides[0] == "opponents" else 1.0
        basis = problem.basis(0, 0.0) if start is None else start.state.basis.copy()
        indices = [] if start is None else [int(j) for j in start.indices]
        race = rows.race(problem.candidates, 0.0, Rule.PLAIN)
        race.drop([0] * len(indices), indices)
        stopped = "k"
        while len(indices) < k:
            wanted = sign * target - basis.rows.sum(axis=0) / (len(indices) + 1)
            leaders = race.refresh([0], wanted[None])
            if leaders.rows[0] < 0:
                stopped = "candidates"
                break
            size = float(np.linalg.norm(target) + np.linalg.norm(wanted))
            j = lowest_leader(rows, race, leaders, size, Rule.PLAIN)
            race.drop([0], [j])
            basis.add(rows.take(np.array([j]))[0])
            indices.append(j)
        outcome = Outcome.of(indices, basis, stopped)
        weights = np.full(len(indices), sign / max(1, len(indices)))
        residual = target - weights @ basis.rows
        return replace(outcome, weights=weights, mmd2=float(residual @ residual))
