"""Cross-validated predictions: what models that have not seen a row predict for it.

All label jobs take their predictions from this module, and `SoftmaxRegression` is the default model
for many classes. Class predictions are *views*: log p(c | x)
for a few classes of every row. With at most `MAX_CLASSES` classes a view holds all of them. With
more it holds the `MAX_CLASSES` most likely ones, and always the given label, so that memory does
not grow with rows × classes. `Columns` records which classes these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from exempla.arrays import is_sparse
from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.progress import track
from exempla.tasks.labels.problem import LabelProblem
from exempla.tasks.retrain import Fit, check_fit, describe, naming, refit

FOLDS = 5
MAX_CLASSES = 12
"""Classes kept per row."""
BLOCK_BYTES = 2**24
"""Size of one block of predictions of all classes."""
_FLOOR = 1e-12
"""Smallest probability that is distinguished from zero."""


@dataclass(frozen=True)
class Learner:
    """The caller's model as a recipe: every fit starts afresh."""

    model: Any
    classes: np.ndarray
    fit: Fit | None = None

    def fitted(self, problem: LabelProblem, rows: np.ndarray, seed: int, quiet: bool = True) -> Any:
        """Return the model fitted to these rows, or their log class shares if they have one."""
        sizes = problem.class_sizes(rows)
        if np.count_nonzero(sizes) < 2:
            return np.log((sizes + 1.0) / (sizes + 1.0).sum())
        return refit(
            self.model, problem.inputs(rows), problem.labels(rows), problem.weights_of(rows),
            self.fit, seed, keep_random_state=True, quiet=quiet,
        )  # fmt: skip

    def log_proba(self, fitted: Any, X: Any) -> np.ndarray:
        """log p(c | x) for every class c the training data know, (n, C), never below log FLOOR."""
        if isinstance(fitted, np.ndarray):
            return np.tile(fitted, (n_rows(X), 1))
        out = np.full((n_rows(X), len(self.classes)), np.log(_FLOOR))
        if self.fit is None and not hasattr(fitted, "classes_"):
            raise UnsupportedModelError(
                f"{type(fitted).__name__} tells no classes apart, so it cannot judge labels: use a "
                "classifier with predict_proba, such as LogisticRegression."
            )
        with _predicting(fitted, X):
            if self.fit is None:
                at = np.searchsorted(self.classes, fitted.classes_)  # a fold may miss a class
                out[:, at] = np.log(np.maximum(fitted.predict_proba(X), _FLOOR))
                return out
            return np.maximum(log_likelihoods(make_oracle(fitted), X, self.classes), out)

    def out_of_fold(
        self,
        problem: LabelProblem,
        seed: int,
        *,
        learn_from: np.ndarray | None = None,
        columns: Columns | None = None,
        what: str = "cross-validation",
    ) -> tuple[np.ndarray, Columns]:
        """Return log p(c | x) of every row by a model fitted to the other folds, and its columns.

        Training and curated rows share the folds. Rows of one group (`problem.groups`) stay
        together. Models learn from the rows of the mask `learn_from`; all rows are predicted.
        Without `columns` the classes to keep are chosen by these predictions.
        """
        allowed = np.ones(len(problem), dtype=bool) if learn_from is None else learn_from
        rng, size = np.random.default_rng(seed), max(1, BLOCK_BYTES // (8 * len(problem.classes)))
        if problem.groups is None:
            fold = stratified_folds(problem.codes, FOLDS, rng)
        else:
            members, place = np.unique(problem.groups, return_inverse=True)
            fold = (rng.permutation(len(members)) % FOLDS)[place]

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for f in track(range(FOLDS), what, FOLDS):
                held = np.flatnonzero(fold == f)
                if len(held):
                    model = self.fitted(problem, np.flatnonzero(allowed & (fold != f)), seed + f)
                    for rows in np.split(held, np.arange(size, len(held), size)):
                        yield rows, self.log_proba(model, problem.inputs(rows))

        return gathered(blocks(), problem.codes, len(problem.classes), columns)

    def with_regularisation(self, factor: float) -> Learner | None:
        """Return the learner with its C multiplied (its alpha divided) by a factor.

        None if the model has no such parameter or does not use it.
        """
        model = self.model
        if self.fit is not None or not hasattr(model, "get_params"):
            return None
        steps = getattr(model, "steps", None)
        prefix = f"{steps[-1][0]}__" if steps else ""
        parameters = model.get_params()
        for name, power in (("C", 1.0), ("alpha", -1.0)):
            value = parameters.get(prefix + name)
            used = parameters.get(f"{prefix}penalty", "") is not None
            if used and isinstance(value, Real) and 0 < float(value) < np.inf:
                other: Any = clone(model)
                other.set_params(**{prefix + name: value * factor**power})
                return replace(self, model=other)
        return None


def log_likelihoods(oracle: Any, X: Any, classes: np.ndarray) -> np.ndarray:
    """log p(c | x) of every class by an oracle, (n, C)."""
    n = n_rows(X)
    return np.column_stack([
        oracle.log_likelihood(oracle.read((X, np.full(n, label)), role="test")) for label in classes
    ])  # fmt: skip


def _predicting(fitted: Any, X: Any) -> AbstractContextManager[None]:
    """Say which model cannot predict what."""
    return naming(f"the fitted {type(fitted).__name__} cannot predict {describe(X)}:")


def make_learner(model: Any, classes: np.ndarray, fit: Fit | None) -> Learner:
    """Return a learner, if the model can be refitted and gives probabilities."""
    check_fit(model, fit)
    if fit is None and not hasattr(model, "predict_proba"):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no class probabilities, which finding wrong labels "
            "needs: use a classifier with predict_proba, such as LogisticRegression."
        )
    return Learner(model, classes, fit)


def stratified_folds(codes: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return a fold number for each row; every label is spread evenly over the folds."""
    shuffled = rng.permutation(len(codes))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    fold = np.empty(len(codes), dtype=np.int64)
    fold[order] = np.arange(len(codes)) % folds
    return fold


@dataclass(frozen=True)
class Columns:
    """The classes whose probabilities a view holds."""

    codes: np.ndarray
    """(rows, columns): the class of each column, row by row."""
    own: np.ndarray
    """(rows,): the column that holds the given label."""
    n_classes: int

    @property
    def given(self) -> np.ndarray:
        """The class codes of the given labels."""
        return self.codes[np.arange(len(self.own)), self.own]

    def part(self, rows: np.ndarray | slice) -> Columns:
        """Return the columns of some rows."""
        return Columns(self.codes[rows], self.own[rows], self.n_classes)


def gathered(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]],
    given: np.ndarray,
    n_classes: int,
    columns: Columns | None = None,
) -> tuple[np.ndarray, Columns]:
    """Return a view of predictions that come in blocks (rows, log p of all classes).

    Without `columns`, each row keeps its most likely classes and its given label.
    """
    n, width = len(given), min(n_classes, MAX_CLASSES)
    view = np.empty((n, width))
    codes = np.empty((n, width), dtype=np.int32) if columns is None else columns.codes
    for rows, log_p in blocks:
        if columns is None and n_classes <= MAX_CLASSES:
            codes[rows] = np.arange(n_classes)
        elif columns is None:
            first = -log_p
            first[np.arange(len(rows)), given[rows]] = -np.inf
            codes[rows] = np.sort(np.argpartition(first, width - 1, axis=1)[:, :width], axis=1)
        view[rows] = np.take_along_axis(log_p, codes[rows].astype(np.int64), axis=1)
    if columns is None:
        columns = Columns(codes, np.argmax(codes == given[:, None], axis=1), n_classes)
    return view, columns


def view_bytes(rows: int, n_classes: int) -> float:
    """Return the bytes that six views of this many rows take, with a block of all classes each."""
    return rows * min(n_classes, MAX_CLASSES) * 52.0 + 6.0 * BLOCK_BYTES


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
    with _predicting(trained, X):
        raw = trained.predict(X) if hasattr(trained, "predict") else _by_module(trained, X)
        out = np.asarray(raw, dtype=np.float64).reshape(n_rows(X))
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


_BATCH, _EPOCHS = 256, 15
_RATE, _DECAY = 2.0, 1e-4
"""Length of the first steps, and the L2 penalty: what a touched weight loses per unit of step."""


class SoftmaxRegression(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression in bounded memory, for thousands of classes.

    scikit-learn's LogisticRegression holds several (rows × classes) arrays while it is fitted. Here
    rows come in batches: beside X there are the weights, (columns × classes) in float32, and one
    batch of (_BATCH × classes). The step length of each column shrinks with its gradients so far
    (AdaGrad with one number per column), and only columns that occur in a batch are updated.
    """

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from these rows."""
        X = _rows(X)
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        (n, p), C = X.shape, len(self.classes_)
        share = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        share = (share / share.mean()).astype(np.float32)
        self.coef_ = np.zeros((p, C), dtype=np.float32)
        counts = np.bincount(codes, minlength=C) + 1.0
        self.intercept_ = np.log(counts / counts.sum()).astype(np.float32)
        seen = np.full(p + 1, 1e-6)  # squared gradients of the columns and of the intercept so far
        rng, small = np.random.default_rng(self.random_state), max(min(_BATCH, n // 8), 1)
        for _ in range(_EPOCHS):
            order = rng.permutation(n)
            for rows in np.split(order, np.arange(small, n, small)):
                self._step(X[rows], codes[rows], share[rows, None], seen)
        return self

    def _step(self, part: Any, codes: np.ndarray, share: np.ndarray, seen: np.ndarray) -> None:
        columns: Any = slice(0, part.shape[1])
        if is_sparse(part):
            columns = np.unique(part.indices)
            part = part[:, columns]
        off = softmax(np.asarray(part @ self.coef_[columns]) + self.intercept_, axis=1)
        off[np.arange(len(codes)), codes] -= 1.0
        off *= share / len(codes)
        slope, shift = np.asarray(part.T @ off), off.sum(axis=0)
        seen[columns] += np.mean(slope**2, axis=1) * slope.shape[1]
        seen[-1] += float(np.sum(shift**2))
        length = (_RATE / np.sqrt(seen[columns]))[:, None].astype(np.float32)
        self.coef_[columns] -= length * (slope + _DECAY * self.coef_[columns])
        self.intercept_ -= np.float32(_RATE / np.sqrt(seen[-1])) * shift

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (rows, classes)."""
        return softmax(np.asarray(_rows(X) @ self.coef_) + self.intercept_, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]


def _rows(X: Any) -> Any:
    """float32 rows, CSR if they are sparse."""
    return (sp.csr_matrix if is_sparse(X) else np.asarray)(X, dtype=np.float32)
