"""Find the model inside Pipelines, searches and other wrappers, and the oracle that scores it.

`unwrap` handles wrappers around one model: Pipelines, hyperparameter searches, threshold tuning,
frozen estimators, transformed targets, and stacking (whose base models are fixed features of the
final model). Wrappers around several models are in `wrappers.py`. `sklearn_oracle` imports only the
module that scores the model. Recorded snapshots of a scikit-learn model become copies of it here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingClassifier, StackingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeCV, SGDClassifier
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from exempla.data import is_polars
from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError
from exempla.oracles.base import Oracle
from exempla.oracles.likelihoods import Likelihood
from exempla.recorder.snapshots import arrays_of, place, read_arrays

_STACKED = (
    "only the final {last} of {name} is explained: its base models are treated as fixed, so the "
    "effect of training rows on them is not included"
)


def label_codes(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the position of each label among the classes.

    Unknown labels stay as they are, so that the label check can name them.
    """
    known = {label: code for code, label in enumerate(classes.tolist())}
    return np.array([known.get(label, label) for label in y.tolist()])


@dataclass(frozen=True)
class _LabelMap:
    """Convert labels between the user's vocabulary and that of the wrapped model."""

    wrapper: Any

    def inside(self, y: np.ndarray) -> np.ndarray:
        """Return the user's labels as the wrapped model was given them."""
        if isinstance(self.wrapper, TransformedTargetRegressor):
            return self._transformed("transform", np.asarray(y, dtype=np.float64))
        return label_codes(self.wrapper.classes_, y)

    def outside(self, y: np.ndarray) -> np.ndarray:
        """Return the wrapped model's predictions in the user's vocabulary."""
        if isinstance(self.wrapper, TransformedTargetRegressor):
            return self._transformed("inverse_transform", y)
        return self.wrapper.classes_[y]

    def _transformed(self, way: str, y: np.ndarray) -> np.ndarray:
        columns = np.asarray(getattr(self.wrapper.transformer_, way)(y.reshape(len(y), -1)))
        return columns[:, 0] if columns.shape[1] == 1 else columns


@dataclass(frozen=True)
class _Steps:
    """Apply transformers one after another (a class, not a closure, so that it can be pickled)."""

    steps: tuple[Any, ...]

    def __call__(self, X: Any) -> Any:
        try:
            for step in self.steps:
                X = step.transform(X)
            return X
        except Exception:
            if not is_polars(X):
                raise
            return self(X.to_pandas())  # some steps accept only pandas


@dataclass(frozen=True)
class Unwrapped:
    """A model without its wrappers."""

    model: Any
    """The innermost estimator."""
    transform: Callable[[Any], Any] | None = None
    """What happens to X before the model sees it; None: nothing."""
    labels: _LabelMap | None = None
    """What happens to y; None: nothing."""
    note: str = ""
    """A remark for every explanation, if unwrapping leaves something out."""


def unwrap(model: Any) -> Unwrapped:
    """Return the model inside its wrappers, the steps before it, and its label conversion."""
    before: list[Any] = []
    labels, note = None, ""
    while True:
        if isinstance(model, Pipeline):
            if len(model.steps) > 1:
                before.append(model[:-1])
            model = model.steps[-1][1]
        elif _is_search(model):
            model = getattr(model, "best_estimator_", model.estimator)
        elif isinstance(model, FixedThresholdClassifier | TunedThresholdClassifierCV):
            name = type(model).__name__
            note = f"{name} only moves the decision threshold: the model inside is explained"
            model = getattr(model, "estimator_", model.estimator)
        elif type(model).__name__ == "FrozenEstimator":
            model = model.estimator
        elif isinstance(model, TransformedTargetRegressor):
            fitted = hasattr(model, "regressor_")
            labels = _LabelMap(model) if fitted else None
            inner = model.regressor_ if fitted else model.regressor
            model = LinearRegression() if inner is None else inner
        elif isinstance(model, StackingClassifier | StackingRegressor):
            before.append(model)
            inner = _final(model)
            note = _STACKED.format(name=type(model).__name__, last=type(inner).__name__)
            if isinstance(model, StackingClassifier) and hasattr(model, "classes_"):
                labels = _LabelMap(model)
            model = inner
        else:
            return Unwrapped(model, _Steps(tuple(before)) if before else None, labels, note)


def _final(model: Any) -> Any:
    if hasattr(model, "final_estimator_"):
        return model.final_estimator_
    default = RidgeCV if isinstance(model, StackingRegressor) else LogisticRegression
    return default() if model.final_estimator is None else model.final_estimator


def _is_search(model: Any) -> bool:
    # halving searches are importable only as experimental
    searches = GridSearchCV | RandomizedSearchCV
    return isinstance(model, searches) or type(model).__name__.startswith("Halving")


def require_fitted(model: Any) -> None:
    """Raise UnfittedModelError if the model, or the search around it, has not been fitted."""
    searched = _is_search(model) and hasattr(model, "cv_results_")
    if searched and not hasattr(model, "best_estimator_"):
        raise UnfittedModelError(
            f"{type(model).__name__}(refit=False) has no model to explain: use refit=True."
        )
    last = unwrap(model).model
    known = getattr(last, "is_fitted", None)  # CatBoost has no fitted attributes that end in "_"
    if (callable(known) and known()) or not hasattr(last, "fit"):  # a library's trained object
        return
    try:
        check_is_fitted(last)
    except NotFittedError:
        raise UnfittedModelError(
            f"{type(last).__name__} is not fitted: call model.fit(X, y) first."
        ) from None


def is_fitted(model: Any) -> bool:
    """Return True if `require_fitted` accepts the model."""
    try:
        require_fitted(model)
    except UnfittedModelError:
        return False
    return True


def with_checkpoints(models: list[Any]) -> list[Any]:
    """Replace every snapshot file in the list by a copy of the model with its weights."""
    base = next((m for m in models if not isinstance(m, str | Path)), None)
    return [_load_snapshot(base, m) if isinstance(m, str | Path) else m for m in models]


def _load_snapshot(base: Any, path: str | Path) -> Any:
    """Return a copy of the base model with the snapshot's weights; earlier steps stay the same."""
    if base is None:
        raise ExemplaError("A list of snapshots needs the model they belong to: put it first.")
    arrays = read_arrays(Path(path))
    require_fitted(base)
    model = copy.deepcopy(base)
    try:
        place(unwrap(model).model, arrays)
    except ExemplaError as problem:
        raise ExemplaError(f"{path} does not fit {type(base).__name__}: {problem}") from None
    return model


def has_weights(model: Any, path: Path) -> bool:
    """Return True if the file holds exactly the model's weights."""
    require_fitted(model)
    own, found = arrays_of(unwrap(model).model), read_arrays(path)
    return set(own) == set(found) and all(np.array_equal(own[name], found[name]) for name in own)


# ---- which oracle scores a model

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
    "LogisticRegression": "RidgeClassifier DummyClassifier",
    "LogisticRegressionCV": "RidgeClassifierCV",
    "SGDClassifier(loss='hinge')": "Perceptron PassiveAggressiveClassifier",
    "SGDRegressor(loss='epsilon_insensitive')": "PassiveAggressiveRegressor",
    "SVC": "NuSVC",
    "SVR": "NuSVR",
    "GaussianMixture": "OneClassSVM SGDOneClassSVM BayesianGaussianMixture KernelDensity KMeans",
    "MultinomialNB": "ComplementNB",
    "BernoulliNB on one-hot columns": "CategoricalNB",
    "GaussianNB": "NearestCentroid",
    "KNeighborsClassifier": "RadiusNeighborsClassifier LabelPropagation LabelSpreading",
    "KNeighborsRegressor": "RadiusNeighborsRegressor",
    "HuberRegressor": "QuantileRegressor TheilSenRegressor RANSACRegressor",
    "LassoLarsCV": "Lars LarsCV",
    "LassoCV": "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
    "MultiOutputRegressor(LassoCV())": "MultiTaskLasso MultiTaskLassoCV",
    "MultiOutputRegressor(ElasticNetCV())": "MultiTaskElasticNet MultiTaskElasticNetCV",
    "GaussianProcessRegressor": "KernelRidge",
    "Ridge": "PLSRegression CCA DummyRegressor IsotonicRegression",
    "OneVsRestClassifier": "OneVsOneClassifier OutputCodeClassifier",
}
"""The nearest supported model, and the unsupported ones it stands in for."""
_STAND_INS = {name: stand_in for stand_in, names in _NEAREST.items() for name in names.split()}
_SGD_LOSSES = ("log_loss", "hinge", "squared_hinge", "modified_huber")

_ORACLES = {
    "sklearn.oracle:SklearnOracle": (
        "LogisticRegression SGDClassifier LinearSVC LinearRegression Ridge RidgeCV ElasticNet "
        "ElasticNetCV LassoCV LassoLars LassoLarsCV LassoLarsIC BayesianRidge ARDRegression "
        "PoissonRegressor GammaRegressor TweedieRegressor HuberRegressor SGDRegressor LinearSVR "
        "MLPClassifier MLPRegressor SVC SVR GaussianProcessRegressor GaussianProcessClassifier"
    ),
    "sklearn.wrappers:WrapperOracle": (
        "VotingClassifier VotingRegressor BaggingClassifier BaggingRegressor "
        "CalibratedClassifierCV OneVsRestClassifier MultiOutputClassifier MultiOutputRegressor "
        "ClassifierChain RegressorChain"
    ),
    "sklearn.generative:MixtureOracle": "GaussianMixture",
    "sklearn.generative:GenerativeOracle": (
        "GaussianNB LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis MultinomialNB "
        "BernoulliNB"
    ),
    "sklearn.neighbours:NeighbourOracle": "KNeighborsClassifier KNeighborsRegressor",
    "trees.forest:ForestOracle": "ForestClassifier ForestRegressor",
    "trees.oracle:TreeOracle": (
        "BaseGradientBoosting BaseHistGradientBoosting LGBMModel XGBModel Booster CatBoost"
    ),
}
"""The oracle of each class of models, by the name of the class or of a base class."""
_ORACLE_OF = {name: oracle for oracle, names in _ORACLES.items() for name in names.split()}
_LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost")


def sklearn_oracle(
    model: Any, likelihood: str | Likelihood = "auto", parameters: Sequence[str] | None = None
) -> Oracle:
    """Return the oracle of a scikit-learn model or an ensemble of trees, fitted or not.

    `parameters` are layers to keep, by name or glob: "coef" for a linear model, "layer0", "layer1",
    … for a perceptron, "weights", "means", "covariances" for a mixture.
    """
    last = unwrap(model).model
    kind = _oracle_name(last)
    if kind is None:
        raise _refusal(last)
    module, name = kind.split(":")
    return getattr(import_module(f"exempla.oracles.{module}"), name)(model, likelihood, parameters)


def is_trees(model: Any) -> bool:
    """Return True if this model, without its wrappers, is an ensemble of trees."""
    return (_oracle_name(unwrap(model).model) or "").startswith("trees.")


def is_boosted(model: Any) -> bool:
    """Return True if an unwrapped model is a boosted ensemble of trees, fitted or not."""
    return _oracle_name(model) == "trees.oracle:TreeOracle"


def _oracle_name(model: Any) -> str | None:
    """Return module and class of the oracle of an unwrapped model; None if it is not supported."""
    if isinstance(model, type) or type(model).__name__ in _STAND_INS:
        return None
    if isinstance(model, SGDClassifier) and model.loss not in _SGD_LOSSES:
        return None
    for kind in type(model).__mro__:
        found = _ORACLE_OF.get(kind.__name__)
        if found is None or kind.__module__.partition(".")[0] not in _LIBRARIES:
            continue
        if kind.__name__ == "GaussianProcessClassifier" and len(getattr(model, "classes_", ())) > 2:
            return "sklearn.wrappers:WrapperOracle"  # one process per class
        # what a subclass of a wrapper changes is not known
        return None if "wrappers" in found and kind is not type(model) else found
    return None


def _refusal(model: Any) -> UnsupportedModelError:
    """Return the error for an unsupported model: the reason, and what to use instead."""
    name = type(model).__name__
    if isinstance(model, type):
        why = f"{model.__name__} is a class, not a model: fit {model.__name__}() and pass that"
    elif not hasattr(model, "fit") and not hasattr(model, "get_params"):
        why = (
            f"{name} is not a model exempla can score; it also supports torch.nn.Module, boosted "
            "trees of LightGBM, XGBoost, CatBoost and scikit-learn, forests, and gradients of your "
            "own: ScoreModel(score=...) for a function, ArrayScores() for a matrix of scores"
        )
    elif name in ("RidgeClassifier", "RidgeClassifierCV"):
        why = (
            f"{name} is fitted by least squares on labels −1 and 1, so it gives labels no "
            f"probability and has no score: use {_STAND_INS[name]}"
        )
    elif isinstance(model, SGDClassifier):
        why = f"SGDClassifier(loss={model.loss!r}) has no score here: use loss='log_loss'"
    elif name in _STAND_INS:
        why = f"exempla cannot score {name}: the nearest model it can is {_STAND_INS[name]}"
    else:
        why = (
            f"{name} has no parameters with a known likelihood, so exempla cannot score it: "
            "explain a surrogate of it (exempla.surrogate, or --surrogate on the command line), "
            "or give its gradient as exempla.ScoreModel"
        )
    return UnsupportedModelError(f"{why}. Supported scikit-learn models: {SUPPORTED}.")
