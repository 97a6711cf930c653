"""Gram–Schmidt on the picked rows: what a selection explains, exactly, in float64.

Noise is a private coordinate: picked row i is (f_i, σ e_i) in R^p ⊕ R^k, so that the Gram matrix
of the picked rows is K_SS + σ²I. In that space the directions are orthonormal; their first p
coordinates alone are not (unless σ = 0), which is why orthogonality is only ever restored here,
with both parts. A candidate that was not picked has no share in the private coordinates, so its
product with a direction is the product of the feature parts.

Ties and near-ties: the lowest index wins, so that no choice hangs on the last bit of a sum.

Sums are taken in another order by another BLAS, another number of threads, another place of a row
in its block. What that can change is bounded: a product f·r by ROUNDING·‖f‖·‖μ‖ (r is a difference
of vectors as long as μ), and n = ‖f‖² + σ² − ‖Qᵀf‖² by ROUNDING·‖f‖². Rows whose scores are not
apart by more than these bounds are equal.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf


class Mark(NamedTuple):
    """A moment in the growth of a basis."""

    picks: int
    size: int
    residual: np.ndarray
    private: np.ndarray


class Basis:
    """Orthonormal directions spanning the picked rows, and the target's residual.

    In the names of the mathematics: L is the Cholesky factor of K_SS + σ²I, `coefs` = L⁻¹ z_S,
    and `residual` = μ − Σ coef·q = μ − Σ w_i f_i.
    """

    def __init__(self, target: np.ndarray, noise: float, tolerance: float) -> None:
        self.target = np.array(target, dtype=np.float64)
        self.target_norm = float(np.linalg.norm(self.target))
        self.noise = noise
        self.tolerance = tolerance
        self.residual = self.target.copy()
        self.picks = 0
        self.size = 0  # directions: picks that are not dependent on earlier ones
        p = len(self.target)
        self._directions = np.empty((8, p))
        self._rows = np.empty((8, p))
        self._lower = np.zeros((8, 8))
        self._private = np.zeros((8, 8)) if noise else None
        self._private_residual = np.zeros(8)
        self._coefs = np.empty(8)
        self._of_direction: list[int] = []  # which pick each direction came from
        self._gains: list[float] = []
        self._late = False  # whether the directions have still to be made

    @classmethod
    def of(
        cls,
        target: np.ndarray,
        noise: float,
        tolerance: float,
        rows: np.ndarray,
        lower: np.ndarray,
        coefs: np.ndarray,
    ) -> Basis:
        """The basis of these picked rows (m, p), none of them dependent on the others, from L.

        The directions are not made before they are needed: often nobody asks for them again.
        """
        basis, m = cls(target, noise, tolerance), len(rows)
        basis.picks = basis.size = m
        basis._rows, basis._lower, basis._coefs = rows, lower, coefs
        basis._of_direction = list(range(m))
        basis._gains = [float(coef * coef) for coef in coefs]
        basis.residual = basis.target - basis.weights() @ rows
        basis._late = True
        return basis

    def _catch_up(self) -> None:
        """Directions from L: the i-th is Σ_j (L⁻¹)_ij (f_j, σ e_j)."""
        self._late = False
        m, p = self.size, len(self.target)
        size = max(8, m)
        inverse = solve_triangular(self._lower, np.eye(m), lower=True) if m else np.zeros((0, 0))
        self._directions = _grown(inverse @ self._rows, (size, p))
        if self._private is not None:
            private = math.sqrt(self.noise) * inverse
            self._private = _grown(private, (size, size))
            self._private_residual = _grown(-self._coefs @ private, (size,))
        else:
            self._private_residual = np.zeros(size)
        self._rows = _grown(self._rows, (size, p))
        self._lower = _grown(self._lower, (size, size))
        self._coefs = _grown(self._coefs, (size,))

    # -- what was found -----------------------------------------------------------------------

    @property
    def directions(self) -> np.ndarray:
        """(size, p): feature parts of the directions."""
        if self._late:
            self._catch_up()
        return self._directions[: self.size]

    @property
    def rows(self) -> np.ndarray:
        """(picks, p): the picked rows."""
        return self._rows[: self.picks]

    @property
    def gains(self) -> np.ndarray:
        """(picks,): fall of the posterior variance at each pick; 0 for a dependent one."""
        return np.array(self._gains, dtype=np.float64)

    @property
    def coefs(self) -> np.ndarray:
        """(size,): the target's coordinate along each direction."""
        return self._coefs[: self.size]

    @property
    def lower(self) -> np.ndarray:
        """(size, size): L."""
        return self._lower[: self.size, : self.size]

    @property
    def mmd2(self) -> float:
        return float(self.residual @ self.residual)

    def weights(self) -> np.ndarray:
        """w = (K_SS + σ²I)⁻¹ z_S = L⁻ᵀ coefs; a pick that depends on earlier ones gets 0."""
        weights = np.zeros(self.picks)
        if self.size:
            weights[self._of_direction] = solve_triangular(
                self.lower, self.coefs, lower=True, trans="T"
            )
        return weights

    def rank(self) -> int:
        """Number of linearly independent picked rows, noise set aside."""
        return independent(self.rows, self.tolerance) if self.noise else self.size

    # -- what a candidate would add -----------------------------------------------------------

    def measure(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(c, n, ‖f‖²) of candidate rows (m, p), without the rounding of incremental updates."""
        squared = np.vecdot(rows, rows)
        inside = rows @ self.directions.T
        return rows @ self.residual, squared + self.noise - np.vecdot(inside, inside), squared

    # -- growing ------------------------------------------------------------------------------

    def add(self, row: np.ndarray) -> tuple[np.ndarray, float] | None:
        """Take a row in; return its direction q and coefficient, or None if it adds none."""
        if self._late:
            self._catch_up()
        self._reserve()
        i, m = self.picks, self.size
        self._rows[i] = row
        self.picks += 1
        Q = self.directions
        h = Q @ row
        u = row - h @ Q
        private = np.zeros(0)
        if self._private is not None:
            P = self._private[:m, : m + 1]
            private = -(h @ P)
            private[m] += math.sqrt(self.noise)
            # Twice is enough (Kahan): the second round removes what rounding left in the first.
            again = Q @ u + P @ private
            private = private - again @ P
        else:
            again = Q @ u
        u = u - again @ Q
        n = float(u @ u + private @ private)
        if not n > self.tolerance * float(row @ row):
            self._gains.append(0.0)
            return None
        root = math.sqrt(n)
        q = u / root
        # (f, σe)·(r, ρ)/√n; written with u because u is orthogonal to what r no longer holds.
        ρ = self._private_residual
        coef = float(q @ self.residual)
        if self._private is not None:
            private = private / root
            coef += float(private @ ρ[: m + 1])
            self._private[m, : m + 1] = private
            ρ[: m + 1] -= coef * private
        self._directions[m] = q
        self._lower[m, :m] = h + again
        self._lower[m, m] = root
        self._coefs[m] = coef
        self.residual = self.residual - coef * q
        self._of_direction.append(i)
        self._gains.append(coef * coef)
        self.size += 1
        return q, coef

    # -- going back ---------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Where the basis stands; `before` and `rewind` lead back there."""
        if self._late:
            self._catch_up()
        return Mark(self.picks, self.size, self.residual, self._private_residual.copy())

    def before(self, mark: Mark) -> Basis:
        """The basis as it was, to measure with; what is added to it must not be."""
        twin = copy.copy(self)
        twin.picks, twin.size, twin.residual = mark.picks, mark.size, mark.residual
        return twin

    def rewind(self, mark: Mark) -> None:
        """Forget what was added since."""
        self.picks, self.size, self.residual = mark.picks, mark.size, mark.residual
        self._private_residual[:] = 0.0
        self._private_residual[: len(mark.private)] = mark.private
        del self._gains[mark.picks :], self._of_direction[mark.size :]

    def copy(self) -> Basis:
        """An independent copy, so that continuing a selection leaves the earlier one alone."""
        twin = Basis(self.target, self.noise, self.tolerance)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list):
                value = value.copy()
            setattr(twin, name, value)
        return twin

    def _reserve(self) -> None:
        have = len(self._rows)
        if self.picks < have:
            return
        want = 2 * have
        p = len(self.target)
        self._directions = _grown(self._directions, (want, p))
        self._rows = _grown(self._rows, (want, p))
        self._lower = _grown(self._lower, (want, want))
        self._coefs = _grown(self._coefs, (want,))
        if self._private is not None:
            self._private = _grown(self._private, (want, want))
            self._private_residual = _grown(self._private_residual, (want,))


def independent(rows: np.ndarray, tolerance: float) -> int:
    """Number of linearly independent rows (none of them zero)."""
    if not len(rows):
        return 0
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    # Pivoted Cholesky stops where the largest squared distance to the span falls below tol.
    return int(dpstrf(unit @ unit.T, tol=tolerance)[2])


def _grown(old: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    new = np.zeros(shape)
    new[tuple(slice(0, size) for size in old.shape)] = old
    return new


TIE = 1e-12
"""Scores within this relative distance of the best are equal; the lowest index wins."""
ROUNDING = 1e-14
"""What rounding does to a product of unit vectors, generously."""


def just_below(scores: np.ndarray | float) -> np.ndarray:
    """The lowest score that counts as equal."""
    scores = np.asarray(scores)
    finite = np.where(np.isfinite(scores), scores, 0.0)
    return scores - TIE * np.abs(finite)


def first_of_best(lowest: np.ndarray, highest: np.ndarray) -> int:
    """The first entry that may be the best, given what each is at least and at most; −1 if none.

    >>> first_of_best(np.array([1.0, 1.9, 2.0]), np.array([1.2, 2.1, 2.1]))
    1
    """
    best = lowest.max(initial=-np.inf)
    return int(np.argmax(highest >= just_below(best))) if best > -np.inf else -1


def descending(values: np.ndarray) -> np.ndarray:
    """Positions, largest value first; among equals (to rounding) the lowest first.

    >>> descending(np.array([1.0, 3.0 - 1e-15, 3.0]))
    array([1, 2, 0])
    """
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    group = np.concatenate([[0], np.cumsum(ranked[1:] < just_below(ranked[:-1]))])
    return order[np.lexsort((order, group))]


def without_noise(
    z: np.ndarray, norms2: np.ndarray, target_norm2: np.ndarray | float
) -> np.ndarray:
    """Products f·μ with those set to 0 that are nothing but rounding: such a row has no side."""
    return np.where(np.abs(z) <= ROUNDING * np.sqrt(norms2 * target_norm2), 0.0, z)
