"""Conjugate gradients: M x = b from products M v alone, sped up by an approximate inverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Solution", "conjugate_gradients"]

Vector = Any
"""A one-dimensional array, NumPy or torch."""


@dataclass(frozen=True)
class Solution:
    """What was found, and how well it solves the equations."""

    x: Vector
    residual: float
    """‖b − M x‖ / ‖b‖."""
    steps: int
    """Products with M that it took."""


def conjugate_gradients(
    product: Callable[[Vector], Vector],
    b: Vector,
    precondition: Callable[[Vector], Vector],
    tolerance: float,
    limit: int,
) -> Iterator[Solution]:
    """The solution after each step, until the residual is small or the steps are used up.

    `product` is v ↦ M v for a symmetric positive M, `precondition` v ↦ C v with C ≈ M⁻¹, symmetric
    and positive too. The first solution given is C b, before any step.
    """
    size = float((b @ b) ** 0.5)
    x = precondition(b)
    if size == 0.0:
        yield Solution(x, 0.0, 0)
        return
    residual = b - product(x)
    yield Solution(x, float((residual @ residual) ** 0.5) / size, 1)
    toward = precondition(residual)
    direction, energy = toward, float(residual @ toward)
    for step in range(2, limit + 1):
        moved = product(direction)
        length = energy / float(direction @ moved)
        x, residual = x + length * direction, residual - length * moved
        left = float((residual @ residual) ** 0.5) / size
        yield Solution(x, left, step)
        if left <= tolerance:
            return
        toward = precondition(residual)
        before, energy = energy, float(residual @ toward)
        direction = toward + (energy / before) * direction
