"""Float64 state of one run beside the rows: Gram–Schmidt in blocks, c and n of every candidate.

What `basis.Basis` does pick by pick on the host is done here for several picks at once: their
products are matrices, and nothing is asked of the host in between. L is the Cholesky factor of
K_SS + σ²I; everything else about the basis follows from it (`finished`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Rule
from exempla.selection.run import Run

__all__ = ["SPARE", "State", "scores"]

SPARE = 1e-10
"""What block-wise float64 arithmetic may do to a product of unit vectors, generously: rows that are
picked have at least 1e-5 of their length outside the span."""


def scores(rule: Rule, c: Any, n: Any, scale: Any) -> Any:
    """`Rule.score` for tensors."""
    return c * c / n if rule is Rule.GAIN else c * c * scale


class State:
    """Directions, coefficients, residual, and the race of one run, on the device of the rows."""

    def __init__(
        self, rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule
    ) -> None:
        self.rows, self.run, self.noise, self.rule = rows, run, noise, rule
        self.F = rows.array
        kwargs: dict[str, Any] = {"dtype": torch.float64, "device": rows.array.device}
        self.kwargs = kwargs
        self.norms2 = rows.norms2_here
        self.lengths = torch.sqrt(self.norms2)
        self.floor = self.norms2 * rows.tolerance
        self.scale = rows.here(rule.scale(rows.norms2, noise))
        self.target_norm = float(np.linalg.norm(run.basis.target))
        self.m = run.basis.size
        self.Q = torch.zeros((k, rows.p), **kwargs)
        self.L = torch.zeros((k, k), **kwargs)
        self.coefs = torch.zeros(k, **kwargs)
        self._load(run.basis)
        kept = rows.here(candidates & (rows.norms2 > 0))
        n = self.norms2 + noise
        if self.m:
            n = n - rows.here(rows.energy(run.basis.directions))
        self.n = torch.where(kept, n, -torch.inf)
        if run.indices:
            self.n[rows.here(np.array(run.indices))] = -torch.inf
        self.c = torch.empty_like(self.n)
        self.refresh()

    def _load(self, basis: Basis) -> None:
        here, m = self.rows.here, self.m
        self.residual = here(basis.residual)
        self.Q[:m] = here(basis.directions)
        self.L[:m, :m] = here(basis.lower)
        self.coefs[:m] = here(basis.coefs)

    def refresh(self) -> None:
        """c anew, in float64."""
        self.c[:] = self.rows.products(self.residual[None])[0]
        self.run.fresh_norm, self.run.drift = self.residual_norm, 0.0

    @property
    def residual_norm(self) -> float:
        return float(torch.linalg.vector_norm(self.residual))

    def alive_scores(self) -> Any:
        """(t,) scores; −inf for rows that are out or have nothing new."""
        found = scores(self.rule, self.c, self.n, self.scale)
        return torch.where(self.n > self.floor, found, -torch.inf)

    def measure(self, indices: Any, Q: Any, residual: Any) -> tuple[np.ndarray, ...]:
        """(c, n, ‖f‖²) of these rows on the host, given directions and residual, in float64."""
        rows = self.F[indices].double()
        squared, inside = (rows * rows).sum(1), rows @ Q.T
        n = squared + self.noise - (inside * inside).sum(1)
        return tuple(torch.stack([rows @ residual, n, squared]).cpu().numpy())

    def keep(self, picks: list[int], q: Any, lower: Any, coefs: Any) -> None:
        """Take picks in: directions (b, p), their rows of L (b, m + b), coefficients (b,)."""
        m, b = self.m, len(picks)
        self.Q[m : m + b] = q
        self.L[m : m + b, : m + b] = lower
        self.coefs[m : m + b] = coefs
        self.residual = self.residual - coefs @ q
        self.n[self.rows.here(np.array(picks))] = -torch.inf
        self.run.indices.extend(picks)
        self.m += b

    def finished(self) -> None:
        """Hand the basis over to the run."""
        m = self.m
        lower, coefs = self.L[:m, :m].cpu().numpy(), self.coefs[:m].cpu().numpy()
        rows = self.rows.take(np.array(self.run.indices, dtype=np.int64))
        old = self.run.basis
        self.run.basis = Basis.of(old.target, old.noise, old.tolerance, rows, lower, coefs)
