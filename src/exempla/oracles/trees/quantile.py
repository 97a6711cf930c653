"""The likelihood of quantile regression: the pinball loss is minus its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from exempla.arrays import Array
from exempla.errors import ExemplaError
from exempla.likelihoods import Likelihood

__all__ = ["AsymmetricLaplace"]


@dataclass(frozen=True)
class AsymmetricLaplace(Likelihood):
    """A number whose τ-quantile is the output: p(y) = τ(1−τ)/b · exp(−ρ_τ(y − output)/b).

    ρ_τ(u) = u·(τ − [u < 0]) is the pinball loss. The scale b is fitted afterwards, as the variance
    of least squares is: the mean pinball loss of the training data. τ = ½ is least absolute error.

    >>> import numpy as np
    >>> low = AsymmetricLaplace(0.25).fitted(np.zeros((2, 1)), np.array([1.0, -1.0]))
    >>> low.scale, low.score(np.zeros((2, 1)), np.array([1.0, -1.0])).ravel()
    (0.5, array([ 0.5, -1.5]))
    """

    quantile: float
    scale: float | None = None
    name = "asymmetric laplace"
    discrete = False

    def fitted(
        self, outputs: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
    ) -> AsymmetricLaplace:
        """The same with b = weighted mean pinball loss, unless b was given."""
        if self.scale is not None:
            return self
        return replace(self, scale=float(np.average(self._pinball(outputs, y), weights=weights)))

    def _pinball(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        apart = y - outputs[:, 0]
        return apart * (self.quantile - (apart < 0))

    @property
    def _b(self) -> float:
        if self.scale is None:
            raise ExemplaError("The Laplace likelihood has no scale yet: read training data first.")
        return self.scale

    def log_prob(self, outputs: Array, y: Array) -> Array:
        constant = math.log(self.quantile * (1 - self.quantile) / self._b)
        return constant - self._pinball(outputs, y) / self._b

    def score(self, outputs: Array, y: Array) -> Array:
        return (self.quantile - (y[:, None] < outputs)) / self._b

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # y lies below the quantile with probability τ: E[g²] = τ(1 − τ)/b²
        root = math.sqrt(self.quantile * (1 - self.quantile)) / self._b
        return np.arange(len(outputs)), np.full((len(outputs), 1), root)

    def predict(self, outputs: Array) -> Array:
        return outputs[:, 0]

    def sample(self, outputs: Array, rng: np.random.Generator) -> Array:
        below = rng.random(len(outputs)) < self.quantile
        rate = np.where(below, 1 - self.quantile, self.quantile) / self._b
        away = rng.exponential(1 / rate)
        return outputs[:, 0] + np.where(below, -away, away)
