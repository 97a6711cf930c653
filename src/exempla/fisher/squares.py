"""Σ r rᵀ of rows that come a few at a time.

Every product of rows adds a p × p matrix to the sum, and with few rows in each that addition costs
more than the product. So rows wait until there are enough of them, however small the batches they
come in. In main memory the product is BLAS's symmetric one, half the work of a general one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs

from exempla.arrays import Array, is_tensor, to_numpy

__all__ = ["SumOfSquares", "in_double"]

ENOUGH = 2048
"""Rows in a product: adding its p × p matrix then takes a twentieth of the time it does."""


class SumOfSquares:
    """Σ r rᵀ (p, p) in double precision, or its diagonal (p,).

    >>> total = SumOfSquares()
    >>> for row in np.eye(3):
    ...     total.add(2 * row[None])
    >>> np.diag(total.done()).tolist()
    [4.0, 4.0, 4.0]
    """

    def __init__(self, diagonal: bool = False) -> None:
        self.diagonal = diagonal
        self._total: Any = None
        self._waiting: Any = None
        self._held = 0

    def add(self, rows: Array) -> None:
        """Rows (n, p), all of one kind and precision."""
        if self.diagonal:
            squares = in_double((rows * rows).sum(0))
            self._total = squares if self._total is None else self._total + squares
            return
        start = 0
        while start < len(rows):
            if self._held == 0 and len(rows) - start >= ENOUGH:  # as they are, not copied
                self._multiply(rows[start : start + ENOUGH])
                start += ENOUGH
                continue
            if self._waiting is None:
                self._waiting = empty_like(rows, ENOUGH)
            some = rows[start : start + ENOUGH - self._held]
            self._waiting[self._held : self._held + len(some)] = some
            self._held, start = self._held + len(some), start + len(some)
            if self._held == ENOUGH:
                self._flush()

    def done(self) -> np.ndarray:
        """The sum; nothing can be added after it."""
        if self._held:
            self._flush()
        self._waiting = None
        total = to_numpy(self._total)
        if total.ndim == 2 and not is_tensor(self._total):
            for j in range(1, len(total)):  # what the symmetric product leaves out
                total[:j, j] = total[j, :j]
        return total

    def _flush(self) -> None:
        self._multiply(self._waiting[: self._held])
        self._held = 0

    def _multiply(self, rows: Array) -> None:
        if is_tensor(rows) and rows.device.type != "cpu":
            product = rows.T @ rows
            self._total = product.double() if self._total is None else self._total.add_(product)
            return
        here = to_numpy(rows)
        if self._total is None:
            self._total = np.zeros((here.shape[1],) * 2)
        # the transpose of rows in C order is what LAPACK calls a matrix; its upper triangle there
        # is the lower one here
        syrk: Any = get_blas_funcs("syrk", (here,))
        if here.dtype == np.float64:
            syrk(1.0, here.T, beta=1.0, c=self._total.T, overwrite_c=True)
        else:
            self._total += syrk(1.0, here.T).T


def empty_like(rows: Array, count: int) -> Array:
    """Room for so many of these rows."""
    shape = (count, rows.shape[1])
    return np.empty(shape, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_empty(shape)


def in_double(array: Array) -> Array:
    """A float64 copy on the same device."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()
