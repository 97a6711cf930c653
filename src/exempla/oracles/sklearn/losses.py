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
from typing import Any, ClassVar

import numpy as np
from scipy.special import erf, expit, gammaln, xlogy

from exempla.errors import UnsupportedModelError
from exempla.oracles.likelihoods import Likelihood, known

_CORNER = 0.1
"""Width over which a corner is rounded: in margin units, or relative to a tube's mean error."""


@dataclass(frozen=True)
class _OneNumber(Likelihood):
    """A number with one output f. The formulas of subclasses are per row: f and y are (n,).

    They are log p, its slope ∂ log p/∂f, its Fisher E[slope²] as a function of f, and the terms
    whose weighted mean over the training data is the scale.
    """

    scale: float | None = field(default=None, kw_only=True)
    """The scale of the errors; None: estimated from the training data."""
    discrete = False

    _scale_terms: ClassVar[Callable[..., np.ndarray]]
    _log_p: ClassVar[Callable[..., np.ndarray]]
    _slope: ClassVar[Callable[..., np.ndarray]]
    _fisher: ClassVar[Callable[..., Any]]

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> _OneNumber:
        """Return a copy with the scale estimated, unless it was given."""
        if self.scale is not None:
            return self
        each = self._scale_terms(outputs[:, 0], _flat(y))
        return replace(self, scale=float(np.average(each, weights=weights)))

    @property
    def _known_scale(self) -> float:
        return known(self.scale, self.name)

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.scale is None else self.scale

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._log_p(outputs[:, 0], _flat(y))

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._slope(outputs[:, 0], _flat(y))[:, None]

    def fisher_root(self, outputs: np.ndarray, cut: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        root = np.sqrt(self._fisher(outputs[:, 0])) * np.ones(len(outputs))
        return np.arange(len(outputs)), root[:, None]

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


def _flat(y: Any) -> np.ndarray:
    return np.asarray(y, dtype=np.float64).reshape(-1)


@dataclass(frozen=True)
class Tweedie(_OneNumber):
    """A positive number with variance φ·mean^power; the output is log mean, or the mean.

    Power 2 is the Gamma distribution, 3 the inverse Gaussian, and 1 to 2 a Poisson sum of Gammas.
    Minimum deviance is maximum likelihood for every dispersion φ (`scale`), so φ is estimated
    afterwards (Pearson). Where the density has no closed form, log p is its saddlepoint
    approximation, which is exact in everything that depends on the mean.
    """

    power: float
    log_link: bool = True
    name = "tweedie"

    def _scale_terms(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean = self._mean(f)
        return (y - mean) ** 2 / mean**self.power

    def _mean(self, f: np.ndarray) -> np.ndarray:
        return np.exp(f) if self.log_link else f

    def _log_p(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean, phi = self._mean(f), self._known_scale
        if self.power == 2:  # Gamma of shape 1/φ
            ratio, shape = y / mean, 1 / phi
            return shape * np.log(shape * ratio) - shape * ratio - gammaln(shape) - np.log(y)
        # at y = 0 (possible for powers below 2) log p consists of the first term alone
        spread = 2 * math.pi * phi * y**self.power
        spread = np.where(spread > 0, spread, 1.0)
        return -_half_deviance(y, mean, self.power) / phi - np.log(spread) / 2

    def _slope(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean = self._mean(f)
        return (y - mean) * mean ** (self.log_link - self.power) / self._known_scale

    def _fisher(self, f: np.ndarray) -> Any:
        # (dμ/df)² / (φ μ^power)
        return self._mean(f) ** (2 * self.log_link - self.power) / self._known_scale

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return self._mean(outputs[:, 0])


def _half_deviance(y: np.ndarray, mean: np.ndarray, p: float) -> np.ndarray:
    """Return ∫_μ^y (y − t)/t^p dt for a power other than 2."""
    if p == 1:
        return xlogy(y, y / mean) - y + mean
    own = y ** (2 - p) / ((1 - p) * (2 - p))
    return own - y * mean ** (1 - p) / (1 - p) + mean ** (2 - p) / (2 - p)


@dataclass(frozen=True)
class Huber(_OneNumber):
    """A number whose error r is Gaussian up to δ and exponential beyond (Huber's density).

    −log p = h(r)/s² + log Z with h = r²/2 up to δ and δ|r| − δ²/2 beyond. `scale` is s², which is
    estimated from E[r·h′(r)] = s² if it is not given.
    """

    threshold: float
    name = "huber"

    def _scale_terms(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (y - f) * np.clip(y - f, -self.threshold, self.threshold)

    @property
    def _masses(self) -> tuple[float, float]:
        """The unnormalised mass within δ, and the normaliser Z."""
        s2, d = self._known_scale, self.threshold
        inside = math.sqrt(2 * math.pi * s2) * float(erf(d / math.sqrt(2 * s2)))
        return inside, inside + 2 * s2 / d * math.exp(-(d**2) / (2 * s2))

    def _log_p(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        r, d = np.abs(y - f), self.threshold
        h = np.where(r <= d, r**2 / 2, d * r - d**2 / 2)
        return -h / self._known_scale - math.log(self._masses[1])

    def _slope(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.clip(y - f, -self.threshold, self.threshold) / self._known_scale

    def _fisher(self, f: np.ndarray) -> Any:
        # E[(h′/s²)²] = E[h″]/s²: the probability of an error within δ, over s²
        inside, total = self._masses
        return inside / total / self._known_scale


@dataclass(frozen=True)
class AsymmetricLaplace(_OneNumber):
    """A number whose τ-quantile is the output: p(y) = τ(1−τ)/b · exp(−ρ_τ(y − output)/b).

    ρ_τ(u) = u·(τ − [u < 0]) is the pinball loss; τ = ½ is absolute error. The scale b is estimated
    afterwards as the mean pinball loss of the training data.
    """

    quantile: float
    name = "asymmetric laplace"

    def _scale_terms(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (y - f) * (self.quantile - (y < f))  # pinball loss

    @property
    def loss_scale(self) -> float:
        # boosting libraries use a Hessian of 1 for this loss; here it is τ(1 − τ)/b²
        return 1.0 if self.scale is None else 1 / self._fisher(np.empty(0))

    def _log_p(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        b = self._known_scale
        return math.log(self.quantile * (1 - self.quantile) / b) - self._scale_terms(f, y) / b

    def _slope(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (self.quantile - (y < f)) / self._known_scale

    def _fisher(self, f: np.ndarray) -> Any:
        # y lies below the quantile with probability τ: E[g²] = τ(1 − τ)/b²
        return self.quantile * (1 - self.quantile) / self._known_scale**2


class _Loss(Likelihood):
    """A loss V that defines no label distribution."""

    words = ""
    """The loss in words, for notes."""

    @abstractmethod
    def _derivatives(self, outputs: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
        """Return −V, −V′ and V″ of each output, (n, outputs) each."""

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._derivatives(outputs, y)[0].sum(axis=1)

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._derivatives(outputs, y)[1]

    def fisher_root(self, outputs: Any, cut: float = 0.0) -> tuple[Any, Any]:
        raise UnsupportedModelError(
            f"A {self.name} loss gives labels no probability, which this task needs: use "
            + ("LogisticRegression." if self.discrete else "Ridge or HuberRegressor.")
        )

    def curvature_root(self, outputs: Any, y: Any, cut: float = 0.0) -> tuple[Any, Any]:
        """Return a root of V″ at these labels, and the example of each row."""
        if y is None:
            return self.fisher_root(outputs)
        curvature = self._derivatives(outputs, y)[2]
        rows, columns = np.nonzero(curvature > 0)
        root = np.zeros((len(rows), outputs.shape[1]))
        root[np.arange(len(rows)), columns] = np.sqrt(curvature[rows, columns])
        return rows, root


def _ramp(z: np.ndarray, corner: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return max(0, z) with its corner rounded, or its square if `corner` is None.

    The first and second derivatives come with it.
    """
    if corner is None:
        ramp = np.maximum(z, 0)
        return ramp**2, 2 * ramp, 2.0 * (z > 0)
    q = expit(z / corner)
    return corner * np.logaddexp(0, z / corner), q, q * (1 - q) / corner


@dataclass(frozen=True)
class Margin(_Loss):
    """Support vector classifier: V(m) of the margin m = ±output, summed over a class's outputs.

    `signs` is (classes, outputs) with entries −1, 0, 1: one output for two classes, one per class
    for one-vs-rest, one per pair of classes for one-vs-one (0 for the classes not in the pair).
    """

    loss: str
    """One of "hinge", "squared_hinge", "modified_huber"."""
    signs: np.ndarray = field(repr=False)
    name = "margin"
    discrete = True

    @staticmethod
    def one_vs_rest(loss: str, classes: int) -> Margin:
        """Return the loss with one output for two classes, otherwise one per class."""
        signs = np.array([[-1.0], [1.0]]) if classes == 2 else 2 * np.eye(classes) - 1
        return Margin(loss, signs)

    @property
    def words(self) -> str:
        rounded = ", its corner rounded" if self.loss == "hinge" else ""
        return f"{self.loss.replace('_', ' ')} loss{rounded}"

    def _derivatives(self, outputs: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
        signs = self.signs[y]
        z = 1 - signs * outputs
        value, slope, bend = _ramp(z, _CORNER if self.loss == "hinge" else None)
        if self.loss == "modified_huber":  # continues as a straight line
            value, slope, bend = np.where(
                z > 2, (4 * z - 4, 4 + 0 * z, 0 * z), (value, slope, bend)
            )
        return -value * np.abs(signs), slope * signs, bend * np.abs(signs)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        one_vs_one = np.any(self.signs == 0)
        votes = np.where(outputs > 0, 1.0, -1.0) if one_vs_one else outputs
        return (votes @ self.signs.T).argmax(axis=1)


@dataclass(frozen=True)
class Tube(_Loss):
    """Support vector regression: the loss is the error's excess over ε, or the square of it."""

    epsilon: float
    squared: bool = False
    corner: float | None = None
    """Width of the rounded corners: _CORNER × the mean absolute error (at least ε)."""
    name = "tube"
    discrete = False

    @property
    def words(self) -> str:
        return "squared tube loss" if self.squared else "tube loss, its corners rounded"

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> Tube:
        """Return a copy with its corners rounded; the squared loss has none."""
        if self.squared or self.corner is not None:
            return self
        error = float(np.average(np.abs(_flat(y) - outputs[:, 0]), weights=weights))
        return replace(self, corner=_CORNER * max(error, self.epsilon))

    def _derivatives(self, outputs: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
        corner = None if self.squared else known(self.corner, self.name)
        error = _flat(y)[:, None] - outputs
        above, below = (_ramp(sign * error - self.epsilon, corner) for sign in (1, -1))
        return -above[0] - below[0], above[1] - below[1], above[2] + below[2]

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


@dataclass(frozen=True)
class CustomObjective(_Loss):
    """A user's own objective of boosted trees, known by its gradient and Hessian in one output.

    The loss itself is unknown. `log_prob` is −V up to a constant per example, the integral of the
    gradient from output 0, so that differences between models are right.
    """

    gradient: Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]
    """(labels, outputs) -> (∂V/∂output, ∂²V/∂output²), one number per row each."""
    discrete: bool = False
    name = "custom objective"

    def _derivatives(self, outputs: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
        given = self.gradient(np.asarray(y, dtype=np.float64), outputs[:, 0])
        first, second = (np.asarray(part, dtype=np.float64) for part in given)
        if first.shape != (len(outputs),) or second.shape != (len(outputs),):
            raise UnsupportedModelError(
                f"The custom objective returned shapes {first.shape} and {second.shape} for "
                f"{len(outputs)} rows: exempla supports objectives with one output per row."
            )
        return None, -first[:, None], second[:, None]

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        nodes, weights = np.polynomial.legendre.leggauss(16)
        slopes = [self.score((node + 1) / 2 * outputs, y)[:, 0] for node in nodes]
        return outputs[:, 0] * (weights / 2 @ slopes)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        found = outputs[:, 0]
        return (found > 0).astype(np.int64) if self.discrete else found
