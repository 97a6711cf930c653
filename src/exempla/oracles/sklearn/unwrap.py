"""Find the model that has the parameters, what happens to the data before it, and to the labels.

Opened here: Pipelines, searches, frozen estimators; stacking (its base models are fixed features of
the final one) and transformed targets. Wrappers around several models are in `wrappers/`.

Earlier weights of a scikit-learn model: recorded snapshots stand for copies of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingClassifier, StackingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeCV
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from exempla.errors import ExemplaError, UnfittedModelError
from exempla.recorder.weights import arrays_of, place, read_arrays

_SEARCHES = {"HalvingGridSearchCV", "HalvingRandomSearchCV"}  # experimental: not importable as such
_STACKED = (
    "the base models of {name} are taken as they are: only its final {last} is explained, and "
    "what training rows did to the base models is left out"
)


@dataclass(frozen=True)
class _LabelMap:
    """Labels between the user's vocabulary and that of the model inside."""

    wrapper: Any

    def inside(self, y: np.ndarray) -> np.ndarray:
        """The user's labels as the model inside was given them."""
        if isinstance(self.wrapper, TransformedTargetRegressor):
            return self._transformed("transform", np.asarray(y, dtype=np.float64))
        known = {label: code for code, label in enumerate(self.wrapper.classes_.tolist())}
        # a label it does not know stays as it is, to be named by whoever checks labels
        return np.array([known.get(label, label) for label in y.tolist()])

    def outside(self, y: np.ndarray) -> np.ndarray:
        """Predictions of the model inside in the user's words."""
        if isinstance(self.wrapper, TransformedTargetRegressor):
            return self._transformed("inverse_transform", y)
        return self.wrapper.classes_[y]

    def _transformed(self, way: str, y: np.ndarray) -> np.ndarray:
        columns = np.asarray(getattr(self.wrapper.transformer_, way)(y.reshape(len(y), -1)))
        return columns[:, 0] if columns.shape[1] == 1 else columns


@dataclass(frozen=True)
class _Opened:
    """A model without its wrappers."""

    transform: Callable[[Any], Any] | None
    last: Any
    labels: _LabelMap | None = None
    note: str = ""


def open_up(model: Any) -> _Opened:
    """The model inside, the steps before it, and what becomes of the labels.

    >>> from sklearn.linear_model import Ridge
    >>> open_up(TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1)).last
    Ridge()
    """
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
            note = f"{type(model).__name__} moves the threshold alone: scores are its model's own"
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
            break
    return _Opened(_StepsBefore(tuple(before)) if before else None, model, labels, note)


def _final(model: Any) -> Any:
    if hasattr(model, "final_estimator_"):
        return model.final_estimator_
    default = RidgeCV if isinstance(model, StackingRegressor) else LogisticRegression
    return default() if model.final_estimator is None else model.final_estimator


def unwrap(model: Any) -> tuple[Callable[[Any], Any] | None, Any]:
    """The transformation in front of the last step (None if there is none), and that step.

    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> transform, last = unwrap(make_pipeline(StandardScaler(), Ridge()))
    >>> last
    Ridge()
    """
    opened = open_up(model)
    return opened.transform, opened.last


def _is_search(model: Any) -> bool:
    searches = GridSearchCV | RandomizedSearchCV
    return isinstance(model, searches) or type(model).__name__ in _SEARCHES


@dataclass(frozen=True)
class _StepsBefore:
    """Steps one after another (an object, not a closure: it must survive pickling)."""

    steps: tuple[Any, ...]

    def __call__(self, X: Any) -> Any:
        for step in self.steps:
            X = step.transform(X)
        return X


def require_fitted(model: Any) -> None:
    """Raise UnfittedModelError if the model, or the search around it, has no fitted parameters."""
    if (
        _is_search(model)
        and hasattr(model, "cv_results_")
        and not hasattr(model, "best_estimator_")
    ):
        raise UnfittedModelError(
            f"{type(model).__name__} was fitted with refit=False and so kept no model: "
            "use refit=True."
        )
    _, last = unwrap(model)
    known = getattr(last, "is_fitted", None)  # CatBoost's way to say it; it has no names in "_"
    if callable(known) and known():
        return
    try:
        check_is_fitted(last)
    except NotFittedError:
        raise UnfittedModelError(
            f"{type(last).__name__} is not fitted, so it has no scores yet: "
            "call model.fit(X, y) first."
        ) from None


def is_fitted(model: Any) -> bool:
    """Whether `require_fitted` lets the model pass."""
    try:
        require_fitted(model)
    except UnfittedModelError:
        return False
    return True


def with_checkpoints(models: list[Any]) -> list[Any]:
    """The list with every snapshot's file turned into a model."""
    base = next((m for m in models if not isinstance(m, str | Path)), None)
    return [loaded(base, m) if isinstance(m, str | Path) else m for m in models]


def loaded(base: Any, path: str | Path) -> Any:
    """A copy of the base model with other weights; what stands before its last step stays."""
    if base is None:
        raise ExemplaError("a list of snapshots needs the model they belong to: put it first.")
    arrays = read_arrays(Path(path))
    require_fitted(base)
    model = copy.deepcopy(base)
    try:
        place(unwrap(model)[1], arrays)
    except ExemplaError as problem:
        raise ExemplaError(f"{path} does not fit {type(base).__name__}: {problem}") from None
    return model


def has_weights(model: Any, path: Path) -> bool:
    """Whether the file holds the very weights that the model has."""
    require_fitted(model)
    own, found = arrays_of(unwrap(model)[1]), read_arrays(path)
    return set(own) == set(found) and all(np.array_equal(own[name], found[name]) for name in own)
