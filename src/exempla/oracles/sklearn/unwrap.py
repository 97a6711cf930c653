"""Unwrap an estimator: find the fitted model inside Pipelines, searches and other wrappers.

`unwrap` handles wrappers around one model: Pipelines, hyperparameter searches, threshold tuning,
frozen estimators, transformed targets, and stacking (whose base models are fixed features of the
final model). Wrappers around several models are in `wrappers.py`.

Recorded snapshots of a scikit-learn model become copies of it here as well.
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

_SEARCHES = {"HalvingGridSearchCV", "HalvingRandomSearchCV"}  # importable only as experimental
_STACKED = (
    "only the final {last} of {name} is explained: its base models are treated as fixed, so the "
    "effect of training rows on them is not included"
)


@dataclass(frozen=True)
class _LabelMap:
    """Convert labels between the user's vocabulary and that of the wrapped model."""

    wrapper: Any

    def inside(self, y: np.ndarray) -> np.ndarray:
        """Return the user's labels as the wrapped model was given them."""
        if isinstance(self.wrapper, TransformedTargetRegressor):
            return self._transformed("transform", np.asarray(y, dtype=np.float64))
        known = {label: code for code, label in enumerate(self.wrapper.classes_.tolist())}
        # unknown labels stay as they are, so that the label check can name them
        return np.array([known.get(label, label) for label in y.tolist()])

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
        for step in self.steps:
            X = step.transform(X)
        return X


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
    """Return the model inside its wrappers, the steps before it, and its label conversion.

    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> unwrap(make_pipeline(StandardScaler(), Ridge())).model
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
    searches = GridSearchCV | RandomizedSearchCV
    return isinstance(model, searches) or type(model).__name__ in _SEARCHES


def require_fitted(model: Any) -> None:
    """Raise UnfittedModelError if the model, or the search around it, has not been fitted."""
    searched = _is_search(model) and hasattr(model, "cv_results_")
    if searched and not hasattr(model, "best_estimator_"):
        raise UnfittedModelError(
            f"{type(model).__name__} was fitted with refit=False, so it has no model to explain. "
            "Use refit=True."
        )
    last = unwrap(model).model
    known = getattr(last, "is_fitted", None)  # CatBoost has no fitted attributes that end in "_"
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
