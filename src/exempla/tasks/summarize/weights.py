"""Nonnegative weights for chosen examples, pulled gently towards equal ones."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve

__all__ = ["fit_weights", "nonnegative_minimum"]

PATIENCE = 3
"""Exchanges of the whole set allowed without progress before single ones take over."""


def fit_weights(
    rows: np.ndarray, target: np.ndarray, ridge: float, floor: float = 0.01
) -> np.ndarray:
    """w ≥ floor/k that minimise ‖target − Σ w_i f_i‖² + ridge·‖w − 1/k‖², scaled to sum 1.

    The floor keeps every chosen example in the summary, hence every class that was chosen.

    >>> import numpy as np
    >>> fit_weights(np.eye(2), np.array([0.75, 0.25]), ridge=0.0)
    array([0.75, 0.25])
    """
    k = len(rows)
    rows = rows.astype(np.float64)
    least = floor / k
    gram = rows @ rows.T
    # rows may depend on each other: a trace of the ridge always stays
    ridge = max(ridge, 1e-10 * float(np.diag(gram).max()), np.finfo(float).tiny)
    gram[np.diag_indices(k)] += ridge
    # with w = u + least the constraint is u ≥ 0
    linear = rows @ target + ridge / k - least * gram.sum(1)
    weights = nonnegative_minimum(gram, linear) + least
    return weights / weights.sum()


def nonnegative_minimum(gram: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """u ≥ 0 minimising ½uᵀGu − uᵀb for positive definite G: block principal pivoting.

    Solve on the free coordinates, exchange all those that break a sign condition (u < 0 when
    free, gradient < 0 when fixed), repeat. When exchanging all makes no progress, exchange only
    the last one, which ends for certain (Murty's rule).

    >>> import numpy as np
    >>> nonnegative_minimum(np.eye(2), np.array([1.0, -1.0]))
    array([1., 0.])
    """
    k = len(linear)
    free = np.ones(k, dtype=bool)
    fewest, patience = k + 1, PATIENCE
    scale = 1e-12 * max(float(np.abs(linear).max(initial=0.0)), np.finfo(float).tiny)
    solution = np.zeros(k)
    for _ in range(20 * k + 100):
        solution = np.zeros(k)
        if free.any():
            block = gram[np.ix_(free, free)]
            solution[free] = solve(block, linear[free], assume_a="pos")
        gradient = gram @ solution - linear
        wrong = np.where(free, solution < 0, gradient < -scale)
        count = int(wrong.sum())
        if count == 0:
            break
        if count < fewest:
            fewest, patience = count, PATIENCE
        else:
            patience -= 1
        if patience >= 0:
            free ^= wrong
        else:
            free[np.flatnonzero(wrong)[-1]] ^= True
    return np.maximum(solution, 0.0)
