"""One target's way through the greedy loop, and how close calls on it are settled in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from exempla.selection.basis import Basis, Mark
from exempla.selection.candidates.base import Race, Rule
from exempla.selection.ties import ROUNDING, first_of_best

__all__ = ["FALL", "RESIDUAL", "Run", "best_row", "measured_bounds", "score_bounds", "slack"]

FALL = 0.1
"""c is recomputed when ‖r‖ has fallen to this share of what it was at the last recomputation."""
RESIDUAL = 1e-7
"""Without noise the target counts as matched when ‖r‖ is below this share of ‖μ‖."""


@dataclass
class Run:
    """One target's way through the loop."""

    basis: Basis
    candidates: int
    indices: list[int] = field(default_factory=list)
    stopped: str = ""
    fresh_norm: float = 0.0
    """‖r‖ when c was last recomputed."""
    drift: float = 0.0
    """Σ |coef| since then: c is off by at most error·drift·‖f‖."""

    @property
    def residual_norm(self) -> float:
        return math.sqrt(self.basis.mmd2)

    @property
    def matched(self) -> bool:
        basis = self.basis
        small = RESIDUAL * basis.target_norm
        return basis.noise == 0.0 and self.residual_norm < small

    @property
    def stale(self) -> bool:
        """Whether c must be recomputed."""
        return self.residual_norm <= FALL * self.fresh_norm

    def take(self, j: int, row: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Pick row j: its direction, its coefficient, and whether it adds a direction at all."""
        added = self.basis.add(row)
        self.indices.append(j)
        if added is None:
            return np.zeros(len(row)), 0.0, False
        self.drift += abs(added[1])
        return *added, True

    def rewind(self, mark: Mark, drift: float) -> None:
        """Take back all picks since the mark."""
        del self.indices[mark.picks - self.basis.picks :]
        self.basis.rewind(mark)
        self.drift = drift


def slack(race: Race, run: Run) -> tuple[float, float]:
    """Bounds on the race's errors of c, in units of ‖f‖, and of n, in units of ‖f‖²."""
    slack_c = race.error * run.drift + ROUNDING * run.basis.target_norm
    # Σ|2 v δ| ≤ 2·error·‖f‖·Σ|v| ≤ 2·error·√m·‖f‖² over m passes (Cauchy–Schwarz, Σv² ≤ ‖f‖²).
    slack_n = 2.0 * race.error * math.sqrt(len(run.indices)) + ROUNDING
    return slack_c, slack_n


def best_row(rows: np.ndarray, basis: Basis, tolerance: float, rule: Rule) -> int:
    """Which of these rows (m, p) is the best to add, the first among equals; −1 if none is."""
    return first_of_best(*score_bounds(rows, basis, tolerance, rule))


def score_bounds(
    rows: np.ndarray, basis: Basis, tolerance: float, rule: Rule
) -> tuple[np.ndarray, np.ndarray]:
    """What the score of each row (m, p) is at least and at most; −inf for rows with nothing new.

    c and n are free of the race's errors here: what is left is rounding.
    """
    return measured_bounds(basis.measure(rows), basis.noise, basis.target_norm, tolerance, rule)


def measured_bounds(
    measured: tuple[np.ndarray, ...],
    noise: float,
    target_norm: float,
    tolerance: float,
    rule: Rule,
) -> tuple[np.ndarray, np.ndarray]:
    """The same of rows whose (c, n, ‖f‖²) are known."""
    c, n, norms2 = measured
    alive = n > tolerance * norms2
    lowest, highest = rule.bounds(c, n, norms2, noise, ROUNDING * target_norm, ROUNDING)
    return np.where(alive, lowest, -np.inf), np.where(alive, highest, -np.inf)
