"""Which parts a wrapper has: fitted models, what each sees of x and y, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.model_selection import check_cv
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from exempla.data import as_matrix
from exempla.errors import UnsupportedModelError

__all__ = ["Joined", "Part", "has_parts", "inner_models", "split_up"]

How = Literal["product", "mixture", "mean", "average"]


@dataclass(frozen=True)
class Part:
    """One fitted model inside a wrapper."""

    model: Any
    weight: float = 1.0
    labels: Callable[[np.ndarray], np.ndarray] | None = None
    """From the wrapper's labels to this model's; None: the same."""
    columns: np.ndarray | None = None
    """Columns of X it sees; None: all."""
    before: np.ndarray | None = None
    """In a chain, the outputs it sees beside X."""
    counts: np.ndarray | None = None
    """How often each training row was in its sample; None: once."""

    def inputs(self, X: Any, y: np.ndarray | None) -> Any:
        """X as this model sees it."""
        if self.columns is not None:
            X = as_matrix(X)[:, self.columns]
        if self.before is not None and y is not None:
            X = np.hstack([as_matrix(X), np.asarray(y)[:, self.before].astype(np.float64)])
        return X


@dataclass(frozen=True)
class Joined:
    """The parts of a wrapper, and how their predictions become one."""

    parts: tuple[Part, ...]
    how: How
    note: str = ""


@dataclass(frozen=True)
class Coded:
    """Labels as positions among the classes: what voting and bagging hand on."""

    classes: np.ndarray

    def __call__(self, y: np.ndarray) -> np.ndarray:
        known = {label: code for code, label in enumerate(self.classes.tolist())}
        return np.array([known.get(label, label) for label in y.tolist()])


@dataclass(frozen=True)
class IsClass:
    """Whether the label is this class."""

    name: Any

    def __call__(self, y: np.ndarray) -> np.ndarray:
        return (y == self.name).astype(np.int64)


@dataclass(frozen=True)
class Column:
    """One of several labels."""

    place: int

    def __call__(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y)[:, self.place]


def has_parts(model: Any) -> bool:
    """Whether this is a wrapper around several models."""
    if isinstance(model, GaussianProcessClassifier):
        return len(getattr(model, "classes_", ())) > 2
    return type(model) in _SPLIT


def inner_models(model: Any) -> list[Any]:
    """The models inside a wrapper as they were given, fitted or not."""
    if isinstance(model, VotingClassifier | VotingRegressor):
        return [inner for _, inner in model.estimators if not isinstance(inner, str)]
    if isinstance(model, GaussianProcessClassifier):
        return []
    # a chain's model had another name before scikit-learn 1.7
    named = (getattr(model, name, None) for name in ("estimator", "base_estimator"))
    given = next((one for one in named if hasattr(one, "fit")), None)
    if given is not None:
        return [given]
    if isinstance(model, CalibratedClassifierCV):
        return [LinearSVC()]
    trees = DecisionTreeRegressor if isinstance(model, BaggingRegressor) else DecisionTreeClassifier
    return [trees()]


def split_up(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    """The parts of a fitted wrapper; n and y are those of the training data, once known."""
    if isinstance(model, GaussianProcessClassifier):
        if model.multi_class != "one_vs_rest":
            raise UnsupportedModelError(
                "GaussianProcessClassifier(multi_class='one_vs_one') keeps no common score: use "
                "multi_class='one_vs_rest'."
            )
        whole = _one_vs_rest(model.base_estimator_, np.asarray(model.classes_))
        parts = tuple(replace(part, model=_of_two_classes(part.model)) for part in whole.parts)
        return replace(whole, parts=parts)
    return _SPLIT[type(model)](model, n, y)


def _of_two_classes(inner: Any) -> GaussianProcessClassifier:
    """A process for two classes around one that a process for many keeps inside."""
    made = GaussianProcessClassifier()
    made.base_estimator_, made.classes_ = inner, np.array([0, 1])
    return made


def refuse_hard_vote(model: Any) -> None:
    """A majority of labels has no probability."""
    if isinstance(model, VotingClassifier) and model.voting != "soft":
        raise UnsupportedModelError(
            "VotingClassifier(voting='hard') counts labels and gives them no probability: use "
            "voting='soft'."
        )


def _voting(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    refuse_hard_vote(model)
    kept = [i for i, (_, inner) in enumerate(model.estimators) if not isinstance(inner, str)]
    weights = np.ones(len(kept)) if model.weights is None else np.asarray(model.weights)[kept]
    shares = weights / weights.sum()
    classifies = isinstance(model, VotingClassifier)
    labels = Coded(np.asarray(model.classes_)) if classifies else None
    parts = [Part(m, float(w), labels) for m, w in zip(model.estimators_, shares, strict=True)]
    return Joined(tuple(parts), "mixture" if classifies else "average")


def _bagging(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    classifies = isinstance(model, BaggingClassifier)
    labels = Coded(np.asarray(model.classes_)) if classifies else None
    drawn = zip(
        model.estimators_, model.estimators_features_, model.estimators_samples_, strict=True
    )
    parts = []
    for inner, columns, rows in drawn:
        counts = None
        if n is not None and len(rows) and rows.max() < n:
            counts = np.bincount(rows, minlength=n).astype(np.float64)
        every = np.array_equal(columns, np.arange(model.n_features_in_))
        share = 1 / len(model.estimators_)
        parts.append(
            Part(inner, share, labels, None if every else np.asarray(columns), None, counts)
        )
    return Joined(tuple(parts), "mixture" if classifies else "average")


CALIBRATION = (
    "the calibration of CalibratedClassifierCV is left out: the models inside are explained, and "
    "between two classes calibration changes how long a score is, not where it points"
)


def _calibrated(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    inner = [one.estimator for one in model.calibrated_classifiers_]
    counts: list[np.ndarray | None] = [None] * len(inner)
    cv: Any = model.cv
    plain = cv is None or isinstance(cv, int)  # None stands for five folds
    if n is not None and y is not None and plain and len(inner) > 1:
        # without shuffling these are the folds the parts were fitted on
        folds: Any = check_cv(5 if cv is None else cv, y, classifier=True)
        for place, (rows, _) in enumerate(folds.split(y, y)):
            counts[place] = np.bincount(rows, minlength=n).astype(np.float64)
    share = 1 / len(inner)
    parts = [Part(m, share, counts=c) for m, c in zip(inner, counts, strict=True)]
    return Joined(tuple(parts), "mean", CALIBRATION)


def _rest(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    return _one_vs_rest(model, np.asarray(model.classes_))


def _one_vs_rest(model: Any, classes: np.ndarray) -> Joined:
    """A yes-or-no model for each class; for two classes one, of the second."""
    names = classes[-1:] if len(classes) == 2 else classes
    parts = []
    for place, inner in enumerate(model.estimators_):
        if type(inner).__name__ == "_ConstantPredictor":  # a class that all rows have, or none
            continue
        labels = Column(place) if getattr(model, "multilabel_", False) else IsClass(names[place])
        parts.append(Part(inner, labels=labels))
    return Joined(tuple(parts), "product")


def _outputs(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    parts = [Part(m, labels=Column(place)) for place, m in enumerate(model.estimators_)]
    return Joined(tuple(parts), "product")


def _chain(model: Any, n: int | None, y: np.ndarray | None) -> Joined:
    order = np.asarray(model.order_)
    parts = [
        Part(inner, labels=Column(int(order[i])), before=order[:i])
        for i, inner in enumerate(model.estimators_)
    ]
    note = (
        f"in {type(model).__name__} every model sees the labels before it: scores are taken at the "
        "given ones"
    )
    return Joined(tuple(parts), "product", note)


_SPLIT: dict[type, Callable[[Any, int | None, np.ndarray | None], Joined]] = {
    VotingClassifier: _voting,
    VotingRegressor: _voting,
    BaggingClassifier: _bagging,
    BaggingRegressor: _bagging,
    CalibratedClassifierCV: _calibrated,
    OneVsRestClassifier: _rest,
    MultiOutputClassifier: _outputs,
    MultiOutputRegressor: _outputs,
    ClassifierChain: _chain,
    RegressorChain: _chain,
}
