"""What rows are compared by: what the last step of a Pipeline sees, or the inputs as numbers.

Not the last layer of a network: it has learnt the labels under suspicion, and draws a row to the
label it was given; neighbours found there agree with wrong labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.preprocessing import normalize

from exempla.arrays import is_sparse, is_tensor, to_numpy

__all__ = ["before_last", "comparable"]

WIDE = 256
"""Dense rows of more columns are projected at random: cosines stay as they are, give or take."""
UNEVEN = 20.0
"""Columns whose spreads differ by more than this are in different units."""


def comparable(X: Any, seed: int) -> Any:
    """Unit rows, dense or sparse, whose products are cosines; None if X are no numbers."""
    Z = _numbers(X)
    if Z is None:
        return None
    if is_sparse(Z):
        return normalize(Z.tocsr().astype(np.float64))
    Z = Z - Z.mean(axis=0)
    spread = Z.std(axis=0)
    usual = np.median(spread[spread > 0]) if (spread > 0).any() else 0.0
    if usual > 0 and (spread.max() > UNEVEN * usual or usual > UNEVEN * spread[spread > 0].min()):
        Z = Z / np.where(spread > 0, spread, 1.0)
    if Z.shape[1] > WIDE:
        rng = np.random.default_rng(seed)
        Z = Z @ (rng.normal(size=(Z.shape[1], WIDE)) / np.sqrt(WIDE))
    return normalize(Z)


def before_last(model: Any, X: Any) -> tuple[Any, Any]:
    """The last step of a fitted Pipeline, and X after all the others; else both as they are."""
    inner = getattr(model, "best_estimator_", model)
    if not hasattr(inner, "steps") or len(inner.steps) < 2:
        return model, X
    try:
        return inner[-1], inner[:-1].transform(X)
    except Exception:  # the caller's own steps may raise anything; then it is asked as a whole
        return model, X


def _numbers(X: Any) -> Any:
    """X as a table of finite numbers, or None."""
    if X is None:
        return None
    if is_sparse(X):
        return X if X.shape[1] > 0 else None
    if is_tensor(X):
        X = to_numpy(X)
    if isinstance(X, pd.DataFrame):
        X = X.select_dtypes("number")
    table = np.asarray(X)
    if table.dtype.kind not in "biuf" or table.ndim < 2 or table.size == 0:
        return None
    table = table.reshape(len(table), -1).astype(np.float64)
    return table if np.isfinite(table).all() else None
