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

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.linalg
from scipy.special import logsumexp, softmax
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB, MultinomialNB

from exempla.arrays import is_sparse
from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT, Labels, Layer, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.base import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
    Batch,
    FittedOracle,
    SklearnExamples,
    keep_layers,
)

MAX_CLOSED_FORM = 4096
"""Parameters up to which the Fisher of p(x, y) is used in closed form."""
DRAWS = 4
"""Points drawn from a mixture for each example, to estimate its Fisher."""
_SINGULAR_SHARE = 1e-10
"""Eigenvalues of a covariance below this fraction of the largest count as zero."""


class _GenerativeOracle(FittedOracle):
    """Scores Σ_k r_k ∇ log p(x, k), in one dense block per layer.

    Subclasses give r and the block of the class weights (`_mixing`), the blocks of all layers at
    these (`_blocks_of`), and log p(k | x) up to a constant per row (`_log_posterior`).
    """

    names: tuple[str, ...]
    _log_prior: np.ndarray
    _kept: list[int]
    _blocks_of: Callable[..., list[np.ndarray]]
    _mixing: Callable[..., tuple[np.ndarray, np.ndarray]]
    _log_posterior: Callable[..., np.ndarray]

    def _batches(self, examples: SklearnExamples, copies: int = 1) -> Iterator[Batch]:
        return examples.batches(self._batch_rows)

    @property
    def _batch_rows(self) -> int:
        """Rows per batch for three arrays as wide as the scores or X."""
        width = max(1, self.n_parameters, self._features)
        return int(np.clip(BATCH_BYTES // (24 * width), 1, MAX_BATCH_ROWS))

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield ∇ log p of each example; training and test rows of a classifier differ."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            mixing = self._mixing(batch, labels, examples.is_test)
            blocks = self._blocks_of(batch.inputs, *mixing)
            yield self._rows(batch.positions, blocks, batch.weights)

    def _rows(
        self, positions: np.ndarray, blocks: list[np.ndarray], weights: np.ndarray | None
    ) -> ScoreRows:
        a = np.ones((len(positions), 1)) if weights is None else weights[:, None]
        return ScoreRows(positions, tuple(Factors(a, blocks[i]) for i in self._kept))

    def _set_layers(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.layers = tuple(Layer(names[i], 1, sizes[i], np.zeros(1)) for i in self._kept)

    def _predicted(self, batch: Batch) -> np.ndarray:
        found = self._log_posterior(batch.inputs).argmax(axis=1)
        return found if self._classes is None else self._classes[found]


class _Gaussians(_GenerativeOracle):
    """Gaussians N(μ_k, Σ_k), with C_k⁻ᵀ of every Σ_k."""

    names = ("weights", "means", "covariances")
    dense_only = True
    _kind: str
    """The kind of covariance: "full", "tied", "diag" or "spherical"."""
    _means: np.ndarray
    _root: np.ndarray

    def _whitened(self, X: Any) -> np.ndarray:
        """Return u_k = C_k⁻¹(x − μ_k), (n, K, d)."""
        x = np.asarray(X)
        return np.stack([(x - m) @ root for m, root in zip(self._means, self._root)], axis=1)

    def _gaussian_blocks(self, X: Any, r: np.ndarray) -> list[np.ndarray]:
        """Return the blocks of the means and the covariances."""
        u = self._whitened(X)
        means = (r[:, :, None] * u).reshape(len(u), -1)
        return [means, _covariance_scores(u, r, self._kind)]


# ---- classifiers


class _GenerativeClassifier(_GenerativeOracle):
    """A classifier that was fitted to log p(x, y).

    `_prepare` stores what scores need. `_fisher_blocks` are roots of the Fisher of one (x, y) per
    layer: (rows, size), or (size,) if it is diagonal.
    """

    likelihood = "generative"
    fisher_note = "exact: the closed form of p(x, y)"
    _fitted_prior: bool
    """True if the class probabilities were estimated, not given."""
    _prepare: Callable[..., None]
    _fisher_blocks: Callable[..., list[np.ndarray]]

    @property
    def implicit_penalty(self) -> float:
        return 0.0  # fitted in closed form, at its optimum: there is nothing to damp

    def _inspect(self, model: Any) -> None:
        self._prepare(model, None)
        self.notes = self._remarks(
            f"{type(model).__name__} is fitted to log p(x, y) and used for log p(y | x): training "
            "rows are scored by the first, test rows by the second",
        )

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        self._prepare(self._last, train)
        # the class weights come first, and only if they were estimated
        names = list(self.names if self._fitted_prior else self.names[1:])
        blocks, self._kept = self._fisher_blocks(), keep_layers(names, self._parameters)
        self._roots = [blocks[i] for i in self._kept]
        self._set_layers(names, [block.shape[-1] for block in blocks])
        if self.n_parameters > MAX_CLOSED_FORM:
            self.fisher_note = f"exact over classes above {CLASS_CUT:g}, at the examples' own x"

    def _log_posterior(self, X: Any) -> np.ndarray:
        return np.asarray(self._last.predict_log_proba(X), dtype=np.float64)

    def _mixing(self, batch: Batch, labels: Labels, test: bool) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(self._log_posterior(batch.inputs))
        hot = np.eye(p.shape[1])[batch.codes if labels == "true" else p.argmax(axis=1)]
        # d log π_k / d logits is e_k − π, and the r of a test row sum to zero
        return (hot - p, hot - p) if test else (hot, hot - np.exp(self._log_prior))

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield the rows of the closed form, distributed over the examples.

        Beyond MAX_CLOSED_FORM parameters it would have too many rows: then the expectation over the
        model's labels is computed at the examples themselves.
        """
        if self.n_parameters > MAX_CLOSED_FORM:
            yield from self._expected_rows(examples)
            return
        blocks = [np.diag(root) if root.ndim == 1 else root for root in self._roots]
        roots = np.asarray(scipy.linalg.block_diag(*blocks))
        mean = 1.0 if examples.weights is None else float(examples.weights.mean())
        n = len(examples)
        which = np.arange(max(n, len(roots))) % len(roots)
        scale = np.sqrt(n * mean / np.bincount(which))[:, None]
        sizes = np.cumsum([layer.size for layer in self.layers])[:-1]
        step = max(1, BATCH_BYTES // (8 * roots.shape[1]))
        for start in range(0, len(which), step):
            at = which[start : start + step]
            parts = np.split(roots[at] * scale[at], sizes, axis=1)
            ones = np.ones((len(at), 1))
            sample = np.arange(start, start + len(at)) % n
            yield ScoreRows(sample, tuple(Factors(ones, part) for part in parts))

    def _expected_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield √p(k|x)·∇ log p(x, k), one row for every class above CLASS_CUT."""
        for batch in self._batches(examples):
            p = np.exp(self._log_posterior(batch.inputs))
            rows, classes = np.nonzero(p > CLASS_CUT)
            hot = np.eye(p.shape[1])[classes]
            weights = np.sqrt(p[rows, classes])
            if batch.weights is not None:
                weights = weights * np.sqrt(batch.weights[rows])
            blocks = self._blocks_of(batch.inputs[rows], hot, hot - np.exp(self._log_prior))
            yield self._rows(batch.positions[rows], blocks, weights)

    def _log_prob(self, batch: Batch) -> np.ndarray:
        log_p = self._log_posterior(batch.inputs)
        return log_p[np.arange(len(log_p)), batch.codes]

    def _with_prior(self, prior: np.ndarray, *blocks: np.ndarray) -> list[np.ndarray]:
        return [prior, *blocks] if self._fitted_prior else list(blocks)

    def _prior_root(self) -> np.ndarray:
        pi = np.exp(self._log_prior)
        return np.sqrt(pi)[:, None] * (np.eye(len(pi)) - pi)


class GaussianOracle(_Gaussians, _GenerativeClassifier):
    """Scores of GaussianNB, LinearDiscriminantAnalysis and QuadraticDiscriminantAnalysis.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = GaussianOracle(GaussianNB().fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [(layer.name, layer.size) for layer in oracle.layers]
    [('weights', 3), ('means', 12), ('covariances', 12)]
    """

    def _prepare(self, model: Any, train: SklearnExamples | None) -> None:
        self.takes_weights = isinstance(model, GaussianNB)
        self._fitted_prior = model.priors is None
        if isinstance(model, GaussianNB):
            self._kind, means, prior = "diag", model.theta_, model.class_prior_
            roots = [np.diag(1 / np.sqrt(v)) for v in np.asarray(model.var_, dtype=np.float64)]
        elif isinstance(model, QuadraticDiscriminantAnalysis):
            self._kind, means, prior = "full", model.means_, model.priors_
            pairs = zip(model.rotations_, model.scalings_, strict=True)
            roots = [_invertible(np.asarray(R) / np.sqrt(S), S) for R, S in pairs]
        else:
            self._kind, means, prior = "tied", model.means_, model.priors_
            roots = [_shared_root(model, train)] * len(means)
        self._means = np.asarray(means, dtype=np.float64)
        self._log_prior = np.log(np.asarray(prior, dtype=np.float64))
        self._root = np.stack(roots)

    def _blocks_of(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        return self._with_prior(prior, *self._gaussian_blocks(X, r))

    def _fisher_blocks(self) -> list[np.ndarray]:
        pi, d = np.exp(self._log_prior), self._root.shape[2]
        if self._kind == "diag":
            spread = np.repeat(pi, d) / 2
        else:
            i, j = np.triu_indices(d)
            one = np.where(i == j, 0.5, 1.0)
            spread = one if self._kind == "tied" else np.concatenate([p * one for p in pi])
        return self._with_prior(self._prior_root(), np.sqrt(np.repeat(pi, d)), np.sqrt(spread))


def _shared_root(model: Any, train: SklearnExamples | None) -> np.ndarray:
    """Return C⁻ᵀ of the covariance that all classes share; the "svd" solver does not keep it."""
    if hasattr(model, "covariance_") and model.solver != "svd":
        covariance = np.asarray(model.covariance_, dtype=np.float64)
    elif train is None:
        return np.eye(model.means_.shape[1])  # a placeholder until the training data are known
    else:
        within = train.whole() - np.asarray(model.means_)[train.codes]
        covariance = within.T @ within / _divisor(model, within)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _SINGULAR_SHARE * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])


def _divisor(model: Any, within: np.ndarray) -> float:
    """Return what the within-class scatter was divided by.

    Newer versions of scikit-learn use n, older ones n − classes. The discriminant's coefficients
    (μ_k − x̄)Σ⁻¹ show which.
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


class NaiveBayesOracle(_GenerativeClassifier):
    """Scores of MultinomialNB and BernoulliNB.

    >>> X, y = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]]), [0, 0, 1]
    >>> oracle = NaiveBayesOracle(MultinomialNB().fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [(layer.name, layer.size) for layer in oracle.layers]
    [('weights', 2), ('features', 4)]
    """

    names = ("weights", "features")

    def _prepare(self, model: Any, train: SklearnExamples | None) -> None:
        self._fitted_prior = bool(model.fit_prior) and model.class_prior is None
        self._log_prior = np.asarray(model.class_log_prior_, dtype=np.float64)
        self._theta = np.exp(np.asarray(model.feature_log_prob_, dtype=np.float64))
        counts = np.asarray(model.class_count_, dtype=np.float64)
        smoothing = np.maximum(np.asarray(model.alpha, dtype=np.float64), 0.0)
        self._counted = isinstance(model, MultinomialNB)
        if self._counted:
            each = np.asarray(model.feature_count_, dtype=np.float64) + smoothing
        else:
            each = (counts[:, None] + 2 * smoothing) * self._theta * (1 - self._theta)
        self._root = np.sqrt(each / counts.sum())

    def _blocks_of(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        x = X.toarray() if is_sparse(X) else np.asarray(X)
        expected = self._theta[None]
        threshold = getattr(self._last, "binarize", None)
        if self._counted:
            expected = x.sum(axis=1)[:, None, None] * expected
        elif threshold is not None:
            x = (x > threshold).astype(np.float64)
        words = (r[:, :, None] * (x[:, None, :] - expected)).reshape(len(x), -1)
        return self._with_prior(prior, words)

    def _fisher_blocks(self) -> list[np.ndarray]:
        return self._with_prior(self._prior_root(), self._root.ravel())


# ---- mixtures


class MixtureOracle(_Gaussians):
    """Scores of a GaussianMixture, alone or at the end of a Pipeline.

    The Fisher is that of p(x), the same for every example; it is estimated from `DRAWS` points of
    the mixture per example.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.mixture import GaussianMixture
    >>> X, _ = load_iris(return_X_y=True)
    >>> oracle = MixtureOracle(GaussianMixture(2, random_state=0).fit(X))
    >>> [(layer.name, layer.d_out) for layer in oracle.layers]
    [('weights', 2), ('means', 8), ('covariances', 20)]
    """

    likelihood = "mixture"
    takes_weights = needs_labels = False

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        self._kept, self.seed = keep_layers(list(self.names), parameters), seed
        self.fisher_note = f"sampled: {DRAWS} points of the mixture per example, seed {seed}"
        super().__init__(model, likelihood, parameters)

    def _inspect(self, model: Any) -> None:
        self._kind = model.covariance_type
        self._means = np.asarray(model.means_, dtype=np.float64)
        self._log_prior = np.log(np.asarray(model.weights_, dtype=np.float64))
        K, d = self._means.shape
        # C_k⁻¹ transposed, (K, d, d), for every covariance type
        root = np.asarray(model.precisions_cholesky_, dtype=np.float64)
        if self._kind == "tied":
            root = np.broadcast_to(root, (K, d, d))
        elif self._kind in ("diag", "spherical"):
            root = root.reshape(K, -1, 1) * np.eye(d)
        self._root = root
        spread = _covariance_scores(np.zeros((1, K, d)), np.ones((1, K)), self._kind)
        self._set_layers(self.names, [K, K * d, spread.shape[1]])
        self.notes = self._remarks()

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        pass  # everything is known from the model

    def _blocks_of(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        return [prior, *self._gaussian_blocks(X, r)]

    def _mixing(self, batch: Batch, labels: Labels, test: bool) -> tuple[np.ndarray, np.ndarray]:
        return self._responsibilities(batch.inputs)

    def _responsibilities(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r = softmax(self._log_posterior(X), axis=1)
        return r, r - np.exp(self._log_prior)

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield scores at points drawn from the mixture."""
        rng, size = np.random.default_rng(self.seed), self._batch_rows
        positions = np.repeat(np.arange(len(examples)), DRAWS)
        for start in range(0, len(positions), size):
            at = positions[start : start + size]
            X = self._draw(len(at), rng)
            blocks = self._blocks_of(X, *self._responsibilities(X))
            yield self._rows(at, blocks, np.full(len(at), DRAWS**-0.5))

    def _log_prob(self, batch: Batch) -> np.ndarray:
        return logsumexp(self._log_posterior(batch.inputs), axis=1)

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        K, d = self._means.shape
        k = rng.choice(K, size=n, p=softmax(self._log_prior))
        # u = (x − μ) root, hence x = μ + u root⁻¹
        return self._means[k] + np.einsum(
            "ni,nij->nj", rng.normal(size=(n, d)), np.linalg.inv(self._root)[k]
        )

    def _log_posterior(self, X: Any) -> np.ndarray:
        """Return log π_k N(x; μ_k, Σ_k), which is log p(k | x) but for log p(x)."""
        log_det = np.log(np.einsum("kii->ki", self._root)).sum(axis=1)
        squares = (self._whitened(X) ** 2).sum(axis=2)
        return self._log_prior + log_det - (squares + X.shape[1] * np.log(2 * np.pi)) / 2


def _covariance_scores(u: np.ndarray, r: np.ndarray, kind: str) -> np.ndarray:
    """Return r_k (u_k u_kᵀ − I)/2 for the entries of E that this kind of covariance has."""
    n, _, d = u.shape
    if kind == "diag":
        return (r[:, :, None] * (u**2 - 1) / 2).reshape(n, -1)
    if kind == "spherical":
        return r * ((u**2).sum(axis=2) - d) / 2
    i, j = np.triu_indices(d)
    each = u[:, :, i] * u[:, :, j]
    each[:, :, i == j] = (each[:, :, i == j] - 1) / 2
    each = r[:, :, None] * each
    return each.sum(axis=1) if kind == "tied" else each.reshape(n, -1)
