"""Nonnegative least squares: updated row by row, or solved once for all rows.

`GrowingNNLS` (the active-set method of Lawson and Hanson) updates the last solution when a row is
added, which may depend on the others. `nonnegative_minimum` (block pivoting) assumes that most
weights are positive and handles thousands of rows in a few solves.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve, solve_triangular

__all__ = ["GrowingNNLS", "nonnegative_minimum"]

_MAX_STALLED_EXCHANGES = 3
"""Block exchanges without progress that are allowed before single exchanges take over."""


class GrowingNNLS:
    """Minimise ‖μ − Σ w_i f_i‖² over w ≥ 0 while rows are added.

    Columns are unit rows, so that tolerances do not depend on row lengths. The passive set (w > 0)
    and its Cholesky factor are kept between solutions: adding a row usually costs one triangular
    solve.
    """

    TOLERANCE = 1e-12

    def __init__(self, target: np.ndarray) -> None:
        self.target = target
        self.scale = float(np.linalg.norm(target))
        self._units = np.empty((0, len(target)))
        self._gram = np.empty((0, 0))
        self._z = np.empty(0)
        self._norms = np.empty(0)
        self._w = np.empty(0)
        self._passive: list[int] = []
        self._factor = np.empty((0, 0))  # lower Cholesky factor of the passive Gram matrix

    @property
    def weights(self) -> np.ndarray:
        return self._w / self._norms

    @property
    def residual(self) -> np.ndarray:
        return self.target - self._w @ self._units

    def add(self, row: np.ndarray) -> None:
        """Add a row and solve again."""
        norm = float(np.linalg.norm(row))
        unit = row / norm
        across = self._units @ unit
        m = len(self._w)
        gram = np.empty((m + 1, m + 1))
        gram[:m, :m], gram[m, :m], gram[:m, m], gram[m, m] = self._gram, across, across, 1.0
        self._gram = gram
        self._units = np.vstack([self._units, unit])
        self._z = np.append(self._z, unit @ self.target)
        self._norms = np.append(self._norms, norm)
        self._w = np.append(self._w, 0.0)
        self._solve()

    def _solve(self) -> None:
        blocked: set[int] = set()  # columns that depend on the passive ones
        while True:
            gradient = self._units @ self.residual
            gradient[[*self._passive, *blocked]] = -np.inf
            entering = int(np.argmax(gradient))
            if gradient[entering] <= self.TOLERANCE * self.scale:
                return
            if not self._enter(entering):
                blocked.add(entering)
                continue
            self._descend()
            if entering in self._passive:
                blocked.clear()
            else:
                blocked.add(entering)  # rounding removed it at once: do not cycle

    def _enter(self, column: int) -> bool:
        """Extend the factor by a column; return False if the column is dependent."""
        m = len(self._passive)
        row = solve_triangular(self._factor, self._gram[self._passive, column], lower=True)
        pivot = 1.0 - float(row @ row)
        if pivot <= self.TOLERANCE:
            return False
        factor = np.zeros((m + 1, m + 1))
        factor[:m, :m], factor[m, :m], factor[m, m] = self._factor, row, np.sqrt(pivot)
        self._factor = factor
        self._passive.append(column)
        return True

    def _descend(self) -> None:
        """Move to the least squares solution of the passive set, dropping weights that reach 0."""
        while self._passive:
            passive = np.array(self._passive)
            solution = cho_solve((self._factor, True), self._z[passive])
            if (solution > 0).all():
                self._w[:] = 0.0
                self._w[passive] = solution
                return
            here = self._w[passive]
            falling = solution <= 0
            # The first weight to reach zero on the way from here to the solution.
            ratio = here[falling] / (here[falling] - solution[falling])
            step = float(ratio.min())
            moved = here + step * (solution - here)
            moved[np.flatnonzero(falling)[ratio <= step]] = 0.0
            self._w[passive] = np.maximum(moved, 0.0)
            self._passive = [int(j) for j in passive[self._w[passive] > 0]]
            block = self._gram[np.ix_(self._passive, self._passive)]
            self._factor = cholesky(block, lower=True) if len(block) else block


def nonnegative_minimum(gram: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Return u ≥ 0 that minimises ½uᵀGu − uᵀb for positive definite G (block pivoting).

    Solve on the free coordinates, exchange all that violate a sign condition (u < 0 if free,
    gradient < 0 if fixed), repeat. If that makes no progress, exchange only the last one, which
    terminates (Murty's rule).

    >>> import numpy as np
    >>> nonnegative_minimum(np.eye(2), np.array([1.0, -1.0]))
    array([1., 0.])
    """
    k = len(linear)
    free = np.ones(k, dtype=bool)
    fewest, patience = k + 1, _MAX_STALLED_EXCHANGES
    scale = 1e-12 * max(float(np.abs(linear).max(initial=0.0)), np.finfo(float).tiny)
    solution = np.zeros(k)
    for _ in range(20 * k + 100):
        solution = np.zeros(k)
        if free.any():
            block = gram[np.ix_(free, free)]
            solution[free] = solve(block, linear[free], assume_a="pos")
        gradient = gram @ solution - linear
        wrong = np.where(free, solution < 0, gradient < -scale)
        count = int(wrong.sum())
        if count == 0:
            break
        if count < fewest:
            fewest, patience = count, _MAX_STALLED_EXCHANGES
        else:
            patience -= 1
        if patience >= 0:
            free ^= wrong
        else:
            free[np.flatnonzero(wrong)[-1]] ^= True
    return np.maximum(solution, 0.0)
