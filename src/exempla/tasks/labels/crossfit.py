"""Cross-validated predictions: what models that have not seen a row predict for it.

All label jobs take their predictions from this module. Class predictions are *views*: log p(c | x)
for a few classes of every row. With at most `MAX_CLASSES` classes a view holds all of them. With
more it holds the `MAX_CLASSES` most likely ones, and always the given label, so that memory does
not grow with rows × classes. `Columns` records which classes these are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone

from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError
from exempla.progress import track
from exempla.tasks.labels.problem import LabelProblem, Learner
from exempla.tasks.retrain import Fit, describe, error_line, refit

FOLDS = 5
MAX_CLASSES = 12
"""Classes kept per row."""
BLOCK_BYTES = 2**24
"""Size of one block of predictions of all classes."""


def stratified_folds(codes: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return a fold number for each row; every label is spread evenly over the folds.

    >>> import numpy as np
    >>> np.bincount(stratified_folds(np.repeat([0, 1], 10), 5, np.random.default_rng(0)))
    array([4, 4, 4, 4, 4])
    """
    shuffled = rng.permutation(len(codes))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    fold = np.empty(len(codes), dtype=np.int64)
    fold[order] = np.arange(len(codes)) % folds
    return fold


def group_folds(groups: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return a fold number for each row; rows of the same group share their fold.

    >>> fold = group_folds(np.array([0, 0, 1, 1, 2]), 5, np.random.default_rng(0))
    >>> bool(fold[0] == fold[1] and fold[2] == fold[3])
    True
    """
    members, place = np.unique(groups, return_inverse=True)
    return (rng.permutation(len(members)) % folds)[place]


@dataclass(frozen=True)
class Columns:
    """The classes whose probabilities a view holds.

    Attributes
    ----------
    codes : int array of shape (rows, columns)
        The class of each column, row by row.
    own : int array of shape (rows,)
        The column that holds the given label.
    n_classes : int
        The number of classes in all.
    """

    codes: np.ndarray
    own: np.ndarray
    n_classes: int

    @classmethod
    def all_classes(cls, given: np.ndarray, n_classes: int) -> Columns:
        """Every class has a column."""
        return cls(np.broadcast_to(np.arange(n_classes), (len(given), n_classes)), given, n_classes)

    @classmethod
    def likeliest(cls, log_p: np.ndarray, given: np.ndarray) -> Columns:
        """The most likely classes have a column, and the given label."""
        n, C = log_p.shape
        if C <= MAX_CLASSES:
            return cls.all_classes(given, C)
        first = log_p.copy()
        first[np.arange(n), given] = np.inf
        codes = np.argpartition(-first, MAX_CLASSES - 1, axis=1)[:, :MAX_CLASSES]
        codes = np.sort(codes, axis=1).astype(np.int32)
        return cls(codes, np.argmax(codes == given[:, None], axis=1), C)

    def take(self, log_p: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the columns of predictions of all classes for these rows."""
        if self.codes.shape[1] == self.n_classes:
            return log_p
        return np.take_along_axis(log_p, self.codes[rows].astype(np.int64), axis=1)

    def part(self, rows: np.ndarray | slice) -> Columns:
        """Return the columns of some rows."""
        return Columns(self.codes[rows], self.own[rows], self.n_classes)


def out_of_fold(
    learner: Learner,
    problem: LabelProblem,
    seed: int,
    *,
    learn_from: np.ndarray | None = None,
    columns: Columns | None = None,
    folds: int = FOLDS,
    what: str = "cross-validation",
) -> tuple[np.ndarray, Columns]:
    """Return log p(c | x) of every row by a model fitted to the other folds.

    Training and curated rows share the folds. Rows of one group (`problem.groups`) stay together.

    Parameters
    ----------
    learn_from : bool array
        The rows a model may learn from; all rows are predicted. All rows by default.
    columns : Columns
        The classes to keep; by default they are chosen by these predictions.

    Returns
    -------
    view : array of shape (rows, columns)
    columns : Columns
    """
    N, C = len(problem), len(problem.classes)
    allowed = np.ones(N, dtype=bool) if learn_from is None else learn_from
    rng = np.random.default_rng(seed)
    fold = (
        stratified_folds(problem.codes, folds, rng)
        if problem.groups is None
        else group_folds(problem.groups, folds, rng)
    )
    width = min(C, MAX_CLASSES)
    out = np.empty((N, width))
    chosen = np.empty((N, width), dtype=np.int32) if columns is None and width < C else None
    for f in track(range(folds), what, folds):
        held = np.flatnonzero(fold == f)
        if not len(held):
            continue
        model = _fitted(learner, problem, np.flatnonzero(allowed & (fold != f)), seed + f)
        for rows in _blocks(held, C):
            log_p = _log_proba(learner, problem, model, rows)
            if chosen is not None:
                best = Columns.likeliest(log_p, problem.codes[rows])
                chosen[rows], out[rows] = best.codes, best.take(log_p)
            else:
                out[rows] = log_p if columns is None else columns.take(log_p, rows)
    if columns is None:
        given = problem.codes
        columns = Columns.all_classes(given, C)
        if chosen is not None:
            columns = Columns(chosen, np.argmax(chosen == given[:, None], axis=1), C)
    return out, columns


def learned_predictions(
    learner: Learner, problem: LabelProblem, columns: Columns, model: Any
) -> np.ndarray:
    """Return log p(c | x) of the training rows by a model fitted to them, (n_train, columns)."""
    out = np.empty((problem.n_train, columns.codes.shape[1]))
    for rows in _blocks(problem.train, len(problem.classes)):
        out[rows] = columns.take(_log_proba(learner, problem, model, rows), rows)
    return out


def predicted(
    learner: Learner, problem: LabelProblem, rows: np.ndarray, held: np.ndarray, seed: int
) -> np.ndarray:
    """Return log p(c | x) of the held rows, all classes, by a model fitted to `rows`."""
    return _log_proba(learner, problem, _fitted(learner, problem, rows, seed), held)


def _fitted(learner: Learner, problem: LabelProblem, rows: np.ndarray, seed: int) -> Any:
    """Return a model fitted to these rows, or their class shares if they have one class."""
    sizes = problem.class_sizes(rows)
    if np.count_nonzero(sizes) < 2:
        return np.log((sizes + 1.0) / (sizes + 1.0).sum())
    weights = problem.weights_of(rows)
    return learner.fitted(problem.inputs(rows), problem.labels(rows), weights, seed)


def _log_proba(learner: Learner, problem: LabelProblem, model: Any, rows: np.ndarray) -> np.ndarray:
    if isinstance(model, np.ndarray):
        return np.tile(model, (len(rows), 1))
    return learner.log_proba(model, problem.inputs(rows))


def _blocks(rows: np.ndarray, n_classes: int) -> list[np.ndarray]:
    size = max(1, BLOCK_BYTES // (8 * n_classes))
    return np.split(rows, np.arange(size, len(rows), size))


def view_bytes(rows: int, n_classes: int, views: int = 6) -> float:
    """Return the bytes that views of this many rows take, with one block of all classes."""
    return rows * min(n_classes, MAX_CLASSES) * (8.0 * views + 4.0) + 6.0 * BLOCK_BYTES


def with_regularisation(learner: Learner, factor: float) -> Learner | None:
    """Return the learner with its C multiplied (its alpha divided) by a factor.

    Returns None for a model that has no such parameter, or that does not use it.

    >>> from sklearn.linear_model import LogisticRegression
    >>> learner = Learner(LogisticRegression(C=2.0), np.array([0, 1]))
    >>> with_regularisation(learner, 0.1).model
    LogisticRegression(C=0.2)
    """
    model = learner.model
    if learner.fit is not None or not hasattr(model, "get_params"):
        return None
    steps = getattr(model, "steps", None)
    prefix = f"{steps[-1][0]}__" if steps else ""
    parameters = model.get_params()
    if f"{prefix}penalty" in parameters and parameters[f"{prefix}penalty"] is None:
        return None
    for name, power in (("C", 1.0), ("alpha", -1.0)):
        value = parameters.get(prefix + name)
        if isinstance(value, Real) and 0 < float(value) < np.inf:
            copy: Any = clone(model)
            return replace(learner, model=copy.set_params(**{prefix + name: value * factor**power}))
    return None


def cross_validated_numbers(
    model: Any,
    X: Any,
    targets: np.ndarray,
    seed: int,
    *,
    weights: np.ndarray | None = None,
    fit: Fit | None = None,
    learn_from: np.ndarray | None = None,
    draws: int = 1,
    what: str = "cross-validation",
) -> np.ndarray:
    """Return predictions of numbers by models of the other folds, averaged over draws of folds."""
    n = len(targets)
    allowed = np.ones(n, dtype=bool) if learn_from is None else learn_from
    folds, out = min(FOLDS, n), np.zeros(n)
    for step in track(range(draws * folds), what, draws * folds):
        draw, f = divmod(step, folds)
        fold = np.random.default_rng(seed + draw).permutation(n) % folds
        rows, held = np.flatnonzero(allowed & (fold != f)), np.flatnonzero(fold == f)
        if len(rows) < 2:
            raise ExemplaError("too few rows are left to learn from; give more rows.")
        part = None if weights is None else weights[rows]
        trained = refit(
            model, take_rows(X, rows), targets[rows], part, fit, seed + f, keep_random_state=True
        )
        out[held] += _numbers(trained, take_rows(X, held)) / draws
    return out


def _numbers(trained: Any, X: Any) -> np.ndarray:
    """Return one finite prediction per row."""
    try:
        raw = trained.predict(X) if hasattr(trained, "predict") else _by_module(trained, X)
        out = np.asarray(raw, dtype=np.float64).reshape(n_rows(X))
    except (ExemplaError, MemoryError):
        raise
    except Exception as error:  # the caller's own model may raise anything
        raise ExemplaError(
            f"the fitted {type(trained).__name__} cannot predict {describe(X)}: {error_line(error)}"
        ) from error
    if not np.isfinite(out).all():
        raise ExemplaError(
            f"the fitted {type(trained).__name__} predicts numbers that are not finite; check its "
            "settings and the columns it is given."
        )
    return out


def _by_module(module: Any, X: Any) -> np.ndarray:
    import torch

    module.eval()
    with torch.no_grad():
        return module(X if torch.is_tensor(X) else torch.as_tensor(X)).cpu().numpy()
