"""Softmax regression in bounded memory, for thousands of classes and for sparse words.

scikit-learn's LogisticRegression holds several (rows × classes) arrays while it is fitted. Here
rows come in batches: beside X there are the weights, (columns × classes) in float32, and one batch
of (BATCH × classes). The step length of each column shrinks with its gradients so far (AdaGrad with
one number per column), and only columns that occur in a batch are updated.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin

from exempla.arrays import is_sparse

_BATCH = 256


def weight_bytes(columns: int, classes: int) -> float:
    """What the weights and a batch's gradient take."""
    return 2 * 4.0 * columns * classes + 3 * 4.0 * _BATCH * classes


class SoftmaxRegression(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression by mini-batches.

    Parameters
    ----------
    epochs : int
        How often every row is seen.
    rate : float
        Length of the first steps.
    decay : float
        What a touched weight loses of itself in a step, times the step's length: the L2 penalty.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(SoftmaxRegression().fit(scale(X), y).score(scale(X), y) > 0.9)
    True
    """

    def __init__(
        self, epochs: int = 15, rate: float = 2.0, decay: float = 1e-4, random_state: int = 0
    ) -> None:
        self.epochs, self.rate, self.decay = epochs, rate, decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from these rows."""
        X = _rows(X)
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        n, p = X.shape
        C = len(self.classes_)
        share = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        share = (share / share.mean()).astype(np.float32)
        self.coef_ = np.zeros((p, C), dtype=np.float32)
        counts = np.bincount(codes, minlength=C) + 1.0
        self.intercept_ = np.log(counts / counts.sum()).astype(np.float32)
        seen = np.full(p + 1, 1e-6, dtype=np.float64)
        rng = np.random.default_rng(self.random_state)
        small = max(min(_BATCH, n // 8), 1)
        for _ in range(self.epochs):
            order = rng.permutation(n)
            for start in range(0, n, small):
                self._step(X, codes, share, order[start : start + small], seen)
        return self

    def _step(
        self, X: Any, codes: np.ndarray, share: np.ndarray, rows: np.ndarray, seen: np.ndarray
    ) -> None:
        """One batch; only the columns that occur in it move."""
        part = X[rows]
        columns: Any = slice(None)
        if is_sparse(part):
            columns = np.unique(part.indices)
            part = part[:, columns]
        off = softmax(np.asarray(part @ self.coef_[columns]) + self.intercept_, axis=1)
        off[np.arange(len(rows)), codes[rows]] -= 1.0
        off *= share[rows, None] / len(rows)
        slope = np.asarray(part.T @ off)
        seen[:-1][columns] += np.mean(slope**2, axis=1) * slope.shape[1]
        seen[-1] += float(np.sum(off.sum(axis=0) ** 2))
        length = (self.rate / np.sqrt(seen[:-1][columns]))[:, None].astype(np.float32)
        kept = self.coef_[columns]
        self.coef_[columns] = kept - length * (slope + self.decay * kept)
        self.intercept_ -= np.float32(self.rate / np.sqrt(seen[-1])) * off.sum(axis=0)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (rows, classes)."""
        return softmax(np.asarray(_rows(X) @ self.coef_) + self.intercept_, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]


def _rows(X: Any) -> Any:
    """float32 rows, CSR if they are sparse."""
    if is_sparse(X):
        return sp.csr_matrix(X, dtype=np.float32)
    return np.asarray(X, dtype=np.float32)
