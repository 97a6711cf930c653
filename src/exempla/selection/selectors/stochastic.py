"""Stochastic greedy: each pick looks at a random sample of the candidates only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exempla.checks import check_seed, is_real
from exempla.errors import ExemplaError
from exempla.selection.candidates.base import Rule
from exempla.selection.engine import Run, score_bounds
from exempla.selection.selector import Outcome, Problem, Selector
from exempla.selection.ties import first_of_best

__all__ = ["StochasticGreedy"]


@dataclass(frozen=True)
class StochasticGreedy(Selector):
    """SBQ on a fresh sample of (t/k)·log(1/δ) candidates at each pick.

    Reads the rows about log(1/δ) times in all instead of k times; the price is a residual a few
    times larger than SBQ's. Weights as for SBQ without noise. The sample size depends on k, so
    continuing from a start is allowed but is not the same as one longer run.

    >>> import numpy as np
    >>> from exempla.selection import StochasticGreedy, select
    >>> rows = np.random.default_rng(0).standard_normal((50, 5))
    >>> len(select(rows, rows.mean(axis=0), 3, StochasticGreedy(delta=0.2)))
    3
    """

    delta: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_real(self.delta) or not 0 < self.delta < 1:
            raise ExemplaError(f"delta is {self.delta!r}; give a number between 0 and 1")
        check_seed(self.seed)

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        return [self._one(problem.only(i), k) for i in range(len(problem.targets))]

    def _one(self, problem: Problem, k: int) -> Outcome:
        start = problem.starts[0]
        basis = problem.basis(0, 0.0) if start is None else start.state.basis.copy()
        pool = np.flatnonzero(problem.candidates[0])
        run = Run(basis, len(pool), [] if start is None else [int(j) for j in start.indices])
        pool = np.setdiff1d(pool, run.indices)
        size = max(1, math.ceil(run.candidates / k * math.log(1 / self.delta)))
        while len(run.indices) < k and not run.matched:
            # Seeded by the pick, so that continuing draws what one run would have drawn.
            rng = np.random.default_rng([self.seed, len(run.indices)])
            j, pool = _best_of_sample(problem, run, pool, size, rng)
            if j is None:
                run.stopped = "candidates" if len(run.indices) >= run.candidates else "rank"
                break
            run.basis.add(problem.rows.take(np.array([j]))[0])
            run.indices.append(j)
        stopped = run.stopped or ("k" if len(run.indices) >= k else "residual")
        return Outcome.of(run.indices, run.basis, stopped)


def _best_of_sample(
    problem: Problem, run: Run, pool: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[int | None, np.ndarray]:
    """The best row of a sample and what is left of the pool; None when the pool is dead."""
    while len(pool):
        sample = np.sort(rng.choice(pool, size=min(size, len(pool)), replace=False))
        rows, tolerance = problem.rows.take(sample), problem.rows.tolerance
        lowest, highest = score_bounds(rows, run.basis, tolerance, Rule.GAIN)
        # n only falls, so a row with nothing new never comes back.
        pool = np.setdiff1d(pool, sample[highest == -np.inf], assume_unique=True)
        best = first_of_best(lowest, highest)
        if best >= 0:
            j = int(sample[best])
            return j, pool[pool != j]
    return None, pool
