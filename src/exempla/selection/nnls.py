"""Nonnegative least squares: updated row by row, or solved once for all rows.

`GrowingNNLS` (the active-set method of Lawson and Hanson) updates the last solution when a row is
added, which may depend on the others. `nonnegative_minimum` (block pivoting) assumes that most
weights are positive and handles thousands of rows in a few solves.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve
from scipy.linalg.lapack import dposv

from exempla.arrays import padded

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
        self._units, self._gram = np.empty((0, len(target))), np.empty((0, 0))
        self._norms, self._along = np.empty(0), np.empty(0)  # lengths, and products with the target
        self._w = np.empty(0)

    @property
    def weights(self) -> np.ndarray:
        return self._w / self._norms[: len(self._w)]

    @property
    def residual(self) -> np.ndarray:
        return self.target - self._w @ self._units[: len(self._w)]

    def mark(self) -> np.ndarray:
        """Return the current state, to which `rewind` can go back."""
        return self._w.copy()

    def rewind(self, mark: np.ndarray) -> None:
        """Discard the rows added since the mark."""
        self._w = mark.copy()

    def add(self, row: np.ndarray) -> None:
        """Add a row and solve again."""
        m, norm = len(self._w), float(np.linalg.norm(row))
        if m == len(self._norms):
            size = max(16, 2 * m)
            self._units = padded(self._units, (size, len(row)))
            self._gram = padded(self._gram, (size, size))
            self._norms, self._along = padded(self._norms, (size,)), padded(self._along, (size,))
        self._units[m], self._norms[m] = row / norm, norm
        self._along[m] = self._units[m] @ self.target
        self._gram[m, :m] = self._gram[:m, m] = self._units[:m] @ self._units[m]
        self._gram[m, m] = 1.0
        self._w = np.append(self._w, 0.0)
        blocked = np.zeros(m + 1, bool)  # columns that depend on the positive ones
        while True:
            gradient = self._along[: m + 1] - self._gram[: m + 1, : m + 1] @ self._w
            gradient[blocked | (self._w > 0)] = -np.inf
            entering = int(np.argmax(gradient))
            if gradient[entering] <= self.TOLERANCE * self.scale:
                return
            self._descend(entering)
            if self._w[entering] > 0:
                blocked[:] = False
            else:
                blocked[entering] = True

    def _solved(self, at: np.ndarray, right: np.ndarray) -> np.ndarray:
        if not len(at):
            return right
        _, solution, failed = dposv(self._gram[np.ix_(at, at)], right)
        if failed:
            raise np.linalg.LinAlgError("the Gram matrix of the rows is not positive definite")
        return solution

    def _descend(self, entering: int) -> None:
        """Add a column to those with positive weights, unless it depends on them.

        Those whose weights reach 0 are removed.
        """
        at = np.flatnonzero(self._w > 0)
        across = self._gram[at, entering]
        # One factorisation for both: the column in terms of the positive ones, and their weights.
        inside, alone = self._solved(at, np.stack([across, self._along[at]], axis=1)).T
        new = 1.0 - float(across @ inside)
        if not new >= self.TOLERANCE:
            return
        weight = (self._along[entering] - across @ alone) / new
        at, solution = np.append(at, entering), np.append(alone - weight * inside, weight)
        while (falling := solution <= 0).any():
            # The first weight to reach zero on the way from here to the solution.
            here = self._w[at]
            ratio = here[falling] / (here[falling] - solution[falling])
            moved = here + ratio.min() * (solution - here)
            moved[np.flatnonzero(falling)[ratio <= ratio.min()]] = 0.0
            self._w[at] = np.maximum(moved, 0.0)
            at = at[self._w[at] > 0]
            solution = self._solved(at, self._along[at])
        self._w[at] = solution


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
