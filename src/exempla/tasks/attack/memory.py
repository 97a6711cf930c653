"""What an attack takes beside the model and the data as given.

n training rows of x bytes each, in the type they are computed in. Kept: the rows as an array of
their own and, of a linear model, once more as its inputs. To find the rows of most reach all of
them are moved to the best corner of their box, which takes five more for a moment; an attack on
rows that are named, or on the target, is content with two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.data import n_rows

__all__ = ["expected_peak"]

LOADED = 10 * 2**20
"""Bytes that modules loaded on the way take."""
NUMBERS = 8
"""Numbers besides for each row: codes, probabilities, products."""
SEARCHING, NAMED = 7, 4


def expected_peak(X: Any, itemsize: int, searched: bool) -> float:
    """Bytes, most of all at one time.

    >>> round(expected_peak(np.zeros((1000, 2000)), 8, searched=True) / 2**20)
    117
    """
    n = n_rows(X)
    shape = np.shape(X) if is_sparse(X) or hasattr(X, "shape") else np.shape(X[:1])
    row = itemsize * float(np.prod(shape[1:]))
    copies = SEARCHING if searched else NAMED
    return LOADED + n * (copies * row + 8 * NUMBERS)
