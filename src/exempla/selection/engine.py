"""The greedy loop: exact Sequential Bayesian Quadrature, one pass over the rows per pick or fewer.

With residual r, c_j = f_j·r and n_j = ‖f_j‖² + σ² − ‖Qᵀf_j‖², picking j lowers the posterior
variance by c_j²/n_j. After a pick one product v = F q updates every candidate:
c −= (c_j/√n_j) v and n −= v². Nothing is t×t and nothing is inverted. For a single target, several
picks are guessed and checked in one pass (`ahead`).

Two things keep it exact in finite precision. c is recomputed from r each time ‖r‖ has fallen
tenfold, because its error is relative to the r it started from. And every row whose score could
be the best, given the error made so far, is scored again in float64 before the pick is made; where
products are summed in float32 and there are too many such rows, the race goes on in float64. What
is then still equal, to rounding, is a tie (`ties`).

Running ahead of the race: guess the next picks among a few rows, check all guesses in one pass.

Greedy picks come from a small pool nearly always: the rows of the highest scores now. So the loop
runs ahead inside the pool, which costs next to nothing, and one reading of all rows (`Race.sweep`)
asks after each guessed step whether any row could have been better than the next guess. What was
guessed right is kept; from the first guess that was beaten on, the steps are forgotten. Every
guess is held against the same bounds as a leader of the race, and close calls are settled in
float64 as there, so that the picks are those of one pass a pick.

One target's way through the greedy loop, and how close calls on it are settled in float64.

The mathematics of a certificate: what no set of candidates can exceed.

g(S) = z_S'(K_SS + σ²I)⁻¹z_S is what a set S explains of ‖μ‖²; S*_r is the best set of r rows.

(a) g(S) ≤ ‖Pμ‖² for every set, P being the projection on the span of the candidates.
(b) With noise, every set of gains given L obeys Σ_j g(j|L) ≥ γ·g(S|L), γ ≥ σ²/(σ² + max‖f‖²):
    the residual Gram matrix has no eigenvalue below σ² and no diagonal entry above σ² + max‖f‖².
    Hence exact greedy gives g(S_k) ≥ (1 − e^{−γk/r})·g(S*_r).
(c) g(S*_r) ≤ g(S_i) + (1/γ)·(sum of the r largest gains given S_i), for every prefix S_i of any
    selection; for r = 1 and i = 0 even with γ = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from exempla.progress import counter
from exempla.results import Selection
from exempla.selection.basis import ROUNDING, Basis, Mark, first_of_best, just_below
from exempla.selection.rows import Leaders, Race, Rows, Rule, Steps

FALL = 0.1
"""c is recomputed when ‖r‖ has fallen to this share of what it was at the last recomputation."""
RESIDUAL = 1e-7
"""Without noise the target counts as matched when ‖r‖ is below this share of ‖μ‖."""


@dataclass
class Run:
    """One target's way through the loop."""

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
        return math.sqrt(self.basis.mmd2)

    @property
    def matched(self) -> bool:
        basis = self.basis
        small = RESIDUAL * basis.target_norm
        return basis.noise == 0.0 and self.residual_norm < small

    @property
    def stale(self) -> bool:
        """Whether c must be recomputed."""
        return self.residual_norm <= FALL * self.fresh_norm

    def take(self, j: int, row: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Pick row j: its direction, its coefficient, and whether it adds a direction at all."""
        added = self.basis.add(row)
        self.indices.append(j)
        if added is None:
            return np.zeros(len(row)), 0.0, False
        self.drift += abs(added[1])
        return *added, True

    def rewind(self, mark: Mark, drift: float) -> None:
        """Take back all picks since the mark."""
        del self.indices[mark.picks - self.basis.picks :]
        self.basis.rewind(mark)
        self.drift = drift


def slack(race: Race, run: Run) -> tuple[float, float]:
    """Bounds on the race's errors of c, in units of ‖f‖, and of n, in units of ‖f‖²."""
    slack_c = race.error * run.drift + ROUNDING * run.basis.target_norm
    # Σ|2 v δ| ≤ 2·error·‖f‖·Σ|v| ≤ 2·error·√m·‖f‖² over m passes (Cauchy–Schwarz, Σv² ≤ ‖f‖²).
    slack_n = 2.0 * race.error * math.sqrt(len(run.indices)) + ROUNDING
    return slack_c, slack_n


def _best_row(rows: np.ndarray, basis: Basis, tolerance: float, rule: Rule) -> int:
    """Which of these rows (m, p) is the best to add, the first among equals; −1 if none is."""
    return first_of_best(*score_bounds(rows, basis, tolerance, rule))


def score_bounds(
    rows: np.ndarray, basis: Basis, tolerance: float, rule: Rule
) -> tuple[np.ndarray, np.ndarray]:
    """What the score of each row (m, p) is at least and at most; −inf for rows with nothing new.

    c and n are free of the race's errors here: what is left is rounding.
    """
    return measured_bounds(basis.measure(rows), basis.noise, basis.target_norm, tolerance, rule)


def measured_bounds(
    measured: tuple[np.ndarray, ...],
    noise: float,
    target_norm: float,
    tolerance: float,
    rule: Rule,
) -> tuple[np.ndarray, np.ndarray]:
    """The same of rows whose (c, n, ‖f‖²) are known."""
    c, n, norms2 = measured
    alive = n > tolerance * norms2
    lowest, highest = rule.bounds(c, n, norms2, noise, ROUNDING * target_norm, ROUNDING)
    return np.where(alive, lowest, -np.inf), np.where(alive, highest, -np.inf)


SHARE = 1 / 48
"""Of all rows, how many to guess among, within the bounds of the race (`Race.pools`)."""
_HOPE = 0.4
"""At first the next pool is made of the rows that reached this share of a guess's score; the share
is then adapted to the size that is wanted."""
_FIRST = 16
"""Steps guessed in the first pass."""
_MOST_NEAR = 128
"""Rows that may be better than a guess and are scored again; more of them end the guessing."""


@dataclass
class _Guesses:
    """What the next steps may be: the first is certain, the others are to be checked."""

    picks: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    """Where the basis stood before each pick."""
    drifts: list[float] = field(default_factory=list)
    directions: list[np.ndarray] = field(default_factory=list)
    coefs: list[float] = field(default_factory=list)
    bars: list[float] = field(default_factory=list)
    """What the score of the next guess is at least, after each step; +inf: there is none."""
    slacks: list[tuple[float, float]] = field(default_factory=list)
    next: int = -1
    """The guess after the last step."""

    def steps(self) -> Steps:
        """All steps, each followed by the question whether the next guess is right."""
        slack_c, slack_n = np.array(self.slacks).T
        return Steps(
            np.stack(self.directions), np.array(self.coefs), np.array(self.bars), slack_c, slack_n
        )  # fmt: skip

    def after(self, step: int) -> int:
        """The pick guessed for after this step."""
        return self.picks[step + 1] if step + 1 < len(self.picks) else self.next


class _Scout:
    """Runs ahead for a single target."""

    def __init__(self, rows: Rows, race: Race, run: Run, k: int, rule: Rule) -> None:
        self.rows, self.race, self.run, self.k, self.rule = rows, race, run, k, rule
        self.usual: float = _FIRST
        self.size = int(np.clip(SHARE * rows.t, *race.pools))
        self.share = _HOPE
        self.hopeful = race.best(self.size)
        """Rows to guess among."""

    def advance(self, first: int) -> Leaders | None:
        """Take the certain pick in, and what can be guessed of those after it.

        Returns the leaders for the next pick; None where c must be computed anew, or where all
        picks are made.
        """
        room = self._room()
        if room < 1:
            self._take(first, self.rows.take(np.array([first]))[0], _Guesses())
            return None
        guesses = self._guess(first, room)
        found = self.race.sweep(guesses.steps(), _MOST_NEAR, self.share)
        kept, winner = self._right(guesses, found.near)
        self._settle(guesses, kept)
        self._learn(found.hopeful)
        if winner is None:
            return None if self.run.stale else self.race.leaders()
        if self.run.stale:
            self._refresh()
        return Leaders(np.array([np.nan]), np.array([winner]), certain=True)

    # -- guessing -----------------------------------------------------------------------------

    def _guess(self, first: int, room: int) -> _Guesses:
        """Run ahead in the pool, up to so many steps, or to where the run must stop."""
        guesses, pool, run = _Guesses(), self.race.pool(self.hopeful), self.run
        j, row = first, self.rows.take(np.array([first]))[0]
        while True:
            fresh = self._take(j, row, guesses)
            best = pool.step(j, guesses.directions[-1], guesses.coefs[-1])
            j, bar = -1, np.inf
            if fresh and best >= 0 and not run.matched:  # else the pool is used up, or the run ends
                row = self.rows.take(np.array([best]))[0]
                least, _ = score_bounds(row[None], run.basis, self.rows.tolerance, self.rule)
                if least[0] > -np.inf:
                    j, bar = best, float(just_below(least[0]))
            guesses.bars.append(bar)
            guesses.slacks.append(slack(self.race, run))
            if j < 0 or len(guesses.picks) == room:
                guesses.next = j
                return guesses

    def _take(self, j: int, row: np.ndarray, guesses: _Guesses) -> bool:
        """Take a row in; whether it adds a direction."""
        run = self.run
        guesses.picks.append(j)
        guesses.marks.append(run.basis.mark())
        guesses.drifts.append(run.drift)
        q, coef, fresh = run.take(j, row)
        guesses.directions.append(q)
        guesses.coefs.append(coef)
        return fresh

    # -- checking -----------------------------------------------------------------------------

    def _right(self, guesses: _Guesses, near: list[np.ndarray | None]) -> tuple[int, int | None]:
        """How many steps were right, and the pick after them, if it is known."""
        winner: int | None = None
        for step, rows in enumerate(near):
            winner = self._winner(guesses, step, rows)
            if winner != guesses.after(step):
                return step + 1, winner
        return len(near), winner

    def _winner(self, guesses: _Guesses, step: int, near: np.ndarray | None) -> int | None:
        """The pick after this step, from the rows that may reach the guessed one's score; None if
        too many may."""
        guess = guesses.after(step)
        if guess < 0 or near is None:
            return None
        if near.tolist() == [guess]:  # nearly always
            return guess
        near = np.setdiff1d(near, guesses.picks[: step + 1])
        near = np.union1d(near, [guess])
        if len(near) == 1:
            return guess
        basis = self.run.basis
        if step + 1 < len(guesses.marks):
            basis = basis.before(guesses.marks[step + 1])
        best = _best_row(self.rows.take(near), basis, self.rows.tolerance, self.rule)
        return int(near[best])

    def _settle(self, guesses: _Guesses, kept: int) -> None:
        """Keep the first steps and forget the others."""
        self.race.keep(kept)
        self.race.drop([0] * kept, guesses.picks[:kept])
        right = 2 * kept  # all of them: twice as many might have been
        if kept < len(guesses.picks):
            self.run.rewind(guesses.marks[kept], guesses.drifts[kept])
            right = kept
        self.usual = 0.5 * (self.usual + right)

    def _room(self) -> int:
        """How many steps to guess: as many as were right lately, in whole panels."""
        left, most = self.k - len(self.run.indices) - 1, self.race.most_ahead
        panels = max(1, round(min(self.usual, most) / self.race.panel - 0.25))
        return min(left, panels * self.race.panel)

    def _learn(self, hopeful: np.ndarray) -> None:
        """Guess among the hopeful next time, and adapt how much hope is enough."""
        self.share = float(np.clip(self.share * (len(hopeful) / self.size) ** 0.2, 0.05, 0.95))
        if len(hopeful) < self.size // 4:
            hopeful = np.union1d(hopeful, self.race.best(self.size))
        self.hopeful = hopeful

    def _refresh(self) -> None:
        """c anew."""
        self.run.fresh_norm, self.run.drift = self.run.residual_norm, 0.0
        self.race.refresh([0], self.run.basis.residual[None])


MOST_RESCORED = 4096
"""No more rows than this are scored again; where more could be the best and products are summed in
float32, the whole race is sharpened first."""


def greedy(
    rows: Rows, candidates: np.ndarray, runs: list[Run], k: int, *, noise: float, rule: Rule
) -> list[Run]:
    """Continue every run to k picks, or to where it must stop; `runs` are changed in place."""
    rows.run_on_device(candidates, runs, k, noise, rule)
    left = [i for i, run in enumerate(runs) if len(run.indices) < k]
    _pick(rows, candidates[left], [runs[i] for i in left], k, noise=noise, rule=rule)
    for run in runs:
        run.stopped = run.stopped or "k"
    return runs


def _pick(
    rows: Rows, candidates: np.ndarray, runs: list[Run], k: int, *, noise: float, rule: Rule
) -> None:
    """The loop itself, for runs that have not made all their picks."""
    if not runs:
        return
    race = rows.race(candidates, noise, rule)
    for i, run in enumerate(runs):
        if run.indices:
            race.deflate(i, rows.energy(run.basis.directions))
            race.drop([i] * len(run.indices), run.indices)
    leaders = _refresh(race, runs, list(range(len(runs))))
    alone = len(runs) == 1 and race.most_ahead > 1
    scout = _Scout(rows, race, runs[0], k, rule) if alone else None
    with counter("picking", k) as bar:
        while picks := _decide(rows, race, leaders, runs, k, rule):
            done = len(runs[0].indices)
            if scout:
                leaders = scout.advance(picks[0]) or leaders
            else:
                leaders = _advance(rows, race, leaders, runs, picks, k)
            stale = [i for i in picks if len(runs[i].indices) < k and runs[i].stale]
            if stale:
                leaders = _refresh(race, runs, stale)
            bar.update(max(1, len(runs[0].indices) - done))


def _advance(
    rows: Rows, race: Race, leaders: Leaders, runs: list[Run], picks: dict[int, int], k: int
) -> Leaders:
    """Take every run's pick in, by one pass over the rows."""
    race.drop(list(picks), list(picks.values()))
    directions, coefs = np.zeros((len(runs), rows.p)), np.zeros(len(runs))
    taken = rows.take(np.array(list(picks.values())))
    for (i, j), row in zip(picks.items(), taken):
        directions[i], coefs[i], _ = runs[i].take(j, row)
    going = any(len(runs[i].indices) < k for i in picks)
    return race.update(directions, coefs) if going else leaders


def _refresh(race: Race, runs: list[Run], which: list[int]) -> Leaders:
    for i in which:
        runs[i].fresh_norm, runs[i].drift = runs[i].residual_norm, 0.0
    return race.refresh(which, np.stack([runs[i].basis.residual for i in which]))


def _decide(
    rows: Rows, race: Race, leaders: Leaders, runs: list[Run], k: int, rule: Rule
) -> dict[int, int]:
    """The next pick of every run that goes on; the others are told why they stop."""
    for run in runs:
        if not run.stopped and len(run.indices) >= k:
            run.stopped = "k"
        elif not run.stopped and run.matched:
            run.stopped = "residual"
    going = [i for i, run in enumerate(runs) if not run.stopped]
    winners = _winners(rows, race, leaders, runs, going, rule) if going else {}
    for i in going:
        if winners[i] < 0:
            exhausted = len(runs[i].indices) >= runs[i].candidates
            runs[i].stopped = "candidates" if exhausted else "rank"
    return {i: winner for i, winner in winners.items() if winner >= 0}


def _winners(
    rows: Rows, race: Race, leaders: Leaders, runs: list[Run], going: list[int], rule: Rule
) -> dict[int, int]:
    """The best row of each run that goes on, the lowest among equals; −1 where none is left."""
    winners = {i: int(leaders.rows[i]) for i in going}
    if leaders.certain:
        return winners
    led = [i for i in going if winners[i] >= 0]
    at_least = np.full(len(runs), np.inf)  # what the best score is at least
    slack_c, slack_n = np.zeros(len(runs)), np.zeros(len(runs))
    for i, row in zip(led, rows.take(leaders.rows[led])):
        at_least[i] = just_below(score_bounds(row[None], runs[i].basis, rows.tolerance, rule)[0][0])
        slack_c[i], slack_n[i] = slack(race, runs[i])
    if race.error == 0.0:
        # No other row can be better than the leader by more than rounding: only a row before it,
        # or none if it has nothing new after all, can take its place.
        first = race.firsts(at_least, slack_c, slack_n)
        led = [i for i in led if first[i] != winners[i] or at_least[i] == -np.inf]
    for i in led:
        near = race.contenders(i, at_least[i], slack_c[i], slack_n[i], MOST_RESCORED + 1)
        if len(near) > MOST_RESCORED and (race.error > 0.0 or at_least[i] == -np.inf):
            leaders = _sharpened(rows, race, runs, i, winners[i])
            return _winners(rows, race, leaders, runs, going, rule)
        near = np.union1d(near, [winners[i]])
        if len(near) > 1 or at_least[i] == -np.inf:
            best = _best_row(rows.take(near), runs[i].basis, rows.tolerance, rule)
            winners[i] = int(near[best]) if best >= 0 else -1
    return winners


def _sharpened(rows: Rows, race: Race, runs: list[Run], i: int, lead: int) -> Leaders:
    """Leaders from fresh c and n, summed in float64 from now on; a leader with nothing new goes."""
    race.sharpen()
    race.deflate(i, rows.energy(runs[i].basis.directions))
    row = rows.take(np.array([lead]))
    if _best_row(row, runs[i].basis, rows.tolerance, Rule.GAIN) < 0:
        race.drop([i], [lead])
    return _refresh(race, runs, [i])


def lowest_leader(rows: Rows, race: Race, leaders: Leaders, size: float, rule: Rule) -> int:
    """The lowest row that equals the leader, where c has just been computed for a single target.

    `size` is the length of the vectors that the residual is a difference of.
    """
    slack = ROUNDING * size
    own = slack * math.sqrt(rows.norms2[leaders.rows[0]]) if rule is Rule.PLAIN else slack
    bar = just_below(leaders.scores) - own
    return int(race.firsts(bar, np.array([slack]), np.zeros(1))[0])


_BOUND_SLACK = 1e-9
"""Certified bounds are widened by this share, far above what rounding can do to them."""
_AMPLE = 1e-6
"""Unit rows whose smallest singular value is above this span everything beyond doubt."""
BUDGET = 1e9
"""Multiplications the cheap level spends on finding the span before it settles for ‖μ‖²."""


@dataclass(frozen=True)
class Finished:
    """A finished selection and what it was made from."""

    selection: Selection
    rows: Rows
    target: np.ndarray
    """μ, (p,) float64."""
    alignment: np.ndarray
    """(t,): z_j = f_j·μ."""
    candidates: np.ndarray
    """(t,) bool."""

    @property
    def norm2(self) -> float:
        """‖μ‖²."""
        return float(self.target @ self.target)

    @property
    def largest(self) -> float:
        """max ‖f‖² over the candidates."""
        return float(self.rows.norms2[self.candidates].max(initial=0.0))

    @property
    def γ(self) -> float:
        """Statement (b)."""
        noise, largest = self.selection.noise, self.largest
        return noise / (noise + largest) if largest else 1.0

    @property
    def greedy(self) -> bool:
        """Whether the picks are those of exact greedy on a problem where γ is above 0."""
        noise = self.selection.noise
        return self.selection.selector == "SBQ" and noise > self.rows.tolerance * self.largest

    def span(self, *, exact: bool) -> float:
        """Statement (a): ‖Pμ‖², or ‖μ‖² (always a bound) if it need not be exact and is costly.

        Row lengths do not change the span, so unit rows are used; a QR factor is carried from
        block to block, which keeps singular values to 1e-16 where a Gram matrix would keep 1e-8.
        """
        rows, norm2 = self.rows, self.norm2
        chosen = np.flatnonzero(self.candidates)
        if not len(chosen):
            return 0.0
        step = max(1024, 2 * rows.p)
        R, spent = np.empty((0, rows.p)), 0.0
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            height = len(R) + len(part)
            spent += float(height) * rows.p * min(height, rows.p)
            if not exact and spent > BUDGET:
                return norm2
            unit = rows.take(part) / np.sqrt(rows.norms2[part])[:, None]
            R = np.linalg.qr(np.vstack([R, unit]), mode="r")
            if len(R) == rows.p and np.linalg.svd(R, compute_uv=False)[-1] > _AMPLE:
                return norm2  # everything is spanned already
        _, singular, directions = np.linalg.svd(R, full_matrices=False)
        # Singular values at the level of rounding are not told from zero; all others count.
        real = singular > 64 * np.finfo(float).eps * np.sqrt(len(chosen))
        inside = directions[real] @ self.target
        return min(norm2, float(inside @ inside) * (1 + _BOUND_SLACK))

    def best_sets(self, r: int, span: float, *, replay: bool) -> np.ndarray:
        """Bounds on g(S*_s) for s = 0 … max(r, k): statement (c), never above statement (a).

        From the first step alone, or with `replay` the best over all steps.
        """
        most = max(r, len(self.selection))
        n = np.where(self.candidates, self.rows.norms2 + self.selection.noise, 1)
        gains = np.where(self.candidates, self.alignment * self.alignment / n, 0)
        first = _largest(gains[:, None], most)
        steps, explained = first, np.zeros(1)
        if replay and self.γ > 0 and len(self.selection):
            steps, explained = self._replay(most)
        bounds = np.full(most + 1, span)
        bounds[0] = 0.0
        if self.γ > 0:
            sums = np.cumsum(steps, axis=0) / self.γ + explained
            bounds[1:] = np.minimum(bounds[1:], sums.min(axis=1) * (1 + _BOUND_SLACK))
        bounds[1] = min(bounds[1], first[0, 0] * (1 + _BOUND_SLACK))
        return bounds

    def _replay(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The largest gains at every step (count, k+1), and what was explained by then (k+1,)."""
        rows, indices, noise = self.rows, self.selection.indices, self.selection.noise
        basis = Basis(self.target, noise, rows.tolerance)
        picked_at = {}  # row → number of directions from which on it is out
        for j, row in zip(indices, rows.take(indices)):
            basis.add(row)
            picked_at[int(j)] = basis.size
        coefs = np.concatenate([[0.0], basis.coefs])
        Q = np.vstack([np.zeros(rows.p), basis.directions])
        largest = np.zeros((count, len(Q)))
        step = max(1, (1 << 24) // (8 * max(rows.p, len(Q))))
        chosen = np.flatnonzero(self.candidates)
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            block = rows.take(part)
            V = block @ Q.T
            c = (block @ self.target)[:, None] - np.cumsum(coefs * V, axis=1)
            n = (rows.norms2[part] + noise)[:, None] - np.cumsum(V * V, axis=1)
            # n is at least σ² in exact arithmetic.
            gains = c * c / np.maximum(n, noise)
            for position in np.flatnonzero(np.isin(part, indices)):
                gains[position, picked_at[int(part[position])] :] = 0.0
            largest = _largest(np.vstack([largest, gains]), count)
        return largest, np.cumsum(coefs * coefs)

    def eigenvalue_ratio(self) -> float:
        """m/M of K_SS + σ²I."""
        if not len(self.selection):
            return 0.0
        picked = self.rows.take(self.selection.indices)
        gram = picked @ picked.T + self.selection.noise * np.eye(len(picked))
        eigenvalues = np.linalg.eigvalsh(gram)
        return float(max(0.0, eigenvalues[0]) / eigenvalues[-1])


def _largest(gains: np.ndarray, count: int) -> np.ndarray:
    """(count, …) the largest entries of each column, descending, padded with zeros."""
    if len(gains) > count:
        gains = np.partition(gains, len(gains) - count, axis=0)[-count:]
    out = np.zeros((count, gains.shape[1]))
    out[: len(gains)] = -np.sort(-gains, axis=0)
    return out
