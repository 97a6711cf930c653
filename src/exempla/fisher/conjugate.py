"""Conjugate gradients: M X = B from products M V alone, sped up by an approximate inverse.

Every column is a problem of its own; they share the products, as one pass over the data serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Solution", "conjugate_gradients"]

Columns = Any
"""A (P, B) array, NumPy or torch."""


@dataclass(frozen=True)
class Solution:
    """What was found, and how well it solves the equations."""

    x: Columns
    residual: float
    """‖b − M x‖ / ‖b‖ of the worst column."""
    steps: int
    """Products with M that it took."""


def conjugate_gradients(
    product: Callable[[Columns], Columns],
    b: Columns,
    precondition: Callable[[Columns], Columns],
    tolerance: float,
    limit: int,
) -> Iterator[Solution]:
    """The solution after each step, until all residuals are small or the steps are used up.

    `product` is V ↦ M V for a symmetric positive M, `precondition` V ↦ C V with C ≈ M⁻¹, symmetric
    and positive too. The first solution given is C b, before any step.
    """
    size = dots(b, b) ** 0.5
    size = size + (size == 0.0)  # a column of zeros is solved by zeros
    x = precondition(b)
    residual = b - product(x)
    direction, energy = x, None
    for step in range(1, limit + 1):
        left = float((dots(residual, residual) ** 0.5 / size).max())
        yield Solution(x, left, step)
        if left <= tolerance or step == limit:
            return
        toward = precondition(residual)
        before, energy = energy, dots(residual, toward)
        direction = toward if before is None else toward + ratio(energy, before) * direction
        moved = product(direction)
        length = ratio(energy, dots(direction, moved))
        x, residual = x + length * direction, residual - length * moved


def dots(a: Columns, b: Columns) -> Any:
    """a·b of each pair of columns, (B,)."""
    return (a * b).sum(0)


def ratio(a: Any, b: Any) -> Any:
    """a / b, and 0 for a column that is solved to the last digit (0 / 0)."""
    done = b == 0.0
    return a * ~done / (b + done)
