"""Sums of rows of a table, picked by a sparse matrix: SciPy's product, in single precision.

SciPy multiplies double precision one row at a time; here the few rows of the basis that a tree has
stay in the processor's cache while many examples are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

__all__ = ["sum_of_rows"]


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with an on-disk cache, or without one where no folder can be written."""
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**options)(function)


@compiled
def _gather(starts, columns, values, table, out):
    for i in range(len(out)):
        for at in range(starts[i], starts[i + 1]):
            row, value = table[columns[at]], values[at]
            for j in range(out.shape[1]):
                out[i, j] += value * row[j]


def sum_of_rows(matrix: Any, table: np.ndarray) -> np.ndarray:
    """matrix @ table for a CSR matrix, in the precision of the table.

    >>> from scipy.sparse import csr_array
    >>> sum_of_rows(csr_array([[1.0, 0.0, 1.0]]), np.eye(3, dtype=np.float32))
    array([[1., 0., 1.]], dtype=float32)
    """
    out = np.zeros((matrix.shape[0], table.shape[1]), dtype=table.dtype)
    table = np.ascontiguousarray(table)
    _gather(matrix.indptr, matrix.indices, matrix.data.astype(table.dtype), table, out)
    return out
