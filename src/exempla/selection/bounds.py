"""The mathematics of a certificate: what no set of candidates can exceed.

g(S) = z_S'(K_SS + σ²I)⁻¹z_S is what a set S explains of ‖μ‖²; S*_r is the best set of r rows.

(a) g(S) ≤ ‖Pμ‖² for every set, P being the projection on the span of the candidates.
(b) With noise, every set of gains given L obeys Σ_j g(j|L) ≥ γ·g(S|L), γ ≥ σ²/(σ² + max‖f‖²):
    the residual Gram matrix has no eigenvalue below σ² and no diagonal entry above σ² + max‖f‖².
    Hence exact greedy gives g(S_k) ≥ (1 − e^{−γk/r})·g(S*_r).
(c) g(S*_r) ≤ g(S_i) + (1/γ)·(sum of the r largest gains given S_i), for every prefix S_i of any
    selection; for r = 1 and i = 0 even with γ = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.results import Selection
from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Rows

__all__ = ["Finished"]

ROUNDING = 1e-9
"""Certified bounds are widened by this share, far above what rounding can do to them."""
AMPLE = 1e-6
"""Unit rows whose smallest singular value is above this span everything beyond doubt."""
BUDGET = 1e9
"""Multiplications the cheap level spends on finding the span before it settles for ‖μ‖²."""


@dataclass(frozen=True)
class Finished:
    """A finished selection and what it was made from."""

    selection: Selection
    rows: Rows
    target: np.ndarray
    """μ, (p,) float64."""
    alignment: np.ndarray
    """(t,): z_j = f_j·μ."""
    candidates: np.ndarray
    """(t,) bool."""

    @property
    def norm2(self) -> float:
        """‖μ‖²."""
        return float(self.target @ self.target)

    @property
    def largest(self) -> float:
        """max ‖f‖² over the candidates."""
        return float(self.rows.norms2[self.candidates].max(initial=0.0))

    @property
    def γ(self) -> float:
        """Statement (b)."""
        noise, largest = self.selection.noise, self.largest
        return noise / (noise + largest) if largest else 1.0

    @property
    def greedy(self) -> bool:
        """Whether the picks are those of exact greedy on a problem where γ is above 0."""
        noise = self.selection.noise
        return self.selection.selector == "SBQ" and noise > self.rows.tolerance * self.largest

    def span(self, *, exact: bool) -> float:
        """Statement (a): ‖Pμ‖², or ‖μ‖² (always a bound) if it need not be exact and is costly.

        Row lengths do not change the span, so unit rows are used; a QR factor is carried from
        block to block, which keeps singular values to 1e-16 where a Gram matrix would keep 1e-8.
        """
        rows, norm2 = self.rows, self.norm2
        chosen = np.flatnonzero(self.candidates)
        if not len(chosen):
            return 0.0
        step = max(1024, 2 * rows.p)
        R, spent = np.empty((0, rows.p)), 0.0
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            height = len(R) + len(part)
            spent += float(height) * rows.p * min(height, rows.p)
            if not exact and spent > BUDGET:
                return norm2
            unit = rows.take(part) / np.sqrt(rows.norms2[part])[:, None]
            R = np.linalg.qr(np.vstack([R, unit]), mode="r")
            if len(R) == rows.p and np.linalg.svd(R, compute_uv=False)[-1] > AMPLE:
                return norm2  # everything is spanned already
        _, singular, directions = np.linalg.svd(R, full_matrices=False)
        # Singular values at the level of rounding are not told from zero; all others count.
        real = singular > 64 * np.finfo(float).eps * np.sqrt(len(chosen))
        inside = directions[real] @ self.target
        return min(norm2, float(inside @ inside) * (1 + ROUNDING))

    def best_sets(self, r: int, span: float, *, replay: bool) -> np.ndarray:
        """Bounds on g(S*_s) for s = 0 … max(r, k): statement (c), never above statement (a).

        From the first step alone, or with `replay` the best over all steps.
        """
        most = max(r, len(self.selection))
        n = np.where(self.candidates, self.rows.norms2 + self.selection.noise, 1)
        gains = np.where(self.candidates, self.alignment * self.alignment / n, 0)
        first = _largest(gains[:, None], most)
        steps, explained = first, np.zeros(1)
        if replay and self.γ > 0 and len(self.selection):
            steps, explained = self._replay(most)
        bounds = np.full(most + 1, span)
        bounds[0] = 0.0
        if self.γ > 0:
            sums = np.cumsum(steps, axis=0) / self.γ + explained
            bounds[1:] = np.minimum(bounds[1:], sums.min(axis=1) * (1 + ROUNDING))
        bounds[1] = min(bounds[1], first[0, 0] * (1 + ROUNDING))
        return bounds

    def _replay(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The largest gains at every step (count, k+1), and what was explained by then (k+1,)."""
        rows, indices, noise = self.rows, self.selection.indices, self.selection.noise
        basis = Basis(self.target, noise, rows.tolerance)
        picked_at = {}  # row → number of directions from which on it is out
        for j, row in zip(indices, rows.take(indices)):
            basis.add(row)
            picked_at[int(j)] = basis.size
        coefs = np.concatenate([[0.0], basis.coefs])
        Q = np.vstack([np.zeros(rows.p), basis.directions])
        largest = np.zeros((count, len(Q)))
        step = max(1, (1 << 24) // (8 * max(rows.p, len(Q))))
        chosen = np.flatnonzero(self.candidates)
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            block = rows.take(part)
            V = block @ Q.T
            c = (block @ self.target)[:, None] - np.cumsum(coefs * V, axis=1)
            n = (rows.norms2[part] + noise)[:, None] - np.cumsum(V * V, axis=1)
            # n is at least σ² in exact arithmetic.
            gains = c * c / np.maximum(n, noise)
            for position in np.flatnonzero(np.isin(part, indices)):
                gains[position, picked_at[int(part[position])] :] = 0.0
            largest = _largest(np.vstack([largest, gains]), count)
        return largest, np.cumsum(coefs * coefs)

    def eigenvalue_ratio(self) -> float:
        """m/M of K_SS + σ²I."""
        if not len(self.selection):
            return 0.0
        picked = self.rows.take(self.selection.indices)
        gram = picked @ picked.T + self.selection.noise * np.eye(len(picked))
        eigenvalues = np.linalg.eigvalsh(gram)
        return float(max(0.0, eigenvalues[0]) / eigenvalues[-1])


def _largest(gains: np.ndarray, count: int) -> np.ndarray:
    """(count, …) the largest entries of each column, descending, padded with zeros."""
    if len(gains) > count:
        gains = np.partition(gains, len(gains) - count, axis=0)[-count:]
    out = np.zeros((count, gains.shape[1]))
    out[: len(gains)] = -np.sort(-gains, axis=0)
    return out
