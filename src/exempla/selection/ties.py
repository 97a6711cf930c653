"""Ties and near-ties: the lowest index wins, so that no choice hangs on the last bit of a sum.

Sums are taken in another order by another BLAS, another number of threads, another place of a row
in its block. What that can change is bounded: a product f·r by ROUNDING·‖f‖·‖μ‖ (r is a difference
of vectors as long as μ), and n = ‖f‖² + σ² − ‖Qᵀf‖² by ROUNDING·‖f‖². Rows whose scores are not
apart by more than these bounds are equal.
"""

from __future__ import annotations

import numpy as np

__all__ = ["ROUNDING", "TIE", "descending", "first_of_best", "just_below", "without_noise"]

TIE = 1e-12
"""Scores within this relative distance of the best are equal; the lowest index wins."""
ROUNDING = 1e-14
"""What rounding does to a product of unit vectors, generously."""


def just_below(scores: np.ndarray | float) -> np.ndarray:
    """The lowest score that counts as equal."""
    scores = np.asarray(scores)
    finite = np.where(np.isfinite(scores), scores, 0.0)
    return scores - TIE * np.abs(finite)


def first_of_best(lowest: np.ndarray, highest: np.ndarray) -> int:
    """The first entry that may be the best, given what each is at least and at most; −1 if none.

    >>> first_of_best(np.array([1.0, 1.9, 2.0]), np.array([1.2, 2.1, 2.1]))
    1
    """
    best = lowest.max(initial=-np.inf)
    return int(np.argmax(highest >= just_below(best))) if best > -np.inf else -1


def descending(values: np.ndarray) -> np.ndarray:
    """Positions, largest value first; among equals (to rounding) the lowest first.

    >>> descending(np.array([1.0, 3.0 - 1e-15, 3.0]))
    array([1, 2, 0])
    """
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    group = np.concatenate([[0], np.cumsum(ranked[1:] < just_below(ranked[:-1]))])
    return order[np.lexsort((order, group))]


def without_noise(
    z: np.ndarray, norms2: np.ndarray, target_norm2: np.ndarray | float
) -> np.ndarray:
    """Products f·μ with those set to 0 that are nothing but rounding: such a row has no side."""
    return np.where(np.abs(z) <= ROUNDING * np.sqrt(norms2 * target_norm2), 0.0, z)
