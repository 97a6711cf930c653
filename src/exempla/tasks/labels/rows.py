"""Rows of whatever X is, torch tensors included: take some, put two sets one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from exempla.errors import ExemplaError
from exempla.oracles.rows import is_sparse, n_rows, take_rows

__all__ = ["stack_rows", "take"]


def take(X: Any, rows: np.ndarray) -> Any:
    """Some rows of X, in this order."""
    if hasattr(X, "detach"):
        import torch

        return X[torch.as_tensor(rows, device=X.device)]
    if is_sparse(X):
        return X.tocsr()[rows]
    return take_rows(X, np.asarray(rows))


def stack_rows(first: Any, second: Any) -> Any:
    """The rows of `first`, then those of `second`, as the kind of thing that `first` is.

    >>> stack_rows(["a", "b"], ("c",))
    ['a', 'b', 'c']
    """
    if hasattr(first, "detach"):
        import torch

        return torch.cat([first, torch.as_tensor(second, dtype=first.dtype, device=first.device)])
    _require_same_width(first, second)
    if is_sparse(first) or is_sparse(second):
        return sp.vstack([sp.csr_matrix(first), sp.csr_matrix(second)]).tocsr()
    if isinstance(first, pd.DataFrame | pd.Series):
        parts: list[Any] = [first, second]
        if not isinstance(second, type(first)):
            parts[1] = _framed(first, second)
        return pd.concat(parts, ignore_index=True)
    if isinstance(first, np.ndarray):
        return np.concatenate([first, np.asarray(second)])
    return [*first, *second]


def _framed(like: pd.DataFrame | pd.Series, values: Any) -> pd.DataFrame | pd.Series:
    if isinstance(like, pd.DataFrame):
        return pd.DataFrame(np.asarray(values), columns=like.columns)
    return pd.Series(list(values), name=like.name)


def _require_same_width(first: Any, second: Any) -> None:
    widths = [x.shape[1] if len(getattr(x, "shape", ())) == 2 else None for x in (first, second)]
    if None not in widths and widths[0] != widths[1]:
        raise ExemplaError(
            f"the training rows have {widths[0]} columns and the curated rows {widths[1]}: "
            "both must have the same columns, in the same order."
        )
    if n_rows(second) == 0:
        raise ExemplaError("the curated set is empty: give rows, or leave curated=None.")
