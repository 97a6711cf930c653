"""Find the model that has the parameters, and what happens to the data before it gets there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from exempla.errors import UnfittedModelError

__all__ = ["is_fitted", "require_fitted", "unwrap"]

_SEARCHES = {"HalvingGridSearchCV", "HalvingRandomSearchCV"}  # experimental: not importable as such


def unwrap(model: Any) -> tuple[Callable[[Any], Any] | None, Any]:
    """The transformation in front of the last step (None if there is none), and that step.

    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> transform, last = unwrap(make_pipeline(StandardScaler(), Ridge()))
    >>> last
    Ridge()
    """
    before: list[Pipeline] = []
    while True:
        if isinstance(model, Pipeline):
            if len(model.steps) > 1:
                before.append(model[:-1])
            model = model.steps[-1][1]
        elif _is_search(model):
            model = getattr(model, "best_estimator_", model.estimator)
        elif type(model).__name__ == "FrozenEstimator":
            model = model.estimator
        else:
            return (StepsBefore(tuple(before)) if before else None), model


def _is_search(model: Any) -> bool:
    searches = GridSearchCV | RandomizedSearchCV
    return isinstance(model, searches) or type(model).__name__ in _SEARCHES


@dataclass(frozen=True)
class StepsBefore:
    """Pipelines one after another (an object, not a closure: it must survive pickling)."""

    steps: tuple[Pipeline, ...]

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
