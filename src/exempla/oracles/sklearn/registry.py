"""Registry of the supported scikit-learn models: which oracle scores each, and alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import BernoulliNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from exempla.errors import UnsupportedModelError
from exempla.oracles.base import Oracle
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.generative import (
    GAUSSIAN_CLASSIFIERS,
    GaussianOracle,
    MixtureOracle,
    NaiveBayesOracle,
)
from exempla.oracles.sklearn.neighbours import NeighbourOracle
from exempla.oracles.sklearn.oracle import SklearnOracle, is_dense
from exempla.oracles.sklearn.unwrap import unwrap
from exempla.oracles.sklearn.wrappers import WrapperOracle, has_parts

__all__ = ["is_trees", "sklearn_oracle"]

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
"""The nearest supported model to an unsupported one."""

_SGD_LOSSES = ("log_loss", "hinge", "squared_hinge", "modified_huber")


def sklearn_oracle(
    model: Any, likelihood: str | Likelihood = "auto", parameters: Sequence[str] | None = None
) -> Oracle:
    """Return the oracle of a scikit-learn model or an ensemble of trees, fitted or not.

    Parameters
    ----------
    model : estimator
        A supported model, alone or inside wrappers.
    likelihood : str or Likelihood
        "auto" uses the model's own; a `Gaussian(variance=...)` fixes the variance.
    parameters : sequence of str, optional
        Layers to keep, by name or glob: "coef" for a linear model, "layer0", "layer1", … for a
        perceptron, "weights", "means", "covariances" for a mixture. None keeps all.

    Raises
    ------
    UnsupportedModelError
        If the model has no score; the message names the nearest supported model.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = sklearn_oracle(LogisticRegression(max_iter=1000).fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [rows.factors[0].g.shape for rows in oracle.scores(train)]
    [(150, 3)]
    """
    last = unwrap(model).model
    kind = _oracle_class(last)
    if kind is None:
        raise _refusal(last)
    return kind(model, likelihood, parameters)


def is_trees(model: Any) -> bool:
    """Return True if this model, without its wrappers, is an ensemble of trees.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> from sklearn.linear_model import Ridge
    >>> is_trees(GradientBoostingClassifier()), is_trees(Ridge())
    (True, False)
    """
    from exempla.oracles.trees.readers import is_boosted, is_forest

    last = unwrap(model).model
    return is_boosted(last) or is_forest(last)


def _oracle_class(model: Any) -> Callable[..., Oracle] | None:
    """Return the class that scores an unwrapped model; None if it is not supported."""
    if isinstance(model, type) or type(model).__name__ in _NEAREST:
        return None
    if isinstance(model, SGDClassifier) and model.loss not in _SGD_LOSSES:
        return None
    if is_dense(model) and not isinstance(model, GaussianProcessClassifier):
        return SklearnOracle
    if has_parts(model):
        return WrapperOracle
    if is_dense(model):
        return SklearnOracle
    classes: dict[Any, Callable[..., Oracle]] = {
        GaussianMixture: MixtureOracle,
        GAUSSIAN_CLASSIFIERS: GaussianOracle,
        (MultinomialNB, BernoulliNB): NaiveBayesOracle,
        (KNeighborsClassifier, KNeighborsRegressor): NeighbourOracle,
    }
    found = next((oracle for kinds, oracle in classes.items() if isinstance(model, kinds)), None)
    if found is None and is_trees(model):
        from exempla.oracles.trees.forest import ForestOracle
        from exempla.oracles.trees.oracle import TreeOracle
        from exempla.oracles.trees.readers import is_forest

        return ForestOracle if is_forest(model) else TreeOracle
    return found


def _refusal(model: Any) -> UnsupportedModelError:
    """Return the error for an unsupported model: the reason, and what to use instead."""
    name = type(model).__name__
    estimator = hasattr(model, "fit") or hasattr(model, "get_params")
    if not isinstance(model, type) and not estimator:
        return UnsupportedModelError(
            f"{name} is not a model exempla can score. It supports torch.nn.Module, boosted trees "
            "of LightGBM, XGBoost, CatBoost and scikit-learn, scikit-learn's forests, "
            f"{SUPPORTED}, and gradients of your own: ScoreModel(score=...) for a function, "
            "ArrayScores() for a matrix of scores."
        )
    if isinstance(model, type):
        why = f"{model.__name__} is a class, not a model: fit {model.__name__}() and pass that"
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
