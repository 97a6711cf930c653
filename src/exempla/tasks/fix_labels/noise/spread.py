"""How far the evidence carries: an interval for the number of wrong labels.

Three things are uncertain. q rests on a few hundred curated rows: they are weighed anew at random
(the Bayesian bootstrap), and everything is fitted again. The kind of mistakes may not show: whether
hard rows are mistaken more often, or not at all, is set by hand, and what the labels make nearly as
likely as the best fit counts as possible. And the number itself is a sum of chances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.tasks.fix_labels.noise.kinds import NoiseModel, fit_noise
from exempla.tasks.fix_labels.noise.posterior import ClassPosterior, refitted

__all__ = ["Spread", "spread_of"]

DRAWS = 8
ROWS = 2000
"""Training rows the draws are fitted to: what they differ in is the curated rows."""
NEARLY = 2.0
"""Log-likelihoods closer than this are not told apart."""
TWO_SIDED = 1.645
"""Of a normal distribution, 90 % lie within."""
SETTINGS = ((-30.0, 1.0), (-1.0, 1.0), (0.0, 1.0), (0.0, 2.0), (1.5, 2.0))
"""(s, b): no wavering at all, then more and more of it."""
APART = 2.0
"""Numbers that differ by this factor are different answers."""


@dataclass(frozen=True)
class Spread:
    """From where to where the number of wrong labels may lie, with 90 % certainty."""

    low: float
    high: float
    told: bool
    """Whether the kind of mistakes can be told: no other kind fits as well and gives another
    number."""


def spread_of(
    posterior: ClassPosterior,
    noise: NoiseModel,
    views: list[np.ndarray],
    curated: tuple[list[np.ndarray], np.ndarray],
    given: np.ndarray,
    seed: int,
) -> Spread:
    """The interval around the fitted model's number."""
    rng = np.random.default_rng(seed)
    n = len(given)
    some = np.sort(rng.permutation(n)[:ROWS])
    few, labels = [view[some] for view in views], given[some]
    weights = np.full(len(some), n / len(some))
    trusted, codes = curated
    kept = np.flatnonzero(posterior.weights).tolist() or [0]
    numbers = []
    for _ in range(DRAWS):
        share = rng.exponential(size=len(codes))
        drawn = refitted(trusted, codes, kept, posterior.penalty, share)
        log_q = drawn.log_proba(few)
        fitted = fit_noise(log_q, labels, weights=weights, start=noise, curated=len(codes))
        numbers.append(max(float(weights @ fitted.wrong(log_q, labels)), 1e-3))
    log_q = posterior.log_proba(few)
    here = noise.wrong(log_q, labels)
    number = max(float(weights @ here), 1e-3)
    likeliest = fit_noise(log_q, labels, weights=weights, start=noise).log_likelihood
    possible = [number]
    for setting in SETTINGS:
        other = fit_noise(log_q, labels, weights=weights, fixed=setting)
        if other.log_likelihood > likeliest - NEARLY:
            possible.append(max(float(weights @ other.wrong(log_q, labels)), 1e-3))
    scatter = np.std(np.log(numbers), ddof=1)
    chance = TWO_SIDED * np.sqrt(float(weights @ (here * (1 - here))))
    low = min([*possible, float(np.min(numbers))]) * np.exp(-0.5 * scatter)
    high = max([*possible, float(np.max(numbers))]) * np.exp(0.5 * scatter)
    told = max(possible) < APART * min(possible) or max(possible) < 0.01 * n
    return Spread(max(low - chance, 0.0), min(high + chance, float(n)), told)
