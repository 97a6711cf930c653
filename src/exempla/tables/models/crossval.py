"""How good the model is, said before its explanation is trusted."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, StratifiedKFold, cross_validate

from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.progress import counter

__all__ = ["CrossValidation", "cross_validated", "cross_validated_accuracy", "make_folds"]

SUREST = 1e-6
"""The least probability a label can have in a loss: no single row decides a comparison."""


class CrossValidation(NamedTuple):
    """Cross-validated accuracy, its standard error, and the share of the commonest class.

    For a regression: R², its standard error over the folds, and 0 (what predicting the mean gets).
    """

    mean: float
    se: float
    majority: float

    @property
    def warning(self) -> str:
        """The sentence for screen one, or "" when the model clearly beats the majority.

        >>> CrossValidation(0.71, 0.02, 0.70).warning[:39]
        'The model is hardly better than always '
        """
        if self.mean > self.majority + 2 * self.se:
            return ""
        return (
            f"The model is hardly better than always giving the commonest answer "
            f"({self.mean:.3f} ± {self.se:.3f} against {self.majority:.3f}): what it blames says "
            "little about the data; give better columns or your own model."
        )


def cross_validated_accuracy(
    model: Any, X: Any, y: Any, *, folds: int = 5, max_rows: int = 20_000, seed: int = 0
) -> CrossValidation:
    """Accuracy on rows the model was not fitted on (R² for a regressor).

    More than `max_rows` rows are sampled down first: the model then learns from fewer rows than it
    will have, so the figure errs on the low side.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.arange(40.0)[:, None]
    >>> cross_validated_accuracy(LogisticRegression(), X, (X[:, 0] > 19).astype(int)).majority
    0.5
    """
    return cross_validated(model, X, y, folds=folds, max_rows=max_rows, seed=seed)[0]


def cross_validated(
    model: Any,
    X: Any,
    y: Any,
    *,
    folds: int = 5,
    max_rows: int = 20_000,
    seed: int = 0,
    what: str = "the model",
) -> tuple[CrossValidation, np.ndarray]:
    """The same, and each judged row's loss: −log p of its label where the model gives one, else
    whether it is wrong; for a regressor its squared error."""
    y = np.asarray(y)
    if len(y) < 4:
        raise ExemplaError(f"{len(y)} rows are too few to cross-validate; give at least four.")
    if len(y) > max_rows:
        some = np.sort(np.random.default_rng(seed).choice(len(y), max_rows, replace=False))
        X, y = take_rows(X, some), y[some]
    numbers = _predicts_numbers(model, y)
    parts = make_folds(y, folds, classes=not numbers, seed=seed)
    if not parts:
        raise ExemplaError("Every class has a single row: nothing can be cross-validated.")
    scoring = "neg_mean_squared_error" if numbers else "accuracy"
    measured = get_scorer(scoring)
    losses: list[np.ndarray] = []
    with counter(f"cross-validating {what}", len(parts)) as bar:

        def scored(fitted: Any, inputs: Any, labels: Any) -> float:
            bar.update()
            losses.append(row_losses(fitted, inputs, labels, numbers))
            return float(measured(fitted, inputs, labels))

        raising: Any = {"error_score": "raise"}
        found = cross_validate(model, X, y, cv=parts, scoring=scored, **raising)
    each, sizes = found["test_score"], np.array([len(test) for _, test in parts])
    if numbers:
        return _r2(y, -each, sizes), np.concatenate(losses)
    judged = y[np.concatenate([test for _, test in parts])]
    mean = float(each @ sizes / sizes.sum())
    majority = float(np.unique(judged, return_counts=True)[1].max() / len(judged))
    se = float(np.sqrt(max(mean * (1 - mean), 1e-12) / len(judged)))
    return CrossValidation(mean, se, majority), np.concatenate(losses)


def row_losses(model: Any, X: Any, y: np.ndarray, numbers: bool) -> np.ndarray:
    """What each row costs a fitted model.

    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0]])
    >>> row_losses(LogisticRegression().fit(X, [0, 1]), X, np.array([0, 1]), False).shape
    (2,)
    """
    if numbers:
        return (np.asarray(model.predict(X)).ravel() - y) ** 2
    if not hasattr(model, "predict_proba"):
        return (np.asarray(model.predict(X)) != y).astype(np.float64)
    classes = np.asarray(model.classes_)
    sure = np.asarray(model.predict_proba(X))
    own = np.where(classes[None, :] == y[:, None], sure, 0.0).sum(axis=1)
    return -np.log(own.clip(min=SUREST))


def make_folds(
    y: np.ndarray, folds: int, *, classes: bool, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(training rows, test rows) of each fold; for classes, each class is spread over the folds.

    The only row of a class is in every training part and in no test part: no model without it
    could know its class. Empty if every class is like that.

    >>> import numpy as np
    >>> parts = make_folds(np.array(list("aaaabbbbc")), 2, classes=True, seed=0)
    >>> [(8 in train, len(test)) for train, test in parts]
    [(True, 4), (True, 4)]
    """
    if not classes:
        return list(KFold(min(folds, len(y)), shuffle=True, random_state=seed).split(y))
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if counts.max() < 2:
        return []
    alone = np.flatnonzero(counts[codes] == 1)
    several = np.flatnonzero(counts[codes] > 1)
    cut = StratifiedKFold(min(folds, int(counts.max())), shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer rows than folds
        parts = list(cut.split(several, codes[several]))
    return [(np.sort(np.append(several[train], alone)), several[test]) for train, test in parts]


def _predicts_numbers(model: Any, y: np.ndarray) -> bool:
    try:
        return is_regressor(model) or (y.dtype.kind == "f" and not is_classifier(model))
    except AttributeError:  # a model that tells scikit-learn nothing about itself
        return y.dtype.kind == "f" and not hasattr(model, "predict_proba")


def _r2(y: np.ndarray, errors: np.ndarray, sizes: np.ndarray) -> CrossValidation:
    """From the mean squared error of each fold."""
    spread = max(float(np.var(y)), 1e-300)
    each = 1 - errors / spread
    mean = 1 - float(errors @ sizes / sizes.sum()) / spread
    return CrossValidation(mean, float(np.std(each, ddof=1) / np.sqrt(len(each))), 0.0)
