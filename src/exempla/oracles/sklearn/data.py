"""A user's data for a scikit-learn model: checked row by row, handed out in batches.

Every problem found is gathered, and told at once.

Reading data for a scikit-learn model that has labels: what every oracle of one shares.

A subclass says in `_bind` what the fitted model is (`_features`, `_classes`, `_outputs`) and in
`_learn` what it takes from the training data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from exempla.arrays import Array, is_sparse
from exempla.data import (
    as_matrix,
    is_polars,
    listing,
    n_rows,
    plain_labels,
    refuse_data,
    take_rows,
    unpack,
)
from exempla.errors import ExemplaError
from exempla.oracles.base import Examples, Labels, Layer, Oracle
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.families import encode
from exempla.oracles.sklearn.unwrap import open_up, require_fitted

CHUNK = 4096
"""Rows transformed and checked at a time."""
KEEP_BYTES = 2**30
"""Transformed rows are kept if they fit in this; otherwise they are transformed again when read."""


class SklearnBatch(NamedTuple):
    """Consecutive examples, ready for the network."""

    positions: np.ndarray
    X: Array
    codes: np.ndarray | None
    weights: np.ndarray | None


@dataclass(frozen=True)
class SklearnExamples(Examples):
    """Checked rows. `codes` are labels as the likelihood wants them: class codes or numbers."""

    X: Any
    codes: np.ndarray | None = None
    weights: np.ndarray | None = None
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None
    transform: Callable[[Any], Any] | None = None
    needs_labels: bool = True
    made_bytes: int = 0
    questioned: bool = False
    """Whether these are asked about, not learnt from: some models' scores differ in the two."""
    origin: np.ndarray | None = None
    """Where each stands among the rows that were read; None: they are those."""

    def __len__(self) -> int:
        return n_rows(self.X)

    def take(self, positions: np.ndarray) -> SklearnExamples:
        """The examples at these positions, in this order."""
        positions = np.asarray(positions)

        def at(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[positions]

        return replace(
            self,
            X=take_rows(self.X, positions),
            codes=at(self.codes),
            weights=at(self.weights),
            labels=at(self.labels),
            ids=at(self.ids),
            origin=self.places(positions),
        )

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Positions among the rows that were read."""
        return rows if self.origin is None else self.origin[rows]

    def whole(self) -> Array:
        """All rows as the model sees them, float64 (CSR if sparse)."""
        return next(self.batches(max(len(self), 1))).X

    def batches(self, size: int) -> Iterator[SklearnBatch]:
        """The examples in order, `size` at a time, transformed, float64 (CSR if sparse)."""
        for start in range(0, len(self), size):
            rows = np.arange(start, min(start + size, len(self)))
            X = take_rows(self.X, rows)
            matrix = as_matrix(X if self.transform is None else _transformed(self.transform, X))
            yield SklearnBatch(
                rows,
                matrix.astype(np.float64, copy=False),
                None if self.codes is None else self.codes[rows],
                None if self.weights is None else self.weights[rows],
            )


def prepare(
    X: Any,
    transform: Callable[[Any], Any] | None,
    features: int,
    names: np.ndarray | None,
    problems: list[str],
) -> tuple[Any, Callable[[Any], Any] | None]:
    """Check every row as the model will see it; return what to keep and what is left to do to it.

    Checked after the pipeline's own steps, which may well impute what is missing in the raw rows.
    """
    if transform is None and hasattr(X, "columns") and names is not None:
        _check_columns(list(X.columns), list(names), problems)
    if transform is None:
        X = _try_matrix(X, "X", problems)
        if X is None:
            return None, None
    n, chunks, kept, bad = n_rows(X), [], 0, []
    for start in range(0, n, CHUNK):
        raw = take_rows(X, np.arange(start, min(start + CHUNK, n)))
        matrix = raw
        if transform is not None:
            matrix = _try_transform(raw, transform, problems)
            matrix = None if matrix is None else _try_matrix(matrix, "the transformed X", problems)
        if matrix is None or not _right_shape(matrix, features, problems):
            return None, None
        bad.append(start + np.flatnonzero(~_finite_rows(matrix)))
        if transform is not None and kept <= KEEP_BYTES:
            kept += _nbytes_of(matrix)
            chunks.append(matrix)
    rows = np.concatenate(bad)
    if len(rows):
        problems.append(
            f"X has NaN or infinite values in {listing(rows)}"
            + ("" if transform is None else " after the pipeline's transformations")
            + ": impute them or leave those rows out"
        )
        return None, None
    if transform is None or kept > KEEP_BYTES:
        return X, transform
    stack = sp.vstack(chunks, format="csr") if is_sparse(chunks[0]) else np.vstack(chunks)
    return stack, None


def _check_columns(given: list, fitted: list, problems: list[str]) -> None:
    if given != fitted and sorted(map(str, given)) == sorted(map(str, fitted)):
        problems.append(
            "X has the model's columns in another order: use X[model.feature_names_in_]"
        )
    elif given != fitted and len(given) == len(fitted):
        new = [one for one in given if one not in fitted]
        problems.append(f"X has columns the model was not fitted on: {new[:5]}")


def _transformed(transform: Callable, raw: Any) -> Any:
    """Raw rows after the steps before the model; a frame of polars that those do not know, which
    depends on the versions of both, is given to them as one of pandas."""
    try:
        return transform(raw)
    except Exception:
        if not is_polars(raw):
            raise
        return transform(raw.to_pandas())


def _try_transform(raw: Any, transform: Callable, problems: list[str]) -> Any:
    try:
        return _transformed(transform, raw)
    except Exception as error:  # whatever a user's transformer raises, the cause is the data
        problems.append(f"the pipeline's steps before the model refuse X ({error})")
        return None


def _try_matrix(X: Any, what: str, problems: list[str]) -> Array | None:
    try:
        return as_matrix(X)
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


def _nbytes_of(X: Array) -> int:
    """Memory that the table takes."""
    return X.data.nbytes + X.indices.nbytes if is_sparse(X) else X.nbytes


class ReadingOracle(Oracle):
    """Checks the user's rows and labels against a fitted model."""

    dense_only = False
    """Whether the model cannot take sparse rows."""
    takes_weights = True
    """Whether its `fit` takes sample weights."""
    _moved = False
    _questions_all = False
    """Whether training rows are scored like questioned ones."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers: tuple[Layer, ...] = ()

    def by_prediction(self) -> ReadingOracle:
        """Training rows scored like questioned ones."""
        other = copy(self)
        other._questions_all = True
        return other

    @abstractmethod
    def _bind(self) -> None:
        """Take the model apart as it is now (it may have been refitted since)."""

    @abstractmethod
    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        """What only the training data tell; `layers` are right after this."""

    def _open(self) -> Any:
        """The fitted model inside its wrappers; remembers what is around it."""
        require_fitted(self.model)
        self._opened = open_up(self.model)
        self._transform, self._last = self._opened.transform, self._opened.last
        return self._last

    @property
    def _features(self) -> int:
        """Columns of X as the model sees them."""
        return int(self._last.n_features_in_)

    @property
    def _classes(self) -> np.ndarray | None:
        """The model's classes; None for a regression."""
        found = getattr(self._last, "classes_", None)
        return None if found is None else np.asarray(found)

    @property
    def _family(self) -> Likelihood | None:
        """What says which numbers the labels of a regression may be."""
        return None

    @property
    def _outputs(self) -> int:
        """Numbers a row that a regression predicts."""
        return 1

    def read(self, data: Any, *, role: Literal["train", "test"]) -> SklearnExamples:
        """Check the data; learn from training data what scores depend on."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        names = getattr(self._last, "feature_names_in_", None)
        X, transform = prepare(given.X, self._transform, self._features, names, problems)
        if self.dense_only and X is not None and is_sparse(X):
            problems.append(f"X is sparse, and {type(self._last).__name__} needs a dense array")
        labels = None if given.y is None else plain_labels(given.y)
        codes = None if labels is None else self._encode(labels, role, problems)
        if given.y is None and role == "train" and not problems:
            problems.append("labels are missing: give (X, y)")
        if given.weights is not None and role == "train" and not self.takes_weights:
            problems.append(
                f"{type(self._last).__name__} is fitted without sample_weight, so it has no use "
                "here"
            )
        refuse_data(problems, role)
        weights = self._weights(codes, given.weights) if role == "train" else None
        made = _nbytes_of(X) if transform is not self._transform else 0
        examples = SklearnExamples(
            X, codes, weights, labels, given.ids, transform, made_bytes=made,
            questioned=self._questions_all or role == "test",
        )  # fmt: skip
        if role == "train":
            self._learn(examples, 1.0 if given.weights is None else float(given.weights.mean()))
        return examples

    def _encode(self, labels: np.ndarray, role: str, problems: list[str]) -> np.ndarray | None:
        if self._opened.labels is not None:
            labels = self._opened.labels.inside(labels)
        return encode(labels, self._classes, self._outputs, self._family, role, problems)

    def _weights(
        self, codes: np.ndarray | None, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        return sample_weight

    def _in_words(self, codes: np.ndarray) -> np.ndarray:
        """Predicted codes or numbers in the user's vocabulary."""
        said = codes if self._classes is None else self._classes[codes]
        return said if self._opened.labels is None else self._opened.labels.outside(said)

    def _check_labels(self, examples: SklearnExamples, labels: Labels) -> None:
        if labels == "true" and examples.codes is None:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and self._classes is None:
            raise ExemplaError(
                f"Under its own prediction a {self.likelihood} model's score is zero, so there is "
                "nothing to explain: give the true values as (X, y)."
            )


def notes_of(*notes: str) -> tuple[str, ...]:
    """What is to be said, each once.

    >>> notes_of("a", "", "b", "a")
    ('a', 'b')
    """
    return tuple(dict.fromkeys(note for note in notes if note))
