"""Base classes of the oracles of fitted estimators (scikit-learn's and ensembles of trees).

`FittedOracle` unwraps the model, checks the user's rows and labels against it, and converts labels.
Every problem of the data is collected first, and then reported in one error. `OutputOracle` adds
the scores of models whose outputs feed a likelihood: ∂ log p/∂ outputs times the gradient of the
outputs.
"""

from __future__ import annotations

import fnmatch
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy.sparse as sp

from exempla.arrays import Array, is_sparse, nbytes_of
from exempla.data import (
    as_matrix,
    listing,
    n_rows,
    plain_labels,
    refuse_data,
    take_rows,
    unpack,
)
from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT, Labels, Layer, Oracle, RowExamples, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Gaussian, Likelihood, Poisson, resolve
from exempla.oracles.sklearn.losses import AsymmetricLaplace, Huber, Tweedie
from exempla.oracles.sklearn.unwrap import is_fitted, require_fitted, unwrap

BATCH_BYTES = 64 * 2**20
"""Memory of the factors of one batch, in bytes."""
MAX_BATCH_ROWS = 4096
CHUNK_ROWS = 4096
"""Rows transformed and checked at a time."""
MAX_KEPT_BYTES = 2**30
"""Transformed rows are kept up to this size, and otherwise transformed again when needed."""
_SMALLEST_TARGET, _LARGEST_TARGET = 1e-150, 1e150
"""Regression targets beyond these have squares that underflow or overflow."""


class Batch(NamedTuple):
    """Consecutive examples in the form the model sees."""

    positions: np.ndarray
    inputs: Any
    """Rows of X, float64 (CSR if sparse), or (n, T) leaves of an ensemble of trees."""
    codes: Any
    weights: np.ndarray | None


@dataclass(frozen=True)
class SklearnExamples(RowExamples):
    """Checked rows, with their labels, of an estimator or an ensemble of trees."""

    transform: Callable[[Any], Any] | None = None
    """What remains to be done to X before the model sees it."""
    is_test: bool = False
    """True for test rows, which some models score differently from training rows."""
    origin: np.ndarray | None = None
    """Position of each example among the rows that were read; None: the same."""

    per_row: ClassVar[tuple[str, ...]] = (*RowExamples.per_row, "origin")

    def take(self, positions: np.ndarray) -> Self:
        """Return the examples at these positions, in this order."""
        taken = super().take(positions)
        return replace(taken, origin=np.asarray(positions)) if self.origin is None else taken

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return positions among the rows that were read."""
        return rows if self.origin is None else self.origin[rows]

    def whole(self) -> Array:
        """Return all rows as the model sees them."""
        return next(self.batches(max(len(self), 1))).inputs

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, `size` at a time, as the model sees them."""
        for rows, part in self.chunks(size):
            X = part.X if self.transform is None else self.transform(part.X)
            yield Batch(rows, self._as_inputs(X), part.codes, part.weights)

    def _as_inputs(self, X: Any) -> Any:
        return as_matrix(X).astype(np.float64, copy=False)


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
        self.layers: tuple[Layer, ...] = ()
        self._wanted: Likelihood | None = None
        auto = isinstance(likelihood, str) and likelihood == "auto"
        fixed = getattr(type(self), "likelihood", None)
        if fixed is None:
            self._wanted = None if auto else resolve(likelihood)
            self.likelihood = "auto" if self._wanted is None else self._wanted.name
        elif not auto and likelihood != fixed:
            raise ExemplaError(
                f"{type(unwrap(model).model).__name__} defines its own likelihood: leave "
                "likelihood at 'auto'."
            )
        if is_fitted(model):
            self._bind()

    def by_prediction(self) -> FittedOracle:
        """Return an oracle that scores training rows the way it scores test rows."""
        other = copy(self)
        other._as_test = True
        return other

    @property
    def classes(self) -> np.ndarray | None:
        """The labels in the order of their codes; None for a regression."""
        return self._classes

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
    def _features(self) -> int:
        """Number of columns of X that the model sees."""
        return int(self._last.n_features_in_)

    @property
    def _classes(self) -> np.ndarray | None:
        """The model's classes; None for a regression."""
        found = getattr(self._last, "classes_", None)
        return None if found is None else np.asarray(found)

    @property
    def _n_outputs(self) -> int:
        """Numbers per row that the model puts out."""
        return 1

    def _row_weights(self, codes: Any, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Return the training weight of each row, class weights included."""
        return sample_weight

    # ---- reading

    def _bind(self) -> None:
        """Read the model in its present state; it may have been refitted since."""
        if self._moved:
            return
        require_fitted(self.model)
        self._unwrapped = unwrap(self.model)
        self._transform, self._last = self._unwrapped.transform, self._unwrapped.model
        self._inspect(self._last)

    def _agree(self, own: Likelihood) -> Likelihood:
        """Return the model's own likelihood, or the user's if it only fixes the variance."""
        wanted = self._wanted
        if wanted is None or (wanted.discrete and own.discrete):
            return own
        if wanted.name != own.name:
            raise ExemplaError(
                f"{type(self._last).__name__} was fitted under the {own.name} likelihood, so "
                f"likelihood={wanted.name!r} would not give its scores: leave it at 'auto'."
            )
        return wanted

    def _remarks(self, *notes: str) -> tuple[str, ...]:
        """Return the notes of unwrapping and these, each once."""
        return tuple(dict.fromkeys(note for note in (self._unwrapped.note, *notes) if note))

    def read(self, data: Any, *, role: Literal["train", "test"]) -> Any:
        """Check the data; learn from training data what scores depend on."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        X, transform = self._check_rows(given.X, problems)
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
        weights = self._row_weights(codes, given.weights) if role == "train" else None
        examples = self._examples(X, transform, role, codes=codes, weights=weights, labels=labels,
                                  ids=given.ids, needs_labels=self.needs_labels)  # fmt: skip
        if role == "train":
            self._learn(examples, 1.0 if given.weights is None else float(given.weights.mean()))
        return examples

    def _check_rows(self, X: Any, problems: list[str]) -> tuple[Any, Any]:
        """Return the checked rows and the transform that remains."""
        if self._transform is None:
            self._check_columns(X, problems)
            X = _try_matrix(X, "X", problems)
        if X is None:
            return None, None
        X, transform = check_rows(X, self._transform, self._features, problems)
        if self.dense_only and X is not None and is_sparse(X):
            problems.append(f"X is sparse, and {type(self._last).__name__} needs a dense array")
        return X, transform

    def _check_columns(self, X: Any, problems: list[str]) -> None:
        """Compare column names with the model's."""
        names = getattr(self._last, "feature_names_in_", None)
        if names is None or not hasattr(X, "columns"):
            return
        given, fitted = list(X.columns), list(names)
        if given != fitted and sorted(map(str, given)) == sorted(map(str, fitted)):
            problems.append(
                "X has the model's columns in another order: use X[model.feature_names_in_]"
            )
        elif given != fitted and len(given) == len(fitted):
            new = [one for one in given if one not in fitted]
            problems.append(f"X has columns the model was not fitted on: {new[:5]}")

    def _examples(self, X: Any, transform: Any, role: str, **fields: Any) -> Any:
        made = nbytes_of(X) if self._transform is not None and transform is None else 0
        is_test = self._as_test or role == "test"
        return SklearnExamples(X, transform=transform, made_bytes=made, is_test=is_test, **fields)

    # ---- labels

    def _encode(self, labels: np.ndarray, role: str, problems: list[str]) -> np.ndarray | None:
        """Encode labels for the likelihood: numbers for a regression, otherwise class codes."""
        if self._unwrapped.labels is not None:
            labels = self._unwrapped.labels.inside(labels)
        classes = self._classes
        if classes is None:
            family = getattr(self, "family", None)
            return _encode_numbers(labels, self._n_outputs, family, problems)
        codes = _encode_classes(labels, classes, problems)
        if role == "train" and codes is not None and len(np.unique(codes)) < 2:
            problems.append(
                f"all labels are {show_values([classes[codes[0]]])}: training data need two classes"
            )
        return codes

    def _check_labels(self, examples: Any, labels: Labels) -> None:
        if labels == "true" and examples.codes is None and self.needs_labels:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and self._classes is None and self.needs_labels:
            raise ExemplaError(
                f"Under its own prediction a {self.likelihood} model's score is zero, so "
                "there is nothing to explain: give the true values as (X, y)."
            )

    # ---- predictions

    @abstractmethod
    def _batches(self, examples: Any, copies: int = 1) -> Iterator[Batch]:
        """Yield batches whose factors, `copies` rows per example, stay within BATCH_BYTES."""

    @abstractmethod
    def _predicted(self, batch: Batch) -> np.ndarray:
        """Return predictions in the model's own vocabulary."""

    @abstractmethod
    def _log_prob(self, batch: Batch) -> np.ndarray:
        """Return log p(y | x, θ̂) at the batch's labels."""

    def predict(self, examples: Any) -> np.ndarray:
        """Return the model's predictions, in the user's label vocabulary."""
        found = np.concatenate([self._predicted(batch) for batch in self._batches(examples)])
        labels = self._unwrapped.labels
        return found if labels is None else labels.outside(found)

    def log_likelihood(self, examples: Any) -> np.ndarray:
        """Return log p(y | x, θ̂) of each example under its given label."""
        self._check_labels(examples, "true")
        return np.concatenate([self._log_prob(batch) for batch in self._batches(examples)])


class OutputOracle(FittedOracle):
    """An oracle whose scores are ∂ log p/∂ outputs times the gradient of the outputs.

    Subclasses compute the outputs of a batch in `_forward` and the factors in `_factors`.
    """

    family: Likelihood
    """The likelihood that turns outputs and labels into scores."""
    _cut = 0.0
    """Probability below which a class is dropped from the Fisher."""

    @abstractmethod
    def _forward(self, inputs: Any) -> tuple[np.ndarray, Any]:
        """Return the outputs of a batch, and what `_factors` needs."""

    @abstractmethod
    def _factors(self, state: Any, g: np.ndarray, at: np.ndarray | None) -> tuple[Factors, ...]:
        """Return the factors of rows with these output gradients, taken at these examples."""

    def _drop_rare_classes(self, drop: bool) -> None:
        self._cut = CLASS_CUT if drop else 0.0
        self.fisher_note = f"exact over classes above {CLASS_CUT:g}" if drop else "exact"

    def _fit_family(self, train: Any, advice: str) -> Likelihood:
        """Return the likelihood with its scale estimated from the training residuals."""
        parts = [(self._forward(b.inputs)[0], b.codes) for b in self._batches(train)]
        outputs, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        fitted = self.family.fitted(outputs, y, train.weights)
        in_squares = isinstance(fitted, Gaussian | Huber | AsymmetricLaplace)
        rounding = 1e-20 * float(np.mean(np.square(y, dtype=np.float64))) if in_squares else 0.0
        if not fitted.loss_scale > rounding:
            raise ExemplaError(
                f"{type(self._last).__name__} fits its training data without any residual, so its "
                f"scores are all zero: {advice}."
            )
        return fitted

    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield one row per example, in order, in batches."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            outputs, state = self._forward(batch.inputs)
            y = batch.codes if labels == "true" else self.family.predict(outputs)
            g = self.family.score(outputs, y)
            if batch.weights is not None:
                g = g * batch.weights[:, None]
            yield ScoreRows(batch.positions, self._factors(state, g, None))

    def fisher_rows(self, examples: Any) -> Iterator[ScoreRows]:
        """Yield rows whose outer products sum to each example's Fisher, in batches."""
        for batch in self._batches(examples, self._n_outputs):
            outputs, state = self._forward(batch.inputs)
            at, root = self.family.curvature_root(outputs, batch.codes, self._cut)
            if batch.weights is not None:
                root = root * np.sqrt(batch.weights[at])[:, None]
            rows = ScoreRows(batch.positions[at], self._factors(state, root, at))
            yield self._counted(rows, outputs, batch)

    def _counted(self, rows: ScoreRows, outputs: np.ndarray, batch: Batch) -> ScoreRows:
        return rows

    def _predicted(self, batch: Batch) -> np.ndarray:
        found = self.family.predict(self._forward(batch.inputs)[0])
        return found if self._classes is None else self._classes[found]

    def _log_prob(self, batch: Batch) -> np.ndarray:
        return self.family.log_prob(self._forward(batch.inputs)[0], batch.codes)


def keep_layers(names: list[str], wanted: Sequence[str] | str | None) -> list[int]:
    """Return the positions of the wanted layers, given by name or glob; all of them for None.

    >>> keep_layers(["layer0", "layer1", "layer2"], ["layer2", "*0"])
    [0, 2]
    """
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


# ---- rows


def check_rows(
    X: Any, transform: Callable[[Any], Any] | None, features: int, problems: list[str]
) -> tuple[Any, Callable[[Any], Any] | None]:
    """Check every row as the model will see it; return the rows to keep and the transform left.

    Rows are checked after the pipeline's own steps, which may impute missing values.
    """
    n, chunks, kept, bad = n_rows(X), [], 0, []
    for start in range(0, n, CHUNK_ROWS):
        matrix = take_rows(X, np.arange(start, min(start + CHUNK_ROWS, n)))
        if transform is not None:
            try:
                matrix = transform(matrix)
            except Exception as error:  # whatever a user's transformer raises, the data cause it
                problems.append(f"the pipeline's steps before the model refuse X ({error})")
                return None, None
            matrix = _try_matrix(matrix, "the transformed X", problems)
            if matrix is None:
                return None, None
        if matrix.ndim != 2:
            problems.append(f"X must have 2 dimensions (rows and features), not {matrix.ndim}")
            return None, None
        if matrix.shape[1] != features:
            wide = matrix.shape[1]
            problems.append(f"X has {wide} features but the model was fitted on {features}")
            return None, None
        bad.append(start + np.flatnonzero(~_finite_rows(matrix)))
        if transform is not None and kept <= MAX_KEPT_BYTES:
            kept += nbytes_of(matrix)
            chunks.append(matrix)
    rows = np.concatenate(bad)
    if len(rows):
        problems.append(
            f"X has NaN or infinite values in {listing(rows)}"
            + ("" if transform is None else " after the pipeline's transformations")
            + ": impute them or leave those rows out"
        )
        return None, None
    if transform is None or kept > MAX_KEPT_BYTES:
        return X, transform
    stack = sp.vstack(chunks, format="csr") if is_sparse(chunks[0]) else np.vstack(chunks)
    return stack, None


def _try_matrix(X: Any, what: str, problems: list[str]) -> Array | None:
    try:
        return as_matrix(X)
    except OverflowError:
        problems.append(f"{what} has integers beyond the range of float64 (about 1e308)")
    except (TypeError, ValueError) as error:
        problems.append(f"{what} is not a table of real numbers ({error})")
    return None


def _finite_rows(X: Array) -> np.ndarray:
    if not is_sparse(X):
        return np.isfinite(X).all(axis=1)
    fine = np.ones(X.shape[0], dtype=bool)
    culprits = np.flatnonzero(~np.isfinite(X.data))
    fine[np.searchsorted(X.indptr, culprits, side="right") - 1] = False
    return fine


# ---- labels and class weights


def _encode_classes(y: np.ndarray, classes: np.ndarray, problems: list[str]) -> np.ndarray | None:
    """Return the position of each label among the model's classes.

    >>> _encode_classes(np.array(["spam", "ham"]), np.array(["ham", "spam"]), [])
    array([1, 0])
    """
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
            f"y holds labels the model never saw: {show_values(unseen)}; it knows "
            f"{show_values(classes)}"
        )
    if np.any(given < 0) or unseen:
        return None
    return np.array([known[label] for label in values], dtype=np.int64)[given]


def show_values(values: Any, show: int = 10) -> str:
    """Format values for a message, without NumPy's type names.

    >>> show_values(np.array(["ham", "spam"])), show_values([np.float64(0.5), 3], show=1)
    ("'ham', 'spam'", '0.5 and 1 more')
    """
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
    width = 1 if y.ndim == 1 else y.shape[1]
    if y.ndim > 2 or width != outputs:
        problems.append(f"y has shape {y.shape}, but the model has {outputs} output(s) per row")
        return None
    by_row = y.reshape(len(y), -1)
    largest = float(np.abs(by_row).max())
    power = likelihood.power if isinstance(likelihood, Tweedie) else 0

    def rows(wrong: np.ndarray) -> str:
        return listing(np.flatnonzero(wrong.any(axis=1)))

    problem = ""
    if not np.isfinite(largest):
        problem = f"y is NaN or infinite in {rows(~np.isfinite(by_row))}"
    elif largest > _LARGEST_TARGET or 0 < largest < _SMALLEST_TARGET:
        problem = (
            f"y has a magnitude of {largest:.0e}, whose square cannot be represented in float64: "
            "rescale y and fit the model again"
        )
    elif isinstance(likelihood, Poisson) and np.any(by_row < 0):
        problem = f"y is negative in {rows(by_row < 0)}, which a Poisson count cannot be"
    elif power >= 1 and np.any(low := by_row <= 0 if power >= 2 else by_row < 0):
        least = "above zero" if power >= 2 else "zero or more"
        problem = f"y is not {least} in {rows(low)}, which a Tweedie model of power {power:g} "
        problem += "requires"
    problems += [problem] if problem else []
    return None if problem else y


def class_weights(
    class_weight: dict | str | None,
    classes: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray | None,
) -> np.ndarray:
    """Return the weight of each class.

    "balanced" gives class c the weight n / (C·n_c), where n and n_c are sums of `weights` if given.

    >>> class_weights("balanced", np.array(["a", "b"]), np.array([0, 0, 0, 1]), None)
    array([0.66666667, 2.        ])
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, dict):
        return np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    counts = np.bincount(codes, weights=weights, minlength=len(classes)).astype(np.float64)
    present = counts > 0
    balanced = counts.sum() / (len(classes) * np.where(present, counts, 1.0))
    return np.where(present, balanced, 1.0)
