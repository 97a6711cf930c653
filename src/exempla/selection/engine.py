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
"""

from __future__ import annotations

import math

import numpy as np

from exempla.progress import counter
from exempla.selection.ahead import Scout
from exempla.selection.candidates.base import Leaders, Race, Rows, Rule
from exempla.selection.run import RESIDUAL, Run, best_row, score_bounds, slack
from exempla.selection.ties import ROUNDING, just_below

__all__ = ["RESIDUAL", "Run", "greedy", "lowest_leader", "score_bounds"]

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
    scout = Scout(rows, race, runs[0], k, rule) if alone else None
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
            best = best_row(rows.take(near), runs[i].basis, rows.tolerance, rule)
            winners[i] = int(near[best]) if best >= 0 else -1
    return winners


def _sharpened(rows: Rows, race: Race, runs: list[Run], i: int, lead: int) -> Leaders:
    """Leaders from fresh c and n, summed in float64 from now on; a leader with nothing new goes."""
    race.sharpen()
    race.deflate(i, rows.energy(runs[i].basis.directions))
    row = rows.take(np.array([lead]))
    if best_row(row, runs[i].basis, rows.tolerance, Rule.GAIN) < 0:
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
