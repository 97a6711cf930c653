"""Projected gradient ascent on inputs: sign steps inside an ℓ∞ ball and the valid range.

The unified view of the paper: every attack is max ℓ(z) over ‖x − x₀‖∞ ≤ ε, with

    test side                 ℓ = −log p(y | x)                              x a test point
    training side, influence  ℓ = −k(z, μ)                                   x a training point
    training side, distance   ℓ = ‖μ − z‖²_H = k(μ, μ) − 2k(z, μ) + k(z, z)  x a training point

Sign steps on the second are Koh and Liang's iterate. The third, the paper's, points the same way
once the gradient of k(z, z) is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.arrays import real_numbers
from exempla.errors import ExemplaError
from exempla.tasks.attack.scores import InputScores

__all__ = ["Box", "ascend", "distance_objective", "influence_objective", "loss_objective"]

Objective = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""ℓ of each row, and its gradient."""


@dataclass(frozen=True)
class Box:
    """‖x − centre‖∞ ≤ budget, and lowest ≤ x ≤ highest."""

    centre: np.ndarray
    budget: float
    lowest: Any
    highest: Any

    def project(self, X: np.ndarray) -> np.ndarray:
        near = np.clip(X, self.centre - self.budget, self.centre + self.budget)
        return np.clip(near, self.lowest, self.highest).astype(self.centre.dtype)

    def reach(self, gradient: np.ndarray) -> np.ndarray:
        """Largest first-order rise of ℓ inside the box, per row: the best corner's."""
        corner = self.project(self.centre + self.budget * np.sign(gradient))
        rise = gradient * (corner - self.centre)
        return rise.reshape(len(rise), -1).sum(1)


def ascend(objective: Objective, start: np.ndarray, box: Box, steps: int, step: float) -> Any:
    """x ← Π(x + α sign ∇ℓ), the best x of each row seen on the way."""
    X = box.project(start)
    best, best_value = X.copy(), np.full(len(X), -np.inf)
    for i in range(steps + 1):
        value, gradient = objective(X)
        better = value > best_value
        best[better], best_value[better] = X[better], value[better]
        if i < steps:
            X = box.project(X + step * np.sign(gradient))
    return best


def influence_objective(scores: InputScores, y: np.ndarray, v: Any) -> Objective:
    """−k(z, μ)."""

    def objective(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = scores.pull(X, y, v)
        return -value, -gradient

    return objective


def distance_objective(scores: InputScores, y: np.ndarray, v: Any) -> Objective:
    """‖μ − z‖²_H up to the constant k(μ, μ).

    k(z, z) = sᵀM⁻¹s has gradient 2 ∇ₓ(sᵀw) with w = M⁻¹s held still.
    """

    def objective(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        toward, slope = scores.pull(X, y, v)
        value, gradient = -2.0 * toward, -2.0 * slope
        for i in range(len(X)):
            row, label = X[i : i + 1], y[i : i + 1]
            w = scores.solve(scores.mean_score(row, label))
            own, own_slope = scores.pull(row, label, w)
            value[i] += own[0]
            gradient[i] += 2.0 * own_slope[0]
        return value, gradient

    return objective


def loss_objective(scores: InputScores, y: np.ndarray) -> Objective:
    """−log p(y | x)."""
    return lambda X: scores.loss(X, y)


def valid_range(bounds: Any, X: np.ndarray) -> tuple[Any, Any]:
    """(lowest, highest) as given; "auto": what the training data show, per column of a table."""
    if isinstance(bounds, str):
        if bounds != "auto":
            raise ExemplaError(f"bounds={bounds!r} is not known: use 'auto' or (lowest, highest).")
        return (X.min(0), X.max(0)) if X.ndim == 2 else (X.min(), X.max())
    if bounds is None:
        return -np.inf, np.inf
    pair = isinstance(bounds, tuple | list) and len(bounds) == 2
    lowest, highest = (real_numbers(b, "bounds") for b in bounds) if pair else (1.0, 0.0)
    try:
        np.broadcast_shapes(np.shape(lowest), np.shape(highest), X.shape)
    except ValueError:
        pair = False
    if not pair or not np.all(lowest <= highest):
        raise ExemplaError("bounds must be (lowest, highest), with lowest not above highest.")
    return lowest, highest
