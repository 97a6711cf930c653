"""Projected gradient ascent on inputs, and logistic regression as a function of its inputs.

Every attack maximises an objective ℓ over the box ‖x − x₀‖∞ ≤ ε, with

    test side                 ℓ = −log p(y | x)                              x a test point
    training side, influence  ℓ = −k(z, μ)                                   x a training point
    training side, distance   ℓ = ‖μ − z‖²_H = k(μ, μ) − 2k(z, μ) + k(z, z)  x a training point

Sign steps on the second objective are Koh and Liang's attack. The third one is the paper's; its
gradient points the same way once the term k(z, z) is dropped.

With s(x, y) the score of an example and v = M⁻¹μ, the kernel with the target is k(z, μ) = sᵀv: to
first order, n times the amount by which training on z raises the target's log-likelihood.
`InputScores` computes it and its gradient in x. For logistic regression everything is in closed
form: with x̄ = (x, 1), residual g = onehot(y) − p, V = v as a (d+1, C) matrix, V̂ its first d rows,

    sᵀv = x̄ᵀVg,    ∇ₓ(sᵀv) = V̂g − W(diag(p) − ppᵀ)Vᵀx̄
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from exempla.arrays import is_sparse, real_numbers
from exempla.data import as_matrix
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.sklearn.oracle import SklearnOracle
from exempla.tasks.summarize.last_layer import LastLayer


class InputScores(Protocol):
    """A classifier seen from its inputs. X is an array (n, …); y are codes 0 … C−1.

    encode       the caller's rows as float arrays (copies), and class codes
    mean_score   μ = mean of ∇θ log p(y | x), one flat vector
    solve        M⁻¹μ, M = mean true Fisher of the training set + penalty + damping
    pull         s(x_i, y_i)ᵀv, (n,), and its gradient in x_i, shaped like X
    loss         −log p(y_i | x_i), (n,), and its gradient in x_i: the test-side objective
    predict      class codes
    """

    damping: float
    oracle: Any

    def encode(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]: ...
    def mean_score(self, X: np.ndarray, y: np.ndarray) -> Any: ...
    def solve(self, mu: Any) -> Any: ...
    def pull(self, X: np.ndarray, y: np.ndarray, v: Any) -> tuple[np.ndarray, np.ndarray]: ...
    def loss(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: np.ndarray) -> np.ndarray: ...


def conjugate_gradient(
    product: Callable[[np.ndarray], np.ndarray], b: np.ndarray, tolerance: float, most: int
) -> np.ndarray:
    """x with product(x) = b for a positive definite product, after at most so many products."""

    def checked(v: np.ndarray) -> np.ndarray:
        found = product(v)
        if v.any() and not v @ found > 0:
            raise ExemplaError("the metric is not positive definite: give a positive damping.")
        return found

    operator = LinearOperator((len(b), len(b)), matvec=checked, dtype=np.float64)
    return cg(operator, b, rtol=tolerance, maxiter=most)[0]


_Objective = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""ℓ of each row, and its gradient."""


@dataclass(frozen=True)
class Box:
    """‖x − centre‖∞ ≤ budget, and lowest ≤ x ≤ highest."""

    centre: np.ndarray
    budget: float
    lowest: Any
    highest: Any

    def project(self, X: np.ndarray) -> np.ndarray:
        near = np.clip(X, self.centre - self.budget, self.centre + self.budget)
        return np.clip(near, self.lowest, self.highest).astype(self.centre.dtype)

    def reach(self, gradient: np.ndarray) -> np.ndarray:
        """Largest first-order rise of ℓ inside the box, per row: the best corner's."""
        corner = self.project(self.centre + self.budget * np.sign(gradient))
        rise = gradient * (corner - self.centre)
        return rise.reshape(len(rise), -1).sum(1)


def ascend(objective: _Objective, start: np.ndarray, box: Box, steps: int, step: float) -> Any:
    """x ← Π(x + α sign ∇ℓ), the best x of each row seen on the way."""
    X = box.project(start)
    best, best_value = X.copy(), np.full(len(X), -np.inf)
    for i in range(steps + 1):
        value, gradient = objective(X)
        better = value > best_value
        best[better], best_value[better] = X[better], value[better]
        if i < steps:
            X = box.project(X + step * np.sign(gradient))
    return best


def training_objective(
    scores: InputScores, y: np.ndarray, v: Any, distance: bool = False
) -> _Objective:
    """Return −k(z, μ), or for a distance ‖μ − z‖²_H up to the constant k(μ, μ).

    k(z, z) = sᵀM⁻¹s has gradient 2 ∇ₓ(sᵀw) with w = M⁻¹s held still.
    """

    def objective(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = (-part for part in scores.pull(X, y, v))
        if not distance:
            return value, gradient
        value, gradient = 2.0 * value, 2.0 * gradient
        for i in range(len(X)):
            row, label = X[i : i + 1], y[i : i + 1]
            own, slope = scores.pull(row, label, scores.solve(scores.mean_score(row, label)))
            value[i] += own[0]
            gradient[i] += 2.0 * slope[0]
        return value, gradient

    return objective


def valid_range(bounds: Any, X: np.ndarray) -> tuple[Any, Any]:
    """(lowest, highest) as given; "auto": what the training data show, per column of a table."""
    if isinstance(bounds, str) and bounds == "auto":
        return (X.min(0), X.max(0)) if X.ndim == 2 else (X.min(), X.max())
    if bounds is None:
        return -np.inf, np.inf
    lowest = highest = None
    try:
        lowest, highest = (real_numbers(bound, "bounds") for bound in bounds)
        np.broadcast_shapes(np.shape(lowest), np.shape(highest), X.shape)
        fine = bool(np.all(lowest <= highest))
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise ExemplaError(f"bounds={bounds!r:.60}: give 'auto', None or (lowest, highest).")
    return lowest, highest


_DENSE_LIMIT = 4096
"""Up to so many parameters the metric is written out and solved with directly."""


class LinearScores:
    """One linear layer and a softmax or a sigmoid."""

    def __init__(self, oracle: Any, train: Any, damping: float) -> None:
        first, *more = oracle.layers
        linear = isinstance(oracle, SklearnOracle) and oracle.linear_in_inputs
        if more or not linear or oracle.likelihood not in ("bernoulli", "categorical"):
            raise UnsupportedModelError(
                "attack moves the inputs of logistic regression and torch classifiers only."
            )
        self.oracle, self.damping, self.classes = oracle, damping, np.asarray(oracle.classes)
        self.theta = oracle.theta.reshape(first.d_in, first.d_out)
        self.ridge = np.repeat(first.penalty, first.d_out) + damping
        X, y = self.encode(*train)
        self.layer = LastLayer(self._inputs(X), y, oracle.family, self.theta, first.penalty)
        self._factor: Any = None

    def encode(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        if is_sparse(X):
            raise ExemplaError("attack needs dense rows, as it moves every feature: X.toarray().")
        labels = self.oracle.read((X, y), role="test").labels
        codes = np.searchsorted(self.classes, np.asarray(labels))
        return np.array(as_matrix(X), dtype=np.float64), codes

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        """Return the rows with their ones for a bias."""
        return np.hstack([X, np.ones((len(X), len(self.theta) - X.shape[1]))])

    def _with(self, X: np.ndarray, y: np.ndarray) -> LastLayer:
        """Return the layer with these rows in it."""
        return replace(self.layer, a=self._inputs(X), codes=y)

    def mean_score(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        layer = self._with(X, y)
        return (layer.a.T @ layer.residuals(self.theta) / len(X)).ravel()

    def _product(self, v: np.ndarray) -> np.ndarray:
        """Mv for the mean true Fisher of the training rows, penalty and damping."""
        total = np.zeros(self.theta.shape)
        for part in self.layer.batches():
            total += part.a.T @ part.curved(part.a @ v.reshape(self.theta.shape))
        return total.ravel() / len(self.layer) + self.ridge * v

    def solve(self, mu: np.ndarray) -> np.ndarray:
        if self.theta.size > _DENSE_LIMIT:
            return conjugate_gradient(self._product, mu, 1e-9, 2000)
        if self._factor is None:
            M = self.layer.fisher(cut=0.0) + np.diag(self.ridge)
            if not np.isfinite(M).all():
                raise ExemplaError("the model's Fisher overflows: are the inputs scaled?")
            # a hair above zero, relative to the whole: softmax has a direction without effect
            M[np.diag_indices_from(M)] += 1e-12 * np.trace(M)
            self._factor = cho_factor(M)
        return cho_solve(self._factor, mu)

    def pull(self, X: np.ndarray, y: np.ndarray, v: Any) -> tuple[np.ndarray, np.ndarray]:
        d, layer, V = X.shape[1], self._with(X, y), v.reshape(self.theta.shape)
        g, u = layer.residuals(self.theta), layer.a @ V
        return (u * g).sum(1), g @ V[:d].T - layer.curved(u) @ self.theta[:d].T

    def loss(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        layer = self._with(X, y)
        value = -np.asarray(layer.family.log_prob(layer.a @ self.theta, y))
        return value, -layer.residuals(self.theta) @ self.theta[: X.shape[1]].T

    def predict(self, X: np.ndarray) -> np.ndarray:
        layer = self._with(X, np.zeros(len(X), np.int64))
        return np.asarray(layer.family.predict(layer.a @ self.theta))
