"""The greedy loop: exact Sequential Bayesian Quadrature in at most one pass over the rows per pick.

With residual r, c_j = f_j·r and n_j = ‖f_j‖² + σ² − ‖Qᵀf_j‖², picking j lowers the posterior
variance by c_j²/n_j. After a pick, one product v = F q updates every candidate:
c −= (c_j/√n_j) v and n −= v². No t×t matrix is formed and nothing is inverted.

For a single target, `Lookahead` guesses several picks and checks them in one pass. Greedy picks
nearly always come from the few rows that have the highest scores now. The loop therefore runs ahead
within that pool, which costs little, and one pass over all rows (`CandidateScores.sweep`) finds out
after each guessed step whether any other row could have scored higher than the next guess. Correct
guesses are committed; the steps from the first wrong guess on are undone. Each guess is compared
under the same error bounds as a leader, and ties are settled in float64, so that the picks are the
same as with one pass per pick.

Two measures keep the picks exact in finite precision. c is recomputed from r whenever ‖r‖ has
decreased tenfold, because its error is relative to the r it started from. And every row whose score
could be the best, given the error so far, is scored again in float64 before a pick is made; if
products are summed in float32 and too many rows qualify, all scores are recomputed in float64.

`Basis` is Gram–Schmidt on the picked rows. Noise is a private coordinate: picked row i is
(f_i, σ e_i) in R^p ⊕ R^k, so that the Gram matrix of the picked rows is K_SS + σ²I. The directions
are orthonormal in that space; their first p coordinates alone are not (unless σ = 0), so
orthogonality is restored here, with both parts. A candidate that was not picked is zero in the
private coordinates, so its product with a direction is the product of the feature parts.
"""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from exempla.arrays import padded
from exempla.selection.candidate_scores import CandidateScores, Leaders, LookaheadPool, Steps
from exempla.selection.rows import (
    ROUNDING,
    ArrayRows,
    Rows,
    Rule,
    StateLostError,
    first_of_best,
    tie_threshold,
)

REFRESH_RATIO = 0.1
"""Recompute c when ‖r‖ has fallen to this fraction of its value at the last recomputation."""
MATCHED_RATIO = 1e-7
"""Without noise the target counts as matched when ‖r‖ is below this fraction of ‖μ‖."""
_MAX_RESCORED = 4096
"""Rows that may be rescored in float64 before a pick. If more could be the best and products are
summed in float32, all scores are recomputed in float64 first."""
_POOL_FRACTION = 1 / 48
"""Size of the pool as a fraction of all rows, within `CandidateScores.pool_sizes`."""
_FIRST_FRACTION = 0.4
"""The next pool consists of the rows that reached this fraction of a threshold; the fraction is
then adapted to the desired pool size."""
_FIRST_GUESSES = 16
"""Steps guessed in the first pass."""
_MAX_NEAR = 128
"""Rows that may beat a guess and are rescored; if there are more, the guesses end there."""
_MIN_PROGRESS_WORK = 1 << 31
"""Multiplications (rows × width × picks) below which no progress bar is needed."""


class Mark(NamedTuple):
    """The state of a basis at one point of its growth."""

    picks: int
    size: int
    residual: np.ndarray
    """With the private coordinates."""


class Basis:
    """Orthonormal directions spanning the picked rows, and the residual of the target.

    L is the Cholesky factor of K_SS + σ²I, `coefs` = L⁻¹ z_S, and
    `residual` = μ − Σ coef·q = μ − Σ w_i f_i.
    """

    def __init__(self, target: np.ndarray, noise: float, tolerance: float) -> None:
        self.target = np.array(target, dtype=np.float64)
        self.target_norm = float(np.linalg.norm(self.target))
        self.noise = noise
        self.tolerance = tolerance
        self.picks = 0
        self.size = 0  # directions: picks that do not depend on earlier ones
        p = len(self.target)
        self._rows, self._lower, self._coefs = np.empty((0, p)), np.empty((0, 0)), np.empty(0)
        self._made: np.ndarray | None = np.empty((0, p))
        self._residual = self.target  # with as many private coordinates as directions
        self._pick_of_direction: list[int] = []
        self._gains: list[float] = []

    def refactored(self, rows: np.ndarray, lower: np.ndarray, coefs: np.ndarray) -> Basis:
        """Return the basis of other, linearly independent picked rows (m, p), given L."""
        basis, m = Basis(self.target, self.noise, self.tolerance), len(rows)
        basis.picks = basis.size = m
        basis._rows, basis._lower, basis._coefs = rows, lower, coefs
        basis._pick_of_direction = list(range(m))
        basis._gains = (coefs * coefs).tolist()
        basis._made = None
        weights = basis.weights()
        own = -math.sqrt(self.noise) * weights if self.noise else np.zeros(0)
        basis._residual = np.concatenate([self.target - weights @ rows, own])
        return basis

    @property
    def _directions(self) -> np.ndarray:
        """The directions with their private coordinates, computed when they are first needed."""
        if self._made is None:
            # The i-th direction is Σ_j (L⁻¹)_ij (f_j, σ e_j).
            picked, m = self.rows, self.size
            if self.noise:
                picked = np.hstack([picked, math.sqrt(self.noise) * np.eye(m)])
            self._made = solve_triangular(self.lower, picked, lower=True) if m else picked
        return self._made

    @property
    def directions(self) -> np.ndarray:
        """(size, p) feature parts of the directions."""
        return self._directions[: self.size, : len(self.target)]

    @property
    def residual(self) -> np.ndarray:
        """(p,) r."""
        return self._residual[: len(self.target)]

    @property
    def rows(self) -> np.ndarray:
        """(picks, p) picked rows."""
        return self._rows[: self.picks]

    @property
    def gains(self) -> np.ndarray:
        """(picks,) decrease of the posterior variance at each pick; 0 for a dependent one."""
        return np.array(self._gains, dtype=np.float64)

    @property
    def coefs(self) -> np.ndarray:
        """(size,) coordinate of the target along each direction."""
        return self._coefs[: self.size]

    @property
    def lower(self) -> np.ndarray:
        """(size, size) Cholesky factor L."""
        return self._lower[: self.size, : self.size]

    @property
    def mmd2(self) -> float:
        """‖r‖²."""
        return float(self.residual @ self.residual)

    def weights(self) -> np.ndarray:
        """Return w = (K_SS + σ²I)⁻¹ z_S = L⁻ᵀ coefs; a dependent pick has weight 0."""
        weights = np.zeros(self.picks)
        if self.size:
            weights[self._pick_of_direction] = solve_triangular(
                self.lower, self.coefs, lower=True, trans="T"
            )
        return weights

    def rank(self) -> int:
        """Return the number of linearly independent picked rows, ignoring the noise."""
        if not self.noise or not self.picks:
            return self.size
        unit = self.rows / np.linalg.norm(self.rows, axis=1)[:, None]
        # Pivoted Cholesky stops when the largest squared distance to the span falls below tol.
        return int(dpstrf(unit @ unit.T, tol=self.tolerance)[2])

    def measure(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (c, n, ‖f‖²) of candidate rows (m, p), free of incremental rounding errors."""
        squared = np.vecdot(rows, rows)
        inside = rows @ self.directions.T
        return rows @ self.residual, squared + self.noise - np.vecdot(inside, inside), squared

    def add(self, row: np.ndarray) -> tuple[np.ndarray, float] | None:
        """Add a row; return its direction q and coefficient, or None if it adds nothing new."""
        i, m, p = self.picks, self.size, len(row)
        width = p + m + 1 if self.noise else p
        self._reserve()
        Q = self._directions[:m, :width]
        self._rows[i] = row
        self.picks += 1
        extended, residual = np.zeros(width), np.zeros(width)
        extended[:p], residual[: len(self._residual)] = row, self._residual
        if self.noise:
            extended[-1] = math.sqrt(self.noise)
        h = Q @ extended
        u = extended - h @ Q
        # Twice is enough (Kahan): the second round removes the rounding errors of the first.
        again = Q @ u
        u -= again @ Q
        n = float(u @ u)
        if not n > self.tolerance * float(row @ row):
            self._gains.append(0.0)
            return None
        q = u / math.sqrt(n)
        # (f, σe)·(r, ρ)/√n; written with u because u is orthogonal to what r no longer contains.
        coef = float(q @ residual)
        self._directions[m, :width] = q
        self._lower[m, :m] = h + again
        self._lower[m, m] = math.sqrt(n)
        self._coefs[m] = coef
        self._residual = residual - coef * q
        self._pick_of_direction.append(i)
        self._gains.append(coef * coef)
        self.size += 1
        return q[:p], coef

    def mark(self) -> Mark:
        """Return the current state, to which `before` and `rewind` can go back."""
        return Mark(self.picks, self.size, self._residual)

    def before(self, mark: Mark) -> Basis:
        """Return a read-only view of the basis at an earlier mark."""
        twin = copy.copy(self)
        twin.picks, twin.size, twin._residual = mark
        return twin

    def rewind(self, mark: Mark) -> None:
        """Discard everything added since the mark."""
        self.picks, self.size, self._residual = mark
        del self._gains[mark.picks :], self._pick_of_direction[mark.size :]

    def _reserve(self) -> None:
        """Make room for one more pick."""
        p, want = len(self.target), max(8, 2 * self.picks)
        if self.picks >= len(self._rows):
            directions = self._directions
            self._rows = padded(self._rows, (want, p))
            self._lower = padded(self._lower, (want, want))
            self._coefs = padded(self._coefs, (want,))
            self._made = padded(directions, (want, p + want if self.noise else p))


@dataclass
class Run:
    """The state of one target in the greedy loop."""

    basis: Basis
    candidates: int
    indices: list[int] = field(default_factory=list)
    stopped: str = ""
    fresh_norm: float = 0.0
    """‖r‖ when c was last recomputed."""
    drift: float = 0.0
    """Σ |coef| since then: c is off by at most error·drift·‖f‖."""

    @property
    def residual_norm(self) -> float:
        """‖r‖."""
        return math.sqrt(self.basis.mmd2)

    @property
    def matched(self) -> bool:
        """True if the residual is zero up to rounding."""
        basis = self.basis
        return basis.noise == 0.0 and self.residual_norm < MATCHED_RATIO * basis.target_norm

    @property
    def stale(self) -> bool:
        """True if c must be recomputed."""
        return self.residual_norm <= REFRESH_RATIO * self.fresh_norm

    def take(self, j: int, row: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Pick row j; return its direction, its coefficient and whether it adds a direction."""
        added = self.basis.add(row)
        self.indices.append(j)
        if added is None:
            return np.zeros(len(row)), 0.0, False
        self.drift += abs(added[1])
        return *added, True

    def rewind(self, mark: Mark, drift: float) -> None:
        """Undo all picks since the mark."""
        del self.indices[mark.picks - self.basis.picks :]
        self.basis.rewind(mark)
        self.drift = drift


def slack(scores: CandidateScores, run: Run) -> tuple[float, float]:
    """Return bounds on the errors of c (in units of ‖f‖) and of n (in units of ‖f‖²)."""
    slack_c = scores.error * run.drift + ROUNDING * run.basis.target_norm
    # Σ|2 v δ| ≤ 2·error·‖f‖·Σ|v| ≤ 2·error·√m·‖f‖² over m passes (Cauchy–Schwarz, Σv² ≤ ‖f‖²).
    slack_n = 2.0 * scores.error * math.sqrt(len(run.indices)) + ROUNDING
    return slack_c, slack_n


def score_bounds(measured: Any, basis: Basis, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 bounds on the scores of rows; −inf for rows with nothing new.

    `measured` holds c, n and ‖f‖² of the rows, as returned by `Basis.measure`.
    """
    c, n, norms2 = measured
    alive = n > basis.tolerance * norms2
    bounds = rule.bounds(c, n, norms2, basis.noise, ROUNDING * basis.target_norm, ROUNDING)
    return np.where(alive, bounds[0], -np.inf), np.where(alive, bounds[1], -np.inf)


def refresh(scores: CandidateScores, runs: list[Run], which: list[int]) -> Leaders:
    """Recompute c of these runs from their residuals; return all leaders."""
    for i in which:
        runs[i].fresh_norm, runs[i].drift = runs[i].residual_norm, 0.0
    return scores.refresh(which, np.stack([runs[i].basis.residual for i in which]))


class Lookahead:
    """Guess and check picks for a single target."""

    def __init__(self, rows: Rows, scores: CandidateScores, run: Run, k: int, rule: Rule) -> None:
        self.rows, self.scores, self.run, self.k, self.rule = rows, scores, run, k, rule
        self.usual: float = _FIRST_GUESSES
        """Moving average of the number of correct guesses."""
        self.pool_size = int(np.clip(_POOL_FRACTION * rows.t, *scores.pool_sizes))
        self.fraction = _FIRST_FRACTION
        self.promising = scores.best(self.pool_size)
        """Rows to guess among."""
        self.pool: LookaheadPool
        """The same with their features, as they were before the last guesses."""

    def advance(self, first: int) -> Leaders | None:
        """Apply the certain pick `first` and every correct guess after it.

        Returns the leaders for the next pick; None if c must be recomputed or all picks are made.
        """
        left = self.k - len(self.run.indices) - 1
        if left < 1:
            self.run.take(first, self.rows.take(np.array([first]))[0])
            return None
        picks, marks, steps = self._guess(first, min(left, self._n_guesses()))
        try:
            found = self.scores.sweep(steps, _MAX_NEAR, self.fraction)
        except StateLostError:
            self.run.rewind(*marks[0])
            raise
        correct, winner = 0, None
        for near in found.near:  # until a guess is wrong
            winner, correct = self._winner(picks, marks, correct, near), correct + 1
            if winner != picks[correct]:
                break
        self._commit(picks[:correct], marks[correct:])
        self._update_pool(found.promising)
        if winner is None:
            return None if self.run.stale else self.scores.leaders()
        if self.run.stale:
            refresh(self.scores, [self.run], [0])
        return Leaders(*np.array([[winner], [np.inf], [np.inf], [-np.inf]]))

    def _guess(self, first: int, count: int) -> tuple[list[int], list[tuple[Mark, float]], Steps]:
        """Run ahead in the pool for at most `count` steps, or until the run must stop.

        Returns the certain pick and the guesses after each step (−1 if there is none), the basis
        and the drift before each step, and the steps.
        """
        self.pool = pool = self.scores.pool(self.promising)
        run, picks, marks, steps = self.run, [first], [], []
        row = self._features(np.array([first]))[0]
        while picks[-1] >= 0 and len(steps) < count:
            marks.append((run.basis.mark(), run.drift))
            q, coef, fresh = run.take(picks[-1], row)
            best = pool.step(picks[-1], q, coef)
            j, threshold = -1, np.inf
            if fresh and best >= 0 and not run.matched:  # else the pool or the run is exhausted
                row = self._features(np.array([best]))[0]
                lowest, _ = score_bounds(run.basis.measure(row[None]), run.basis, self.rule)
                if lowest[0] > -np.inf:
                    j, threshold = best, float(tie_threshold(lowest[0]))
            picks.append(j)
            steps.append((q, coef, threshold, *slack(self.scores, run)))
        return picks, marks, Steps(*map(np.array, zip(*steps)))

    def _features(self, rows: np.ndarray) -> np.ndarray:
        """Return rows in float64, from the pool if all are there: then nothing is fetched."""
        at = np.array([self.pool.position(j) for j in rows.tolist()])
        if (at >= 0).all():
            return self.pool.features[at].astype(np.float64)
        return self.rows.take(rows)

    def _winner(
        self, picks: list[int], marks: list[tuple[Mark, float]], step: int, near: np.ndarray | None
    ) -> int | None:
        """Return the pick after this step, among the rows that may reach the guess's score.

        None if the guess is missing or too many rows may reach it.
        """
        guess = picks[step + 1]
        if guess < 0 or near is None:
            return None
        # a handful of rows: Python's sets are faster than NumPy's
        near = np.array(sorted({*near.tolist(), guess}.difference(picks[: step + 1])))
        if len(near) == 1:
            return guess
        basis = self.run.basis
        if step + 1 < len(marks):
            basis = basis.before(marks[step + 1][0])
        measured = basis.measure(self._features(near))
        return int(near[first_of_best(*score_bounds(measured, basis, self.rule))])

    def _commit(self, correct: list[int], wrong: list[tuple[Mark, float]]) -> None:
        """Keep the correct picks; undo the others, given the marks before each."""
        self.scores.commit(len(correct))
        self.scores.drop([0] * len(correct), correct)
        estimate = 2 * len(correct)  # all were correct: twice as many might have been
        if wrong:
            self.run.rewind(*wrong[0])
            estimate = len(correct)
        self.usual = 0.5 * (self.usual + estimate)

    def _n_guesses(self) -> int:
        """Return how many steps to guess: the usual number of correct ones, in whole batches."""
        batch = self.scores.lookahead_batch
        return batch * max(1, round(min(self.usual, self.scores.max_lookahead) / batch - 0.25))

    def _update_pool(self, promising: np.ndarray) -> None:
        """Guess among the promising rows next time, and adapt the fraction to the pool size."""
        ratio = len(promising) / self.pool_size
        self.fraction = float(np.clip(self.fraction * ratio**0.2, 0.05, 0.95))
        if len(promising) < self.pool_size // 4:
            promising = np.union1d(promising, self.scores.best(self.pool_size))
        self.promising = promising


def greedy(
    rows: Rows, candidates: np.ndarray, runs: list[Run], k: int, *, noise: float, rule: Rule
) -> None:
    """Continue every run to k picks, or until it must stop; `runs` are changed in place."""
    if isinstance(rows, ArrayRows) and rows.single and not rows.on_cpu:
        from exempla.selection.device import run_on_device

        run_on_device(rows, candidates, runs, k, noise, rule)
    left = [i for i, run in enumerate(runs) if len(run.indices) < k]
    while left:
        try:
            _Loop(rows, candidates[left], [runs[i] for i in left], k, noise, rule).pick()
            break
        except StateLostError:  # continue from the picks made so far
            continue
    for run in runs:
        run.stopped = run.stopped or "k"


class _Loop:
    """The greedy loop for runs that have not made all their picks."""

    def __init__(
        self, rows: Rows, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
    ) -> None:
        self.rows, self.runs, self.k, self.rule = rows, runs, k, rule
        norms = np.array([run.basis.target_norm for run in runs])
        self.scores = rows.scores(candidates, norms, noise, rule)
        for i, run in enumerate(runs):
            if run.indices:
                self.scores.deflate(i, rows.energy(run.basis.directions))
                self.scores.drop([i] * len(run.indices), run.indices)
        self.leaders = refresh(self.scores, runs, list(range(len(runs))))

    def pick(self) -> None:
        """Make all picks."""
        lookahead, runs = None, self.runs
        if len(runs) == 1:
            lookahead = Lookahead(self.rows, self.scores, runs[0], self.k, self.rule)
        with self._progress() as bar:
            while picks := self._decide():
                done = len(runs[0].indices)
                if lookahead:
                    self.leaders = lookahead.advance(picks[0]) or self.leaders
                else:
                    self._advance(picks)
                stale = [i for i in picks if len(runs[i].indices) < self.k and runs[i].stale]
                if stale:
                    self.leaders = refresh(self.scores, runs, stale)
                if bar is not None:
                    bar.update(max(1, len(runs[0].indices) - done))

    def _progress(self) -> Any:
        """Return a progress bar for work that may take seconds, otherwise None in a context."""
        if self.rows.t * self.rows.p * self.k < _MIN_PROGRESS_WORK:
            return nullcontext()
        from exempla.progress import counter

        return counter("picking", self.k)

    def _advance(self, picks: dict[int, int]) -> None:
        """Apply the pick of every run in one pass over the rows."""
        runs, chosen = self.runs, list(picks.values())
        self.scores.drop(list(picks), chosen)
        directions, coefs = np.zeros((len(runs), self.rows.p)), np.zeros(len(runs))
        for i, j, row in zip(picks, chosen, self.rows.take(np.array(chosen))):
            directions[i], coefs[i], _ = runs[i].take(j, row)
        if any(len(runs[i].indices) < self.k for i in picks):
            self.leaders = self.scores.update(directions, coefs)

    def _decide(self) -> dict[int, int]:
        """Return the next pick of every unfinished run; record why the others stop."""
        for run in self.runs:
            if not run.stopped and len(run.indices) >= self.k:
                run.stopped = "k"
            elif not run.stopped and run.matched:
                run.stopped = "residual"
        active = [i for i, run in enumerate(self.runs) if not run.stopped]
        winners = self._winners(active)
        for i in active:
            if winners[i] < 0:
                exhausted = len(self.runs[i].indices) >= self.runs[i].candidates
                self.runs[i].stopped = "candidates" if exhausted else "rank"
        return {i: winner for i, winner in winners.items() if winner >= 0}

    def _winners(self, active: list[int]) -> dict[int, int]:
        """Return the best row of each active run, the lowest of ties; −1 if none is left."""
        leaders, scores, runs = self.leaders, self.scores, self.runs
        winners = {i: int(leaders.rows[i]) for i in active}
        close = (leaders.rows >= 0) & (leaders.rivals >= tie_threshold(leaders.lower))
        close |= (leaders.rows < 0) & (scores.error > 0.0)  # it may hide what a row still adds
        contested = [i for i in active if close[i]]
        if not contested:
            return winners
        slacks = np.array([slack(scores, runs[i]) for i in contested])
        for i, near in zip(contested, scores.ties(contested, slacks, _MAX_RESCORED + 1)):
            if len(near) > _MAX_RESCORED and scores.error > 0.0:
                scores.to_float64()
                scores.deflate(i, self.rows.energy(runs[i].basis.directions))
                self.leaders = refresh(scores, runs, [i])
                return self._winners(active)
            basis = runs[i].basis
            measured = basis.measure(self.rows.take(near))
            best = first_of_best(*score_bounds(measured, basis, self.rule))
            winners[i] = int(near[best]) if best >= 0 else -1
        return winners
