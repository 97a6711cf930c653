"""Two rounds of out-of-fold predictions, the second without the first's suspects, then judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from exempla.data import take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.tasks.label_jobs.blunders import Judged, judge
from exempla.tasks.label_jobs.predictions import Predictions, block_rows, out_of_fold
from exempla.tasks.retrain import Fit, check_fit, refit

__all__ = ["Labels", "check_classifier", "folds_of", "judged", "judged_from"]

FOLDS = 5
ODDS = 4.0


class Labels(NamedTuple):
    """Rows and their labels' positions in `classes`: those to be judged, then the curated ones."""

    X: Any
    codes: np.ndarray
    classes: np.ndarray
    curated: np.ndarray
    """(n + m,) which rows are."""
    fold: np.ndarray
    weights: np.ndarray | None = None


def folds_of(groups: np.ndarray, codes: np.ndarray | None, seed: int) -> np.ndarray:
    """A fold for every row; rows of a group share theirs, and codes are spread over the folds.

    >>> folds_of(np.array([0, 0, 1, 1, 2]), None, 0)[[0, 2]] == folds_of(
    ...     np.array([0, 0, 1, 1, 2]), None, 0)[[1, 3]]
    array([ True,  True])
    """
    rng = np.random.default_rng(seed)
    members, place = np.unique(groups, return_inverse=True)
    order = rng.permutation(len(members))
    if codes is not None:  # every row is its own group
        order = order[np.argsort(codes[order], kind="stable")]
    fold = np.empty(len(members), dtype=np.int64)
    fold[order] = np.arange(len(members)) % min(FOLDS, len(members))
    return fold[place]


def judged(model: Any, labels: Labels, seed: int, *, rounds: int = 1) -> Judged:
    """Judge the labels by models of the other folds."""

    def fitted(rows: np.ndarray, seed: int) -> Any:
        y = labels.classes[labels.codes[rows]]
        if len(np.unique(labels.codes[rows])) < 2:
            raise ExemplaError(
                "the labels cannot be judged: with a few rows set aside only one class is left to "
                "learn from; give more rows of every class."
            )
        weights = None if labels.weights is None else labels.weights[rows]
        return refit(
            model, take_rows(labels.X, rows), y, weights, None, seed, keep_random_state=True
        )

    said = out_of_fold(fitted, labels.X, labels.codes, labels.classes, labels.fold, seed)
    first = said
    for step in range(1, rounds + 1):
        keep = ~_doubted(said, labels)
        left = np.bincount(labels.codes[keep], minlength=len(labels.classes))
        if keep.all() or np.count_nonzero(left >= 2) < 2:
            break
        said = out_of_fold(
            fitted, labels.X, labels.codes, labels.classes, labels.fold, seed + 101 * step,
            learn_from=keep, what="again without the suspects",
        )  # fmt: skip
    return judge(said, labels.codes, labels.curated, first)


def _doubted(said: Predictions, labels: Labels) -> np.ndarray:
    """Rows that a model should not learn from: another label is ODDS times as likely.

    A model that has learnt wrong labels holds them possible. Without these rows it does not; that
    some of them were right, and it grows too sure of itself, is what the temperature mends.
    """
    return (said.chances[:, 0] > ODDS * said.own) & ~labels.curated


def judged_from(probabilities: Any, labels: Labels) -> Judged:
    """Judge the labels by probabilities that are there already."""
    n, C = len(labels.codes), len(labels.classes)
    shape = getattr(probabilities, "shape", ())
    if shape != (n, C):
        raise ExemplaError(
            f"probabilities have shape {tuple(shape)}; give one for each of {n:,} labels and {C:,} "
            "classes, in the order of the sorted classes."
        )
    said = Predictions.empty(n, C)
    size = block_rows(C)
    for start in range(0, n, size):
        rows = np.arange(start, min(start + size, n))
        part = np.asarray(probabilities[start : start + size], dtype=np.float64)
        if not np.isfinite(part).all() or part.min() < 0 or part.max() > 1 + 1e-6:
            raise ExemplaError("probabilities must be numbers from 0 to 1; look at your model.")
        said.put(rows, part, labels.codes[rows])
    return judge(said, labels.codes, labels.curated)


def check_classifier(model: Any, fit: Fit | None) -> None:
    """Whether this model can be trained again and gives probabilities."""
    if fit is not None:
        raise ExemplaError(
            "fit= trains single classes and numbers; here give a scikit-learn classifier, or the "
            "probabilities of your own model with probabilities=."
        )
    check_fit(model, None)
    if not hasattr(model, "predict_proba"):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no class probabilities, which finding wrong labels "
            "needs: use a classifier with predict_proba, such as LogisticRegression."
        )
