"""Selectors: small frozen objects, each an algorithm that selects k rows for a target.

A selector receives a `Problem` (validated rows, targets and candidates) and returns one `Selection`
per target. SBQ, matching pursuit and their relatives share the greedy loop in `engine`.
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.checks import check_seed, is_real
from exempla.errors import ExemplaError
from exempla.results import Selection
from exempla.selection.engine import MATCHED_RATIO, Basis, Run, greedy, score_bounds
from exempla.selection.rows import ROUNDING, Rows, Rule, descending, first_of_best, tie_threshold

_MAX_AHEAD, _POOL, _MAX_NEAR = 32, 512, 4096
"""Picks that `NonNegative` guesses at most before it reads the rows, rows that it guesses among,
and rows that it computes one by one in float64 if they may be the best."""


@dataclass(frozen=True)
class Problem:
    """Validated candidates and targets."""

    rows: Rows
    targets: np.ndarray
    """(T, p) float64."""
    alignment: np.ndarray
    """(T, t): z_j = f_j·μ."""
    candidates: np.ndarray
    """(T, t) bool: nonzero rows on the target's side."""
    sides: tuple[str, ...]
    starts: tuple[Any, ...]
    """One earlier Selection per target to continue from, or None."""
    single: bool = False
    """True if one target (p,) was given, not a matrix of targets."""

    def basis(self, i: int, noise: float) -> Basis:
        """Return an empty basis for target i."""
        return Basis(self.targets[i], noise, self.rows.tolerance)

    def resume(self, i: int, noise: float) -> Run:
        """Return the run of target i, continued from its start if there is one."""
        start, available = self.starts[i], int(self.candidates[i].sum())
        if start is None:
            return Run(self.basis(i, noise), available)
        return Run(copy.deepcopy(start.state), available, [int(j) for j in start.indices])

    def result(
        self, i: int, selector: Selector, indices: Any, basis: Basis, stopped: str, **others: Any
    ) -> Selection:
        """Return the rows picked for target i with their optimal weights.

        `others` replace the weights, gains, variance or mmd2 of the basis.
        """
        weights, norm2 = basis.weights(), float(self.targets[i] @ self.targets[i])
        # ‖μ‖² − Σ gains, written without the cancellation
        variance = basis.mmd2 + basis.noise * float(weights @ weights)
        optimal = {"weights": weights, "gains": basis.gains, "variance": variance}
        values = {**optimal, "mmd2": basis.mmd2, **others}
        return Selection(
            indices=np.asarray(indices, dtype=np.int64),
            explained=float(values["gains"].sum()) / norm2,
            rank=basis.rank(),
            target_norm2=norm2,
            noise=float(selector.noise),
            side=self.sides[i],
            selector=selector.name,
            candidates=int(np.count_nonzero(self.candidates[i])),
            stopped=stopped,
            state=basis,
            **values,
        )

    def in_order(self, i: int, selector: Selector, order: np.ndarray, k: int) -> Selection:
        """Return the first k candidates of target i in an order, with their optimal weights."""
        indices = order[self.candidates[i][order]][:k]
        basis = self.basis(i, 0.0)
        for row in self.rows.take(indices):
            basis.add(row)
        return self.result(i, selector, indices, basis, "k" if len(indices) == k else "candidates")


class Selector:
    """Base class of all selectors: an algorithm that selects k rows. Subclasses are frozen.

    Examples
    --------
    >>> from exempla.selection import SBQ
    >>> SBQ(noise=0.5)
    SBQ(noise=0.5)
    """

    noise: float = 0.0

    @property
    def name(self) -> str:
        """Name of this selector in results."""
        return type(self).__name__

    @property
    def continues(self) -> bool:
        """True if `select(..., start=...)` can continue an earlier result."""
        return True

    def placed(self, features: Any) -> AbstractContextManager[Any]:
        """Return a context in which the features are where this selector needs them."""
        return nullcontext(features)

    def choose(self, problem: Problem, k: int) -> list[Selection]:
        """Select at most k rows for each target."""
        return [self.choose_one(problem, i, k) for i in range(len(problem.targets))]

    def choose_one(self, problem: Problem, i: int, k: int) -> Selection:
        """Select at most k rows for target i. A selector implements this or `choose`."""
        raise NotImplementedError


def check_selector(selector: Any) -> Selector | None:
    """Return the selector, or None if none is given; raise if it is anything else.

    Call this before any fitting, so that a wrong argument costs no time.
    """
    if selector is None or isinstance(selector, Selector):
        return selector
    raise ExemplaError(f"selector is {selector!r}; give a selector such as SBQ(noise=1.0)")


def check_noise(noise: float) -> None:
    """Raise unless noise is a finite number of at least 0."""
    if not is_real(noise) or not 0 <= float(noise) < np.inf:
        raise ExemplaError(f"noise is {noise!r}, but it is a variance; give a finite number ≥ 0")


@dataclass(frozen=True)
class SBQ(Selector):
    """Sequential Bayesian Quadrature, exact (Algorithm 1 of the paper).

    Each pick lowers the posterior variance of the quadrature the most. The weights are those of
    Bayesian quadrature, w = (K_SS + σ²I)⁻¹ z_S.

    Parameters
    ----------
    noise : float, default 0.0
        Observation noise σ², in units of squared row norm. 0 selects the most diverse set and stops
        at the rank of the candidates; a large value ranks by influence alone.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import SBQ, select
    >>> rows = np.array([[2.0, 0.0, 0.0], [2.0, 0.0, 0.1], [0.0, 1.0, 0.0]])
    >>> select(rows, np.array([1.0, 0.5, 0.0]), 2, SBQ()).indices
    array([0, 2])
    >>> select(rows, np.array([1.0, 0.5, 0.0]), 2, SBQ(noise=100.0)).indices
    array([0, 1])
    """

    noise: float = 0.0
    _rule = Rule.GAIN

    def __post_init__(self) -> None:
        check_noise(self.noise)

    def choose(self, problem: Problem, k: int) -> list[Selection]:
        noise = float(self.noise)
        runs = [problem.resume(i, noise) for i in range(len(problem.targets))]
        greedy(problem.rows, problem.candidates, runs, k, noise=noise, rule=self._rule)
        return [
            problem.result(i, self, run.indices, run.basis, run.stopped)
            for i, run in enumerate(runs)
        ]


@dataclass(frozen=True)
class MatchingPursuit(SBQ):
    """Row-normalised matching pursuit: a close relative of SBQ that most coreset methods use.

    Each pick maximises the correlation with the residual, c²/(‖f‖² + σ²). SBQ divides by the part
    of a row that is new; matching pursuit divides by the whole row. The weights are optimal for the
    picked rows, as with SBQ.

    Parameters
    ----------
    noise : float, default 0.0
        Observation noise σ², in units of squared row norm.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import MatchingPursuit, select
    >>> select(np.eye(3), np.array([0.5, 2.0, 1.0]), 2, MatchingPursuit()).indices
    array([1, 2])
    """

    _rule = Rule.PURSUIT


@dataclass(frozen=True)
class NonNegative(Selector):
    """Matching pursuit with nonnegative weights.

    Each pick has the largest positive correlation f·r/‖f‖; all weights are refitted with w ≥ 0
    after each pick. Gains, `variance` and `explained` are measured with these weights, so
    `variance` equals `mmd2`. A pick whose weight becomes 0 later stays in the result with weight 0.
    The selection stops when no row points towards the residual, because then no nonnegative
    combination of the candidates comes closer to the target. Opponents point away from the target,
    so with ``side="opponents"`` it stops at once.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import NonNegative, select
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> result = select(rows, np.array([2.0, 1.0]), 2, NonNegative())
    >>> result.indices, result.weights
    (array([0, 1]), array([2., 1.]))
    """

    def choose_one(self, problem: Problem, i: int, k: int) -> Selection:
        """Guess the next picks among the rows that point towards the residual most now.

        One reading of the rows then measures them against the residual after each guess, up to the
        first wrong one.
        """
        from exempla.selection.nnls import GrowingNNLS

        rows, target, start = problem.rows, problem.targets[i], problem.starts[i]
        fit, basis, left = GrowingNNLS(target), problem.basis(i, 0.0), problem.candidates[i].copy()
        lengths = np.sqrt(np.where(left, rows.norms2, 1.0))
        indices: list[int] = []
        errors = [float(target @ target)]

        def take(j: int, row: np.ndarray, residual: np.ndarray) -> None:
            left[j] = False
            basis.add(row)
            indices.append(j)
            errors.append(float(residual @ residual))

        for j, row in zip(start.indices, start.state.rows) if start is not None else ():
            fit.add(row)
            take(int(j), row, fit.residual)
        stopped, slack = "k", ROUNDING * fit.scale
        pool, ahead = np.empty(0, dtype=np.int64), 1
        while len(indices) < k and stopped == "k":
            guesses, features, marks, residuals = _run_ahead(fit, rows, pool[left[pool]], ahead)
            products, error = rows.approximate(np.array(residuals))
            for s, (residual, measured) in enumerate(zip(residuals, products)):
                about = np.where(left, measured / lengths, -np.inf)
                off = slack + error * float(np.linalg.norm(residual))
                near = np.flatnonzero(about + off >= tie_threshold(about.max() - off))
                few = len(near) <= _MAX_NEAR
                exact = rows.take(near) @ residual if few else rows.project(residual[None])[0, near]
                exact = np.where(left[near], exact / lengths[near], -np.inf)
                matched = errors[-1] <= MATCHED_RATIO**2 * errors[0]
                if matched or float(exact.max()) <= fit.TOLERANCE * fit.scale:
                    fit.rewind(marks[s])
                    stopped = "residual" if left.any() else "candidates"
                    break
                j = int(near[first_of_best(exact - slack, exact + slack)])
                if s < len(guesses) and j == guesses[s]:
                    take(j, features[s], residuals[s + 1])
                    continue
                fit.rewind(marks[s])
                row = rows.take(np.array([j]))[0]
                fit.add(row)
                take(j, row, fit.residual)
                towards = (products[s:] / lengths).max(axis=0)
                pool = np.sort(np.argpartition(-towards, min(_POOL, rows.t) - 1)[:_POOL])
                ahead = min(k - len(indices), 2 * s + 4, int(np.clip(rows.p // 8, 1, _MAX_AHEAD)))
                break
        # A refit never increases the error, except by rounding in the last place.
        measured = {"gains": np.maximum(-np.diff(errors), 0.0), "weights": fit.weights}
        measured |= {"variance": errors[-1], "mmd2": errors[-1]}
        return problem.result(i, self, indices, basis, stopped, **measured)


def _run_ahead(
    fit: Any, rows: Any, pool: np.ndarray, count: int
) -> tuple[list[int], list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Guess up to count − 1 nonnegative picks among the rows of a pool, adding them to the fit.

    Returns them, their features, and the fit's marks and residuals before and after each of them.
    """
    marks, residuals = [fit.mark()], [fit.residual]
    features = rows.take(pool)
    units = (features / np.linalg.norm(features, axis=1)[:, None]).astype(np.float32)
    chosen: list[int] = []
    while len(residuals) < count and len(chosen) < len(pool):
        towards = units @ residuals[-1].astype(np.float32)
        towards[chosen] = -np.inf
        at = int(np.argmax(towards))
        if not towards[at] > 0:
            break
        chosen.append(at)
        fit.add(features[at])
        marks.append(fit.mark())
        residuals.append(fit.residual)
    return pool[chosen].tolist(), [features[at] for at in chosen], marks, residuals


@dataclass(frozen=True)
class TopInfluence(Selector):
    """Classical influence ranking: the k rows of largest |z|, z = f·μ.

    Duplicates of a row are all selected. The weights are optimal for the picked rows (noise 0); a
    row that depends linearly on earlier picks has weight and gain 0.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import TopInfluence, select
    >>> select(np.array([[1.0], [-3.0], [2.0]]), np.array([1.0]), 2, TopInfluence()).indices
    array([1, 2])
    """

    def choose_one(self, problem: Problem, i: int, k: int) -> Selection:
        strength = np.where(problem.candidates[i], np.abs(problem.alignment[i]), -np.inf)
        return problem.in_order(i, self, descending(strength), k)


@dataclass(frozen=True)
class Random(Selector):
    """Random candidates: the baseline for every other selector. Weights as for `TopInfluence`.

    Parameters
    ----------
    seed : int, default 0
        Seed of the generator. The first k rows of a longer selection are the shorter selection.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import Random, select
    >>> len(select(np.eye(9), np.ones(9), 4, Random(seed=1)))
    4
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def choose(self, problem: Problem, k: int) -> list[Selection]:
        # One order of all rows; each target takes the candidates of its side in that order.
        order = np.random.default_rng(self.seed).permutation(problem.rows.t)
        return [problem.in_order(i, self, order, k) for i in range(len(problem.targets))]


@dataclass(frozen=True)
class Herding(Selector):
    """Kernel herding: equal weights 1/k, each row selected at most once.

    Each pick maximises f·(μ − Σ_S f/(|S|+1)). `mmd2` is computed with the equal weights; gains,
    `variance` and `explained` refer to the picked set with optimal weights. Opponents point away
    from the target, so they are herded towards −μ and have weight −1/k.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import Herding, select
    >>> result = select(np.eye(3), np.array([0.4, 0.1, 0.5]), 2, Herding())
    >>> result.indices, result.weights
    (array([2, 0]), array([0.5, 0.5]))
    """

    def choose_one(self, problem: Problem, i: int, k: int) -> Selection:
        rows, target = problem.rows, problem.targets[i]
        sign = -1.0 if problem.sides[i] == "opponents" else 1.0
        run, left = problem.resume(i, 0.0), problem.candidates[i].copy()
        basis, indices = run.basis, run.indices
        left[indices] = False
        while len(indices) < k and left.any():
            wanted = sign * target - basis.rows.sum(axis=0) / (len(indices) + 1)
            c = np.where(left, rows.project(wanted[None])[0], -np.inf)
            slack = ROUNDING * (np.linalg.norm(target) + np.linalg.norm(wanted))
            slack = slack * np.sqrt(rows.norms2)
            j = first_of_best(c - slack, c + slack)
            left[j] = False
            basis.add(rows.take(np.array([j]))[0])
            indices.append(j)
        stopped = "k" if len(indices) == k else "candidates"
        weights = np.full(len(indices), sign / max(1, len(indices)))
        residual = target - weights @ basis.rows
        equal = {"weights": weights, "mmd2": float(residual @ residual)}
        return problem.result(i, self, indices, basis, stopped, **equal)


@dataclass(frozen=True)
class StochasticGreedy(Selector):
    """SBQ on a fresh random sample of (t/k)·log(1/δ) candidates at each pick.

    Reads the rows about log(1/δ) times in total instead of k times, at the price of a residual that
    is a few times larger than that of SBQ. The weights are those of SBQ without noise. The sample
    size depends on k, so a continued selection differs from one longer run.

    Parameters
    ----------
    delta : float, default 0.1
        Expected loss relative to exact greedy, between 0 and 1.
    seed : int, default 0
        Seed of the samples.

    Examples
    --------
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

    def choose_one(self, problem: Problem, i: int, k: int) -> Selection:
        run = problem.resume(i, 0.0)
        pool = np.setdiff1d(np.flatnonzero(problem.candidates[i]), run.indices)
        size = max(1, math.ceil(run.candidates / k * math.log(1 / self.delta)))
        rng = np.random.default_rng([self.seed, len(run.indices)])
        while len(run.indices) < k and not run.matched:
            if not len(pool):
                run.stopped = "candidates" if len(run.indices) >= run.candidates else "rank"
                break
            sample = np.sort(rng.choice(pool, size=min(size, len(pool)), replace=False))
            rows = problem.rows.take(sample)
            lowest, highest = score_bounds(run.basis.measure(rows), run.basis, Rule.GAIN)
            # n never increases, so a row that adds nothing never becomes useful again.
            pool = np.setdiff1d(pool, sample[highest == -np.inf], assume_unique=True)
            best = first_of_best(lowest, highest)
            if best >= 0:
                run.take(int(sample[best]), rows[best])
                pool = pool[pool != sample[best]]
                # Seeded by the pick, so that a continued run draws the same samples.
                rng = np.random.default_rng([self.seed, len(run.indices)])
        stopped = run.stopped or ("k" if len(run.indices) >= k else "residual")
        return problem.result(i, self, run.indices, run.basis, stopped)
