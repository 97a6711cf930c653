"""What kind of labels was given: one class a row, a number, several labels, or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import is_regressor

from exempla.arrays import is_sparse
from exempla.data import n_rows, plain_labels
from exempla.errors import ExemplaError

__all__ = ["TASKS", "job_of"]

TASKS = ("auto", "classes", "regression", "multi-label", "tokens")


MANY = 1000
"""Classes from which on only the likeliest few of each row are kept."""


def job_of(model: Any, train: Any, task: str = "auto", probabilities: Any = None) -> str:
    """The task, as told or as the data show it.

    A regressor's labels are numbers, as everywhere. Where a row is a list of words and its label a
    list as long, labels are those of tokens. A table of zeros and ones, at least two columns wide,
    says which labels each row has. Everything else are classes; "many" if there are 1,000 or more,
    or if their probabilities are given.

    >>> from sklearn.linear_model import LogisticRegression, Ridge
    >>> job_of(Ridge(), ([[1.0]], [2.5])), job_of(LogisticRegression(), ([[1.0]], ["a"]))
    ('regression', 'classes')
    >>> job_of(LogisticRegression(), ([["Ada", "came"]], [["PER", "O"]]))
    'tokens'
    >>> job_of(LogisticRegression(), ([[1.0], [2.0]], [[0, 1], [1, 1]]))
    'multi-label'
    """
    if task not in ("auto", "classes"):
        return task
    if not isinstance(train, tuple) or len(train) < 2 or train[1] is None:
        return "classes"
    X, y = train[:2]
    classes = "many" if probabilities is not None or are_many(y) else "classes"
    if task == "classes":
        return classes
    if is_token_lists(X, y):
        return "tokens"
    if is_indicator(y):
        return "multi-label"
    return "regression" if _predicts_numbers(model) else classes


def is_token_lists(X: Any, y: Any) -> bool:
    """Whether every row is a list of words with as many labels; the first few tell."""
    if hasattr(X, "shape") or not isinstance(X, Sequence) or isinstance(X, str) or not len(X):
        return False
    if not hasattr(y, "__len__") or not hasattr(y, "__getitem__") or isinstance(y, str | dict):
        return False
    if len(X) != len(y) or hasattr(y, "iloc"):
        return False
    pairs = zip(X[:5], y[:5], strict=True)
    return all(_listed(words) and _listed(labels) and all(isinstance(w, str) for w in words)
               for words, labels in pairs)  # fmt: skip


def is_indicator(y: Any) -> bool:
    """Whether this is a table of zeros and ones with two columns or more."""
    if is_sparse(y):
        return y.shape[1] > 1 and bool(np.isin(y.data, (0, 1)).all())
    if not hasattr(y, "shape"):
        if not isinstance(y, Sequence) or isinstance(y, str) or not len(y) or not _listed(y[0]):
            return False
        if len({len(row) if _listed(row) else -1 for row in y}) != 1:
            return False
    try:
        values = plain_labels(y)
    except (ExemplaError, TypeError, ValueError):  # told where labels are read
        return False
    if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind not in "biuf":
        return False
    return bool(np.isin(values, (0, 1)).all())


def are_many(y: Any) -> bool:
    """Whether there are as many classes as need care with memory."""
    try:
        if is_sparse(y) or n_rows(y) < MANY:
            return False
        values = plain_labels(y)
        return values.ndim == 1 and len(np.unique(values)) >= MANY
    except (
        ExemplaError,
        TypeError,
        ValueError,
    ):  # nothing that can be sorted: told where labels are read
        return False


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "ndim") and value.ndim == 1)


def _predicts_numbers(model: Any) -> bool:
    try:
        return is_regressor(model)
    except (AttributeError, TypeError):  # it tells scikit-learn nothing of itself, or is a class
        return False
