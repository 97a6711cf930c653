"""Logistic regression from its inputs: everything in closed form.

η = xᵀW + b, p = softmax(η) (or σ(η)), score = x̄ gᵀ with x̄ = (x, 1) and g = onehot(y) − p. For
V = M⁻¹μ as a (d+1, C) matrix and V̂ its first d rows,

    s·v = x̄ᵀVg,    ∇ₓ(s·v) = V̂g − W(diag(p) − ppᵀ)Vᵀx̄
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit, softmax

from exempla.arrays import is_sparse
from exempla.data import as_matrix
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.sklearn.oracle import SklearnOracle
from exempla.tasks.attack.scores import InputScores, conjugate_gradient

__all__ = ["LinearScores"]

DENSE_LIMIT = 4096
"""Up to so many parameters the metric is written out and solved with directly."""


class LinearScores(InputScores):
    """One linear layer and a softmax or a sigmoid."""

    def __init__(self, oracle: SklearnOracle, train: Any, damping: float) -> None:
        layers = oracle.layers
        linear = len(layers) == 1 and oracle.likelihood in ("bernoulli", "categorical")
        if not (linear and oracle.linear_in_inputs):
            raise UnsupportedModelError(
                "attack takes logistic regression and torch classifiers: other models give no "
                "gradient in x here."
            )
        self.binary = layers[0].d_out == 1
        self.theta = oracle.theta.reshape(layers[0].d_in, layers[0].d_out)
        self.classes = np.asarray(oracle._parts.classes)
        self.ridge = np.repeat(layers[0].penalty, layers[0].d_out) + damping
        self.bias = self.theta.shape[0] > oracle._parts.network.n_features
        self.oracle, self.damping = oracle, damping
        X, _ = self.encode(*train[:2])
        self.train = (self._inputs(X), self._probabilities(X))
        self._factor: Any = None

    def encode(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        if is_sparse(X):
            raise ExemplaError("attack needs dense rows, as it moves every feature: X.toarray().")
        labels = self.oracle.read((X, y), role="test").labels
        codes = np.searchsorted(self.classes, np.asarray(labels))
        return np.array(as_matrix(X), dtype=np.float64), codes

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        return np.hstack([X, np.ones((len(X), 1))]) if self.bias else X

    def _probabilities(self, X: np.ndarray) -> np.ndarray:
        eta = self._inputs(X) @ self.theta
        return expit(eta) if self.binary else softmax(eta, axis=1)

    def _residuals(self, p: np.ndarray, y: np.ndarray) -> np.ndarray:
        onehot = y[:, None] if self.binary else np.eye(p.shape[1])[y]
        return onehot - p

    def _curved(self, p: np.ndarray, u: np.ndarray) -> np.ndarray:
        """(diag(p) − ppᵀ)u, row by row; p(1−p)u with a sigmoid."""
        return p * (1 - p) * u if self.binary else p * (u - (p * u).sum(1, keepdims=True))

    def mean_score(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        g = self._residuals(self._probabilities(X), y)
        return (self._inputs(X).T @ g / len(X)).ravel()

    def product(self, v: np.ndarray) -> np.ndarray:
        """Mv for the mean true Fisher of the training rows, penalty and damping."""
        a, p = self.train
        u = self._curved(p, a @ v.reshape(self.theta.shape))
        return (a.T @ u / len(a)).ravel() + self.ridge * v

    def metric(self) -> np.ndarray:
        """M written out: block (o, q) is mean a aᵀ (δ_oq p_o − p_o p_q)."""
        (a, p), (d, C) = self.train, self.theta.shape
        M = np.empty((d, C, d, C))
        for o in range(C):
            for q in range(C):
                w = p[:, o] * (float(o == q) - p[:, q])
                M[:, o, :, q] = (a * w[:, None]).T @ a / len(a)
        return M.reshape(d * C, d * C) + np.diag(self.ridge)

    def solve(self, mu: np.ndarray) -> np.ndarray:
        if self.theta.size > DENSE_LIMIT:
            return conjugate_gradient(self.product, mu, tolerance=1e-9, most=2000)
        if self._factor is None:
            M = self.metric()
            if not np.isfinite(M).all():
                raise ExemplaError("the model's Fisher overflows: are the inputs scaled?")
            # a hair above zero, relative to the whole: softmax has a direction without effect
            M[np.diag_indices_from(M)] += 1e-12 * np.trace(M)
            self._factor = cho_factor(M)
        return cho_solve(self._factor, mu)

    def pull(self, X: np.ndarray, y: np.ndarray, v: Any) -> tuple[np.ndarray, np.ndarray]:
        d = X.shape[1]
        p = self._probabilities(X)
        g = self._residuals(p, y)
        V = np.asarray(v).reshape(-1, *self.theta.shape)  # one for all rows, or one for each
        u = np.einsum("ni,nio->no", self._inputs(X), np.broadcast_to(V, (len(X), *V.shape[1:])))
        moved = np.einsum("nio,no->ni", np.broadcast_to(V, (len(X), *V.shape[1:]))[:, :d], g)
        gradient = moved - self._curved(p, u) @ self.theta[:d].T
        return (u * g).sum(1), gradient

    def loss(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = self._probabilities(X)
        chosen = np.where(y == 1, p[:, 0], 1 - p[:, 0]) if self.binary else p[np.arange(len(y)), y]
        gradient = -self._residuals(p, y) @ self.theta[: X.shape[1]].T
        return -np.log(np.maximum(chosen, 1e-300)), gradient

    def predict(self, X: np.ndarray) -> np.ndarray:
        p = self._probabilities(X)
        return (p[:, 0] > 0.5).astype(np.int64) if self.binary else p.argmax(1)
