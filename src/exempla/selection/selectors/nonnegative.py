"""Nonnegative weights as a way of choosing, not as an afterthought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.selection.basis import independent
from exempla.selection.candidates.base import Rule
from exempla.selection.engine import RESIDUAL, lowest_leader
from exempla.selection.nnls import GrowingNNLS
from exempla.selection.selector import Continuation, Outcome, Problem, Selector

__all__ = ["NonNegative"]


@dataclass(frozen=True)
class NonNegative(Selector):
    """Pick the row of largest positive correlation f·r/‖f‖; refit all weights ≥ 0 each time.

    Gains, `variance` and `explained` are measured with these weights, so `variance` equals
    `mmd2`. A pick whose weight a later refit sets to 0 stays in the result with weight 0. It
    stops when no row points towards the residual: then no further nonnegative combination of
    the candidates is closer to the target. That is so at once for opponents, which point away
    from the target.

    >>> import numpy as np
    >>> from exempla.selection import NonNegative, select
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> result = select(rows, np.array([2.0, 1.0]), 2, NonNegative())
    >>> result.indices, result.weights
    (array([0, 1]), array([2., 1.]))
    """

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        return [self._one(problem.only(i), k) for i in range(len(problem.targets))]

    def _one(self, problem: Problem, k: int) -> Outcome:
        rows, target = problem.rows, problem.targets[0]
        fit = GrowingNNLS(target)
        race = rows.race(problem.candidates, 0.0, Rule.COSINE)
        indices: list[int] = []
        errors = [float(target @ target)]

        def take(j: int, row: np.ndarray) -> None:
            race.drop([0], [j])
            fit.add(row)
            indices.append(j)
            errors.append(float(fit.residual @ fit.residual))

        start = problem.starts[0]
        if start is not None:
            for j, row in zip(start.indices, start.state.rows):
                take(int(j), row)
        stopped = "k"
        while len(indices) < k:
            leaders = race.refresh([0], fit.residual[None])
            best = float(leaders.scores[0])
            if errors[-1] <= RESIDUAL**2 * errors[0] or best <= fit.TOLERANCE * fit.scale:
                finished = len(indices) >= int(problem.candidates[0].sum())
                stopped = "candidates" if finished else "residual"
                break
            j = lowest_leader(rows, race, leaders, fit.scale, Rule.COSINE)
            take(j, rows.take(np.array([j]))[0])
        picked = rows.take(np.array(indices, dtype=np.int64))
        return Outcome(
            indices=np.array(indices, dtype=np.int64),
            weights=fit.weights,
            # A refit never does worse; rounding may say so by one unit in the last place.
            gains=np.maximum(-np.diff(errors), 0.0),
            variance=errors[-1],
            mmd2=errors[-1],
            rank=independent(picked, rows.tolerance),
            stopped=stopped,
            state=Continuation(picked, target),
        )
