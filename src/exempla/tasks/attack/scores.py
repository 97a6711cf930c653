"""What an attack needs of a model: kernel values with the target, and their gradient in x.

With s(x, y) the score of an example and v = M⁻¹μ the target pulled through the metric,

    k(z, μ) = s(x, y)ᵀ v

is how much training on z raises the target's log-likelihood (over n, to first order). Lowering it
by moving x is the training-side attack; ∇ₓ stands on the score of the *training* example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.oracles.base import Oracle

__all__ = ["InputScores", "conjugate_gradient"]


class InputScores(ABC):
    """A classifier seen from its inputs. X is an array (n, …); y are codes 0 … C−1."""

    damping: float
    oracle: Oracle
    """Reads and checks the caller's data."""

    @abstractmethod
    def encode(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """The caller's rows as float arrays (copies) and class codes."""

    @abstractmethod
    def mean_score(self, X: np.ndarray, y: np.ndarray) -> Any:
        """μ = mean of ∇θ log p(y | x), one flat vector."""

    @abstractmethod
    def solve(self, mu: Any) -> Any:
        """M⁻¹μ, M = mean true Fisher of the training set + penalty + damping."""

    @abstractmethod
    def pull(self, X: np.ndarray, y: np.ndarray, v: Any) -> tuple[np.ndarray, np.ndarray]:
        """s(x_i, y_i)ᵀv, (n,), and its gradient in x_i, shaped like X."""

    @abstractmethod
    def loss(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """−log p(y_i | x_i), (n,), and its gradient in x_i: the test-side objective."""

    @abstractmethod
    def predict(self, X: np.ndarray) -> np.ndarray:
        """Class codes."""


def conjugate_gradient(
    product: Callable[[Any], Any], b: Any, tolerance: float = 1e-6, most: int = 500
) -> Any:
    """x with product(x) = b for a positive definite product; vectors are NumPy or torch.

    >>> import numpy as np
    >>> A = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradient(lambda v: A @ v, np.array([3.0, 4.0])).round(6)
    array([1., 1.])
    """
    x, r, d = b * 0.0, b, b
    energy = start = float(r @ r)
    for _ in range(most):
        if energy <= tolerance**2 * start:
            return x
        Ad = product(d)
        curvature = float(d @ Ad)
        if not curvature > 0:
            raise ExemplaError("the metric is not positive definite: give a positive damping.")
        alpha = energy / curvature
        x, r = x + alpha * d, r - alpha * Ad
        energy, previous = float(r @ r), energy
        d = r + (energy / previous) * d
    return x
