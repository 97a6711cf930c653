"""The question as one vector: the mean embedding of the questioned predictions."""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, as_like, real_numbers, to_numpy
from exempla.errors import ExemplaError

__all__ = ["mean_embedding", "unit_rows"]


SQUARED = 65_536
"""Rows squared at a time."""


def unit_rows(rows: Array, outside: np.ndarray | None = None, *, overwrite: bool = False) -> Array:
    """Each row divided by its norm; a zero row stays zero.

    `outside` is each row's squared norm in directions the rows do not show. The rows are used up
    if they may be overwritten.
    """
    starts = range(0, len(rows), SQUARED)
    parts = [to_numpy((rows[i : i + SQUARED] ** 2).sum(1)) for i in starts] or [np.zeros(0)]
    norm2 = np.concatenate(parts).astype(np.float64)
    if outside is not None:
        norm2 = norm2 + outside
    scale = np.where(norm2 > 0, 1.0 / np.sqrt(np.where(norm2 > 0, norm2, 1.0)), 0.0)
    if overwrite:
        rows *= as_like(scale, rows)[:, None]
        return rows
    return rows * as_like(scale, rows)[:, None]


def mean_embedding(rows: Array, weights: object = None) -> Array:
    """μ = Σ w_i f_i / Σ w_i over the questioned rows; a (T, n) weight matrix gives T targets."""
    if len(rows) == 0:
        raise ExemplaError("the target is empty: give at least one questioned example.")
    if weights is None:
        return rows.sum(0) / len(rows)
    w = real_numbers(weights, "the target weights")
    if w.shape[-1:] != (len(rows),) or w.ndim > 2:
        raise ExemplaError(
            f"target weights have shape {w.shape} but there are {len(rows)} questioned examples: "
            "give one weight each (or one line of weights per target)."
        )
    if not np.isfinite(w).all() or not (np.abs(w).sum(-1) > 0).all():
        raise ExemplaError("target weights must be finite and not all zero.")
    return as_like(w / np.abs(w).sum(-1, keepdims=True), rows) @ rows
