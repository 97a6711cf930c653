"""What a selector is, and the two things it trades in: a Problem and an Outcome.

One file per way to choose: each a small frozen object on top of the greedy engine.

Imports: selection's engine, basis, candidates; never another job.

Sequential Bayesian Quadrature (the paper's Algorithm 1), exact.

Row-normalised matching pursuit: nearly SBQ, and what most coreset methods do.

Nonnegative weights as a way of choosing, not as an afterthought.

Chance: what every other selector must beat.

Kernel herding: equal weights, each pick chosen so that the average comes closer.

Stochastic greedy: each pick looks at a random sample of the candidates only.

Classical influence ranking: the rows of largest |z|, whatever else was picked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from exempla.checks import check_seed, is_real
from exempla.errors import ExemplaError
from exempla.selection.basis import Basis, descending, first_of_best, independent
from exempla.selection.engine import RESIDUAL, Run, greedy, lowest_leader, score_bounds
from exempla.selection.nnls import GrowingNNLS
from exempla.selection.rows import Rows, Rule


@dataclass(frozen=True)
class Continuation:
    """What continuing a selection needs, and what shows that it is the same problem."""

    rows: np.ndarray
    """(k, p) the picked rows."""
    target: np.ndarray
    basis: Basis | None = None


@dataclass(frozen=True)
class Outcome:
    """What a selector found for one target."""

    indices: np.ndarray
    weights: np.ndarray
    gains: np.ndarray
    variance: float
    mmd2: float
    rank: int
    stopped: str
    state: Continuation

    @staticmethod
    def of(indices: list[int] | np.ndarray, basis: Basis, stopped: str) -> Outcome:
        """The picked rows with their optimal weights."""
        weights = basis.weights()
        mmd2 = basis.mmd2
        return Outcome(
            indices=np.asarray(indices, dtype=np.int64),
            weights=weights,
            gains=basis.gains,
            # ‖μ‖² − Σ gains, written without the cancellation
            variance=mmd2 + basis.noise * float(weights @ weights),
            mmd2=mmd2,
            rank=basis.rank(),
            stopped=stopped,
            state=Continuation(basis.rows, basis.target, basis),
        )


@dataclass(frozen=True)
class Problem:
    """Candidates and targets, validated."""

    rows: Rows
    targets: np.ndarray
    """(T, p) float64."""
    alignment: np.ndarray
    """(T, t): z_j = f_j·μ."""
    candidates: np.ndarray
    """(T, t) bool: nonzero rows of the target's side."""
    sides: tuple[str, ...]
    starts: tuple[Any, ...] = field(default=())
    """One earlier Selection per target to continue from, or None."""

    def basis(self, i: int, noise: float) -> Basis:
        """A fresh basis for target i."""
        return Basis(self.targets[i], noise, self.rows.tolerance)

    def only(self, i: int) -> Problem:
        """The problem of target i alone."""
        one = slice(i, i + 1)
        return Problem(
            self.rows,
            self.targets[one],
            self.alignment[one],
            self.candidates[one],
            self.sides[one],
            self.starts[one],
        )


class Selector(ABC):
    """A way to choose k rows. A new one is a frozen dataclass in its own file.

    >>> from exempla.selection import SBQ
    >>> SBQ(noise=0.5)
    SBQ(noise=0.5)
    """

    noise: float = 0.0

    @property
    def name(self) -> str:
        """How results refer to this selector."""
        return type(self).__name__

    @property
    def continues(self) -> bool:
        """Whether `select(..., start=...)` can carry on an earlier result."""
        return True

    def placed(self, features: Any) -> AbstractContextManager[Any]:
        """The features where this selector wants them, until the end of the `with` block."""
        return nullcontext(features)

    @abstractmethod
    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        """At most k rows for each target."""


def check_noise(noise: float) -> None:
    """Noise is a variance."""
    if not is_real(noise):
        raise ExemplaError(f"noise is {noise!r}; give a number of at least 0")
    if not 0 <= float(noise) < np.inf:
        raise ExemplaError(f"noise is {noise!r}, but it is a variance; give a finite number ≥ 0")


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
        return _pursue(problem, k, float(self.noise), Rule.GAIN)


def _pursue(problem: Problem, k: int, noise: float, rule: Rule) -> list[Outcome]:
    """Run the greedy loop from where each target's start left it."""
    runs = []
    for i, start in enumerate(problem.starts):
        fresh = start is None
        basis = problem.basis(i, noise) if fresh else start.state.basis.copy()
        indices = [] if fresh else [int(j) for j in start.indices]
        runs.append(Run(basis, int(problem.candidates[i].sum()), indices))
    greedy(problem.rows, problem.candidates, runs, k, noise=noise, rule=rule)
    return [Outcome.of(run.indices, run.basis, run.stopped) for run in runs]


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
        return _pursue(problem, k, float(self.noise), Rule.PURSUIT)


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
        return [_take_in_order(problem, i, descending(row), k) for i, row in enumerate(strength)]


def _take_in_order(problem: Problem, i: int, order: np.ndarray, k: int) -> Outcome:
    """The first k candidates of an order, weighted optimally."""
    available = int(problem.candidates[i].sum())
    indices = order[: min(k, available)]
    basis = problem.basis(i, 0.0)
    for row in problem.rows.take(indices):
        basis.add(row)
    return Outcome.of(indices, basis, "k" if len(indices) == k else "candidates")


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
            orders.append(_take_in_order(problem, i, np.r_[order[mine], order[~mine]], k))
        return orders


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
