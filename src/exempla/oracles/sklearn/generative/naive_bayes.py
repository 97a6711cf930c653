"""MultinomialNB and BernoulliNB.

Parameters are, per class k, the logits of the word probabilities θ_k (of a softmax over all words,
or of a sigmoid each) and those of the class shares π:

    multinomial   ∇ log p(x | k) = x − Nθ_k,  N = Σ_j x_j      metric (N_kj + α)/n
    Bernoulli     ∇ log p(x | k) = x − θ_k,   x = 0 or 1       metric (n_k + 2α) θ_k(1 − θ_k)/n

with N_kj the words counted in class k. The metric is the Fisher together with the curvature of the
smoothing α. (Of the multinomial's diag(θ) − θθᵀ the diagonal part alone is kept: a score sums to
zero over the words of a class, and on such vectors the two inverses are the same.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.naive_bayes import BernoulliNB, MultinomialNB

from exempla.arrays import is_sparse
from exempla.oracles.sklearn.data import SklearnExamples
from exempla.oracles.sklearn.generative.base import GenerativeBase

__all__ = ["NaiveBayesOracle", "is_naive_bayes"]


def is_naive_bayes(model: Any) -> bool:
    """Whether this naive Bayes classifier is known here."""
    return isinstance(model, MultinomialNB | BernoulliNB)


class NaiveBayesOracle(GenerativeBase):
    """Scores of MultinomialNB and BernoulliNB.

    >>> X, y = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]]), [0, 0, 1]
    >>> oracle = NaiveBayesOracle(MultinomialNB().fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [(layer.name, layer.size) for layer in oracle.layers]
    [('weights', 2), ('features', 4)]
    """

    names = ("weights", "features")

    def _take_apart(self, last: Any, train: SklearnExamples | None) -> None:
        self._fitted_prior = bool(last.fit_prior) and last.class_prior is None
        self._log_prior = np.asarray(last.class_log_prior_, dtype=np.float64)
        self._theta = np.exp(np.asarray(last.feature_log_prob_, dtype=np.float64))
        counts = np.asarray(last.class_count_, dtype=np.float64)
        smoothing = np.maximum(np.asarray(last.alpha, dtype=np.float64), 0.0)
        self._counted = isinstance(last, MultinomialNB)
        if self._counted:
            each = np.asarray(last.feature_count_, dtype=np.float64) + smoothing
        else:
            each = (counts[:, None] + 2 * smoothing) * self._theta * (1 - self._theta)
        self._root = np.sqrt(each / counts.sum())

    def _inputs(self, X: Any) -> np.ndarray:
        dense = X.toarray() if is_sparse(X) else np.asarray(X)
        threshold = getattr(self._last, "binarize", None)
        if self._counted or threshold is None:
            return dense
        return (dense > threshold).astype(np.float64)

    def _blocks(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        x = self._inputs(X)
        expected = self._theta[None]
        if self._counted:
            expected = x.sum(axis=1)[:, None, None] * expected
        words = (r[:, :, None] * (x[:, None, :] - expected)).reshape(len(x), -1)
        return [prior, words] if self._fitted_prior else [words]

    def _fisher_blocks(self) -> list[np.ndarray]:
        pi = np.exp(self._log_prior)
        weights = np.sqrt(pi)[:, None] * (np.eye(len(pi)) - pi)
        words = self._root.ravel()
        return [weights, words] if self._fitted_prior else [words]
