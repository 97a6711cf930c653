"""Losses beyond the common likelihoods: those of scikit-learn's models and of boosted trees.

`Tweedie`, `Huber` and `AsymmetricLaplace` are likelihoods with a Fisher. `Margin` (support vector
classifiers), `Tube` (support vector regression) and `CustomObjective` (a user's own objective of
boosted trees) are losses V that assign labels no probability: −V takes the place of log p, and V″
at the given labels takes the place of the Fisher. A corner of V is rounded: t·log(1 + e^(z/t))
replaces max(0, z), with width t.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import erf, expit, gammaln

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.likelihoods import Likelihood

CORNER = 0.1
"""Width over which a corner is rounded: in margin units, or relative to a tube's mean error."""


def _estimated(value: float | None, what: str) -> float:
    if value is None:
        raise ExemplaError(f"The {what} is unknown before the training data are read.")
    return value


@dataclass(frozen=True)
class Tweedie(Likelihood):
    """A positive number with variance φ·mean^power; the output is log mean, or the mean.

    Power 2 is the Gamma distribution, 3 the inverse Gaussian, and 1 to 2 a Poisson sum of Gammas.
    Minimum deviance is maximum likelihood for every dispersion φ, so φ is estimated afterwards
    (Pearson). Where the density has no closed form, log p is its saddlepoint approximation, which
    is exact in everything that depends on the mean.

    >>> import numpy as np
    >>> Tweedie(2.0, dispersion=0.5).score(np.zeros((1, 1)), np.array([3.0]))
    array([[4.]])
    """

    power: float
    log_link: bool = True
    dispersion: float | None = None
    name = "tweedie"
    discrete = False

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> Tweedie:
        """Return a copy with φ = weighted mean of (y − μ)²/μ^power."""
        if self.dispersion is not None:
            return self
        mean = self._mean(outputs)
        each = (y.reshape(mean.shape) - mean) ** 2 / mean**self.power
        return replace(self, dispersion=float(np.average(each[:, 0], weights=weights)))

    @property
    def _phi(self) -> float:
        return _estimated(self.dispersion, "dispersion of the Tweedie likelihood")

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.dispersion is None else self.dispersion

    def _mean(self, outputs: np.ndarray) -> np.ndarray:
        return np.exp(outputs) if self.log_link else outputs

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean, phi = self._mean(outputs)[:, 0], self._phi
        y = np.reshape(y, mean.shape).astype(np.float64)
        if self.power == 2:  # Gamma of shape 1/φ
            ratio, shape = y / mean, 1 / phi
            return shape * np.log(shape * ratio) - shape * ratio - gammaln(shape) - np.log(y)
        # at y = 0 (possible for powers below 2) log p consists of the first term alone
        spread = np.where(y > 0, 2 * math.pi * phi * np.where(y > 0, y, 1.0) ** self.power, 1.0)
        if self.power <= 0:
            spread = np.full(y.shape, 2 * math.pi * phi)
        return -_half_deviance(y, mean, self.power) / phi - np.log(spread) / 2

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean = self._mean(outputs)
        slope = mean ** ((1 if self.log_link else 0) - self.power)
        return (np.reshape(y, mean.shape) - mean) * slope / self._phi

    def fisher_root(self, outputs: np.ndarray, cut: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        # (dμ/dη)² / (φ μ^power)
        mean = self._mean(outputs)
        root = mean ** ((2 if self.log_link else 0) / 2 - self.power / 2) / math.sqrt(self._phi)
        return np.arange(len(outputs)), root

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return self._mean(outputs)[:, 0]


def _half_deviance(y: np.ndarray, mean: np.ndarray, p: float) -> np.ndarray:
    """∫_μ^y (y − t)/t^p dt."""
    if p == 0:
        return (y - mean) ** 2 / 2
    if p == 1:
        return np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0) / mean), 0.0) - y + mean
    own = np.where(y > 0, np.where(y > 0, y, 1.0) ** (2 - p), 0.0) / ((1 - p) * (2 - p))
    return own - y * mean ** (1 - p) / (1 - p) + mean ** (2 - p) / (2 - p)


@dataclass(frozen=True)
class Huber(Likelihood):
    """A number whose error r is Gaussian up to δ and exponential beyond (Huber's density).

    −log p = h(r)/s² + log Z with h = r²/2 up to δ and δ|r| − δ²/2 beyond. `variance` is s², which
    is estimated from E[r·h′(r)] = s² if it is not given.

    >>> import numpy as np
    >>> Huber(1.0, variance=1.0).score(np.zeros((2, 1)), np.array([0.5, 7.0])).ravel()
    array([0.5, 1. ])
    """

    threshold: float
    variance: float | None = None
    name = "huber"
    discrete = False

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> Huber:
        """Return a copy with s² estimated from the residuals."""
        if self.variance is not None:
            return self
        r = np.reshape(y, outputs.shape) - outputs
        each = (r * np.clip(r, -self.threshold, self.threshold))[:, 0]
        return replace(self, variance=float(np.average(each, weights=weights)))

    @property
    def _s2(self) -> float:
        return _estimated(self.variance, "scale of the Huber likelihood")

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.variance is None else self.variance

    @property
    def _middle(self) -> tuple[float, float]:
        """The unnormalised mass within δ, and the normaliser Z."""
        s, d = math.sqrt(self._s2), self.threshold
        inside = s * math.sqrt(2 * math.pi) * float(erf(d / (s * math.sqrt(2))))
        return inside, inside + 2 * self._s2 / d * math.exp(-(d**2) / (2 * self._s2))

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        r = np.abs(np.reshape(y, outputs.shape) - outputs)[:, 0]
        d = self.threshold
        h = np.where(r <= d, r**2 / 2, d * r - d**2 / 2)
        return -h / self._s2 - math.log(self._middle[1])

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        r = np.reshape(y, outputs.shape) - outputs
        return np.clip(r, -self.threshold, self.threshold) / self._s2

    def fisher_root(self, outputs: np.ndarray, cut: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        # E[(h′/s²)²] = E[h″]/s²: the probability of an error within δ, over s²
        inside, total = self._middle
        value = math.sqrt(inside / total / self._s2)
        return np.arange(len(outputs)), np.full((len(outputs), 1), value)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


@dataclass(frozen=True)
class AsymmetricLaplace(Likelihood):
    """A number whose τ-quantile is the output: p(y) = τ(1−τ)/b · exp(−ρ_τ(y − output)/b).

    ρ_τ(u) = u·(τ − [u < 0]) is the pinball loss; τ = ½ is absolute error. The scale b is estimated
    afterwards as the mean pinball loss of the training data.

    >>> import numpy as np
    >>> low = AsymmetricLaplace(0.25).fitted(np.zeros((2, 1)), np.array([1.0, -1.0]))
    >>> low.scale, low.score(np.zeros((2, 1)), np.array([1.0, -1.0])).ravel()
    (0.5, array([ 0.5, -1.5]))
    """

    quantile: float
    scale: float | None = None
    name = "asymmetric laplace"
    discrete = False

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> AsymmetricLaplace:
        """Return a copy with b = weighted mean pinball loss, unless b was given."""
        if self.scale is not None:
            return self
        return replace(self, scale=float(np.average(self._pinball(outputs, y), weights=weights)))

    def _pinball(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        error = y - outputs[:, 0]
        return error * (self.quantile - (error < 0))

    @property
    def _b(self) -> float:
        return _estimated(self.scale, "scale of the asymmetric Laplace likelihood")

    @property
    def loss_scale(self) -> float:
        # boosting libraries use a Hessian of 1 for this loss; here it is τ(1 − τ)/b²
        return self._b**2 / (self.quantile * (1 - self.quantile)) if self.scale is not None else 1.0

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        constant = math.log(self.quantile * (1 - self.quantile) / self._b)
        return constant - self._pinball(outputs, y) / self._b

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (self.quantile - (y[:, None] < outputs)) / self._b

    def fisher_root(self, outputs: np.ndarray, cut: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        # y lies below the quantile with probability τ: E[g²] = τ(1 − τ)/b²
        root = math.sqrt(self.quantile * (1 - self.quantile)) / self._b
        return np.arange(len(outputs)), np.full((len(outputs), 1), root)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


class _Loss(Likelihood):
    """A loss that defines no label distribution."""

    def fisher_root(self, outputs: Any, cut: float = 0.0) -> tuple[Any, Any]:
        raise UnsupportedModelError(
            f"A {self.name} loss gives labels no probability, which this task needs: use "
            + ("LogisticRegression." if self.discrete else "Ridge or HuberRegressor.")
        )

    def curvature_root(self, outputs: Any, y: Any, cut: float = 0.0) -> tuple[Any, Any]:
        """Return a root of −∂g/∂outputs at these labels, and the example of each row."""
        if y is None:
            return self.fisher_root(outputs)
        curvature = self.curvature(outputs, y)
        rows, columns = np.nonzero(curvature > 0)
        root = np.zeros((len(rows), outputs.shape[1]))
        root[np.arange(len(rows)), columns] = np.sqrt(curvature[rows, columns])
        return rows, root

    @abstractmethod
    def curvature(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return V″ of each output."""


@dataclass(frozen=True)
class Margin(_Loss):
    """Support vector classifier: V(m) of the margin m = ±output, summed over a class's outputs.

    `signs` is (classes, outputs) with entries −1, 0, 1: one output for two classes, one per class
    for one-vs-rest, one per pair of classes for one-vs-one (0 for the classes not in the pair).

    >>> import numpy as np
    >>> two = Margin("squared_hinge", np.array([[-1.0], [1.0]]))
    >>> two.score(np.array([[0.5], [2.0]]), np.array([1, 1])).ravel()
    array([1., 0.])
    """

    loss: str
    """One of "hinge", "squared_hinge", "modified_huber"."""
    signs: np.ndarray = field(repr=False)
    corner: float = CORNER
    name = "margin"
    discrete = True

    def _margins(self, outputs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        signs = self.signs[y]
        return signs, signs * outputs

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        signs, m = self._margins(outputs, y)
        if self.loss == "hinge":
            loss = self.corner * np.logaddexp(0, (1 - m) / self.corner)
        else:
            loss = np.maximum(1 - m, 0) ** 2
            if self.loss == "modified_huber":
                loss = np.where(m < -1, -4 * m, loss)
        return -np.sum(loss * np.abs(signs), axis=1)

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        signs, m = self._margins(outputs, y)
        if self.loss == "hinge":
            return signs * expit((1 - m) / self.corner)
        slope = 2 * np.maximum(1 - m, 0)
        return signs * (np.where(m < -1, 4.0, slope) if self.loss == "modified_huber" else slope)

    def curvature(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        signs, m = self._margins(outputs, y)
        if self.loss == "hinge":
            q = expit((1 - m) / self.corner)
            return np.abs(signs) * q * (1 - q) / self.corner
        bent = (m < 1) & ((m >= -1) | (self.loss == "squared_hinge"))
        return np.abs(signs) * 2.0 * bent

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        one_vs_one = np.any(self.signs == 0)
        votes = np.where(outputs > 0, 1.0, -1.0) if one_vs_one else outputs
        return (votes @ self.signs.T).argmax(axis=1)


@dataclass(frozen=True)
class Tube(_Loss):
    """Support vector regression: the loss is the error's excess over ε, or the square of it.

    >>> import numpy as np
    >>> Tube(1.0, squared=True).score(np.zeros((3, 1)), np.array([0.5, 3.0, -2.0])).ravel()
    array([ 0.,  4., -2.])
    """

    epsilon: float
    squared: bool = False
    corner: float | None = None
    name = "tube"
    discrete = False

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> Tube:
        """Return a copy with its corners rounded over CORNER × the mean absolute error."""
        if self.squared or self.corner is not None:
            return self
        errors = np.abs(np.reshape(y, outputs.shape) - outputs)[:, 0]
        width = CORNER * max(float(np.average(errors, weights=weights)), self.epsilon)
        return replace(self, corner=width)

    @property
    def _t(self) -> float:
        return _estimated(self.corner or None, "corner width of the tube loss")

    def _excess(self, outputs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = np.reshape(y, outputs.shape) - outputs
        return r - self.epsilon, -r - self.epsilon

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        above, below = self._excess(outputs, y)
        if self.squared:
            return -(np.maximum(above, 0) ** 2 + np.maximum(below, 0) ** 2)[:, 0]
        t = self._t
        return -t * (np.logaddexp(0, above / t) + np.logaddexp(0, below / t))[:, 0]

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        above, below = self._excess(outputs, y)
        if self.squared:
            return 2 * (np.maximum(above, 0) - np.maximum(below, 0))
        return expit(above / self._t) - expit(below / self._t)

    def curvature(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        above, below = self._excess(outputs, y)
        if self.squared:
            return 2.0 * ((above > 0) | (below > 0))
        p, q = expit(above / self._t), expit(below / self._t)
        return (p * (1 - p) + q * (1 - q)) / self._t

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


@dataclass(frozen=True)
class CustomObjective(_Loss):
    """A user's own objective of boosted trees, known by its gradient and Hessian in one output.

    The loss itself is unknown. `log_prob` is −V up to a constant per example, the integral of the
    gradient from output 0, so that differences between models are right.

    >>> import numpy as np
    >>> squares = CustomObjective(lambda y, f: (f - y, np.ones_like(f)))
    >>> squares.log_prob(np.array([[3.0]]), np.array([1.0])) - squares.log_prob(
    ...     np.array([[1.0]]), np.array([1.0]))
    array([-2.])
    """

    gradient: Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]
    """(labels, outputs) -> (∂V/∂output, ∂²V/∂output²), one number per row each."""
    discrete: bool = False
    name = "custom objective"

    def _parts(self, outputs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = self.gradient(np.asarray(y, dtype=np.float64), outputs[:, 0])
        first, second = (np.asarray(part, dtype=np.float64) for part in given)
        if first.shape != (len(outputs),) or second.shape != (len(outputs),):
            raise UnsupportedModelError(
                f"The custom objective returned a gradient of shape {first.shape} and a Hessian of "
                f"shape {second.shape} for {len(outputs)} rows: exempla supports objectives with "
                "one output per row."
            )
        return first, second

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        nodes, weights = np.polynomial.legendre.leggauss(16)
        total = np.zeros(len(outputs))
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            total -= weight * outputs[:, 0] * self._parts(node * outputs, y)[0]
        return total

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -self._parts(outputs, y)[0][:, None]

    def curvature(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._parts(outputs, y)[1][:, None]

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        found = outputs[:, 0]
        return (found > 0).astype(np.int64) if self.discrete else found
