"""Base classes of the oracles of fitted estimators (scikit-learn's and ensembles of trees).

`unwrap_estimator` handles wrappers around one model: Pipelines, hyperparameter searches, threshold
tuning, frozen estimators, transformed targets, and stacking (whose base models are fixed features
of the final model). Wrappers around several models are in `wrappers.py`.

`FittedOracle` checks the user's rows and labels against the model and converts labels. Every
problem of the data is collected first, and then reported in one error.
"""

from __future__ import annotations

import fnmatch
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
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

from exempla.arrays import Array, is_sparse, nbytes_of
from exempla.data import as_matrix, is_polars, listing, plain_labels, refuse_data, unpack
from exempla.errors import ExemplaError, UnfittedModelError
from exempla.oracles.base import Labels, Oracle, RowExamples
from exempla.oracles.likelihoods import Likelihood, Poisson, resolve

_STACKED = (
    "only the final {last} of {name} is explained: its base models are treated as fixed, so the "
    "effect of training rows on them is not included"
)

BATCH_BYTES = 64 * 2**20
"""Memory of the factors of one batch, in bytes."""
MAX_BATCH_ROWS = 4096
_SMALLEST_TARGET, _LARGEST_TARGET = 1e-150, 1e150
"""Regression targets beyond these have squares that underflow or overflow."""


# ---- wrappers around one model


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
class _Unwrapped:
    """A model without its wrappers."""

    model: Any
    """The innermost estimator."""
    transform: Callable[[Any], Any] | None = None
    """What happens to X before the model sees it; None: nothing."""
    labels: _LabelMap | None = None
    """What happens to y; None: nothing."""
    note: str = ""
    """A remark for every explanation, if unwrapping leaves something out."""


def unwrap_estimator(model: Any) -> _Unwrapped:
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
            labels = _LabelMap(model) if hasattr(model, "regressor_") else None
            inner = getattr(model, "regressor_", model.regressor)
            model = LinearRegression() if inner is None else inner
        elif isinstance(model, StackingClassifier | StackingRegressor):
            before.append(model)
            inner = getattr(model, "final_estimator_", model.final_estimator)
            if inner is None:
                regression = isinstance(model, StackingRegressor)
                inner = RidgeCV() if regression else LogisticRegression()
            note = _STACKED.format(name=type(model).__name__, last=type(inner).__name__)
            if isinstance(model, StackingClassifier) and hasattr(model, "classes_"):
                labels = _LabelMap(model)
            model = inner
        else:
            return _Unwrapped(model, _Steps(tuple(before)) if before else None, labels, note)


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
    last = unwrap_estimator(model).model
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


# ---- oracles


@dataclass(frozen=True)
class SklearnExamples(RowExamples):
    """Checked rows, as the model sees them, with their labels."""

    is_test: bool = False
    """True for test rows, which some models score differently from training rows."""
    origin: np.ndarray | None = None
    """Position of each example among the rows that were read."""

    per_row: ClassVar[tuple[str, ...]] = (*RowExamples.per_row, "origin")

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, Self]]:
        """Yield consecutive positions, `size` at a time, and the examples there, in float64."""
        for rows, part in super().chunks(size):
            yield rows, replace(part, X=part.X.astype(np.float64, copy=False))


class FittedOracle(Oracle):
    """An oracle of a fitted estimator that may be wrapped.

    Subclasses read the estimator in `_inspect`, learn from training data in `_learn`, and set
    `layers` at the latest there. A subclass with a fixed `likelihood` accepts no other.
    """

    dense_only = False
    """True if the model cannot take sparse rows."""
    takes_weights = True
    """True if the model's `fit` takes sample weights."""
    needs_labels = True
    """False for densities p(x)."""
    classes: np.ndarray | None = None
    """The labels in the order of their codes; None for a regression."""
    _n_outputs = 1
    """Numbers per row that the model puts out."""
    _moved = False
    """True if the parameters are not the model's own (see `at`)."""
    _as_test = False
    """True if training rows are scored like test rows."""

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        self.model, self._parameters = model, parameters
        self._wanted: Likelihood | None = None
        auto = isinstance(likelihood, str) and likelihood == "auto"
        fixed = getattr(type(self), "likelihood", None)
        if fixed is None:
            self._wanted = None if auto else resolve(likelihood)
            self.likelihood = "auto" if self._wanted is None else self._wanted.name
        elif not auto and likelihood != fixed:
            name = type(unwrap_estimator(model).model).__name__
            raise ExemplaError(f"{name} has its own likelihood: leave it at 'auto'.")
        if is_fitted(model):
            self._bind()

    def by_prediction(self) -> FittedOracle:
        """Return an oracle that scores training rows the way it scores test rows."""
        other = copy(self)
        other._as_test = True
        return other

    # ---- parameters

    def _blocks(self) -> list[np.ndarray]:
        """Return the (d_in, d_out) parameters of each kept layer, if the model has them."""
        raise ExemplaError(f"{type(self).__name__} has no single parameter vector.")

    _set_blocks: Callable[[list[np.ndarray]], None]
    """Replaces them."""

    @property
    def theta(self) -> np.ndarray:
        """The kept layers' parameters: (d_in, d_out) blocks with the bias as last input row."""
        return np.concatenate([block.ravel() for block in self._blocks()])

    def at(self, theta: np.ndarray) -> FittedOracle:
        """Return the same oracle at other parameters, for posterior draws and finite differences.

        It scores the examples that this oracle has read. The model itself is not changed.
        """
        theta, shapes = np.asarray(theta, dtype=np.float64), [b.shape for b in self._blocks()]
        ends = np.cumsum([rows * columns for rows, columns in shapes])
        if theta.shape != (ends[-1],):
            raise ExemplaError(f"theta has shape {theta.shape}; give ({ends[-1]},) numbers.")
        moved = copy(self)
        moved._moved = True
        parts = zip(np.split(theta, ends[:-1]), shapes, strict=True)
        moved._set_blocks([part.reshape(shape) for part, shape in parts])
        return moved

    # ---- hooks

    @abstractmethod
    def _inspect(self, model: Any) -> None:
        """Read the unwrapped, fitted model."""

    @abstractmethod
    def _learn(self, train: Any, mean_weight: float) -> None:
        """Learn from the training data what scores depend on; `layers` are set after this."""

    @property
    def n_features(self) -> int:
        """Number of columns of X that the model sees."""
        return int(self._last.n_features_in_)

    def _class_weights(self, codes: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weight of each class in training; None if all are 1."""
        return None

    # ---- reading

    def _bind(self) -> None:
        """Read the model in its present state; it may have been refitted since."""
        if self._moved:
            return
        require_fitted(self.model)
        self._unwrapped = unwrap_estimator(self.model)
        self._transform, self._last = self._unwrapped.transform, self._unwrapped.model
        classes = getattr(self._last, "classes_", None)
        self.classes = None if classes is None else np.asarray(classes)
        self._inspect(self._last)

    def _remarks(self, *notes: str) -> tuple[str, ...]:
        """Return the notes of unwrapping and these, each once."""
        return tuple(dict.fromkeys(note for note in (self._unwrapped.note, *notes) if note))

    def read(self, data: Any, *, role: Literal["train", "test"]) -> Any:
        """Check the data; learn from training data what scores depend on."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        X = self._check_rows(given.X, problems)
        labels = None if given.y is None else plain_labels(given.y)
        codes = None
        if labels is not None and self.needs_labels:
            codes = self._encode(labels, role, problems)
        if labels is None and self.needs_labels and role == "train" and not problems:
            problems.append("labels are missing: give (X, y)")
        if given.weights is not None and role == "train" and not self.takes_weights:
            problems.append(
                f"{type(self._last).__name__} is fitted without sample_weight, so it has no use "
                "here"
            )
        refuse_data(problems, role)
        weights = given.weights if role == "train" else None
        if role == "train" and codes is not None and self.classes is not None:
            each = self._class_weights(codes, weights)
            if each is not None:
                weights = each[codes] if weights is None else each[codes] * weights
        examples = self._examples(X, role, codes=codes, weights=weights, labels=labels,
                                  ids=given.ids, needs_labels=self.needs_labels)  # fmt: skip
        if role == "train":
            self._learn(examples, 1.0 if given.weights is None else float(given.weights.mean()))
        return examples

    def _check_rows(self, X: Any, problems: list[str]) -> Any:
        """Return the rows as the model sees them; None if there is a problem.

        They are checked after the pipeline's own steps, which may impute missing values.
        """
        what, after = "X", ""
        if self._transform is None:
            self._check_columns(X, problems)
        else:
            what, after = "the transformed X", " after the pipeline's transformations"
            try:
                X = self._transform(X)
            except Exception as error:  # whatever a user's transformer raises, the data cause it
                problems.append(f"the pipeline's steps before the model refuse X ({error})")
                return None
        try:
            X = as_matrix(X)
        except OverflowError:
            problems.append(f"{what} has integers beyond the range of float64 (about 1e308)")
            return None
        except (TypeError, ValueError) as error:
            problems.append(f"{what} is not a table of real numbers ({error})")
            return None
        if X.ndim != 2:
            problems.append(f"X must have 2 dimensions (rows and features), not {X.ndim}")
        elif X.shape[1] != self.n_features:
            wide, fitted = X.shape[1], self.n_features
            problems.append(f"X has {wide} features but the model was fitted on {fitted}")
        elif len(bad := _bad_rows(X)):
            where = f"NaN or infinite values in {listing(bad)}{after}"
            problems.append(f"X has {where}: impute them or leave those rows out")
        elif self.dense_only and is_sparse(X):
            problems.append(f"X is sparse, and {type(self._last).__name__} needs a dense array")
        else:
            return X
        return None

    def _check_columns(self, X: Any, problems: list[str]) -> None:
        """Compare column names with the model's."""
        names = getattr(self._last, "feature_names_in_", None)
        if names is None or not hasattr(X, "columns"):
            return
        given, fitted = list(X.columns), list(names)
        new = [one for one in given if one not in fitted]
        if given != fitted and len(given) == len(fitted):
            problems.append(
                f"X has columns the model was not fitted on: {new[:5]}"
                if new
                else "X has the model's columns in another order: use X[model.feature_names_in_]"
            )

    def _examples(self, X: Any, role: str, **fields: Any) -> Any:
        fields |= {"is_test": self._as_test or role == "test", "origin": np.arange(X.shape[0])}
        return SklearnExamples(X, made_bytes=nbytes_of(X) if self._transform else 0, **fields)

    # ---- labels

    def _encode(self, labels: np.ndarray, role: str, problems: list[str]) -> np.ndarray | None:
        """Encode labels for the likelihood: numbers for a regression, otherwise class codes."""
        if self._unwrapped.labels is not None:
            labels = self._unwrapped.labels.inside(labels)
        classes = self.classes
        if classes is None:
            family = getattr(self, "family", None)
            return _encode_numbers(labels, self._n_outputs, family, problems)
        codes = _encode_classes(labels, classes, problems)
        if role == "train" and codes is not None and len(np.unique(codes)) < 2:
            only = _show_values(classes[codes[:1]])
            problems.append(f"all labels are {only}: training data need two classes")
        return codes

    def _check_labels(self, examples: Any, labels: Labels) -> None:
        if labels == "true" and examples.codes is None and self.needs_labels:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and self.classes is None and self.needs_labels:
            raise ExemplaError(
                f"Under its own prediction a {self.likelihood} model's score is zero, so "
                "there is nothing to explain: give the true values as (X, y)."
            )

    # ---- predictions

    def _batch_rows(self, examples: Any, copies: int = 1) -> int:
        """Return the rows per batch whose factors, `copies` each, stay within BATCH_BYTES."""
        return 1024

    def _predicted(self, part: Any) -> np.ndarray:
        """Return predictions in the model's own vocabulary."""
        return np.asarray(self._last.predict(part.X))

    @abstractmethod
    def _log_prob(self, part: Any) -> np.ndarray:
        """Return log p(y | x, θ̂) at the given labels."""

    def _batches(self, examples: Any, copies: int = 1) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield positions and the examples there, in order."""
        return examples.chunks(self._batch_rows(examples, copies))

    def predict(self, examples: Any) -> np.ndarray:
        """Return the model's predictions, in the user's label vocabulary."""
        found = np.concatenate([self._predicted(part) for _, part in self._batches(examples)])
        labels = self._unwrapped.labels
        return found if labels is None else labels.outside(found)

    def log_likelihood(self, examples: Any) -> np.ndarray:
        """Return log p(y | x, θ̂) of each example under its given label."""
        self._check_labels(examples, "true")
        return np.concatenate([self._log_prob(part) for _, part in self._batches(examples)])


def keep_layers(names: list[str], wanted: Sequence[str] | str | None) -> list[int]:
    """Return the positions of the wanted layers, given by name or glob; all of them for None."""
    if wanted is None:
        return list(range(len(names)))
    globs = [wanted] if isinstance(wanted, str) else wanted
    if (
        not isinstance(globs, Sequence)
        or not globs
        or not all(isinstance(glob, str) and fnmatch.filter(names, glob) for glob in globs)
    ):
        raise ExemplaError(
            f"parameters must name some of {names} (globs allowed), not {wanted!r:.80}."
        )
    return [i for i, name in enumerate(names) if any(fnmatch.fnmatchcase(name, g) for g in globs)]


# ---- rows, labels and class weights


def _bad_rows(X: Array) -> np.ndarray:
    """Return the positions of rows with NaN or infinite values."""
    values = X.data if is_sparse(X) else X
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):  # needs no array as large as X
            return np.empty(0, dtype=np.int64)
    where = np.nonzero(~np.isfinite(values))[0]
    return np.unique(np.searchsorted(X.indptr, where, side="right") - 1 if is_sparse(X) else where)


def _encode_classes(y: np.ndarray, classes: np.ndarray, problems: list[str]) -> np.ndarray | None:
    """Return the position of each label among the model's classes; None if there is a problem."""
    if y.ndim != 1:
        problems.append(f"y must hold one label per row, but has shape {y.shape}")
        return None
    given, values = pd.factorize(y)
    if np.any(given < 0):
        problems.append(f"labels are missing in {listing(np.flatnonzero(given < 0))}")
    known = {label: code for code, label in enumerate(classes.tolist())}
    values = np.asarray(values).tolist()
    unseen = [label for label in values if label not in known]
    if unseen:
        problems.append(
            f"y holds labels the model never saw: {_show_values(unseen)}; it knows "
            f"{_show_values(classes)}"
        )
    if np.any(given < 0) or unseen:
        return None
    return np.array([known[label] for label in values], dtype=np.int64)[given]


def _show_values(values: Any, show: int = 10) -> str:
    """Format values for a message, without NumPy's type names."""
    plain = [v.item() if isinstance(v, np.generic) else v for v in list(values)[:show]]
    more = len(values) - show
    return ", ".join(map(repr, plain)) + (f" and {more} more" if more > 0 else "")


def _encode_numbers(
    y: np.ndarray, outputs: int, likelihood: Likelihood | None, problems: list[str]
) -> np.ndarray | None:
    """Return regression targets as float64, (n,) or (n, outputs); None if there is a problem."""
    try:
        y = (np.asarray(y, dtype=object) if y.dtype.kind not in "biuf" else y).astype(np.float64)
    except OverflowError:
        problems.append("y has integers beyond the range of float64 (about 1e308)")
        return None
    except (TypeError, ValueError):
        problems.append("y must be numeric for a regression model")
        return None
    if y.ndim > 2 or (1 if y.ndim == 1 else y.shape[1]) != outputs:
        problems.append(f"y has shape {y.shape}, but the model has {outputs} output(s) per row")
        return None
    size, power = np.abs(y), getattr(likelihood, "power", float(isinstance(likelihood, Poisson)))
    extreme = (size > _LARGEST_TARGET) | (0 < size.max() < _SMALLEST_TARGET)
    for wrong, problem in (
        (~np.isfinite(y), "is NaN or infinite in {}"),
        (extreme, "has squares that float64 cannot hold in {}: rescale y and fit the model again"),
        ((y < 0) & (power >= 1), "is negative in {}, which this model's likelihood excludes"),
        ((y == 0) & (power >= 2), "is zero in {}, which this model's likelihood excludes"),
    ):
        if wrong.any():
            rows = np.flatnonzero(wrong.reshape(len(y), -1).any(axis=1))
            problems.append(f"y {problem.format(listing(rows))}")
            return None
    return y


def class_weights(
    class_weight: dict | str | None,
    classes: np.ndarray | None,
    codes: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray | None:
    """Return the weight of each class; None if all are 1.

    "balanced" gives class c the weight n / (C·n_c), where n and n_c are sums of `weights` if given.
    """
    if class_weight is None or classes is None:
        return None
    if isinstance(class_weight, dict):
        return np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    counts = np.bincount(codes, weights=weights, minlength=len(classes)).astype(np.float64)
    balanced = counts.sum() / (len(classes) * np.where(counts > 0, counts, 1.0))
    return np.where(counts > 0, balanced, 1.0)
