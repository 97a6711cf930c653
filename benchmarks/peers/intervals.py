"""How sure an LDS is: subsets and test points drawn anew, together."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

__all__ = ["interval"]

DRAWS = 1000


def interval(
    effects: np.ndarray, outcomes: np.ndarray, base: np.ndarray | None = None, draws: int = DRAWS
) -> tuple[float, float]:
    """95 % interval of the LDS of predicted effects, or of its lead on the effects of another.

    All are (subsets, test points); a prediction and its rival are drawn alike. Ranks are those
    among all subsets: a draw says how often each subset counts, so that all draws are a few
    products of matrices.
    """
    (m, tests), rng = outcomes.shape, np.random.default_rng(0)
    rows = rng.multinomial(m, np.full(m, 1 / m), draws) / m
    columns = rng.multinomial(tests, np.full(tests, 1 / tests), draws) / tests
    scores = correlations(effects, outcomes, rows)
    if base is not None:
        scores = scores - correlations(base, outcomes, rows)
    low, high = np.quantile((scores * columns).sum(1), (0.025, 0.975))
    return float(low), float(high)


def correlations(effects: np.ndarray, outcomes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(draws, test points): correlation of ranks over subsets that count by their weights."""
    p, a = (rankdata(x, axis=0) - (len(x) + 1) / 2 for x in (effects, outcomes))
    mean_p, mean_a = weights @ p, weights @ a
    covariance = weights @ (p * a) - mean_p * mean_a
    scale = (weights @ p**2 - mean_p**2) * (weights @ a**2 - mean_a**2)
    out = np.zeros_like(scale)
    return np.divide(covariance, np.sqrt(np.maximum(scale, 0)), out=out, where=scale > 1e-9)
