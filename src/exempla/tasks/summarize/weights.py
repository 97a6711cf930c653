"""Nonnegative weights for chosen examples, pulled gently towards equal ones."""

from __future__ import annotations

import numpy as np

from exempla.selection.nnls import nonnegative_minimum

__all__ = ["fit_weights"]


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
