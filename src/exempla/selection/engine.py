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

from exempla.selection.basis import Basis
from exempla.selection.rows import Leaders, Race, Rows, Rule

__all__ = ["Run", "TIE", "greedy"]

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
        for j in run.indices:
            race.drop(i, j)
    everybody = list(range(len(runs)))
    leaders = _refresh(race, runs, everybody)
    while True:
        directions = np.zeros((len(runs), rows.p))
        coefs = np.zeros(len(runs))
        for i in everybody:
            if not runs[i].stopped:
                _pick(rows, race, leaders, i, runs[i], k, rule, directions, coefs)
        going = [i for i in everybody if not runs[i].stopped]
        if not going:
            return runs
        leaders = race.update(directions, coefs)
        stale = [i for i in going if runs[i].residual_norm <= FALL * runs[i].fresh_norm]
        if stale:
            leaders = _refresh(race, runs, stale)


def _refresh(race: Race, runs: list[Run], which: list[int]) -> Leaders:
    for i in which:
        runs[i].fresh_norm, runs[i].drift = runs[i].residual_norm, 0.0
    return race.refresh(which, np.stack([runs[i].basis.residual for i in which]))


def _pick(
    rows: Rows,
    race: Race,
    leaders: Leaders,
    i: int,
    run: Run,
    k: int,
    rule: Rule,
    directions: np.ndarray,
    coefs: np.ndarray,
) -> None:
    """Make run i's next pick and leave its direction for the pass; or say why there is none."""
    if len(run.indices) >= k:
        run.stopped = "k"
        return
    if run.matched:
        run.stopped = "residual"
        return
    j = _winner(rows, race, leaders, i, run, rule)
    if j is None:
        run.stopped = "candidates" if len(run.indices) >= run.candidates else "rank"
        return
    race.drop(i, j)
    added = run.basis.add(rows.take(np.array([j]))[0])
    run.indices.append(j)
    if added is not None:
        directions[i], coefs[i] = added
        run.drift += abs(added[1])
    if len(run.indices) >= k:
        run.stopped = "k"


def _winner(rows: Rows, race: Race, leaders: Leaders, i: int, run: Run, rule: Rule) -> int | None:
    """The lowest index among the best."""
    best, lead = float(leaders.scores[i]), int(leaders.rows[i])
    if lead < 0:
        return None
    if race.error == 0.0:
        return int(race.contenders(i, _just_below(best))[0])
    # The exact score of the apparent leader is what the others must be able to reach.
    bar = float(_exact(rows, run.basis, np.array([lead]), rule)[0])
    slack_c = race.error * run.drift
    # Σ|2 v δ| ≤ 2·error·‖f‖·Σ|v| ≤ 2·error·√m·‖f‖² over m passes (Cauchy–Schwarz, Σv² ≤ ‖f‖²).
    slack_n = 2.0 * race.error * math.sqrt(len(run.indices))
    near = race.contenders(i, _just_below(bar), slack_c, slack_n, CROWD + 1)
    if len(near) > CROWD:
        race.sharpen()
        race.deflate(i, rows.energy(run.basis.directions))
        return _winner(rows, race, _refresh(race, [run], [0]), i, run, rule)
    if len(near) == 1 and near[0] == lead and bar > -math.inf:
        return lead
    near = np.union1d(near, [lead])
    scores = _exact(rows, run.basis, near, rule)
    best = float(scores.max())
    if best == -math.inf:
        return None
    return int(near[np.argmax(scores >= _just_below(best))])


def _exact(rows: Rows, basis: Basis, indices: np.ndarray, rule: Rule) -> np.ndarray:
    """Scores without the rounding of the race; −inf for rows with nothing new."""
    c, n, norms2 = basis.measure(rows.take(indices))
    scores = rule.score(c, n, norms2, basis.noise)
    return np.where(n > rows.tolerance * norms2, scores, -np.inf)


def _just_below(score: float) -> float:
    return score - TIE * abs(score) if math.isfinite(score) else score
