"""Near-ties: numbers that differ in their last bits alone count as equal.

How many threads a BLAS uses decides in which order it adds, and so the last bits. A choice among
rows that are alike (a row that occurs twice, a probability of one half) must not hang on them: it
falls to the first, as in selection.
"""

from __future__ import annotations

import numpy as np

__all__ = ["TIE", "first_largest", "levels"]

TIE = 1e-9
"""Numbers within this relative distance are equal: far above what a sum in another order changes,
far below what tells one row from another."""


def levels(values: np.ndarray, scale: float = 0.0) -> np.ndarray:
    """Each value's rank, from 0 for the smallest; neighbours that nearly tie share one.

    Two values nearly tie within TIE of the larger one, or of `scale`: what differences and
    log-odds are made of is larger than they are where they vanish.

    >>> import numpy as np
    >>> levels(np.array([0.3, 0.1, 0.1 + 1e-15, 0.2]))
    array([2, 0, 0, 1])
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    size = np.maximum(np.abs(ordered), scale)
    apart = np.diff(ordered) > TIE * np.maximum(size[1:], size[:-1])
    out = np.empty(len(values), dtype=np.int64)
    out[order[:1]] = 0
    out[order[1:]] = np.cumsum(apart)
    return out


def first_largest(table: np.ndarray) -> np.ndarray:
    """The first column of each row of log-probabilities that is, or nearly ties with, the largest.

    >>> import numpy as np
    >>> first_largest(np.log([[0.2, 0.8], [0.5 - 1e-15, 0.5]]))
    array([1, 0])
    """
    best = table.max(axis=1, keepdims=True)
    return np.argmax(table >= best - TIE * np.maximum(np.abs(best), 1.0), axis=1)
