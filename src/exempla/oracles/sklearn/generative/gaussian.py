"""GaussianNB, linear and quadratic discriminants: a Gaussian mixture whose components are seen.

With C_k C_kᵀ = Σ_k and u_k = C_k⁻¹(x − μ_k), the gradient of log p(x, class k) is that of the
mixture (see `mixture`): weights, means and covariances in coordinates that do not depend on the
units of x, and in which the Fisher is diagonal but for the weights:

    weights       diag(π) − ππᵀ
    means         π_k
    covariances   π_k/2 on the diagonal, π_k off it ("tied": summed over the classes)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.naive_bayes import GaussianNB

from exempla.errors import ExemplaError
from exempla.oracles.sklearn.data import SklearnExamples
from exempla.oracles.sklearn.generative.base import GenerativeBase
from exempla.oracles.sklearn.mixture import covariance_scores

__all__ = ["GenerativeOracle", "is_generative"]

SINGULAR = 1e-10


def is_generative(model: Any) -> bool:
    """Whether the class-wise Gaussians of this model are known here."""
    return isinstance(
        model, GaussianNB | LinearDiscriminantAnalysis | QuadraticDiscriminantAnalysis
    )


class GenerativeOracle(GenerativeBase):
    """Scores of GaussianNB, LinearDiscriminantAnalysis and QuadraticDiscriminantAnalysis.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = GenerativeOracle(GaussianNB().fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [(layer.name, layer.size) for layer in oracle.layers]
    [('weights', 3), ('means', 12), ('covariances', 12)]
    """

    names = ("weights", "means", "covariances")
    dense_only = True

    def _take_apart(self, last: Any, train: SklearnExamples | None) -> None:
        self.takes_weights = isinstance(last, GaussianNB)
        self._fitted_prior = last.priors is None
        if isinstance(last, GaussianNB):
            self._kind, means, prior = "diag", last.theta_, last.class_prior_
            roots = [np.diag(1 / np.sqrt(v)) for v in np.asarray(last.var_, dtype=np.float64)]
        elif isinstance(last, QuadraticDiscriminantAnalysis):
            self._kind, means, prior = "full", last.means_, last.priors_
            pairs = zip(last.rotations_, last.scalings_, strict=True)
            roots = [_full(np.asarray(R) / np.sqrt(S), S) for R, S in pairs]
        else:
            self._kind, means, prior = "tied", last.means_, last.priors_
            roots = [self._shared_root(last, train)] * len(means)
        self._means = np.asarray(means, dtype=np.float64)
        self._log_prior = np.log(np.asarray(prior, dtype=np.float64))
        self._root = np.stack(roots)

    @staticmethod
    def _shared_root(last: Any, train: SklearnExamples | None) -> np.ndarray:
        """C⁻ᵀ of the covariance all classes share; the "svd" solver does not keep it."""
        d = last.means_.shape[1]
        if hasattr(last, "covariance_") and last.solver != "svd":
            covariance = np.asarray(last.covariance_, dtype=np.float64)
        elif train is None:
            return np.eye(d)  # nothing is scored before training data are known
        else:
            within = train.whole() - np.asarray(last.means_)[train.codes]
            covariance = within.T @ within / _divisor(last, within)
        values, vectors = np.linalg.eigh(covariance)
        kept = values > SINGULAR * values[-1]
        return vectors[:, kept] / np.sqrt(values[kept])

    def _whitened(self, X: np.ndarray) -> np.ndarray:
        """u, (n, K, d)."""
        return np.stack([(X - mu) @ root for mu, root in zip(self._means, self._root)], axis=1)

    def _blocks(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        u = self._whitened(np.asarray(X))
        means = (r[:, :, None] * u).reshape(len(u), -1)
        blocks = [means, covariance_scores(u, r, self._kind)]
        return [prior, *blocks] if self._fitted_prior else blocks

    def _fisher_blocks(self) -> list[np.ndarray]:
        pi, d = np.exp(self._log_prior), self._root.shape[2]
        weights = np.sqrt(pi)[:, None] * (np.eye(len(pi)) - pi)
        means = np.repeat(pi, d)
        if self._kind == "diag":
            spread = np.repeat(pi, d) / 2
        else:
            i, j = np.triu_indices(d)
            one = np.where(i == j, 0.5, 1.0)
            spread = one if self._kind == "tied" else np.concatenate([p * one for p in pi])
        blocks = [np.sqrt(means), np.sqrt(spread)]
        return [weights, *blocks] if self._fitted_prior else blocks


def _divisor(last: Any, within: np.ndarray) -> float:
    """What scatter within classes was divided by: n in newer scikit-learn, n − classes in older.

    The discriminant's own coefficients (μ_k − x̄)Σ⁻¹ tell.
    """
    means = np.asarray(last.means_, dtype=np.float64)
    directions = (means - last.xbar_) @ np.linalg.pinv(within.T @ within)
    if len(means) == 2:
        directions = directions[1:] - directions[:1]
    return float(np.vdot(directions, last.coef_) / np.vdot(directions, directions))


def _full(root: np.ndarray, variances: Any) -> np.ndarray:
    """A class's C⁻ᵀ, if its covariance can be inverted."""
    v = np.asarray(variances, dtype=np.float64)
    if root.shape[0] != root.shape[1] or not v.min() > SINGULAR * v.max():
        raise ExemplaError(
            "QuadraticDiscriminantAnalysis has a singular covariance for one of its classes: give "
            "it reg_param > 0, or use LinearDiscriminantAnalysis."
        )
    return root
