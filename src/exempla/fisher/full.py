"""The whole Fisher in sketch space: correlations across layers stay."""

from __future__ import annotations

from threading import RLock
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from exempla.arrays import Array, matmul_as, solve_lower, to_numpy
from exempla.errors import ExemplaError
from exempla.fisher.base import Metric

__all__ = ["FullMetric"]

JITTER = 1e-10
"""Added, relative to the mean eigenvalue, to a metric that is singular without damping."""
SINGULAR = (
    "the Fisher metric is singular without damping: leave damping='auto' or give a positive number."
)


class FullMetric(Metric):
    """M = F + λR + damping·I, applied through one Cholesky factor L Lᵀ = M per damping.

    One p × p array holds both: F + λR above its diagonal, L of the last damping on and below it.
    The matrix given is taken over and overwritten. Threads may ask for different dampings: each
    has the array to itself from factoring to the end of its use.
    """

    name = "full"

    def __init__(self, matrix: np.ndarray) -> None:
        # symmetric, so its transpose is the matrix in the order LAPACK works in, without a copy
        self._array: Any = np.asfortranarray(np.asarray(matrix, dtype=np.float64).T)
        self._diagonal = np.diag(self._array).copy()
        self._damping: float | None = None
        self._added = 0.0
        """What had to be added to make M invertible (mostly 0)."""
        self._inverse: Any = None
        self._in_use = RLock()

    def __getstate__(self) -> dict[str, Any]:
        # Without the lock, nor a factor that another thread may be replacing meanwhile: what lies
        # above the diagonal never changes, and the factor is made of it again.
        return {**vars(self), "_in_use": None, "_damping": None, "_inverse": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._in_use = RLock()

    @property
    def matrix(self) -> np.ndarray:
        """F + λR, written out."""
        with self._in_use:
            above = np.triu(self._array, 1)
            return above + above.T + np.diag(self._diagonal)

    def whiten(self, rows: Array, damping: float) -> Array:
        with self._in_use:
            self._factor(damping)
            white, added = self._whitened(rows), self._added
        if added:
            # A direction without curvature is harmless (the softmax's common shift) unless a
            # score has a part in it: that part would be blown up by 1/added.
            blown_up = to_numpy((white * white).sum(1)) * added > 1e-6 * to_numpy(
                (rows * rows).sum(1)
            )
            if blown_up.any():
                raise ExemplaError(SINGULAR)
        return white

    def solve(self, rows: Array, damping: float) -> Array:
        with self._in_use:
            white = self.whiten(rows, damping)
            if isinstance(white, np.ndarray):
                return solve_lower(self._array, white, transposed=True)
            return matmul_as(white, self._inverse_factor().T)

    def _factor(self, damping: float) -> None:
        """L for this damping, where the array does not hold it already."""
        if damping == self._damping:
            return
        self._damping = self._inverse = None
        self._added = 0.0
        if not self._cholesky(damping):
            self._added = JITTER * float(self._diagonal.sum()) / len(self._diagonal)
            if not self._cholesky(damping + self._added):
                raise ExemplaError(SINGULAR)
        self._damping = damping

    def _cholesky(self, damping: float) -> bool:
        """Whether F + λR + damping·I could be factored."""
        array: Any = self._array
        for j in range(len(array)):
            array[j + 1 :, j] = array[j, j + 1 :]
        array[np.diag_indices_from(array)] = self._diagonal + damping
        self._array, failed = dpotrf(array, lower=1, clean=0, overwrite_a=1)
        return failed == 0

    def _whitened(self, rows: Array) -> Array:
        """rows · L⁻ᵀ: by a triangular solve, or on a torch device by the inverse, made once."""
        if isinstance(rows, np.ndarray):
            return solve_lower(self._array, rows)
        return matmul_as(rows, self._inverse_factor())

    def _inverse_factor(self) -> Any:
        """W = L⁻ᵀ, written out."""
        if self._inverse is None:
            lower = np.asfortranarray(np.tril(self._array))
            inverse: Any = dtrtri(lower, lower=1, overwrite_c=1)[0]
            self._inverse = inverse.T
        return self._inverse
