"""The question as one vector: the mean embedding of the questioned predictions."""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, as_like, real_numbers, row_squares
from exempla.errors import ExemplaError

__all__ = ["mean_embedding", "scaled_rows", "shares", "unit_rows", "unit_scale"]


def unit_rows(rows: Array, outside: np.ndarray | None = None, *, overwrite: bool = False) -> Array:
    """Each row divided by its norm; a zero row stays zero.

    `outside` is each row's squared norm in directions the rows do not show. The rows are used up
    if they may be overwritten.
    """
    return scaled_rows(rows, unit_scale(rows, outside), overwrite=overwrite)


def scaled_rows(rows: Array, scale: np.ndarray, *, overwrite: bool = False) -> Array:
    """Each row times a number of its own, in place if the rows may be overwritten."""
    if overwrite:
        rows *= as_like(scale, rows)[:, None]
        return rows
    return rows * as_like(scale, rows)[:, None]


def unit_scale(rows: Array, outside: np.ndarray | None = None) -> np.ndarray:
    """What each row is multiplied by to have unit length; 0 for a zero row."""
    norm2 = row_squares(rows).astype(np.float64)
    if outside is not None:
        norm2 = norm2 + outside
    return np.where(norm2 > 0, 1.0 / np.sqrt(np.where(norm2 > 0, norm2, 1.0)), 0.0)


def mean_embedding(rows: Array, weights: object = None) -> Array:
    """μ = Σ w_i f_i / Σ |w_i| over the questioned rows; a (T, n) weight matrix gives T targets."""
    if weights is None and len(rows):
        return rows.sum(0) / len(rows)
    return as_like(shares(weights, len(rows)), rows) @ rows


def shares(weights: object, count: int) -> np.ndarray:
    """The share of each questioned example in the question: (count,), or (T, count) of several.

    >>> shares(None, 4), shares([1, 3], 2)
    (array([0.25, 0.25, 0.25, 0.25]), array([0.25, 0.75]))
    """
    if count == 0:
        raise ExemplaError("the target is empty: give at least one questioned example.")
    if weights is None:
        return np.full(count, 1.0 / count)
    w = real_numbers(weights, "the target weights")
    if w.shape[-1:] != (count,) or w.ndim > 2:
        raise ExemplaError(
            f"target weights have shape {w.shape} but there are {count} questioned examples: "
            "give one weight each (or one line of weights per target)."
        )
    if not np.isfinite(w).all() or not (np.abs(w).sum(-1) > 0).all():
        raise ExemplaError("target weights must be finite and not all zero.")
    return w / np.abs(w).sum(-1, keepdims=True)
