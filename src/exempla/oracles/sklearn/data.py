"""Data of a scikit-learn model: check the rows, encode the labels, yield batches.

Every problem is collected first, and then reported in one error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from exempla.arrays import Array, is_sparse, nbytes_of
from exempla.data import as_matrix, is_polars, listing, n_rows, take_rows
from exempla.oracles.base import RowExamples
from exempla.oracles.likelihoods import Likelihood, Poisson
from exempla.oracles.sklearn.losses import Tweedie

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
    codes: np.ndarray | None
    weights: np.ndarray | None


@dataclass(frozen=True)
class SklearnExamples(RowExamples):
    """Checked rows of X with their labels."""

    transform: Callable[[Any], Any] | None = None
    """What remains to be done to X before the model sees it."""
    is_test: bool = False
    """True for test rows, which some models score differently from training rows."""
    origin: np.ndarray | None = None
    """Position of each example among the rows that were read; None: the same."""

    def take(self, positions: np.ndarray) -> SklearnExamples:
        """Return the examples at these positions, in this order."""
        return replace(super().take(positions), origin=self.places(np.asarray(positions)))

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return positions among the rows that were read."""
        return rows if self.origin is None else self.origin[rows]

    def whole(self) -> Array:
        """Return all rows as the model sees them, float64 (CSR if sparse)."""
        return next(self.batches(max(len(self), 1))).inputs

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, `size` at a time, transformed, float64 (CSR if sparse)."""
        for start in range(0, len(self), size):
            rows = np.arange(start, min(start + size, len(self)))
            X = take_rows(self.X, rows)
            matrix = as_matrix(X if self.transform is None else _apply(self.transform, X))
            yield Batch(
                rows,
                matrix.astype(np.float64, copy=False),
                None if self.codes is None else self.codes[rows],
                None if self.weights is None else self.weights[rows],
            )


# ---- rows


def prepare(
    X: Any,
    transform: Callable[[Any], Any] | None,
    features: int,
    names: np.ndarray | None,
    problems: list[str],
) -> tuple[Any, Callable[[Any], Any] | None]:
    """Check every row as the model will see it; return the rows to keep and the transform left.

    Rows are checked after the pipeline's own steps, which may impute missing values.
    """
    if transform is None and hasattr(X, "columns"):
        given = list(X.columns)
        _check_columns(given, given if names is None else list(names), problems)
    if transform is None:
        X = _try_matrix(X, "X", problems)
        if X is None:
            return None, None
    n, chunks, kept, bad = n_rows(X), [], 0, []
    for start in range(0, n, CHUNK_ROWS):
        matrix = take_rows(X, np.arange(start, min(start + CHUNK_ROWS, n)))
        if transform is not None:
            try:
                matrix = _apply(transform, matrix)
            except Exception as error:  # whatever a user's transformer raises, the data cause it
                problems.append(f"the pipeline's steps before the model refuse X ({error})")
                return None, None
            matrix = _try_matrix(matrix, "the transformed X", problems)
        if matrix is None or not _right_shape(matrix, features, problems):
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


def _check_columns(given: list, fitted: list, problems: list[str]) -> None:
    """Compare column names with the model's."""
    if given != fitted and sorted(map(str, given)) == sorted(map(str, fitted)):
        problems.append(
            "X has the model's columns in another order: use X[model.feature_names_in_]"
        )
    elif given != fitted and len(given) == len(fitted):
        new = [one for one in given if one not in fitted]
        problems.append(f"X has columns the model was not fitted on: {new[:5]}")


def _apply(transform: Callable, raw: Any) -> Any:
    """Transform raw rows; a polars frame that the steps do not accept is converted to pandas."""
    try:
        return transform(raw)
    except Exception:
        if not is_polars(raw):
            raise
        return transform(raw.to_pandas())


def _try_matrix(X: Any, what: str, problems: list[str]) -> Array | None:
    try:
        return as_matrix(X)
    except OverflowError:
        problems.append(f"{what} has integers beyond the range of float64 (about 1e308)")
    except (TypeError, ValueError) as error:
        problems.append(f"{what} is not a table of real numbers ({error})")
    return None


def _right_shape(X: Array, features: int, problems: list[str]) -> bool:
    if X.ndim != 2:
        problems.append(f"X must have 2 dimensions (rows and features), not {X.ndim}")
    elif X.shape[1] != features:
        problems.append(f"X has {X.shape[1]} features but the model was fitted on {features}")
    else:
        return True
    return False


def _finite_rows(X: Array) -> np.ndarray:
    if not is_sparse(X):
        return np.isfinite(X).all(axis=1)
    fine = np.ones(X.shape[0], dtype=bool)
    culprits = np.flatnonzero(~np.isfinite(X.data))
    fine[np.searchsorted(X.indptr, culprits, side="right") - 1] = False
    return fine


# ---- labels and class weights


def encode(
    labels: np.ndarray,
    classes: np.ndarray | None,
    outputs: int,
    family: Likelihood | None,
    role: str,
    problems: list[str],
) -> np.ndarray | None:
    """Encode labels for the likelihood: numbers for a regression, otherwise class codes.

    Training data must contain at least two classes.
    """
    if classes is None:
        return _encode_numbers(labels, outputs, family, problems)
    codes = _encode_classes(labels, classes, problems)
    if role == "train" and codes is not None and len(np.unique(codes)) < 2:
        problems.append(
            f"all labels are {show_values([classes[codes[0]]])}: training data need two classes"
        )
    return codes


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
    """Return regression targets as float64, (n,) or (n, outputs)."""
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
    bad = np.flatnonzero(~np.isfinite(by_row).all(axis=1))
    if len(bad):
        problems.append(f"y is NaN or infinite in {listing(bad)}")
        return None
    largest = float(np.abs(by_row).max())
    if largest > _LARGEST_TARGET or 0 < largest < _SMALLEST_TARGET:
        problems.append(
            f"y has a magnitude of {largest:.0e}, whose square cannot be represented in float64: "
            "rescale y and fit the model again"
        )
        return None
    if isinstance(likelihood, Poisson) and np.any(by_row < 0):
        negative = np.flatnonzero((by_row < 0).any(axis=1))
        problems.append(f"y is negative in {listing(negative)}, which a Poisson count cannot be")
        return None
    if isinstance(likelihood, Tweedie) and likelihood.power >= 1:
        least = "above zero" if likelihood.power >= 2 else "zero or more"
        low = by_row <= 0 if likelihood.power >= 2 else by_row < 0
        if np.any(low):
            problems.append(
                f"y is not {least} in {listing(np.flatnonzero(low.any(axis=1)))}, which a Tweedie "
                f"model of power {likelihood.power:g} requires"
            )
            return None
    return y


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
