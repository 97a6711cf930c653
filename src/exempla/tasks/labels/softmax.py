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

_BATCH, _EPOCHS = 256, 15
_RATE, _DECAY = 2.0, 1e-4
"""Length of the first steps, and the L2 penalty: what a touched weight loses per unit of step."""


class SoftmaxRegression(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression by mini-batches."""

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
