"""Dense layers in NumPy, and linear models and perceptrons read as such.

`DenseNetwork` goes forward to the outputs and backward to the factors (a, g) of every layer. A
linear model is a network with one layer. CSR inputs stay CSR. `DenseModel` describes a fitted
model: its layers, likelihood and penalty. Every penalty is brought to one form: the mean over the n
rows of w_i·(−log p_i), plus Σ λ/2·v² over the weights v. At a fitted optimum therefore
Σ_i w_i s_i = n·λ·v, which the tests check.

`LINEAR` maps each class of estimators to the short function that reads it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import scipy.sparse as sp
from scipy.special import expit
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    HuberRegressor,
    LassoCV,
    LassoLars,
    LassoLarsCV,
    LassoLarsIC,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.utils.class_weight import compute_class_weight

from exempla.arrays import Array, is_sparse
from exempla.errors import ExemplaWarning, UnsupportedModelError
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    OneVsRest,
    Poisson,
)
from exempla.oracles.sklearn.losses import Huber, Margin, Tube, Tweedie

__all__ = [
    "LINEAR",
    "DenseModel",
    "DenseNetwork",
    "Penalty",
    "margin_note",
    "one_vs_rest_signs",
    "tube_note",
]

_ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    # φ(z), and φ′(z) written in h = φ(z)
    "identity": (lambda z: z, np.ones_like),
    "logistic": (expit, lambda h: h * (1 - h)),
    "tanh": (np.tanh, lambda h: 1 - h**2),
    "relu": (lambda z: np.maximum(z, 0), lambda h: (h > 0).astype(h.dtype)),
}


class _FeatureMap(Protocol):
    """A transformation of x before the first layer, without parameters."""

    @property
    def n_features(self) -> int:
        """Columns of x."""
        ...

    def __call__(self, X: Array) -> Array: ...


@dataclass(frozen=True)
class _Columns:
    """Select columns of x: those with a nonzero coefficient in a sparse model.

    >>> _Columns(np.array([2]), 3)(np.array([[5.0, 6.0, 7.0]]))
    array([[7.]])
    """

    kept: np.ndarray
    n_features: int

    def __call__(self, X: Array) -> Array:
        return X[:, self.kept]


@dataclass(frozen=True)
class DenseNetwork:
    """outputs = W_L φ(… φ(W_1 x + b_1) …) + b_L; a bias may be None.

    >>> import numpy as np
    >>> line = DenseNetwork((np.array([[2.0]]),), (np.array([1.0]),))
    >>> inputs, outputs = line.forward(np.array([[3.0]]))
    >>> outputs
    array([[7.]])
    >>> line.backward(inputs, np.array([[1.0]]))[0].a  # the input, and a 1 for the bias
    array([[3., 1.]])
    """

    weights: tuple[np.ndarray, ...]
    """One (d_out, d_in) matrix per layer."""
    biases: tuple[np.ndarray | None, ...]
    activation: str = "identity"
    first: _FeatureMap | None = None
    """Transformation of x before the first layer; None: none."""
    offset: float = 0.0
    """A constant added to the outputs; not a parameter."""

    @property
    def n_features(self) -> int:
        return self.weights[0].shape[1] if self.first is None else self.first.n_features

    @property
    def n_outputs(self) -> int:
        return self.weights[-1].shape[0]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(d_in, d_out) of each layer, with the bias as an additional input."""
        return [
            (W.shape[1] + (b is not None), W.shape[0]) for W, b in zip(self.weights, self.biases)
        ]

    def forward(self, X: Array) -> tuple[list[Array], np.ndarray]:
        """Return the inputs of every layer (with a column of ones for a bias), and the outputs."""
        phi = _ACTIVATIONS[self.activation][0]
        inputs, z = [], X if self.first is None else self.first(X)
        for depth, (W, b) in enumerate(zip(self.weights, self.biases)):
            h = z if depth == 0 else phi(z)
            inputs.append(h if b is None else _with_ones(h))
            z = h @ W.T if b is None else h @ W.T + b
        return inputs, z + self.offset if self.offset else z

    def backward(self, inputs: list[Array], g: np.ndarray) -> tuple[Factors, ...]:
        """Return the factors of every layer, given ∂ log p / ∂ outputs."""
        slope = _ACTIVATIONS[self.activation][1]
        factors: list[Factors] = [Factors(inputs[-1], g)]
        for depth in range(len(self.weights) - 1, 0, -1):
            h = inputs[depth][:, : self.weights[depth].shape[1]]
            g = (g @ self.weights[depth]) * slope(h)
            factors.append(Factors(inputs[depth - 1], g))
        return tuple(reversed(factors))


def _with_ones(X: Array) -> Array:
    """Append a column of ones to X; CSR stays CSR."""
    ones = np.ones((X.shape[0], 1))
    if is_sparse(X):
        return sp.csr_array(sp.hstack([X, sp.csr_array(ones)], format="csr"))
    return np.hstack([X, ones])


@dataclass(frozen=True)
class Penalty:
    """A penalty strength/2·v² on every weight v, added to a sum or a mean of losses.

    >>> Penalty(6.0, "sum").per_row(n=3, mean_weight=2.0)
    2.0
    """

    strength: float
    added_to: Literal["sum", "mean", "weighted mean"]
    batch: int | None = None
    """Rows per mini-batch, if the sum is over a mini-batch."""

    def per_row(self, n: int, mean_weight: float) -> float:
        """Return λ relative to the mean of w_i·loss_i over n rows, before any loss scale."""
        if self.added_to == "sum":
            return self.strength / min(n, self.batch or n)
        # a weighted mean divides by Σ w_i = n·mean_weight, whereas the objective divides by n
        return self.strength * (mean_weight if self.added_to == "weighted mean" else 1.0)


@dataclass(frozen=True)
class DenseModel:
    """A fitted model as dense layers under a likelihood, with its penalty."""

    network: DenseNetwork
    likelihood: Likelihood
    penalty: Penalty
    classes: np.ndarray | None = None
    class_weight: dict | str | None = None
    balanced_by_weight: bool = False
    """True if class_weight="balanced" counts examples by their weight."""
    intercept_penalty: float = 0.0
    """λ of the intercept, as a multiple of that of the weights."""
    column_penalty: np.ndarray | None = None
    """λ of each input column, as a multiple of the common one; None: all equal."""
    note: str = ""
    """A remark for every explanation: approximations, and what is left out."""
    with_training: Callable[[Any], DenseModel] | None = None
    """Returns the model once its training inputs are known, if its features depend on them."""


# ---- readers

_BALANCED_BY_WEIGHT = "sample_weight" in inspect.signature(compute_class_weight).parameters
"""Newer versions of scikit-learn's logistic regression balance classes by weight."""

_LOSS_NOTE = (
    "{name} minimises a loss without a likelihood: scores are minus the gradient of its {loss}, "
    "and the metric is the curvature of that loss at the given labels"
)


def _linear_network(model: Any) -> DenseNetwork:
    """Return coef_ and intercept_ as a network of one layer."""
    # copy, because some models are refitted in place
    W = np.atleast_2d(np.array(model.coef_, dtype=np.float64))
    bias = None
    if model.fit_intercept:
        b = np.array(model.intercept_, dtype=np.float64)
        bias = np.broadcast_to(b.reshape(-1), (W.shape[0],))
    return DenseNetwork((W,), (bias,))


# ---- classifiers


def _logistic(model: LogisticRegression) -> DenseModel:
    multi_class = getattr(model, "multi_class", "auto")  # gone since scikit-learn 1.8
    two = len(model.classes_) == 2
    if two and multi_class == "multinomial":
        raise UnsupportedModelError(
            "LogisticRegression(multi_class='multinomial') doubles the log-odds of two classes: "
            "leave multi_class at its default."
        )
    liblinear = model.solver == "liblinear"
    one_vs_rest = multi_class == "ovr" or (liblinear and multi_class != "multinomial")
    if two:
        likelihood: Likelihood = Bernoulli()
    else:
        likelihood = OneVsRest() if one_vs_rest else Categorical()
    return DenseModel(
        _linear_network(model),
        likelihood,
        Penalty(_logistic_strength(model), "sum"),
        classes=model.classes_,
        class_weight=model.class_weight,
        balanced_by_weight=_BALANCED_BY_WEIGHT,
        # liblinear appends a constant feature of this value and penalises its weight b / scaling
        intercept_penalty=1 / float(model.intercept_scaling) ** 2 if liblinear else 0.0,
    )


def _logistic_strength(model: Any) -> float:
    """Return the L2 part of the penalty 1/C."""
    if isinstance(model, LogisticRegressionCV):
        C = np.unique(np.asarray(model.C_, dtype=np.float64))
        if len(C) > 1:
            warnings.warn(
                f"LogisticRegressionCV chose a different C for each class ({C.min():g} to "
                f"{C.max():g}); their geometric mean is used as the penalty.",
                ExemplaWarning,
                stacklevel=2,
            )
        strength = float(1 / np.exp(np.mean(np.log(C))))
        ratios = [r for r in np.ravel(model.l1_ratio_) if r is not None]
        ratio = float(np.mean(np.asarray(ratios, dtype=np.float64))) if ratios else 0.0
    else:
        strength, ratio = 1 / model.C, float(getattr(model, "l1_ratio", 0) or 0)
    penalty = getattr(model, "penalty", "deprecated")
    if penalty is None:
        return 0.0
    if penalty in ("l1", "l2"):  # the old argument overrides l1_ratio
        ratio = float(penalty == "l1")
    return _l2_part(model, strength, ratio)


def _l2_part(model: Any, strength: float, l1_ratio: float) -> float:
    """Return the L2 part of a penalty; warn if there is an L1 part."""
    if l1_ratio > 0 and strength > 0:
        warnings.warn(
            f"{type(model).__name__} has an L1 penalty, which has no curvature: only the L2 part "
            f"({1 - l1_ratio:.0%} of the penalty) enters the Fisher metric.",
            ExemplaWarning,
            stacklevel=2,
        )
    return strength * (1 - l1_ratio)


def _sgd_strength(model: Any) -> float:
    shares = {"l2": 0.0, "l1": 1.0, "elasticnet": model.l1_ratio}
    if model.penalty is None:
        return 0.0
    return _l2_part(model, model.alpha, shares[model.penalty])


def _sgd(model: Any) -> DenseModel:
    two = len(model.classes_) == 2
    likelihood: Likelihood = Bernoulli() if two else OneVsRest()
    note = ""
    if model.loss != "log_loss":
        likelihood = Margin(model.loss, one_vs_rest_signs(len(model.classes_)))
        note = margin_note(model, model.loss)
    return DenseModel(
        _linear_network(model),
        likelihood,
        Penalty(_sgd_strength(model), "mean"),
        classes=model.classes_,
        class_weight=model.class_weight,
        note=note,
    )


def one_vs_rest_signs(classes: int) -> np.ndarray:
    """Return (classes, outputs) signs: one output for two classes, otherwise one per class."""
    return np.array([[-1.0], [1.0]]) if classes == 2 else 2 * np.eye(classes) - 1


def margin_note(model: Any, loss: str) -> str:
    """Return the note for a support vector classifier."""
    words = (
        "hinge loss, its corner rounded" if loss == "hinge" else f"{loss.replace('_', ' ')} loss"
    )
    return _LOSS_NOTE.format(name=type(model).__name__, loss=words)


def _linear_svc(model: LinearSVC) -> DenseModel:
    if model.multi_class != "ovr":
        raise UnsupportedModelError(
            f"LinearSVC(multi_class={model.multi_class!r}) couples all classes in one margin: "
            "leave multi_class at 'ovr'."
        )
    return DenseModel(
        _linear_network(model),
        Margin(model.loss, one_vs_rest_signs(len(model.classes_))),
        Penalty(_l2_part(model, 1 / model.C, float(model.penalty == "l1")), "sum"),
        classes=model.classes_,
        class_weight=model.class_weight,
        intercept_penalty=1 / float(model.intercept_scaling) ** 2,
        note=margin_note(model, model.loss),
    )


# ---- regressions


def _least_squares(model: Any) -> DenseModel:
    alpha = getattr(model, "alpha_", getattr(model, "alpha", 0.0))
    if np.ptp(alpha) > 0:
        raise UnsupportedModelError(
            f"{type(model).__name__} has a different alpha for each output: "
            "explain one model per output instead."
        )
    return DenseModel(_linear_network(model), Gaussian(), Penalty(float(np.mean(alpha)), "sum"))


def _lasso(model: Any) -> DenseModel:
    """Minimises mean(r²)/2 + α·(ρ‖w‖₁ + (1 − ρ)‖w‖²/2), smooth in the nonzero coefficients."""
    alpha = float(getattr(model, "alpha_", getattr(model, "alpha", 0.0)))
    ratio = float(getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0)))
    network, _, note = _active(model)
    return DenseModel(network, Gaussian(), Penalty(alpha * (1 - ratio), "weighted mean"), note=note)


def _active(model: Any) -> tuple[DenseNetwork, np.ndarray, str]:
    """Return the network restricted to columns with a nonzero coefficient."""
    whole, name = _linear_network(model), type(model).__name__
    if whole.n_outputs > 1:
        raise UnsupportedModelError(
            f"{name} has several outputs, each with its own set of columns: use "
            f"MultiOutputRegressor({name}())."
        )
    W = whole.weights[0]
    columns = np.flatnonzero(W[0])
    if not len(columns) and whole.biases[0] is None:
        raise UnsupportedModelError(
            f"{name} set every coefficient to zero, so no example has any influence: give it a "
            "smaller alpha."
        )
    note = (
        f"{name}: only the {len(columns)} nonzero of {W.shape[1]} coefficients are scored; the "
        "L1 penalty keeps the others at zero"
    )
    kept = DenseNetwork((W[:, columns],), whole.biases, first=_Columns(columns, W.shape[1]))
    return kept, columns, note


def _bayesian_ridge(model: BayesianRidge) -> DenseModel:
    # minimises α/2·Σr² + λ/2·‖w‖², with noise precision α
    noise = 1 / float(model.alpha_)
    penalty = Penalty(float(model.lambda_) * noise, "sum")
    return DenseModel(_linear_network(model), Gaussian(noise), penalty)


def _ard(model: ARDRegression) -> DenseModel:
    noise, each = 1 / float(model.alpha_), np.asarray(model.lambda_, dtype=np.float64)
    network, columns, note = _active(model)
    return DenseModel(
        network, Gaussian(noise), Penalty(noise, "sum"), column_penalty=each[columns], note=note
    )


def _poisson(model: PoissonRegressor) -> DenseModel:
    return DenseModel(_linear_network(model), Poisson(), Penalty(model.alpha, "weighted mean"))


def _tweedie(model: Any) -> DenseModel:
    power = 2.0 if isinstance(model, GammaRegressor) else float(model.power)
    link = getattr(model, "link", "log")
    if link == "auto":
        link = "identity" if power <= 0 else "log"
    if power < 0:
        raise UnsupportedModelError(
            f"TweedieRegressor(power={power:g}) has no density in closed form: use a power of 0 "
            "or of at least 1."
        )
    family: Likelihood = Tweedie(power, link == "log")
    if (power, link) == (1.0, "log"):
        family = Poisson()
    elif (power, link) == (0.0, "identity"):
        family = Gaussian()
    return DenseModel(_linear_network(model), family, Penalty(model.alpha, "weighted mean"))


def _huber(model: HuberRegressor) -> DenseModel:
    # n·σ + 2σ·Σh(r)/σ² + α‖w‖², with h(r) quadratic up to εσ; divided by 2σ that is −log p
    sigma = float(model.scale_)
    family = Huber(float(model.epsilon) * sigma, sigma**2)
    return DenseModel(_linear_network(model), family, Penalty(float(model.alpha) * sigma, "sum"))


def _sgd_regressor(model: SGDRegressor) -> DenseModel:
    epsilon, note = float(model.epsilon), ""
    if model.loss == "squared_error":
        family: Likelihood = Gaussian()
    elif model.loss == "huber":
        family = Huber(epsilon)
    else:
        family = Tube(epsilon, squared=model.loss.startswith("squared"))
        note = tube_note(model, family.squared)
    # half the squared error, as in −log p; the squared tube is not halved
    penalty = Penalty(_sgd_strength(model), "mean")
    return DenseModel(_linear_network(model), family, penalty, note=note)


def tube_note(model: Any, squared: bool) -> str:
    """Return the note for a support vector regression."""
    words = "squared tube loss" if squared else "tube loss, its corners rounded"
    return _LOSS_NOTE.format(name=type(model).__name__, loss=words)


def _linear_svr(model: LinearSVR) -> DenseModel:
    squared = model.loss.startswith("squared")
    return DenseModel(
        _linear_network(model),
        Tube(float(model.epsilon), squared),
        Penalty(1 / model.C, "sum"),
        intercept_penalty=1 / float(model.intercept_scaling) ** 2,
        note=tube_note(model, squared),
    )


# ---- perceptrons


def _mlp(model: Any) -> DenseModel:
    W = tuple(np.array(one, dtype=np.float64).T for one in model.coefs_)
    b = tuple(np.array(one, dtype=np.float64) for one in model.intercepts_)
    network = DenseNetwork(W, b, model.activation)
    # the gradient adds alpha·W before dividing by the number of rows *it was computed on*:
    # all n for lbfgs, a mini-batch for sgd and adam
    batch = 200 if model.batch_size == "auto" else int(model.batch_size)
    penalty = Penalty(model.alpha, "sum", None if model.solver == "lbfgs" else batch)
    if isinstance(model, MLPRegressor):
        counts = getattr(model, "loss", "squared_error") == "poisson"
        return DenseModel(network, Poisson() if counts else Gaussian(), penalty)
    if model.out_activation_ == "logistic" and network.n_outputs > 1:
        raise UnsupportedModelError(
            "MLPClassifier was fitted on several labels per row (multilabel): explain one model "
            "per label instead."
        )
    likelihood = Bernoulli() if model.out_activation_ == "logistic" else Categorical()
    return DenseModel(network, likelihood, penalty, classes=np.asarray(model.classes_))


LINEAR: dict[type, Callable[[Any], DenseModel]] = {
    LogisticRegression: _logistic,  # LogisticRegressionCV is one too
    SGDClassifier: _sgd,
    LinearSVC: _linear_svc,
    LinearRegression: _least_squares,
    Ridge: _least_squares,
    RidgeCV: _least_squares,
    ElasticNet: _lasso,  # Lasso is one too
    ElasticNetCV: _lasso,
    LassoCV: _lasso,
    LassoLars: _lasso,
    LassoLarsCV: _lasso,
    LassoLarsIC: _lasso,
    BayesianRidge: _bayesian_ridge,
    ARDRegression: _ard,
    PoissonRegressor: _poisson,
    GammaRegressor: _tweedie,
    TweedieRegressor: _tweedie,
    HuberRegressor: _huber,
    SGDRegressor: _sgd_regressor,
    LinearSVR: _linear_svr,
    MLPClassifier: _mlp,
    MLPRegressor: _mlp,
}
