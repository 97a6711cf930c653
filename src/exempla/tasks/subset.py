"""Some rows of whatever a user calls data, as the same kind of data."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.oracles.rows import n_rows
from exempla.tasks.labels.rows import take

__all__ = ["arrays_of", "take_data"]


def take_data(data: Any, positions: np.ndarray) -> Any:
    """The rows at these positions of (X, y), X alone, a dictionary of columns, or a data set.

    >>> import numpy as np
    >>> take_data((np.arange(4), np.array(list("abcd"))), np.array([2, 0]))
    (array([2, 0]), array(['c', 'a'], dtype='<U1'))
    """
    if isinstance(data, tuple):
        return tuple(None if part is None else take_data(part, positions) for part in data)
    if isinstance(data, dict):
        return {name: take_data(part, positions) for name, part in data.items()}
    torch = sys.modules.get("torch")
    if torch is not None:
        loader = getattr(data, "dataset", None)
        data = loader if isinstance(data, torch.utils.data.DataLoader) else data
        if isinstance(data, torch.utils.data.Dataset):
            return torch.utils.data.Subset(data, [int(i) for i in positions])
    if hasattr(data, "select") and hasattr(data, "features"):
        return data.select([int(i) for i in positions])  # a Hugging Face data set
    return take(data, positions)


def arrays_of(data: Any, whose: str) -> tuple[Any, Any, np.ndarray | None]:
    """X, y and weights of data given as arrays, which is what a refit needs."""
    if not isinstance(data, tuple) or not 2 <= len(data) <= 3 or data[1] is None:
        raise ExemplaError(
            f"a refit needs the {whose} as arrays: give (X, y) or (X, y, sample_weight)."
        )
    X, y, weights = (*data, None)[:3]
    if n_rows(X) != n_rows(y):
        raise ExemplaError(f"X has {n_rows(X)} rows but y has {n_rows(y)}.")
    return X, y, None if weights is None else np.asarray(weights, dtype=np.float64)
