"""Losses that scikit-learn's linear models minimise beyond the common likelihoods.

Two kinds. `Tweedie` and `Huber` are likelihoods: they have a Fisher of their own. A `Margin`
(support vectors) and a `Tube` (support vector regression) are losses V that give labels no
probability: −V takes the place of log p, and V″ at the given labels that of the Fisher. Where V has
a corner it is rounded, V = t·log(1 + e^(z/t)) in place of max(0, z), with the width t in words.

Labels for a scikit-learn model: from the user's vocabulary to the likelihood's, and weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import erf, expit, gammaln

from exempla.data import listing
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.likelihoods import Gaussian, Likelihood, Poisson

CORNER = 0.1
"""Width over which a corner is rounded: of a margin as it is, of a tube times the mean error."""


@dataclass(frozen=True)
class Tweedie(Likelihood):
    """A positive number whose variance is φ·mean^power: 2 is Gamma, 3 inverse Gaussian, 1 to 2 a
    sum of a Poisson number of Gammas. The output is log mean, or the mean itself.

    Least deviance is maximum likelihood for any dispersion φ, so φ is fitted afterwards (Pearson's
    estimate). Where the density has no closed form, log p is its saddlepoint form: all of it that
    depends on the mean is exact.

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
        """The same with φ = weighted mean of (y − μ)²/μ^power."""
        if self.dispersion is not None:
            return self
        mean = self._mean(outputs)
        each = (y.reshape(mean.shape) - mean) ** 2 / mean**self.power
        return replace(self, dispersion=float(np.average(each[:, 0], weights=weights)))

    @property
    def _phi(self) -> float:
        if self.dispersion is None:
            raise ExemplaError(
                "The Tweedie likelihood has no dispersion yet: read the training data first."
            )
        return self.dispersion

    def _mean(self, outputs: np.ndarray) -> np.ndarray:
        return np.exp(outputs) if self.log_link else outputs

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean, phi = self._mean(outputs)[:, 0], self._phi
        y = np.reshape(y, mean.shape).astype(np.float64)
        if self.power == 2:  # Gamma of shape 1/φ
            ratio, shape = y / mean, 1 / phi
            return shape * np.log(shape * ratio) - shape * ratio - gammaln(shape) - np.log(y)
        # at y = 0 (possible for powers below 2) the first term is the whole of log p
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

    def sample(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.power != 2:
            raise ExemplaError(f"Tweedie(power={self.power:g}) cannot be sampled: use power=2.")
        return rng.gamma(1 / self._phi, self._phi * self._mean(outputs)[:, 0])


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
    """A number whose errors r are Gaussian up to δ and exponential beyond (Huber's density).

    −log p = h(r)/s² + log Z with h = r²/2 up to δ and δ|r| − δ²/2 beyond. `variance` is s²; without
    one it is fitted from E[r·h′(r)] = s².

    >>> import numpy as np
    >>> Huber(1.0, variance=1.0).score(np.zeros((2, 1)), np.array([0.5, 7.0])).ravel()
    array([0.5, 1. ])
    """

    threshold: float
    variance: float | None = None
    name = "huber"
    discrete = False

    def fitted(self, outputs: np.ndarray, y: Any, weights: Any = None) -> Huber:
        if self.variance is not None:
            return self
        r = np.reshape(y, outputs.shape) - outputs
        each = (r * np.clip(r, -self.threshold, self.threshold))[:, 0]
        return replace(self, variance=float(np.average(each, weights=weights)))

    @property
    def _s2(self) -> float:
        if self.variance is None:
            raise ExemplaError(
                "The Huber likelihood has no scale yet: read the training data first."
            )
        return self.variance

    @property
    def _middle(self) -> tuple[float, float]:
        """The density's mass within δ, before it is divided by Z; and Z."""
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
        # E[(h′/s²)²] = E[h″]/s²: the share of errors within δ, over s²
        inside, total = self._middle
        value = math.sqrt(inside / total / self._s2)
        return np.arange(len(outputs)), np.full((len(outputs), 1), value)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    def sample(self, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        raise ExemplaError("Huber's density is not sampled here: use its closed-form Fisher.")


class _Loss(Likelihood):
    """A loss with no label distribution: what would need one is refused."""

    def fisher_root(self, outputs: Any, cut: float = 0.0) -> tuple[Any, Any]:
        raise UnsupportedModelError(
            f"A {self.name} loss gives labels no probability, which this job needs: use "
            + ("LogisticRegression." if self.discrete else "Ridge or HuberRegressor.")
        )

    def sample(self, outputs: Any, rng: np.random.Generator) -> Any:
        return self.fisher_root(outputs)

    def curvature_root(self, outputs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a root of −∂g/∂outputs at these labels, and the example of each."""
        curvature = self.curvature(outputs, y)
        rows, columns = np.nonzero(curvature > 0)
        root = np.zeros((len(rows), outputs.shape[1]))
        root[np.arange(len(rows)), columns] = np.sqrt(curvature[rows, columns])
        return rows, root

    @abstractmethod
    def curvature(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        """V″ of each output."""


@dataclass(frozen=True)
class Margin(_Loss):
    """Support vectors: V(m) of the margin m = ±output, summed over the outputs a class has part in.

    `signs` is (classes, outputs) of −1, 0, 1: one output for two classes, one a class for
    one-vs-rest, one a pair of classes for one-vs-one, where most classes have no part.

    >>> import numpy as np
    >>> two = Margin("squared_hinge", np.array([[-1.0], [1.0]]))
    >>> two.score(np.array([[0.5], [2.0]]), np.array([1, 1])).ravel()
    array([1., 0.])
    """

    loss: str
    """"hinge", "squared_hinge" or "modified_huber"."""
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
        said = np.where(outputs > 0, 1.0, -1.0) if one_vs_one else outputs
        return (said @ self.signs.T).argmax(axis=1)


@dataclass(frozen=True)
class Tube(_Loss):
    """Support vector regression: errors up to ε cost nothing, beyond it they cost what they exceed
    it by, or the square of that.

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
        """The same with its corners rounded over CORNER × the mean absolute error."""
        if self.squared or self.corner is not None:
            return self
        errors = np.abs(np.reshape(y, outputs.shape) - outputs)[:, 0]
        width = CORNER * max(float(np.average(errors, weights=weights)), self.epsilon)
        return replace(self, corner=width)

    @property
    def _t(self) -> float:
        if not self.corner:
            raise ExemplaError("The tube's corners are not rounded yet: read training data first.")
        return self.corner

    def _beyond(self, outputs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = np.reshape(y, outputs.shape) - outputs
        return r - self.epsilon, -r - self.epsilon

    def log_prob(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        above, below = self._beyond(outputs, y)
        if self.squared:
            return -(np.maximum(above, 0) ** 2 + np.maximum(below, 0) ** 2)[:, 0]
        t = self._t
        return -t * (np.logaddexp(0, above / t) + np.logaddexp(0, below / t))[:, 0]

    def score(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        above, below = self._beyond(outputs, y)
        if self.squared:
            return 2 * (np.maximum(above, 0) - np.maximum(below, 0))
        return expit(above / self._t) - expit(below / self._t)

    def curvature(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        above, below = self._beyond(outputs, y)
        if self.squared:
            return 2.0 * ((above > 0) | (below > 0))
        p, q = expit(above / self._t), expit(below / self._t)
        return (p * (1 - p) + q * (1 - q)) / self._t

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


# ---- what the oracle asks of any family


def is_fitted_to_data(family: Likelihood) -> bool:
    """Whether it takes something from training data: a variance, a dispersion, a corner."""
    return isinstance(family, Gaussian | Tweedie | Huber | Tube)


def fitted_family(family: Likelihood, outputs: np.ndarray, y: Any, weights: Any) -> Likelihood:
    """The family with what it takes from training data."""
    known = isinstance(family, Gaussian | Tweedie | Huber | Tube)
    return family.fitted(outputs, y, weights) if known else family


def unit_of(family: Likelihood) -> float:
    """What the model's own loss is divided by in −log p, and so must its penalty be."""
    if isinstance(family, Gaussian | Huber):
        return family.variance or 1.0
    return (family.dispersion or 1.0) if isinstance(family, Tweedie) else 1.0


def curvature_root(
    family: Likelihood, outputs: np.ndarray, y: np.ndarray | None, cut: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a root of the output Fisher, or of the loss's curvature where there is no Fisher."""
    if isinstance(family, _Loss) and y is not None:
        return family.curvature_root(outputs, y)
    return family.fisher_root(outputs, cut)


def encode(
    labels: np.ndarray,
    classes: np.ndarray | None,
    outputs: int,
    family: Likelihood | None,
    role: str,
    problems: list[str],
) -> np.ndarray | None:
    """Labels as the likelihood takes them: numbers where there are no classes, else positions
    among the classes, of which training data must show two."""
    if classes is None:
        return _encode_numbers(labels, outputs, family, problems)
    codes = _encode_classes(labels, classes, problems)
    if role == "train" and codes is not None and len(np.unique(codes)) < 2:
        problems.append(
            f"all labels are {classes[codes[0]].item()!r}: training data need two classes"
        )
    return codes


def _encode_classes(y: np.ndarray, classes: np.ndarray, problems: list[str]) -> np.ndarray | None:
    """Positions of the labels among the model's classes.

    >>> import numpy as np
    >>> _encode_classes(np.array(["spam", "ham"]), np.array(["ham", "spam"]), [])
    array([1, 0])
    """
    if y.ndim != 1:
        problems.append(f"y must hold one label per row, but has shape {y.shape}")
        return None
    given, values = pd.factorize(y)
    if np.any(given < 0):
        problems.append(f"labels are missing in {listing(np.flatnonzero(given < 0))}")
    known = {label: code for code, label in enumerate(classes.tolist())}
    values = np.asarray(values).tolist()
    unseen = [label for label in values if label not in known]
    if unseen:
        problems.append(
            f"y holds labels the model never saw: {_some(unseen)}; it knows "
            f"{_some(classes.tolist())}"
        )
    if np.any(given < 0) or unseen:
        return None
    return np.array([known[label] for label in values], dtype=np.int64)[given]


def _some(labels: list, show: int = 10) -> str:
    text = ", ".join(map(repr, labels[:show]))
    return text + (f" and {len(labels) - show} more" if len(labels) > show else "")


def _encode_numbers(
    y: np.ndarray, outputs: int, likelihood: Likelihood | None, problems: list[str]
) -> np.ndarray | None:
    """Targets of a regression as float64, (n,) or (n, outputs)."""
    if y.dtype.kind not in "biuf":
        try:
            y = np.asarray(y, dtype=object).astype(np.float64)
        except (TypeError, ValueError):
            problems.append("y must be numeric for a regression model")
            return None
    y = y.astype(np.float64)
    width = 1 if y.ndim == 1 else y.shape[1]
    if y.ndim > 2 or width != outputs:
        problems.append(f"y has shape {y.shape}, but the model has {outputs} output(s) a row")
        return None
    by_row = y.reshape(len(y), -1)
    bad = np.flatnonzero(~np.isfinite(by_row).all(axis=1))
    if len(bad):
        problems.append(f"y is NaN or infinite in {listing(bad)}")
        return None
    if isinstance(likelihood, Poisson) and np.any(by_row < 0):
        negative = np.flatnonzero((by_row < 0).any(axis=1))
        problems.append(f"y is negative in {listing(negative)}, which a Poisson count cannot be")
        return None
    if isinstance(likelihood, Tweedie) and likelihood.power >= 1:
        least = "above zero" if likelihood.power >= 2 else "zero or more"
        low = by_row <= 0 if likelihood.power >= 2 else by_row < 0
        if np.any(low):
            problems.append(
                f"y is not {least} in {listing(np.flatnonzero(low.any(axis=1)))}, as a Tweedie "
                f"model of power {likelihood.power:g} asks"
            )
            return None
    return y


def class_weights(
    class_weight: dict | str | None,
    classes: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray | None,
) -> np.ndarray:
    """The weight of each class.

    "balanced" gives class c the weight n / (C·n_c), n and n_c being sums of `weights` if given.

    >>> import numpy as np
    >>> class_weights("balanced", np.array(["a", "b"]), np.array([0, 0, 0, 1]), None)
    array([0.66666667, 2.        ])
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, dict):
        return np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    counts = np.bincount(codes, weights=weights, minlength=len(classes)).astype(np.float64)
    present = counts > 0
    balanced = counts.sum() / (len(classes) * np.where(present, counts, 1.0))
    return np.where(present, balanced, 1.0)
