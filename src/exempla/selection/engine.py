"""The greedy loop: exact Sequential Bayesian Quadrature, one pass over the rows per pick.

With residual r, c_j = f_j·r and n_j = ‖f_j‖² + σ² − ‖Qᵀf_j‖², picking j lowers the posterior
variance by c_j²/n_j. After a pick one product v = F q updates every candidate:
c −= (c_j/√n_j) v and n −= v². Nothing is t×t and nothing is inverted.

Two things keep it exact in finite precision. c is recomputed from r each time ‖r‖ has fallen
tenfold, because its error is relative to the r it started from. And where products are summed in
float32, every row whose score could be the best, given the error made so far, is scored again in
float64 before the pick is made; if there are too many such rows, the race goes on in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from exempla.progress import counter
from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Leaders, Race, Rows, Rule

__all__ = ["RESIDUAL", "Run", "TIE", "greedy", "just_below"]

TIE = 1e-12
"""Scores within this relative distance of the best are equal; the lowest index wins."""
FALL = 0.1
"""c is recomputed when ‖r‖ has fallen to this share of what it was at the last recomputation."""
RESIDUAL = 1e-7
"""Without noise the target counts as matched when ‖r‖ is below this share of ‖μ‖."""
CROWD = 4096
"""More rows than this to score again: sharpen the whole race instead."""


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
        small = RESIDUAL * float(np.linalg.norm(basis.target))
        return basis.noise == 0.0 and self.residual_norm < small


def greedy(
    rows: Rows, candidates: np.ndarray, runs: list[Run], k: int, *, noise: float, rule: Rule
) -> list[Run]:
    """Continue every run to k picks, or to where it must stop; `runs` are changed in place."""
    race = rows.race(candidates, noise, rule)
    for i, run in enumerate(runs):
        if run.indices:
            race.deflate(i, rows.energy(run.basis.directions))
            race.drop([i] * len(run.indices), run.indices)
    leaders = _refresh(race, runs, list(range(len(runs))))
    with counter("picking", k) as bar:
        while picks := _decide(rows, race, leaders, runs, k, rule):
            race.drop(list(picks), list(picks.values()))
            directions, coefs = _take_in(rows, runs, picks)
            going = [i for i in picks if len(runs[i].indices) < k]
            if going:
                leaders = race.update(directions, coefs)
            stale = [i for i in going if runs[i].residual_norm <= FALL * runs[i].fresh_norm]
            if stale:
                leaders = _refresh(race, runs, stale)
            bar.update()
    return runs


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
    if race.error == 0.0 and going:
        winners = race.firsts(just_below(leaders.scores)).tolist()
    else:
        winners = [_settle(rows, race, leaders, run, rule) for run in runs] if going else []
    for i in going:
        if winners[i] < 0:
            exhausted = len(runs[i].indices) >= runs[i].candidates
            runs[i].stopped = "candidates" if exhausted else "rank"
    return {i: winners[i] for i in going if winners[i] >= 0}


def _take_in(rows: Rows, runs: list[Run], picks: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Add every pick to its run's basis; return the directions and coefficients for the pass."""
    directions, coefs = np.zeros((len(runs), rows.p)), np.zeros(len(runs))
    taken = rows.take(np.array(list(picks.values())))
    for (i, j), row in zip(picks.items(), taken):
        added = runs[i].basis.add(row)
        runs[i].indices.append(j)
        if added is not None:
            directions[i], coefs[i] = added
            runs[i].drift += abs(added[1])
    return directions, coefs


def _settle(rows: Rows, race: Race, leaders: Leaders, run: Run, rule: Rule) -> int:
    """The winner where products were summed in float32 (only ever done for a single target)."""
    lead = int(leaders.rows[0])
    if lead < 0:
        return -1
    # The exact score of the apparent leader is what the others must be able to reach.
    bar = float(_exact(rows, run.basis, np.array([lead]), rule)[0])
    slack_c = race.error * run.drift
    # Σ|2 v δ| ≤ 2·error·‖f‖·Σ|v| ≤ 2·error·√m·‖f‖² over m passes (Cauchy–Schwarz, Σv² ≤ ‖f‖²).
    slack_n = 2.0 * race.error * math.sqrt(len(run.indices))
    near = race.contenders(0, float(just_below(bar)), slack_c, slack_n, CROWD + 1)
    if len(near) > CROWD:
        race.sharpen()
        race.deflate(0, rows.energy(run.basis.directions))
        fresh = _refresh(race, [run], [0])
        return int(race.firsts(just_below(fresh.scores))[0])
    if len(near) == 1 and near[0] == lead and bar > -math.inf:
        return lead
    near = np.union1d(near, [lead])
    scores = _exact(rows, run.basis, near, rule)
    best = float(scores.max())
    return int(near[np.argmax(scores >= just_below(best))]) if best > -math.inf else -1


def _exact(rows: Rows, basis: Basis, indices: np.ndarray, rule: Rule) -> np.ndarray:
    """Scores without the rounding of the race; −inf for rows with nothing new."""
    c, n, norms2 = basis.measure(rows.take(indices))
    scores = rule.score(c, n, norms2, basis.noise)
    return np.where(n > rows.tolerance * norms2, scores, -np.inf)


def just_below(scores: np.ndarray | float) -> np.ndarray:
    """The lowest score that counts as equal."""
    scores = np.asarray(scores)
    finite = np.where(np.isfinite(scores), scores, 0.0)
    return scores - TIE * np.abs(finite)
