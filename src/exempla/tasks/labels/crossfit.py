"""Cross-fitting: what a model that never saw a row predicts of its label.

What models that have not seen a label predict of it, kept in little room.

Of C classes only the likeliest TOP of each row are kept, with the given label's own probability
and, by difference, what all others have together. With n rows that is n·(12·TOP + 16) bytes,
whatever C is, in each of two rounds; predictions are made in blocks of rows, of which six arrays
of BLOCK_BYTES are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError
from exempla.progress import track
from exempla.tasks.labels.problem import LabelProblem, Learner
from exempla.tasks.retrain import describe, error_line

FOLDS = 5
_CURATED_FOLDS = 10
"""The curated set is small: more folds make the cross-fitted models nearly as good as the one
fitted to all of it, which predicts the training rows."""


def stratified_folds(codes: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """A fold number for each row, each label spread evenly over the folds.

    >>> import numpy as np
    >>> np.bincount(stratified_folds(np.repeat([0, 1], 10), 5, np.random.default_rng(0)))
    array([4, 4, 4, 4, 4])
    """
    shuffled = rng.permutation(len(codes))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    fold = np.empty(len(codes), dtype=np.int64)
    fold[order] = np.arange(len(codes)) % folds
    return fold


def out_of_fold(
    learner: Learner,
    problem: LabelProblem,
    seed: int,
    *,
    learn_from: np.ndarray | None = None,
    folds: int = FOLDS,
    what: str = "cross-fitting",
) -> np.ndarray:
    """log p(c | x) of every row, (n + m, C), from a model fitted to the other folds.

    Training and curated rows share the folds: each is predicted by a model that saw the
    other folds of both. `learn_from` marks the rows a model may learn from; all are predicted.
    """
    allowed = np.ones(len(problem), dtype=bool) if learn_from is None else learn_from
    fold = stratified_folds(problem.codes, folds, np.random.default_rng(seed))
    out = np.empty((len(problem), len(problem.classes)))
    for f in track(range(folds), what, folds):
        held = np.flatnonzero(fold == f)
        if len(held):
            rows = np.flatnonzero(allowed & (fold != f))
            out[held] = predicted(learner, problem, rows, held, seed + f)
    return out


def curated_only(learner: Learner, problem: LabelProblem, seed: int) -> np.ndarray:
    """log p(c | x) of every row from curated rows alone, cross-fitted inside the curated set."""
    train, curated = np.arange(problem.n_train), np.arange(problem.n_train, len(problem))
    folds = int(np.clip(len(curated), 2, _CURATED_FOLDS))
    fold = stratified_folds(problem.codes[curated], folds, np.random.default_rng(seed))
    out = np.empty((len(problem), len(problem.classes)))
    for f in range(folds):
        rows, held = curated[fold != f], curated[fold == f]
        if len(held):
            out[held] = predicted(learner, problem, rows, held, seed + f)
    out[train] = predicted(learner, problem, curated, train, seed)
    return out


def predicted(
    learner: Learner, problem: LabelProblem, rows: np.ndarray, held: np.ndarray, seed: int
) -> np.ndarray:
    """log p(c | x) of the held rows by a model of `rows`; class shares if those have one class."""
    sizes = problem.class_sizes(rows)
    if np.count_nonzero(sizes) < 2:
        share = sizes + 1.0
        return np.tile(np.log(share / share.sum()), (len(held), 1))
    model = learner.fitted(
        problem.inputs(rows), problem.labels(rows), problem.weights_of(rows), seed
    )
    return learner.log_proba(model, problem.inputs(held))


_TOP = 10
BLOCK_BYTES = 2**24
MIN_PROBABILITY = 1e-12
_PREDICTION_FOLDS = 5


@dataclass(frozen=True)
class Predictions:
    """Of every row: the likeliest classes and the given one."""

    own: np.ndarray
    """(n,) probability of the given label."""
    top: np.ndarray
    """(n, m) codes of the likeliest classes, the likeliest first."""
    chances: np.ndarray
    """(n, m) their probabilities."""
    classes: int

    @classmethod
    def empty(cls, n: int, classes: int) -> Predictions:
        """Room for n rows."""
        m = min(_TOP, classes)
        return cls(np.empty(n), np.empty((n, m), dtype=np.int32), np.empty((n, m)), classes)

    def put(self, rows: np.ndarray, probabilities: np.ndarray, codes: np.ndarray) -> None:
        """Take in the predictions of some rows, (rows, C), under their given labels."""
        m = self.top.shape[1]
        sure = np.maximum(probabilities, MIN_PROBABILITY)
        self.own[rows] = sure[np.arange(len(rows)), codes]
        part = np.argpartition(-sure, m - 1, axis=1)[:, :m] if m < self.classes else np.tile(
            np.arange(m), (len(rows), 1)
        )  # fmt: skip
        chances = np.take_along_axis(sure, part, axis=1)
        order = np.lexsort((part, -chances), axis=1)
        self.top[rows] = np.take_along_axis(part, order, axis=1)
        self.chances[rows] = np.take_along_axis(chances, order, axis=1)


def room(n: int, classes: int) -> float:
    """Bytes that predictions of n rows take, with the block they are made in."""
    return n * (24.0 * min(_TOP, classes) + 32.0) + 6.0 * BLOCK_BYTES


def block_rows(classes: int) -> int:
    """Rows predicted at a time."""
    return max(1, BLOCK_BYTES // (8 * classes))


_Fitted = Callable[[np.ndarray, int], Any]
"""(rows to learn from, seed) -> fitted model."""


def out_of_fold_predictions(
    fitted: _Fitted,
    X: Any,
    codes: np.ndarray,
    classes: np.ndarray,
    fold: np.ndarray,
    seed: int,
    *,
    learn_from: np.ndarray | None = None,
    what: str = "cross-fitting",
) -> Predictions:
    """Predictions of every row by a model of the other folds."""
    allowed = np.ones(len(codes), dtype=bool) if learn_from is None else learn_from
    out = Predictions.empty(len(codes), len(classes))
    numbers = np.unique(fold).tolist()
    for f in track(numbers, what, len(numbers)):
        model = fitted(np.flatnonzero(allowed & (fold != f)), seed + int(f))
        _predict_into(out, model, X, np.flatnonzero(fold == f), codes, classes)
    return out


def _predict_into(
    out: Predictions, model: Any, X: Any, held: np.ndarray, codes: np.ndarray, classes: np.ndarray
) -> None:
    """Predict these rows in blocks; a class the model has not seen has almost no chance."""
    size = block_rows(len(classes))
    for start in range(0, len(held), size):
        rows = held[start : start + size]
        inputs = take_rows(X, rows)
        try:
            said = np.asarray(model.predict_proba(inputs), dtype=np.float64)
        except (ExemplaError, MemoryError):
            raise
        except Exception as error:  # the model may be the caller's own, and raise anything
            raise ExemplaError(
                f"the fitted {type(model).__name__} cannot predict {describe(inputs)}: "
                f"{error_line(error)}"
            ) from error
        known = np.asarray(getattr(model, "classes_", classes))
        if said.shape != (n_rows(inputs), len(known)):
            raise ExemplaError(
                f"{type(model).__name__}.predict_proba gives shape {said.shape} for "
                f"{n_rows(inputs):,} rows and {len(known):,} classes; it must give one probability "
                "for each."
            )
        full = np.zeros((len(rows), len(classes)))
        full[:, np.searchsorted(classes, known)] = np.nan_to_num(said)
        out.put(rows, full, codes[rows])
