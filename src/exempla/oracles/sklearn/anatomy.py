"""Which scikit-learn models are supported, who takes each apart, and what to use for the others."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

from sklearn.linear_model import SGDClassifier

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.sklearn.dense import Anatomy
from exempla.oracles.sklearn.kernels import KERNELS
from exempla.oracles.sklearn.linear import LINEAR

__all__ = ["SUPPORTED", "Anatomy", "anatomy", "has_anatomy", "keep_layers", "refused"]

SUPPORTED = (
    "LogisticRegression, SGDClassifier, LinearSVC, SVC, GaussianProcessClassifier, MLPClassifier, "
    "GaussianNB, MultinomialNB, BernoulliNB, LinearDiscriminantAnalysis, "
    "QuadraticDiscriminantAnalysis, KNeighborsClassifier; LinearRegression, Ridge, Lasso, "
    "ElasticNet, BayesianRidge, ARDRegression, HuberRegressor, Poisson-, Gamma- and "
    "TweedieRegressor, SGDRegressor, LinearSVR, SVR, GaussianProcessRegressor, MLPRegressor, "
    "KNeighborsRegressor; GaussianMixture; alone, at the end of a Pipeline, inside a search, or in "
    "a voting, stacking, bagging, calibrating, one-vs-rest or multi-output wrapper"
)

_NEAREST = {
    "RidgeClassifier": "LogisticRegression",
    "RidgeClassifierCV": "LogisticRegressionCV",
    "Perceptron": "SGDClassifier(loss='hinge')",
    "PassiveAggressiveClassifier": "SGDClassifier(loss='hinge')",
    "PassiveAggressiveRegressor": "SGDRegressor(loss='epsilon_insensitive')",
    "NuSVC": "SVC",
    "NuSVR": "SVR",
    "OneClassSVM": "GaussianMixture",
    "SGDOneClassSVM": "GaussianMixture",
    "ComplementNB": "MultinomialNB",
    "CategoricalNB": "BernoulliNB on one-hot columns",
    "NearestCentroid": "GaussianNB",
    "RadiusNeighborsClassifier": "KNeighborsClassifier",
    "RadiusNeighborsRegressor": "KNeighborsRegressor",
    "LabelPropagation": "KNeighborsClassifier",
    "LabelSpreading": "KNeighborsClassifier",
    "QuantileRegressor": "HuberRegressor",
    "TheilSenRegressor": "HuberRegressor",
    "RANSACRegressor": "HuberRegressor",
    "Lars": "LassoLars",
    "LarsCV": "LassoLarsCV",
    "OrthogonalMatchingPursuit": "Lasso",
    "OrthogonalMatchingPursuitCV": "LassoCV",
    "MultiTaskLasso": "MultiOutputRegressor(Lasso())",
    "MultiTaskElasticNet": "MultiOutputRegressor(ElasticNet())",
    "MultiTaskLassoCV": "MultiOutputRegressor(LassoCV())",
    "MultiTaskElasticNetCV": "MultiOutputRegressor(ElasticNetCV())",
    "KernelRidge": "GaussianProcessRegressor",
    "PLSRegression": "Ridge",
    "CCA": "Ridge",
    "IsotonicRegression": "LinearRegression",
    "BayesianGaussianMixture": "GaussianMixture",
    "KernelDensity": "GaussianMixture",
    "KMeans": "GaussianMixture",
    "OneVsOneClassifier": "OneVsRestClassifier",
    "OutputCodeClassifier": "OneVsRestClassifier",
    "DummyClassifier": "LogisticRegression",
    "DummyRegressor": "Ridge",
}
"""The nearest supported model to one that is not."""

_TAKE_APART: dict[type, Callable[[Any], Anatomy]] = {**LINEAR, **KERNELS}


def has_anatomy(model: Any) -> bool:
    """Whether this is a model that `anatomy` takes apart, fitted or not."""
    if type(model).__name__ in _NEAREST or isinstance(model, type):
        return False
    if isinstance(model, SGDClassifier) and model.loss not in _SGD_LOSSES:
        return False
    return isinstance(model, tuple(_TAKE_APART))


_SGD_LOSSES = ("log_loss", "hinge", "squared_hinge", "modified_huber")


def refused(model: Any) -> UnsupportedModelError:
    """The error for a model without scores: why, and what works instead."""
    name = type(model).__name__
    if isinstance(model, type):
        why = f"{model.__name__} is a class, not a model: fit {model.__name__}() and give that"
    elif name in ("RidgeClassifier", "RidgeClassifierCV"):
        why = (
            f"{name} is fitted by least squares on labels −1 and 1, so it gives labels no "
            f"probability and has no score: use {_NEAREST[name]}"
        )
    elif isinstance(model, SGDClassifier):
        why = f"SGDClassifier(loss={model.loss!r}) has no score here: use loss='log_loss'"
    elif name in _NEAREST:
        why = f"exempla cannot score {name}: the nearest model it can is {_NEAREST[name]}"
    else:
        why = (
            f"{name} has no parameters with a known likelihood, so exempla cannot score it: "
            "explain a surrogate of it (exempla.surrogate, or --surrogate on the command line), "
            "or give its gradient as exempla.ScoreModel"
        )
    return UnsupportedModelError(f"{why}. Supported scikit-learn models: {SUPPORTED}.")


def anatomy(model: Any) -> Anatomy:
    """Take a fitted model apart.

    >>> from sklearn.linear_model import Ridge
    >>> anatomy(Ridge(alpha=2.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 1.0])).likelihood
    Gaussian(variance=None)
    """
    if not has_anatomy(model):
        raise refused(model)
    # the nearest class of its own line of descent
    kind = next(kind for kind in type(model).__mro__ if kind in _TAKE_APART)
    return _TAKE_APART[kind](model)


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
