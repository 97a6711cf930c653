"""Sums of rows of a table: what the product of a matrix of zeros and ones with it comes to.

SciPy multiplies in double precision, an example after the other; here the few rows of the basis
that a tree has stay in the processor's cache while many examples are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

__all__ = ["sum_of_rows"]

BLOCK = 64
"""Examples added up together: their sums and one tree's rows of the table fit in the cache."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with an on-disk cache, or without one where no folder can be written."""
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**options)(function)


@compiled
def _gather(columns, table, out):
    n, count = columns.shape
    fours = count - count % 4
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        for tree in range(0, fours, 4):  # four at a time: a sum is read and written once for them
            for i in range(start, stop):
                a, b = table[columns[i, tree]], table[columns[i, tree + 1]]
                c, d = table[columns[i, tree + 2]], table[columns[i, tree + 3]]
                for j in range(out.shape[1]):
                    out[i, j] += (a[j] + b[j]) + (c[j] + d[j])
        for tree in range(fours, count):
            for i in range(start, stop):
                a = table[columns[i, tree]]
                for j in range(out.shape[1]):
                    out[i, j] += a[j]


def sum_of_rows(columns: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Row i of the result is the sum of the table's rows columns[i], in the table's precision.

    >>> sum_of_rows(np.array([[0, 2]]), np.eye(3, dtype=np.float32))
    array([[1., 0., 1.]], dtype=float32)
    """
    table = np.ascontiguousarray(table)
    out = np.zeros((len(columns), table.shape[1]), dtype=table.dtype)
    _gather(columns, table, out)
    return out
