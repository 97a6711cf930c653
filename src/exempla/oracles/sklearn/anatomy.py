"""What each supported scikit-learn model is: its layers, its likelihood, its penalty.

Every penalty is brought to one form: mean over the n rows of w_i·(−log p_i), plus Σ λ/2·v² over
the weights v. At a fitted optimum therefore Σ_i w_i s_i = n·λ·v, which the tests check.
"""

from __future__ import annotations

import fnmatch
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
)
from sklearn.mixture import GaussianMixture
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils.class_weight import compute_class_weight

from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    OneVsRest,
    Poisson,
)
from exempla.oracles.sklearn.dense import DenseNetwork

__all__ = ["SUPPORTED", "Anatomy", "anatomy", "keep_layers", "refuse_unsupported"]

SUPPORTED = (
    "LogisticRegression, LogisticRegressionCV, SGDClassifier(loss='log_loss'), LinearRegression, "
    "Ridge, RidgeCV, PoissonRegressor, MLPClassifier, MLPRegressor and GaussianMixture, alone, at "
    "the end of a Pipeline or inside GridSearchCV"
)


BALANCED_BY_WEIGHT = "sample_weight" in inspect.signature(compute_class_weight).parameters
"""Newer scikit-learn's logistic regression counts rows by their weight when it balances classes."""


@dataclass(frozen=True)
class Penalty:
    """strength/2·v² on every weight v, added to a sum or a mean of losses.

    >>> Penalty(6.0, "sum").per_row(n=3, mean_weight=2.0)
    2.0
    """

    strength: float
    added_to: Literal["sum", "mean", "weighted mean"]
    batch: int | None = None
    """Rows of a mini-batch, where the sum is one over a mini-batch."""

    def per_row(self, n: int, mean_weight: float) -> float:
        """λ in the mean over n rows of w_i·loss_i. (A Gaussian's is still to be divided by σ².)"""
        if self.added_to == "sum":
            return self.strength / min(n, self.batch or n)
        # a weighted mean divides by Σ w_i = n·mean_weight where we divide by n
        return self.strength * (mean_weight if self.added_to == "weighted mean" else 1.0)


@dataclass(frozen=True)
class Anatomy:
    """A fitted model, taken apart."""

    network: DenseNetwork
    likelihood: Likelihood
    penalty: Penalty
    classes: np.ndarray | None = None
    class_weight: dict | str | None = None
    balanced_by_weight: bool = False
    """Whether class_weight="balanced" counts an example by its weight or as one."""
    intercept_penalty: float = 0.0
    """λ of the intercept, as a multiple of that of the weights."""


def refuse_unsupported(model: Any) -> None:
    """Raise UnsupportedModelError unless the model, fitted or not, is one we can take apart."""
    name = type(model).__name__
    if isinstance(model, type):
        why = f"{model.__name__} is a class, not a model: fit {model.__name__}() and give that"
    elif isinstance(model, RidgeClassifier | RidgeClassifierCV):
        why = (
            f"{name} is fitted by least squares on labels −1 and 1, so it gives labels no "
            "probability and has no score: use LogisticRegression"
        )
    elif isinstance(model, SGDClassifier) and model.loss != "log_loss":
        why = (
            f"SGDClassifier(loss={model.loss!r}) gives labels no probability: "
            "use SGDClassifier(loss='log_loss')"
        )
    elif not isinstance(model, (*_TAKE_APART, GaussianMixture)):
        why = f"{name} has no parameters with a known likelihood, so exempla cannot score it"
    else:
        return
    raise UnsupportedModelError(
        f"{why}. Supported scikit-learn models: {SUPPORTED}; for any other, give its gradient as "
        "exempla.oracles.scores.ScoreModel."
    )


def anatomy(model: Any) -> Anatomy:
    """Take a fitted model apart.

    >>> from sklearn.linear_model import Ridge
    >>> anatomy(Ridge(alpha=2.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 1.0])).likelihood
    Gaussian(variance=None)
    """
    refuse_unsupported(model)
    for kind, take_apart in _TAKE_APART.items():
        if isinstance(model, kind):
            return take_apart(model)
    raise AssertionError(f"{type(model).__name__} passed refuse_unsupported")


def keep_layers(names: list[str], wanted: Sequence[str] | str | None) -> list[int]:
    """Positions of the wanted layers, given by name or glob; all of them if None.

    >>> keep_layers(["layer0", "layer1", "layer2"], ["layer2", "*0"])
    [0, 2]
    """
    if wanted is None:
        return list(range(len(names)))
    listed = wanted if isinstance(wanted, Sequence) else ()
    globs = [wanted] if isinstance(wanted, str) else list(listed)
    if not all(isinstance(glob, str) for glob in globs):
        globs = []
    if not globs or any(not fnmatch.filter(names, glob) for glob in globs):
        raise ExemplaError(
            f"parameters must name some of {names} (globs allowed), not {wanted!r:.80}."
        )
    return [i for i, name in enumerate(names) if any(fnmatch.fnmatchcase(name, g) for g in globs)]


def _linear(model: Any) -> DenseNetwork:
    # copies: some models are refitted in place
    W = np.atleast_2d(np.array(model.coef_, dtype=np.float64))
    bias = None
    if model.fit_intercept:
        b = np.array(model.intercept_, dtype=np.float64)
        bias = np.broadcast_to(b.reshape(-1), (W.shape[0],))
    return DenseNetwork((W,), (bias,))


def _logistic(model: LogisticRegression) -> Anatomy:
    multi_class = getattr(model, "multi_class", "auto")  # gone since scikit-learn 1.8
    two = len(model.classes_) == 2
    if two and multi_class == "multinomial":
        raise UnsupportedModelError(
            "LogisticRegression(multi_class='multinomial') on two classes doubles its log-odds: "
            "leave multi_class at its default."
        )
    liblinear = model.solver == "liblinear"
    one_vs_rest = multi_class == "ovr" or (liblinear and multi_class != "multinomial")
    if two:
        likelihood: Likelihood = Bernoulli()
    else:
        likelihood = OneVsRest() if one_vs_rest else Categorical()
    return Anatomy(
        _linear(model),
        likelihood,
        Penalty(_logistic_strength(model), "sum"),
        classes=model.classes_,
        class_weight=model.class_weight,
        balanced_by_weight=BALANCED_BY_WEIGHT,
        # liblinear appends a feature of this value and penalises its weight b / scaling as well
        intercept_penalty=1 / float(model.intercept_scaling) ** 2 if liblinear else 0.0,
    )


def _logistic_strength(model: Any) -> float:
    """1/C, or the share of it that is squared."""
    if isinstance(model, LogisticRegressionCV):
        C = np.unique(np.asarray(model.C_, dtype=np.float64))
        if len(C) > 1:
            warnings.warn(
                f"LogisticRegressionCV chose a different C for each class ({C.min():g} to "
                f"{C.max():g}); their geometric mean is used for the penalty.",
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
    return _squared_part(model, strength, ratio)


def _squared_part(model: Any, strength: float, l1_ratio: float) -> float:
    if l1_ratio > 0 and strength > 0:
        warnings.warn(
            f"{type(model).__name__} has an L1 penalty, which has no curvature: only the L2 part "
            f"({1 - l1_ratio:.0%} of the penalty) enters the Fisher metric.",
            ExemplaWarning,
            stacklevel=2,
        )
    return strength * (1 - l1_ratio)


def _sgd(model: Any) -> Anatomy:
    shares = {"l2": 0.0, "l1": 1.0, "elasticnet": model.l1_ratio}
    strength = 0.0
    if model.penalty is not None:
        strength = _squared_part(model, model.alpha, shares[model.penalty])
    two = len(model.classes_) == 2
    return Anatomy(
        _linear(model),
        Bernoulli() if two else OneVsRest(),
        Penalty(strength, "mean"),
        classes=model.classes_,
        class_weight=model.class_weight,
    )


def _least_squares(model: Any) -> Anatomy:
    alpha = getattr(model, "alpha_", getattr(model, "alpha", 0.0))
    if np.ptp(alpha) > 0:
        raise UnsupportedModelError(
            f"{type(model).__name__} has a different alpha for each output: "
            "explain one model per output instead."
        )
    return Anatomy(_linear(model), Gaussian(), Penalty(float(np.mean(alpha)), "sum"))


def _poisson(model: PoissonRegressor) -> Anatomy:
    return Anatomy(_linear(model), Poisson(), Penalty(model.alpha, "weighted mean"))


def _mlp(model: Any) -> Anatomy:
    W = tuple(np.array(one, dtype=np.float64).T for one in model.coefs_)
    b = tuple(np.array(one, dtype=np.float64) for one in model.intercepts_)
    network = DenseNetwork(W, b, model.activation)
    # the gradient adds alpha·W before dividing by the number of rows *it was computed on*:
    # all n for lbfgs, a mini-batch for sgd and adam
    batch = 200 if model.batch_size == "auto" else int(model.batch_size)
    penalty = Penalty(model.alpha, "sum", None if model.solver == "lbfgs" else batch)
    if isinstance(model, MLPRegressor):
        counts = getattr(model, "loss", "squared_error") == "poisson"
        return Anatomy(network, Poisson() if counts else Gaussian(), penalty)
    if model.out_activation_ == "logistic" and network.n_outputs > 1:
        raise UnsupportedModelError(
            "MLPClassifier was fitted on several labels per row (multilabel): explain one model "
            "per label instead."
        )
    likelihood = Bernoulli() if model.out_activation_ == "logistic" else Categorical()
    return Anatomy(network, likelihood, penalty, classes=np.asarray(model.classes_))


_TAKE_APART: dict[type, Callable[[Any], Anatomy]] = {
    LogisticRegression: _logistic,  # LogisticRegressionCV is one too
    SGDClassifier: _sgd,
    LinearRegression: _least_squares,
    Ridge: _least_squares,
    RidgeCV: _least_squares,
    PoissonRegressor: _poisson,
    MLPClassifier: _mlp,
    MLPRegressor: _mlp,
}
