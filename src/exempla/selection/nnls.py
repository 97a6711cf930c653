"""Nonnegative least squares: updated row by row, or solved once for all rows.

`GrowingNNLS` (the active-set method of Lawson and Hanson) updates the last solution when a row is
added, which may depend on the others. `nonnegative_minimum` (block pivoting) assumes that most
weights are positive and handles thousands of rows in a few solves.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve

_MAX_STALLED_EXCHANGES = 3
"""Block exchanges without progress that are allowed before single exchanges take over."""


class GrowingNNLS:
    """Minimise ‖μ − Σ w_i f_i‖² over w ≥ 0 while rows are added.

    Columns are unit rows, so that tolerances do not depend on row lengths. Each solution starts
    from the last one: usually the new row becomes positive and one system is solved.
    """

    TOLERANCE = 1e-12

    def __init__(self, target: np.ndarray) -> None:
        self.target = target
        self.scale = float(np.linalg.norm(target))
        self._units = np.empty((0, len(target)))
        self._gram, self._norms, self._w = np.empty((0, 0)), np.empty(0), np.empty(0)

    @property
    def weights(self) -> np.ndarray:
        return self._w / self._norms

    @property
    def residual(self) -> np.ndarray:
        return self.target - self._w @ self._units

    def add(self, row: np.ndarray) -> None:
        """Add a row and solve again."""
        norm = float(np.linalg.norm(row))
        across = (self._units @ (row / norm))[:, None]
        self._gram = np.block([[self._gram, across], [across.T, np.ones((1, 1))]])
        self._units = np.vstack([self._units, row / norm])
        self._norms, self._w = np.append(self._norms, norm), np.append(self._w, 0.0)
        blocked = np.zeros(len(self._w), bool)  # columns that depend on the positive ones
        while True:
            gradient = np.where(blocked | (self._w > 0), -np.inf, self._units @ self.residual)
            entering = int(np.argmax(gradient))
            if gradient[entering] <= self.TOLERANCE * self.scale:
                return
            if self._is_independent(entering):
                self._descend(entering)
            if self._w[entering] > 0:
                blocked[:] = False
            else:
                blocked[entering] = True

    def _is_independent(self, column: int) -> bool:
        """Return True if a column is not a combination of those with positive weights."""
        at = np.flatnonzero(self._w > 0)
        across = self._gram[at, column]
        return float(across @ self._solved(at, across)) < 1.0 - self.TOLERANCE

    def _solved(self, at: np.ndarray, right: np.ndarray) -> np.ndarray:
        return cho_solve(cho_factor(self._gram[np.ix_(at, at)]), right) if len(at) else right

    def _descend(self, entering: int) -> None:
        """Add a column to those with positive weights; remove those whose weights reach 0."""
        at = np.append(np.flatnonzero(self._w > 0), entering)
        while len(at):
            here, solution = self._w[at], self._solved(at, self._units[at] @ self.target)
            falling = solution <= 0
            if not falling.any():
                self._w[at] = solution
                return
            # The first weight to reach zero on the way from here to the solution.
            ratio = here[falling] / (here[falling] - solution[falling])
            moved = here + ratio.min() * (solution - here)
            moved[np.flatnonzero(falling)[ratio <= ratio.min()]] = 0.0
            self._w[at] = np.maximum(moved, 0.0)
            at = at[self._w[at] > 0]


def nonnegative_minimum(gram: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Return u ≥ 0 that minimises ½uᵀGu − uᵀb for positive definite G (block pivoting).

    Solve on the free coordinates, exchange all that violate a sign condition (u < 0 if free,
    gradient < 0 if fixed), repeat. If that makes no progress, exchange only the last one, which
    terminates (Murty's rule).
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
