"""How good the model is, said before its explanation is trusted."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone as _clone
from sklearn.model_selection import KFold, StratifiedKFold

from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.progress import track

__all__ = ["CrossValidation", "cross_validated_accuracy"]

clone: Any = _clone


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
    y = np.asarray(y)
    if len(y) < 4:
        raise ExemplaError(f"{len(y)} rows are too few to cross-validate; give at least four.")
    some = np.arange(len(y))
    if len(y) > max_rows:
        some = np.sort(np.random.default_rng(seed).choice(len(y), max_rows, replace=False))
    y = y[some]
    regression = getattr(model, "_estimator_type", "") == "regressor" or (
        y.dtype.kind == "f" and not hasattr(model, "predict_proba")
    )
    guess, parts = y.copy(), _folds(y, folds, regression, seed)
    for train, test in track(parts, "cross-validating the model", len(parts)):
        fitted = clone(model).fit(take_rows(X, some[train]), y[train])
        guess[test] = fitted.predict(take_rows(X, some[test]))
    if regression:
        return _r2(y, guess, [test for _, test in parts])
    mean = float(np.mean(guess == y))
    majority = float(np.unique(y, return_counts=True)[1].max() / len(y))
    return CrossValidation(mean, float(np.sqrt(max(mean * (1 - mean), 1e-12) / len(y))), majority)


def _folds(y: np.ndarray, folds: int, regression: bool, seed: int) -> list[Any]:
    if regression:
        return list(KFold(min(folds, len(y)), shuffle=True, random_state=seed).split(y))
    counts = np.unique(y, return_counts=True)[1]
    parts = max(2, min(folds, int(counts.min())))
    if counts.max() < 2:
        raise ExemplaError("Every class has a single row: nothing can be cross-validated.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer rows than folds
        return list(StratifiedKFold(parts, shuffle=True, random_state=seed).split(y, y))


def _r2(y: np.ndarray, guess: np.ndarray, tests: list[np.ndarray]) -> CrossValidation:
    spread = max(float(np.var(y)), 1e-300)
    each = [1 - float(np.mean((y[t] - guess[t]) ** 2)) / spread for t in tests]
    mean = 1 - float(np.mean((y - guess) ** 2)) / spread
    return CrossValidation(mean, float(np.std(each, ddof=1) / np.sqrt(len(each))), 0.0)
