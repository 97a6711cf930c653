"""Wrong labels that are no single class: numbers, one of several labels, tokens, very many classes.

`exempla.fix_labels` is the one door; `job_of` tells what it was given.

    kinds             what kind of labels was given
    shares            the share of wrong labels, as a posterior
    residuals         what models that have not seen a number expect of it, and its spread
    mixture           right and wrong numbers as a mixture: the probability of each
    numbers           which numbers of a regression are wrong
    predictions       what models that have not seen a class label predict of it, in little room
    blunders          the probability that such a label is wrong
    from_predictions  both, twice: the second time without the suspects
    softmax           a linear model in bounded memory
    token_features    what it sees of a token
    tokens            which labels of tokens are wrong
    multilabel        which of several labels are wrong
    many              which labels of 1,000 classes and more are wrong
    results           what comes back

What kind of labels was given: one class a row, a number, several labels, or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import is_regressor

from exempla.arrays import is_sparse
from exempla.checks import check_choice, check_flag
from exempla.data import n_rows, plain_labels
from exempla.errors import ExemplaError
from exempla.progress import showing
from exempla.tasks.labels.result import JobFixes

_TASKS = ("auto", "classes", "regression", "multi-label", "tokens")


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
    classes = "many" if probabilities is not None or _are_many(y) else "classes"
    if task == "classes":
        return classes
    if _is_token_lists(X, y):
        return "tokens"
    if _is_indicator(y):
        return "multi-label"
    return "regression" if _predicts_numbers(model) else classes


def _is_token_lists(X: Any, y: Any) -> bool:
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


def _is_indicator(y: Any) -> bool:
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


def _are_many(y: Any) -> bool:
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


def other_job(
    task: Any,
    model: Any,
    train: Any,
    curated: Any,
    k: int | None,
    *,
    progress: bool,
    probabilities: Any = None,
    original_labels: Any = None,
    **options: Any,
) -> JobFixes | None:
    """The answer where labels are not one of a few classes; None where they are."""
    job = job_of(model, train, check_choice("task", task, _TASKS), probabilities)
    if job == "classes":
        return None
    if original_labels is not None:
        raise ExemplaError("original_labels is only of use where labels are one of a few classes.")
    with showing(check_flag("progress", progress)):
        if job == "regression":
            from exempla.tasks.labels.regression import fix_numbers

            return fix_numbers(model, train, curated, k, **options)
        # Imported here: it reads problems as fix_labels does, which imports this module.
        from exempla.tasks.labels.class_noise import fix_many_classes
        from exempla.tasks.labels.multilabel import fix_label_sets
        from exempla.tasks.labels.tokens import fix_token_labels

        jobs = {"many": fix_many_classes, "multi-label": fix_label_sets, "tokens": fix_token_labels}
        return jobs[job](model, train, curated, k, probabilities=probabilities, **options)
