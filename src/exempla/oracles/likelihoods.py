"""Likelihoods: the distribution of labels that a model's outputs define.

Shapes: `outputs` is (n, d_out), the values of the last layer (log-odds, logits, means, log-rates).
`y` is (n,) class codes 0..C−1 for classifiers, or (n, C) class probabilities; (n,) or (n, d_out)
numbers for regressions. NumPy and torch arrays are both accepted: every formula is written once,
in the array's own namespace.

The score is g = ∂ log p(y | outputs) / ∂ outputs. A *root* of the output Fisher is a set of rows r
with Σ r rᵀ = E_{y ~ model}[g gᵀ], from which the Fisher metric is built without sampling.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device, is_numpy_namespace

from exempla.arrays import Array
from exempla.errors import ExemplaError


class Likelihood(ABC):
    """A family of label distributions, parameterised by a model's outputs."""

    name: str
    discrete: bool
    """True if labels are class codes."""

    @abstractmethod
    def log_prob(self, outputs: Array, y: Array) -> Array:
        """Return log p(y | outputs), one number per row."""

    @abstractmethod
    def score(self, outputs: Array, y: Array) -> Array:
        """Return ∂ log p(y | outputs) / ∂ outputs, (n, d_out)."""

    @abstractmethod
    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        """Return a root of the output Fisher: the example each row belongs to, and the rows.

        Rows with a probability of at most `cut` are dropped.
        """

    @abstractmethod
    def predict(self, outputs: Array) -> Array:
        """Return the most probable class code, or the mean."""

    def fitted(self, outputs: Array, y: Array, weights: Array | None = None) -> Likelihood:
        """Return a copy with its scale estimated; families without a scale return themselves."""
        return self

    @property
    def loss_scale(self) -> float:
        """The number that divides the model's own loss, and its penalty, in −log p."""
        return 1.0

    def curvature_root(
        self, outputs: Array, y: Array | None, cut: float = 0.0
    ) -> tuple[Array, Array]:
        """Return a root of the curvature in the outputs: the Fisher, for a proper likelihood."""
        return self.fisher_root(outputs, cut)


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes, p = softmax(outputs)."""

    name = "categorical"
    discrete = True

    def log_prob(self, outputs: Array, y: Array) -> Array:
        xp = array_namespace(outputs)
        return xp.sum(_one_hot(outputs, y) * _log_softmax(outputs), axis=1)

    def score(self, outputs: Array, y: Array) -> Array:
        xp = array_namespace(outputs)
        return _one_hot(outputs, y) - xp.exp(_log_softmax(outputs))

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # E[g gᵀ] = Σ_c p_c (e_c − p)(e_c − p)ᵀ, hence one row √p_c (e_c − p) per class
        xp = array_namespace(outputs)
        p = xp.exp(_log_softmax(outputs))
        rows, classes = xp.nonzero(p > cut)
        root = _one_hot(p[rows], classes) - p[rows]
        return rows, root * xp.sqrt(p[rows, classes])[:, None]

    def predict(self, outputs: Array) -> Array:
        return array_namespace(outputs).argmax(outputs, axis=1)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Two classes; the single output is the log-odds of class 1."""

    name = "bernoulli"
    discrete = True

    def _answers(self, outputs: Array, y: Array) -> Array:
        """Return 1 for yes and 0 for no, in the shape of the outputs."""
        return _column(outputs, y)

    def log_prob(self, outputs: Array, y: Array) -> Array:
        xp = array_namespace(outputs)
        return xp.sum(_log_sigmoid((2 * self._answers(outputs, y) - 1) * outputs), axis=1)

    def score(self, outputs: Array, y: Array) -> Array:
        return self._answers(outputs, y) - _sigmoid(outputs)

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # y has variance p(1 − p); the only row is never dropped
        return _arange(outputs, outputs.shape[0]), _root_variance(outputs)

    def predict(self, outputs: Array) -> Array:
        xp = array_namespace(outputs)
        return xp.astype(outputs[:, 0] > 0, xp.int64)


@dataclass(frozen=True)
class OneVsRest(Bernoulli):
    """C independent binary problems, "is it class c?": the product of C Bernoulli likelihoods.

    scikit-learn's one-vs-rest classifiers fit this model. The Fisher is that of the product.
    """

    name = "one-vs-rest"

    def _answers(self, outputs: Array, y: Array) -> Array:
        return _one_hot(outputs, y)

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # the answers are independent: E[g gᵀ] is diagonal, p_c(1 − p_c)
        root = _root_variance(outputs)
        return _diagonal_rows(root, root**2 > cut)

    def predict(self, outputs: Array) -> Array:
        return array_namespace(outputs).argmax(outputs, axis=1)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """One or several numbers with mean `outputs` and a common variance σ².

    Least squares is maximum likelihood for every σ², so σ² is estimated afterwards, as the mean
    squared residual of the training data.

    Parameters
    ----------
    variance : float, optional
        σ². None means that it is estimated from the training data.

    Examples
    --------

    >>> import numpy as np
    >>> gaussian = Gaussian().fitted(np.array([[1.0], [3.0]]), np.array([2.0, 2.0]))
    >>> gaussian.variance
    1.0
    >>> gaussian.score(np.array([[1.0]]), np.array([3.0]))
    array([[2.]])
    """

    variance: float | None = None
    name = "gaussian"
    discrete = False

    def fitted(self, outputs: Array, y: Array, weights: Array | None = None) -> Gaussian:
        """Return a copy with σ² = weighted mean squared residual, unless σ² was given."""
        if self.variance is not None:
            return self
        xp = array_namespace(outputs)
        squares = xp.mean((_column(outputs, y) - outputs) ** 2, axis=1)
        if weights is None:
            return Gaussian(float(xp.mean(squares)))
        return Gaussian(float(xp.sum(weights * squares) / xp.sum(weights)))

    @property
    def _sigma2(self) -> float:
        return known(self.variance, self.name)

    @property
    def loss_scale(self) -> float:
        return self.variance or 1.0

    def log_prob(self, outputs: Array, y: Array) -> Array:
        xp = array_namespace(outputs)
        squares = (_column(outputs, y) - outputs) ** 2 / self._sigma2
        return -xp.sum(squares + math.log(2 * math.pi * self._sigma2), axis=1) / 2

    def score(self, outputs: Array, y: Array) -> Array:
        return (_column(outputs, y) - outputs) / self._sigma2

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # E[g gᵀ] = I/σ²: one row per output
        xp = array_namespace(outputs)
        return _diagonal_rows(xp.ones_like(outputs) / math.sqrt(self._sigma2))

    def predict(self, outputs: Array) -> Array:
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts; the output is the logarithm of the rate."""

    name = "poisson"
    discrete = False

    def log_prob(self, outputs: Array, y: Array) -> Array:
        xp = array_namespace(outputs)
        counts = _column(outputs, y)
        if is_numpy_namespace(xp):
            from scipy.special import gammaln  # only counts need SciPy

            log_factorial = gammaln(counts + 1)
        else:
            log_factorial = xp.lgamma(counts + 1)
        return xp.sum(counts * outputs - xp.exp(outputs) - log_factorial, axis=1)

    def score(self, outputs: Array, y: Array) -> Array:
        return _column(outputs, y) - array_namespace(outputs).exp(outputs)

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # the variance of a Poisson count is its rate
        return _diagonal_rows(array_namespace(outputs).exp(outputs / 2))

    def predict(self, outputs: Array) -> Array:
        rate = array_namespace(outputs).exp(outputs)
        return rate[:, 0] if rate.shape[1] == 1 else rate


@dataclass(frozen=True)
class Custom:
    """A likelihood of your own for a torch model.

    Where the labels need not be sampled, you can pass the function itself as `likelihood`.

    Parameters
    ----------
    log_prob : callable (model, batch) -> (n,)
        Log-likelihood of each example of a batch; the batch has the form your data give it.
    sample : callable (model, batch, generator) -> batch, optional
        Return the batch with labels drawn from the model. Without it, the Fisher is computed at the
        given labels (the empirical Fisher).
    name : str
        Name shown in the details of an answer.

    Examples
    --------
    >>> import torch
    >>> from torch.nn.functional import huber_loss
    >>> robust = Custom(lambda model, batch: -huber_loss(
    ...     model(batch[0])[:, 0], batch[1], reduction="none"))
    >>> robust.log_prob(lambda x: x, (torch.zeros(2, 1), torch.ones(2)))
    tensor([-0.5000, -0.5000])
    """

    log_prob: Callable[[Any, Any], Any]
    sample: Callable[[Any, Any, Any], Any] | None = None
    name: str = "custom"


_BY_NAME: dict[str, Likelihood] = {
    one.name: one for one in (Categorical(), Bernoulli(), OneVsRest(), Gaussian(), Poisson())
}


def resolve(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood with this name; a likelihood object is returned unchanged."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if not isinstance(likelihood, str) or likelihood not in _BY_NAME:
        raise ExemplaError(
            f"There is no likelihood {likelihood!r}. Choose one of {', '.join(_BY_NAME)}."
        )
    return _BY_NAME[likelihood]


def known(scale: float | None, name: str) -> float:
    """Return the scale of a likelihood; raise if it has not been estimated yet."""
    if scale is None:
        raise ExemplaError(f"The scale of the {name} likelihood is unknown before fit.")
    return scale


# ---- formulas shared by the families


def _log_softmax(x: Array) -> Array:
    xp = array_namespace(x)
    x = x - xp.max(x, axis=1, keepdims=True)
    return x - xp.log(xp.sum(xp.exp(x), axis=1, keepdims=True))


def _log_sigmoid(x: Array) -> Array:
    # log σ(x) = min(x, 0) − log(1 + e^−|x|) neither overflows nor cancels
    xp = array_namespace(x)
    return (x - xp.abs(x)) / 2 - xp.log1p(xp.exp(-xp.abs(x)))


def _sigmoid(x: Array) -> Array:
    return array_namespace(x).exp(_log_sigmoid(x))


def _root_variance(x: Array) -> Array:
    """Return √(p(1 − p)) with p = σ(x)."""
    return array_namespace(x).exp((_log_sigmoid(x) + _log_sigmoid(-x)) / 2)


def _arange(like: Array, n: int) -> Any:
    return array_namespace(like).arange(n, device=device(like))


def _column(outputs: Array, y: Array) -> Array:
    """Reshape numeric labels to the outputs' shape and dtype."""
    xp = array_namespace(outputs)
    return xp.astype(xp.reshape(y, outputs.shape), outputs.dtype)


def _diagonal_rows(root: Array, keep: Array | None = None) -> tuple[Array, Array]:
    """Return one row per kept entry of a diagonal root, and the example each belongs to."""
    xp = array_namespace(root)
    rows, columns = xp.nonzero(xp.ones_like(root, dtype=xp.bool) if keep is None else keep)
    return rows, _one_hot(root[rows], columns) * root[rows, columns][:, None]


def _one_hot(outputs: Array, codes: Array) -> Array:
    xp = array_namespace(outputs)
    if codes.ndim == 2:  # class probabilities already: one-hot, smoothed or mixed labels
        return xp.astype(codes, outputs.dtype)
    return xp.astype(_arange(outputs, outputs.shape[1])[None, :] == codes[:, None], outputs.dtype)
