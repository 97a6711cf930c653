"""Derivatives of a boosted prediction through all later rounds, by one reverse pass per query.

With the structure of the trees fixed, the leaf values of a round are θ = κ·Σ s_i / (Σ h_i + l2),
where s_i and h_i are the scores and Hessians of the training rows at the outputs of the rounds
before, and κ is a factor of the library (LightGBM scales the Hessians of several classes). Every
later round sees outputs that the earlier ones have changed. A reverse pass over the rounds carries
the adjoint of the training outputs and yields, for every test row, in O(trees × rows):

    sensitivity   ∂ log p(y | x) / ∂ y_i    AXIL (arXiv 2301.01864) for squared error, where
                                            predictions are linear in the training labels
    derivative    ∂ log p(y | x) / ∂ w_i    the weight of row i (LeafInfluence, Sharchilev et al.
                                            2018, which needs rows² memory in forward mode)

Where boosting starts is held fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import softmax

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import RowExamples
from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, OneVsRest, Poisson
from exempla.oracles.trees.oracle import TreeOracle

__all__ = ["boosting_gradients", "boosting_influence"]

_STEP = 1e-4
"""Step of the central difference for the derivative of a Hessian."""
_FAMILIES = (Bernoulli, Categorical, Gaussian, OneVsRest, Poisson)


def boosting_gradients(
    oracle: TreeOracle, train: RowExamples, test: RowExamples
) -> tuple[np.ndarray, np.ndarray]:
    """Differentiate the log-likelihood of every labelled test row through boosting.

    Returns two (n_train, n_test) arrays: ∂ log p / ∂ w_i, what a test row gains from more weight on
    training row i; and the label sensitivity times the final residual of row i.
    """
    if not isinstance(oracle.family, _FAMILIES) or not oracle._reader.newton_steps:
        raise UnsupportedModelError(
            f"Boosting under the {oracle.likelihood} likelihood cannot be differentiated, because "
            "its leaf values are not Newton steps on the training rows: use Explainer.influence."
        )
    return _ReversePass(oracle, train, test).run()


def boosting_influence(explainer: Any, test: Any) -> np.ndarray:
    """Combine the Fisher influence of a boosted ensemble with the derivative through boosting.

    For every test row, the parts are scaled to the norm of the model's Fisher influence and
    averaged: that influence, the influence averaged over earlier stages if the explainer has them,
    and the derivative. docs/studies/trees.md reports how the combination was chosen and its gain.

    Parameters
    ----------
    explainer : Explainer
        A fitted ``Explainer([model, *earlier_stages(model)])`` of a boosted ensemble, or
        ``Explainer(model)``, which is quicker and less accurate.
    test : (X, y)
        Labelled test examples.

    Returns
    -------
    ndarray of shape (n_train, n_test)
        Influence in units of log-likelihood; positive where the training example helps.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import HistGradientBoostingRegressor
    >>> import exempla
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HistGradientBoostingRegressor(max_iter=20).fit(X[:300], y[:300])
    >>> explainer = exempla.Explainer(model, progress=False).fit((X[:300], y[:300]))
    >>> boosting_influence(explainer, (X[300:305], y[300:305])).shape
    (300, 5)
    """
    first = explainer.embeddings[0]
    if not isinstance(first.oracle, TreeOracle):
        raise UnsupportedModelError(
            "boosting_influence is for boosted trees. For other models, use Explainer.influence."
        )
    examples = first.oracle.read(test, role="test")
    if examples.codes is None:
        raise ExemplaError("The test data have no labels: give (X, y).")
    kernel = explainer.kernel("influence")
    alone = type(kernel)(explainer.embeddings[:1], explainer.damping, "influence")
    parts = [alone.influence(alone.query(test)).values]
    if len(explainer.embeddings) > 1:
        parts.append(explainer.influence(test))
    parts.append(boosting_gradients(first.oracle, first.train, examples)[0])
    norms = [np.linalg.norm(part, axis=0) for part in parts]
    scaled = [p * (norms[0] / np.maximum(n, 1e-300)) for p, n in zip(parts, norms, strict=True)]
    return np.mean(scaled, axis=0)


class _ReversePass:
    """One reverse pass over the rounds of an ensemble, for all test rows at once."""

    def __init__(self, oracle: TreeOracle, train: RowExamples, test: RowExamples) -> None:
        self.oracle, self.train, self.family = oracle, train, oracle.family
        self.leaves, self.test_leaves = (e.X.astype(np.int64) for e in (train, test))
        self.w = np.ones((len(train), 1)) if train.weights is None else train.weights[:, None]
        self.rounds = max(len(c.trees) for c in oracle._columns)
        start = np.asarray(oracle._base) + self._folded_start()
        self.before = [np.tile(start, (len(train), 1))]
        self.before += [oracle._outputs(self.leaves, k) for k in range(1, self.rounds + 1)]
        self.pull = self.family.score(oracle._outputs(self.test_leaves), test.codes)
        # κ, by which the library's steps exceed Σ s / (Σ h + l2)
        value, step, H, _ = oracle.newton_steps(train)
        dots, squares = H @ (value * step) / oracle._reader.rate, H @ step**2
        self.factor = dots / squares if dots > 0 and squares > 0 else 1.0

    def _folded_start(self) -> np.ndarray:
        """Return the starting point that LightGBM adds to its first trees, or zeros."""
        outputs = self.oracle._n_outputs
        if not self.oracle._reader.folds_start:
            return np.zeros(outputs)
        one_hot = isinstance(self.family, Categorical | OneVsRest)
        y: Any = np.asarray(self.train.codes)
        y = np.eye(outputs)[y] if one_hot else y.astype(np.float64)
        mean = np.average(y.reshape(len(y), -1), axis=0, weights=self.w[:, 0])
        if isinstance(self.family, Gaussian):
            return mean
        tiny = np.finfo(np.float64).tiny
        odds = isinstance(self.family, Bernoulli)  # OneVsRest is one too
        return np.log(np.maximum(mean, tiny)) - odds * np.log(np.maximum(1 - mean, tiny))

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Go through the rounds in reverse."""
        reader, scale = self.oracle._reader, self.family.loss_scale
        n, m, outputs = len(self.leaves), len(self.test_leaves), self.pull.shape[1]
        adjoint, labels = np.zeros((outputs, n, m)), np.zeros((outputs, n, m))
        weights = np.zeros((n, m))
        for stage in reversed(range(self.rounds)):
            F = self.before[stage]
            s, h = self.oracle.newton_terms(F, self.train)
            direct = np.zeros((outputs, n, m))  # adjoint of each row's score
            curved = np.zeros((outputs, n, m))  # adjoint of each row's Hessian
            for c in self.oracle._columns:
                if stage >= len(c.trees):
                    continue
                tree, size = int(c.trees[stage]), int(c.sizes[stage])
                leaf = self.leaves[:, tree]
                inside = csr_array((np.ones(n), (leaf, np.arange(n))), shape=(size, n))
                here = self.test_leaves[:, tree][None, :] == np.arange(size)[:, None]
                for o in c.outputs:
                    D = np.maximum(inside @ h[:, o] + reader.l2 / scale, 1e-300)
                    theta = (inside @ s[:, o] / D)[leaf]
                    step = reader.rate * (here * self.pull[:, o] + inside @ adjoint[o])
                    u = (self.factor * step / D[:, None])[leaf]
                    weights += u * (s[:, o] - theta * h[:, o])[:, None]
                    labels[o] += u * (self.w / scale)
                    direct[o] += u
                    curved[o] -= u * theta[:, None]
            self._carry(adjoint, direct, curved, F)
        residual = self.family.score(self.before[-1], self.train.codes) * scale
        return weights, np.einsum("onm,no->nm", labels, residual)

    def _carry(
        self, adjoint: np.ndarray, direct: np.ndarray, curved: np.ndarray, F: np.ndarray
    ) -> None:
        """Add the adjoint of the outputs F that the scores and Hessians of a round depend on."""
        w = self.w.T[:, :, None]
        if isinstance(self.family, Categorical):
            p = softmax(F, axis=1).T[:, :, None]
            # s_o = y_o − p_o and h_o = p_o(1 − p_o): both through ∂p_o/∂F_k = p_o(δ_ok − p_k)
            back = p * (curved * (1 - 2 * p) - direct)
            adjoint += w * (back - p * back.sum(axis=0))
            return
        slope = (self._hessian(F + _STEP) - self._hessian(F - _STEP)) / (2 * _STEP)
        adjoint += w * (curved * slope - direct * self._hessian(F))

    def _hessian(self, F: np.ndarray) -> np.ndarray:
        """Return the unweighted diagonal Hessians, (outputs, n, 1)."""
        return (self.oracle.newton_terms(F, self.train)[1] / self.w).T[:, :, None]
