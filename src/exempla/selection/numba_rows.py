"""Rows of a NumPy array or on disk: what NumPy does in several passes, compiled into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from exempla.arrays import Array
from exempla.selection.rows import ArrayRows

# Sums may be reordered, which vector units need, but infinities keep their meaning.
_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy", "nogil": True
}  # fmt: skip


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile with an on-disk cache, or without one where no folder is writable."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**_OPTIONS)(function)


@_compiled
def _follow(V, c, n, slack, steps, n_decreases, reach):
    """`ArrayRows.follow`, with an integer for each row."""
    falls = 1.0 if n_decreases else 0.0
    for s in range(steps.shape[1]):
        coef, threshold = steps[0, s], steps[1, s]
        for j in range(len(c)):
            v = np.float64(V[s, j])
            c[j] -= coef * v
            n[j] -= falls * v * v
            upper = abs(c[j]) + slack[j]
            reach[j] |= upper * upper >= threshold * n[j]


@_compiled
def _products(F, q, out):
    """Compute F q in float64."""
    for j in range(len(F)):
        v = 0.0
        for i in range(F.shape[1]):
            v += np.float64(F[j, i]) * q[i]
        out[j] = v


class NumbaRows(ArrayRows):
    """C-contiguous or stored rows."""

    def __init__(self, array: Any, tolerance: float | None = None) -> None:
        stored = hasattr(array, "stream")
        super().__init__(array if stored else np.ascontiguousarray(array), tolerance)

    def products(self, vectors: np.ndarray) -> np.ndarray:
        if len(vectors) > 1:
            return super().products(vectors)
        out, q = np.empty((1, self.t)), np.ascontiguousarray(vectors[0])
        self.over_blocks(lambda part, rows: _products(rows, q, out[0, part]))
        return out

    def follow(
        self, V: Array, c: Array, n: Array, slack: Array, steps: np.ndarray, n_decreases: bool
    ) -> np.ndarray:
        reach = np.zeros(len(c), np.int64)
        _follow(V, c, n, slack, steps, n_decreases, reach)
        return reach > 0
