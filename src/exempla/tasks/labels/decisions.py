"""Probabilities after some labels have been checked by a person.

Decisions refit the probabilities of all labels that are not decided yet (`learn`). A stated
probability p_i may be wrong in several ways (too low throughout, too steep, blind to one pair of
classes), so each way has its own coefficient, with a prior that says "as stated":

    z_i = logit p_i
    logit P(i is wrong) = a + b·z_i + Σ_m f_m·k_m(i) + c·e_i + u[given] + v[given, suggested]

    a ~ N(0, 3²)   b ~ N(1, ¼²)   f ~ N(0, 1½²)   c ~ N(0, ½²)   u ~ N(0, τ_u²)   v ~ N(0, τ_v²)

f bends the curve locally (k are bumps along the rank): if the most certain rows turn out right,
that says little about the uncertain ones, and must not reverse the order. e_i is further evidence,
standardised. τ_u and τ_v, how much classes and pairs differ, maximise the evidence of the decisions
(Laplace's approximation), so with few decisions or similar classes the offsets stay near 0. As
decisions accumulate, the level of the fitted log-odds is left to an isotonic fit, which preserves
the order and gains weight with the number of decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit

_INTERCEPT_SD, _SLOPE_SD, _BUMP_SD, _EVIDENCE_SD = 3.0, 0.25, 1.5, 0.5
_BUMPS = 8
_OFFSET_SDS = (0.1, 0.7, 2.0)
"""Choices for τ_u and τ_v."""
_ISOTONIC_FROM, _ISOTONIC_HALF = 30, 100
"""Decisions from which on the isotonic fit counts, and those at which it counts one half."""
_EDGE = 1e-7


class Stated(NamedTuple):
    """What an analysis said about n rows: probabilities, labels, and one more number each."""

    probabilities: np.ndarray
    given: Sequence[str]
    suggested: Sequence[str]
    evidence: np.ndarray | None = None


class Learned(NamedTuple):
    """Probabilities of every row after the decisions, the decided ones included."""

    probabilities: np.ndarray


def learn(stated: Stated, decided: np.ndarray, wrong: np.ndarray) -> Learned:
    """Re-fit every probability to what was decided.

    `decided` are positions in `stated`, `wrong[j]` whether row `decided[j]` was found wrong.
    """
    decided, y = np.asarray(decided, dtype=int), np.asarray(wrong, dtype=float)
    p, given = stated.probabilities, [str(name) for name in stated.given]
    pairs = [f"{g}\0{s}" for g, s in zip(given, stated.suggested, strict=True)]
    parts = [
        (np.ones((p.size, 1)), _INTERCEPT_SD),
        (logit(np.clip(p, _EDGE, 1 - _EDGE))[:, None], _SLOPE_SD),
        (_bumps(p), _BUMP_SD),
    ]
    if stated.evidence is not None and p.size:
        off = stated.evidence - np.mean(stated.evidence)
        parts.append(((off / max(float(np.std(off)), 1e-9))[:, None], _EVIDENCE_SD))
    classes, pairs = _indicators(given, decided), _indicators(pairs, decided)
    design = np.hstack([*(columns for columns, _ in parts), classes, pairs])
    sds = np.concatenate([np.full(columns.shape[1], sd) for columns, sd in parts])
    mean = np.zeros(design.shape[1])
    mean[1] = 1.0
    weights, best, highest = mean, mean, -np.inf
    # with one class or pair an offset is only another intercept
    differ = classes.shape[1] > 1, pairs.shape[1] > classes.shape[1]
    choices = [_OFFSET_SDS if several else _OFFSET_SDS[:1] for several in differ]
    for tau_u, tau_v in product(*choices):
        offsets = np.repeat([tau_u, tau_v], [classes.shape[1], pairs.shape[1]])
        precision = np.concatenate([sds, offsets]) ** -2
        weights, evidence = _posterior_mode(design[decided], y, mean, precision, weights)
        if evidence > highest:
            best, highest = weights, evidence
    odds = design @ best
    after = expit(odds)
    if decided.size >= _ISOTONIC_FROM:
        share = decided.size / (decided.size + _ISOTONIC_HALF)
        after = (1 - share) * after + share * _isotonic(odds[decided], y, after[decided], odds)
    return Learned(after)


def _bumps(p: np.ndarray) -> np.ndarray:
    """Bell curves along the log-odds of p's rank, as wide as they are apart."""
    if not p.size:
        return np.zeros((0, _BUMPS))
    rank = np.searchsorted(np.sort(p), p, side="left") + np.searchsorted(np.sort(p), p, "right")
    axis = logit((rank / 2 + 0.5) / (p.size + 1))
    places = np.linspace(-1.0, np.log(p.size + 1.0), _BUMPS)
    return np.exp(-0.5 * ((axis[:, None] - places) / (places[1] - places[0])) ** 2)


def _indicators(names: Sequence[str], decided: np.ndarray) -> np.ndarray:
    """A column for each name that was decided about; others cannot be told from their prior, 0."""
    codes = np.unique(np.array(names, dtype=str), return_inverse=True)[1]
    return (codes[:, None] == np.unique(codes[decided])).astype(float)


def _posterior_mode(
    X: np.ndarray, y: np.ndarray, mean: np.ndarray, precision: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, float]:
    """The posterior mode by Newton's method, and the Laplace approximation of log P(y)."""

    def objective(weights: np.ndarray) -> float:
        odds = X @ weights
        fit = y @ odds - np.logaddexp(0.0, odds).sum()
        return float(fit - 0.5 * precision @ (weights - mean) ** 2)

    value, curve = objective(weights), np.diag(precision)
    for _ in range(50):
        p = expit(X @ weights)
        slope = X.T @ (y - p) - precision * (weights - mean)
        curve = (X.T * (p * (1 - p))) @ X + np.diag(precision)
        step = np.linalg.solve(curve, slope)
        while (after := objective(weights + step)) < value - 1e-12:
            step = step / 2
        weights, value = weights + step, after
        if np.abs(step).max(initial=0.0) < 1e-6:
            break
    log_det = np.linalg.slogdet(curve)[1]
    return weights, float(value + 0.5 * (np.log(precision).sum() - log_det))


def _isotonic(odds: np.ndarray, y: np.ndarray, fitted: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A rising step function through the decisions, interpolated between the blocks.

    Each decision counts with one tenth of what the logistic fit says, so that no block of a few
    says 0 or 1. No two rows are tied that the fit distinguishes.
    """
    order = np.argsort(odds, kind="stable")
    steps = isotonic_regression((y[order] + 0.1 * fitted[order]) / 1.1)
    starts = steps.blocks[:-1]
    middle = np.add.reduceat(odds[order], starts) / np.diff(steps.blocks)
    return np.interp(at, middle, steps.x[starts])
