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

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, OneVsRest, Poisson
from exempla.oracles.trees.leaves import LeafColumns, TreeExamples
from exempla.oracles.trees.oracle import TreeOracle

__all__ = ["BoostingGradients", "boosting_gradients", "boosting_influence"]

_STEP = 1e-4
"""Step of the central difference for the derivative of a Hessian."""
_FAMILIES = (Bernoulli, Categorical, Gaussian, OneVsRest, Poisson)


@dataclass(frozen=True)
class BoostingGradients:
    """Gradients of each test row's log-likelihood in the training rows, (n_train, n_test) each."""

    weights: np.ndarray
    """∂ log p / ∂ w_i: what a test row gains from more weight on training row i."""
    residual: np.ndarray
    """Label sensitivity times the final residual of row i."""
    deviation: np.ndarray
    """Label sensitivity times the deviation of row i's label from the starting prediction."""


def boosting_gradients(
    oracle: TreeOracle, train: TreeExamples, test: TreeExamples
) -> BoostingGradients:
    """Differentiate the log-likelihood of every test row through boosting.

    Parameters
    ----------
    oracle : TreeOracle
        The oracle of a boosted ensemble.
    train, test : TreeExamples
        Labelled examples that the oracle has read.

    Raises
    ------
    UnsupportedModelError
        If leaf values are not Newton steps (quantiles, custom objectives, CatBoost's categories).
    """
    if not isinstance(oracle.family, _FAMILIES) or not oracle._reader.newton_steps:
        raise UnsupportedModelError(
            f"Boosting under the {oracle.likelihood} likelihood cannot be differentiated, because "
            "its leaf values are not Newton steps on the training rows: use Explainer.influence."
        )
    return _ReversePass(oracle, train, test).run()


def boosting_influence(explainer: Any, test: Any) -> np.ndarray:
    """Combine the Fisher influence of a boosted ensemble with the derivative through boosting.

    The derivative is scaled to the norm of the Fisher influence for every test row, and the two are
    averaged. docs/studies/trees.md reports how the combination was chosen and what it gains.

    Parameters
    ----------
    explainer : Explainer
        A fitted explainer whose first model is a boosted ensemble; for one that fits its training
        data with certainty, use ``Explainer([model, *earlier_stages(model)])``.
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
    fisher = explainer.influence(test)
    through = boosting_gradients(first.oracle, first.train, examples).weights
    sizes = [np.linalg.norm(each, axis=0, keepdims=True) for each in (fisher, through)]
    return (fisher + through * (sizes[0] / np.maximum(sizes[1], 1e-300))) / 2


class _ReversePass:
    """One reverse pass over the rounds of an ensemble, for all test rows at once."""

    def __init__(self, oracle: TreeOracle, train: TreeExamples, test: TreeExamples) -> None:
        self.oracle, self.train = oracle, train
        self.family, self.reader = oracle.family, oracle._reader
        self.columns, self.values = oracle._columns, oracle._values
        self.leaves = next(train.batches(len(train))).inputs.astype(np.int64)
        self.test_leaves = next(test.batches(len(test))).inputs.astype(np.int64)
        self.y: Any = train.codes
        self.w = np.ones((len(train), 1)) if train.weights is None else train.weights[:, None]
        self.l2 = self.reader.l2 / self.family.loss_scale
        self.n_rounds = max(len(c.trees) for c in self.columns)
        start = np.asarray(oracle._base) + self._folded_start(oracle)
        self.start = np.tile(start, (len(train), 1))
        self.before = [self.start]
        for stage in range(1, self.n_rounds + 1):
            self.before.append(oracle._outputs(self.leaves, stage))
        final = oracle._outputs(self.test_leaves)
        self.pull = self.family.score(final, test.codes)
        self.factor = self._library_factor()

    def _folded_start(self, oracle: TreeOracle) -> np.ndarray:
        """Return the starting point that LightGBM adds to its first trees, or zeros."""
        none = np.zeros(oracle._n_outputs)
        if not self.reader.folds_start:
            return none
        one_hot = isinstance(self.family, Categorical | OneVsRest)
        y = np.eye(oracle._n_outputs)[self.y] if one_hot else np.asarray(self.y, dtype=np.float64)
        mean = np.average(y.reshape(len(y), -1), axis=0, weights=self.w[:, 0])
        if isinstance(self.family, Gaussian):
            return mean
        tiny = np.finfo(np.float64).tiny
        if isinstance(self.family, Bernoulli | OneVsRest):
            return np.log(np.maximum(mean, tiny)) - np.log(np.maximum(1 - mean, tiny))
        return np.log(np.maximum(mean, tiny))

    def _hessian(self, F: np.ndarray) -> np.ndarray:
        """Return the unweighted diagonal Hessians, (outputs, n, 1)."""
        return (self.oracle.newton_terms(F, self.train)[1] / self.w).T[:, :, None]

    def _steps(self, c: LeafColumns, at: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Return a tree, its training leaves, and its leaf values without the learning rate."""
        tree = int(c.trees[at])
        first = int(c.starts[at])
        place = next(i for i, other in enumerate(self.columns) if other is c)
        value = self.values[place][first : first + int(c.sizes[at])]
        return tree, self.leaves[:, tree], value / self.reader.rate

    def _library_factor(self) -> float:
        """Return κ, by which the library's steps exceed Σ s / (Σ h + l2)."""
        dots = squares = 0.0
        for stage in range(1, min(self.n_rounds, 6)):
            s, h = self.oracle.newton_terms(self.before[stage], self.train)
            for c in self.columns:
                if stage >= len(c.trees):
                    continue
                _, leaf, value = self._steps(c, stage)
                for j, o in enumerate(c.outputs):
                    G, H = self._sums(leaf, len(value), s[:, o], h[:, o])
                    expected = G / np.maximum(H + self.l2, 1e-300)
                    dots += float(H @ (value[:, j] * expected))
                    squares += float(H @ expected**2)
        return dots / squares if dots > 0 and squares > 0 else 1.0

    @staticmethod
    def _sums(leaf: np.ndarray, size: int, *each: np.ndarray) -> list[np.ndarray]:
        return [np.bincount(leaf, weights=one, minlength=size) for one in each]

    def run(self) -> BoostingGradients:
        """Go through the rounds in reverse."""
        n, m, outputs = len(self.leaves), len(self.test_leaves), self.start.shape[1]
        adjoint = np.zeros((outputs, n, m))
        weights = np.zeros((n, m))
        labels = np.zeros((outputs, n, m))
        per_label = 1.0 / self.family.loss_scale
        for stage in reversed(range(self.n_rounds)):
            F = self.before[stage]
            s, h = self.oracle.newton_terms(F, self.train)
            direct = np.zeros((outputs, n, m))  # adjoint of each row's score
            curved = np.zeros((outputs, n, m))  # adjoint of each row's Hessian
            for c in self.columns:
                if stage >= len(c.trees):
                    continue
                tree, leaf, value = self._steps(c, stage)
                inside = csr_array((np.ones(n), (leaf, np.arange(n))), shape=(len(value), n))
                here = self.test_leaves[:, tree][None, :] == np.arange(len(value))[:, None]
                for o in c.outputs:
                    G, H = self._sums(leaf, len(value), s[:, o], h[:, o])
                    D = np.maximum(H + self.l2, 1e-300)
                    theta = G / D
                    step = self.reader.rate * (here * self.pull[:, o] + inside @ adjoint[o])
                    u = (self.factor * step / D[:, None])[leaf]
                    weights += u * (s[:, o] - theta[leaf] * h[:, o])[:, None]
                    labels[o] += u * (self.w * per_label)
                    direct[o] += u
                    curved[o] -= u * theta[leaf][:, None]
            self._carry(adjoint, direct, curved, F)
        score = self.family.score
        residual = score(self.before[-1], self.y) * self.family.loss_scale
        deviation = score(self.start, self.y) * self.family.loss_scale
        return BoostingGradients(
            weights,
            np.einsum("onm,no->nm", labels, residual),
            np.einsum("onm,no->nm", labels, deviation),
        )

    def _carry(
        self, adjoint: np.ndarray, direct: np.ndarray, curved: np.ndarray, F: np.ndarray
    ) -> None:
        """Add the adjoint of the outputs F that the scores and Hessians of a round depend on."""
        w = self.w.T[:, :, None]
        if isinstance(self.family, Categorical):
            p = np.exp(F - F.max(axis=1, keepdims=True))
            p = (p / p.sum(axis=1, keepdims=True)).T[:, :, None]
            # s_o = y_o − p_o and h_o = p_o(1 − p_o): both through ∂p_o/∂F_k = p_o(δ_ok − p_k)
            back = p * (curved * (1 - 2 * p) - direct)
            adjoint += w * (back - p * back.sum(axis=0))
            return
        slope = (self._hessian(F + _STEP) - self._hessian(F - _STEP)) / (2 * _STEP)
        adjoint += w * (curved * slope - direct * self._hessian(F))
