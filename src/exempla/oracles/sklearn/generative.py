"""Generative models: Gaussian mixtures, discriminants and naive Bayes.

Classifiers of this kind are fitted to log p(x, y) and used for log p(y | x). A training row has the
score of the first, a test row that of the second, and the metric is the Fisher of the first: dot
products are then the effect of removing the training row on the prediction. With a_k the gradient
of log p(x, class k), both scores are Σ_k r_k a_k, where r = onehot(y) for a training row and
r = onehot(y) − p(·|x) for a test row.

**Gaussians.** With C_k C_kᵀ = Σ_k and u_k = C_k⁻¹(x − μ_k), the gradients in the coordinates of the
Fisher-vector literature (at e = E = 0) do not depend on the units of x:

    weights       logits of π             r_k − π_k
    means         μ_k + C_k e_k           r_k u_k
    covariances   C_k exp(E_k) C_kᵀ       r_k (u_k u_kᵀ − I)/2     (E symmetric)

A mixture's components are hidden, so its r_k are the responsibilities p(k | x). For "diag" E is
diagonal (log-variances), for "spherical" a multiple of I, and for "tied" all components share one
E. An off-diagonal entry of E occurs twice, so its score is twice the matrix entry. The Fisher of a
classifier is diag(π) − ππᵀ for the weights, π_k for the means, and for the covariances π_k/2 on the
diagonal and π_k off it ("tied": summed over the classes).

**Naive Bayes.** The parameters of class k are the logits of the word probabilities θ_k (of one
softmax over all words, or of one sigmoid per word) and of the class probabilities π:

    multinomial   ∇ log p(x | k) = x − Nθ_k,  N = Σ_j x_j      metric (N_kj + α)/n
    Bernoulli     ∇ log p(x | k) = x − θ_k,   x = 0 or 1       metric (n_k + 2α) θ_k(1 − θ_k)/n

with N_kj the count of word j in class k. The metric is the Fisher plus the curvature of the
smoothing α. (Of the multinomial's diag(θ) − θθᵀ only the diagonal is kept: the score of a class
sums to zero over words, and on such vectors the two inverses agree.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from scipy.special import logsumexp, softmax
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB

from exempla.arrays import is_sparse
from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT, Factors, Labels, Layer, ScoreRows
from exempla.oracles.sklearn.base import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
    FittedOracle,
    SklearnExamples,
    keep_layers,
)

_MAX_CLOSED_FORM = 4096
"""Parameters up to which the Fisher of p(x, y) is used in closed form."""
DRAWS = 4
"""Points drawn from a mixture for each example, to estimate its Fisher."""
_SINGULAR_SHARE = 1e-10
"""Eigenvalues of a covariance below this fraction of the largest count as zero."""


# ---- densities p(x | k)


@dataclass(frozen=True)
class _Gaussians:
    """Gaussians N(μ_k, Σ_k), with C_k⁻ᵀ of every Σ_k."""

    kind: str
    """The kind of covariance: "full", "tied", "diag" or "spherical"."""
    means: np.ndarray
    root: np.ndarray
    names = ("means", "covariances")

    def whitened(self, X: Any) -> np.ndarray:
        """Return u_k = C_k⁻¹(x − μ_k), (n, K, d)."""
        x = np.asarray(X)
        return np.stack([(x - m) @ root for m, root in zip(self.means, self.root)], axis=1)

    def blocks(self, X: Any, r: np.ndarray) -> list[np.ndarray]:
        """Return Σ_k r_k ∇ log p(x | k) in the means and the covariances."""
        u = self.whitened(X)
        n, _, d = u.shape
        means = (r[:, :, None] * u).reshape(n, -1)
        if self.kind == "diag":
            return [means, (r[:, :, None] * (u**2 - 1) / 2).reshape(n, -1)]
        if self.kind == "spherical":
            return [means, r * ((u**2).sum(axis=2) - d) / 2]
        i, j = np.triu_indices(d)
        each = u[:, :, i] * u[:, :, j]
        each[:, :, i == j] = (each[:, :, i == j] - 1) / 2
        each = r[:, :, None] * each
        return [means, each.sum(axis=1) if self.kind == "tied" else each.reshape(n, -1)]

    def fisher_roots(self, pi: np.ndarray) -> list[np.ndarray]:
        """Return the roots of the diagonal Fisher of one (x, k), for the same blocks."""
        d = self.root.shape[2]
        i, j = np.triu_indices(d)
        one = np.full(d, 0.5) if self.kind == "diag" else np.where(i == j, 0.5, 1.0)
        spread = one if self.kind == "tied" else np.outer(pi, one).ravel()
        return [np.sqrt(np.repeat(pi, d)), np.sqrt(spread)]


@dataclass(frozen=True)
class _Words:
    """Independent words with probabilities θ_k, counted (multinomial) or not (Bernoulli)."""

    theta: np.ndarray
    metric: np.ndarray
    counted: bool
    threshold: float | None
    """Above this a word counts as present; None: X holds 0 and 1."""
    names = ("features",)

    def blocks(self, X: Any, r: np.ndarray) -> list[np.ndarray]:
        """Return Σ_k r_k ∇ log p(x | k) in the logits of θ."""
        x = X.toarray() if is_sparse(X) else np.asarray(X)
        expected = self.theta[None]
        if self.counted:
            expected = x.sum(axis=1)[:, None, None] * expected
        elif self.threshold is not None:
            x = (x > self.threshold).astype(np.float64)
        return [(r[:, :, None] * (x[:, None, :] - expected)).reshape(len(x), -1)]

    def fisher_roots(self, pi: np.ndarray) -> list[np.ndarray]:
        """Return the root of the diagonal metric."""
        return [np.sqrt(self.metric).ravel()]


# ---- classifiers


class GenerativeOracle(FittedOracle):
    """Scores Σ_k r_k ∇ log p(x, k) of naive Bayes and discriminants, one dense block per layer."""

    likelihood = "generative"
    fisher_note = "exact: the closed form of p(x, y)"
    implicit_penalty = 0.0  # fitted in closed form, at its optimum: there is nothing to damp

    def _inspect(self, model: Any) -> None:
        self.takes_weights = isinstance(model, GaussianNB | MultinomialNB | BernoulliNB)
        self.dense_only = not isinstance(model, MultinomialNB | BernoulliNB)
        self.notes = self._remarks(
            f"{type(model).__name__} is fitted to log p(x, y) and used for log p(y | x): training "
            "rows are scored by the first, test rows by the second",
        )

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        self._density, prior, self._fitted_prior = _read(self._last, train)
        self._log_prior = np.log(np.asarray(prior, dtype=np.float64))
        self._set_layers()
        if self.n_parameters > _MAX_CLOSED_FORM:
            self.fisher_note = f"exact over classes above {CLASS_CUT:g}, at the examples' own x"

    def _set_layers(self) -> None:
        names = [*(["weights"] if self._fitted_prior else []), *self._density.names]
        self._kept = keep_layers(names, self._parameters)
        none = np.zeros((1, len(self._log_prior)))
        blocks = self._blocks_of(np.zeros((1, self.n_features)), none)
        self.layers = tuple(Layer(names[i], 1, blocks[i].shape[1], np.zeros(1)) for i in self._kept)

    def _blocks_of(self, X: Any, r: np.ndarray, total: float = 1.0) -> list[np.ndarray]:
        """Return the blocks of all layers; the class weights come first, if they were estimated.

        `total` is Σ_k r_k, which rounding would spoil where r is tiny.
        """
        blocks = self._density.blocks(X, r)
        # d log π_k / d logits is e_k − π
        return [r - total * np.exp(self._log_prior), *blocks] if self._fitted_prior else blocks

    def _batch_rows(self, examples: Any, copies: int = 1) -> int:
        # three arrays as wide as the scores or X
        width = max(1, self.n_parameters, self.n_features)
        return int(np.clip(BATCH_BYTES // (24 * width), 1, MAX_BATCH_ROWS))

    def _log_posterior(self, X: Any) -> np.ndarray:
        """Return log p(k | x), up to a constant per row."""
        return np.asarray(self._last.predict_log_proba(X), dtype=np.float64)

    def _mixing(self, part: SklearnExamples, labels: Labels) -> tuple[np.ndarray, float]:
        """Return r and its sum: one for a training row, zero for a test row."""
        p = np.exp(self._log_posterior(part.X))
        hot = np.eye(p.shape[1])[part.codes if labels == "true" else p.argmax(axis=1)]
        return (hot - p, 0.0) if part.is_test else (hot, 1.0)

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield ∇ log p of each example; training and test rows of a classifier differ."""
        self._check_labels(examples, labels)
        for positions, part in self._batches(examples):
            blocks = self._blocks_of(part.X, *self._mixing(part, labels))
            yield self._rows(positions, blocks, part.weights)

    def _rows(
        self, positions: np.ndarray, blocks: list[np.ndarray], weights: np.ndarray | None
    ) -> ScoreRows:
        a = np.ones((len(positions), 1)) if weights is None else weights[:, None]
        return ScoreRows(positions, tuple(Factors(a, blocks[i]) for i in self._kept))

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield the rows of the closed form, distributed over the examples.

        Beyond _MAX_CLOSED_FORM parameters it would have too many rows: then the expectation over
        the model's labels is computed at the examples themselves.
        """
        if self.n_parameters > _MAX_CLOSED_FORM:
            yield from self._expected_rows(examples)
            return
        pi = np.exp(self._log_prior)
        roots: list[Any] = [np.diag(root) for root in self._density.fisher_roots(pi)]
        if self._fitted_prior:
            roots.insert(0, np.sqrt(pi)[:, None] * (np.eye(len(pi)) - pi))
        root = np.asarray(scipy.linalg.block_diag(*(roots[i] for i in self._kept)))
        mean = 1.0 if examples.weights is None else float(examples.weights.mean())
        n = len(examples)
        which = np.arange(max(n, len(root))) % len(root)
        scale = np.sqrt(n * mean / np.bincount(which))[:, None]
        sizes = np.cumsum([layer.size for layer in self.layers])[:-1]
        step = max(1, BATCH_BYTES // (8 * root.shape[1]))
        for start in range(0, len(which), step):
            at = which[start : start + step]
            parts = np.split(root[at] * scale[at], sizes, axis=1)
            ones = np.ones((len(at), 1))
            sample = np.arange(start, start + len(at)) % n
            yield ScoreRows(sample, tuple(Factors(ones, part) for part in parts))

    def _expected_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield √p(k|x)·∇ log p(x, k), one row for every class above CLASS_CUT."""
        for positions, part in self._batches(examples):
            p = np.exp(self._log_posterior(part.X))
            rows, classes = np.nonzero(p > CLASS_CUT)
            weights = np.sqrt(p[rows, classes])
            if part.weights is not None:
                weights = weights * np.sqrt(part.weights[rows])
            blocks = self._blocks_of(part.X[rows], np.eye(p.shape[1])[classes])
            yield self._rows(positions[rows], blocks, weights)

    def _log_prob(self, part: SklearnExamples) -> np.ndarray:
        log_p = self._log_posterior(part.X)
        return log_p[np.arange(len(log_p)), part.codes]


def _read(model: Any, train: SklearnExamples) -> tuple[Any, Any, bool]:
    """Return the density, the class probabilities, and whether these were estimated."""
    if isinstance(model, MultinomialNB | BernoulliNB):
        theta = np.exp(np.asarray(model.feature_log_prob_, dtype=np.float64))
        counts = np.asarray(model.class_count_, dtype=np.float64)
        smoothing = np.maximum(np.asarray(model.alpha, dtype=np.float64), 0.0)
        counted = isinstance(model, MultinomialNB)
        if counted:
            each = np.asarray(model.feature_count_, dtype=np.float64) + smoothing
        else:
            each = (counts[:, None] + 2 * smoothing) * theta * (1 - theta)
        words = _Words(theta, each / counts.sum(), counted, getattr(model, "binarize", None))
        fitted_prior = bool(model.fit_prior) and model.class_prior is None
        return words, np.exp(model.class_log_prior_), fitted_prior
    if isinstance(model, GaussianNB):
        kind, means, prior = "diag", model.theta_, model.class_prior_
        roots = [np.diag(1 / np.sqrt(v)) for v in np.asarray(model.var_, dtype=np.float64)]
    elif isinstance(model, QuadraticDiscriminantAnalysis):
        kind, means, prior = "full", model.means_, model.priors_
        pairs = zip(model.rotations_, model.scalings_, strict=True)
        roots = [_invertible(np.asarray(R) / np.sqrt(S), S) for R, S in pairs]
    else:
        kind, means, prior = "tied", model.means_, model.priors_
        roots = [_shared_root(model, train)] * len(means)
    gaussians = _Gaussians(kind, np.asarray(means, dtype=np.float64), np.stack(roots))
    return gaussians, prior, model.priors is None


def _shared_root(model: Any, train: SklearnExamples) -> np.ndarray:
    """Return C⁻ᵀ of the covariance that all classes share; the "svd" solver does not keep it."""
    if hasattr(model, "covariance_") and model.solver != "svd":
        covariance = np.asarray(model.covariance_, dtype=np.float64)
    else:
        within = np.asarray(train.X, dtype=np.float64) - np.asarray(model.means_)[train.codes]
        covariance = within.T @ within / _divisor(model, within)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _SINGULAR_SHARE * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])


def _divisor(model: Any, within: np.ndarray) -> float:
    """Return what the within-class scatter was divided by: n, or n − classes in older versions.

    The discriminant's coefficients (μ_k − x̄)Σ⁻¹ show which.
    """
    means = np.asarray(model.means_, dtype=np.float64)
    directions = (means - model.xbar_) @ np.linalg.pinv(within.T @ within)
    if len(means) == 2:
        directions = directions[1:] - directions[:1]
    return float(np.vdot(directions, model.coef_) / np.vdot(directions, directions))


def _invertible(root: np.ndarray, variances: Any) -> np.ndarray:
    """Return a class's C⁻ᵀ; raise if its covariance is singular."""
    v = np.asarray(variances, dtype=np.float64)
    if root.shape[0] != root.shape[1] or not v.min() > _SINGULAR_SHARE * v.max():
        raise ExemplaError(
            "QuadraticDiscriminantAnalysis has a singular covariance for one of its classes: give "
            "it reg_param > 0, or use LinearDiscriminantAnalysis."
        )
    return root


# ---- mixtures


class MixtureOracle(GenerativeOracle):
    """Scores of a GaussianMixture, alone or at the end of a Pipeline.

    The Fisher is that of p(x), the same for every example; it is estimated from `DRAWS` points of
    the mixture per example.
    """

    likelihood = "mixture"
    fisher_note = f"sampled: {DRAWS} points of the mixture per example, seed 0"
    takes_weights = needs_labels = False
    dense_only = _fitted_prior = True
    implicit_penalty = None

    def _inspect(self, model: Any) -> None:
        means = np.asarray(model.means_, dtype=np.float64)
        K, d = means.shape
        # C_k⁻¹ transposed, (K, d, d), for every covariance type
        root = np.asarray(model.precisions_cholesky_, dtype=np.float64)
        if model.covariance_type == "tied":
            root = np.broadcast_to(root, (K, d, d))
        elif model.covariance_type in ("diag", "spherical"):
            root = root.reshape(K, -1, 1) * np.eye(d)
        self._density = _Gaussians(model.covariance_type, means, root)
        self._log_prior = np.log(np.asarray(model.weights_, dtype=np.float64))
        self._set_layers()
        self.notes = self._remarks()

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        pass  # everything is known from the model

    def _mixing(self, part: SklearnExamples, labels: Labels) -> tuple[np.ndarray, float]:
        return softmax(self._log_posterior(part.X), axis=1), 1.0

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield scores at points drawn from the mixture."""
        rng, size = np.random.default_rng(0), self._batch_rows(examples)
        positions = np.repeat(np.arange(len(examples)), DRAWS)
        for start in range(0, len(positions), size):
            at = positions[start : start + size]
            X = self._draw(len(at), rng)
            blocks = self._blocks_of(X, softmax(self._log_posterior(X), axis=1))
            yield self._rows(at, blocks, np.full(len(at), DRAWS**-0.5))

    def _log_prob(self, part: SklearnExamples) -> np.ndarray:
        return logsumexp(self._log_posterior(part.X), axis=1)

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        means, root = self._density.means, self._density.root
        k = rng.choice(len(means), size=n, p=softmax(self._log_prior))
        # u = (x − μ) root, hence x = μ + u root⁻¹
        u = rng.normal(size=(n, means.shape[1]))
        return means[k] + np.einsum("ni,nij->nj", u, np.linalg.inv(root)[k])

    def _log_posterior(self, X: Any) -> np.ndarray:
        """Return log π_k N(x; μ_k, Σ_k), which is log p(k | x) but for log p(x)."""
        log_det = np.log(np.einsum("kii->ki", self._density.root)).sum(axis=1)
        squares = (self._density.whitened(X) ** 2).sum(axis=2)
        return self._log_prior + log_det - (squares + X.shape[1] * np.log(2 * np.pi)) / 2
