"""How many wrong labels are left: what the undecided suspects' probabilities add up to.

Each suspect i is wrong with probability p_i, so the number of wrong ones among the undecided is
Poisson-binomial: mean Σ p_i, variance Σ p_i (1 − p_i). Decisions show whether those probabilities
are too high or too low. One shift δ of all log-odds is fitted to them,

    P(decided i was wrong) = σ(logit p_i + δ),    δ ~ N(0, 0.5²),

and the undecided are counted with σ(logit p_i + δ). The doubt about δ widens the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Remaining", "remaining_wrong"]

PRIOR_VARIANCE = 0.25
Z90 = 1.6448536269514722
"""Half-width of a central 90 % normal interval."""


@dataclass(frozen=True)
class Remaining:
    """Estimated number of wrong labels among the undecided suspects, with a 90 % interval."""

    mean: float
    low: float
    high: float
    shift: float
    """δ: how far the decisions moved the log-odds; 0 before the first one."""


def remaining_wrong(undecided: np.ndarray, decided: np.ndarray, wrong: np.ndarray) -> Remaining:
    """Estimate how many of the undecided are wrong from probabilities and what was decided.

    `wrong[i]` says whether the decided suspect with probability `decided[i]` was found wrong.

    >>> import numpy as np
    >>> before = remaining_wrong(np.full(40, 0.5), np.array([]), np.array([]))
    >>> round(before.mean), before.low < 20 < before.high
    (20, True)
    >>> remaining_wrong(np.full(40, 0.5), np.full(20, 0.5), np.zeros(20)).mean < 15
    True
    """
    shift, doubt = _fit_shift(_log_odds(decided), np.asarray(wrong, dtype=float))
    p = _sigmoid(_log_odds(undecided) + shift)
    spread = float(np.sum(p * (1 - p)))  # the Poisson-binomial variance, and also d mean / dδ
    mean = float(np.sum(p))
    half = Z90 * float(np.sqrt(spread + spread**2 * doubt))
    return Remaining(mean, max(0.0, mean - half), min(float(p.size), mean + half), shift)


def _log_odds(p: np.ndarray) -> np.ndarray:
    p = np.clip(np.asarray(p, dtype=float), 1e-6, 1 - 1e-6)
    return np.log(p / (1 - p))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))  # |x| stays small here: probabilities are clipped


def _fit_shift(odds: np.ndarray, wrong: np.ndarray) -> tuple[float, float]:
    """The posterior mode of δ and its variance (Laplace); Newton on a concave function."""
    shift = 0.0
    for _ in range(50):
        p = _sigmoid(odds + shift)
        slope = float(np.sum(wrong - p)) - shift / PRIOR_VARIANCE
        curve = float(np.sum(p * (1 - p))) + 1 / PRIOR_VARIANCE
        step = slope / curve
        shift += float(np.clip(step, -1.0, 1.0))
        if abs(step) < 1e-9:
            break
    curve = float(np.sum(_sigmoid(odds + shift) * _sigmoid(-odds - shift))) + 1 / PRIOR_VARIANCE
    return shift, 1 / curve
