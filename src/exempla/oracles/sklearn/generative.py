"""Classifiers that model x given its class: discriminants and naive Bayes.

They are fitted to log p(x, y) and asked for log p(y | x). So a training row's score is that of the
first, a questioned row's that of the second, and the metric is the Fisher of the first: dot
products are then what removing the training row does to the prediction. With a_k the gradient of
log p(x, class k), r = onehot(y) for a training row and onehot(y) − p(·|x) for a questioned one,
both are Σ_k r_k a_k.

Imports: oracles.base, the reading of data above.

What all generative classifiers share: r, closed-form Fisher rows, and their predictions.

GaussianNB, linear and quadratic discriminants: a Gaussian mixture whose components are seen.

With C_k C_kᵀ = Σ_k and u_k = C_k⁻¹(x − μ_k), the gradient of log p(x, class k) is that of the
mixture (see `mixture`): weights, means and covariances in coordinates that do not depend on the
units of x, and in which the Fisher is diagonal but for the weights:

    weights       diag(π) − ππᵀ
    means         π_k
    covariances   π_k/2 on the diagonal, π_k off it ("tied": summed over the classes)

MultinomialNB and BernoulliNB.

Parameters are, per class k, the logits of the word probabilities θ_k (of a softmax over all words,
or of a sigmoid each) and those of the class shares π:

    multinomial   ∇ log p(x | k) = x − Nθ_k,  N = Σ_j x_j      metric (N_kj + α)/n
    Bernoulli     ∇ log p(x | k) = x − θ_k,   x = 0 or 1       metric (n_k + 2α) θ_k(1 − θ_k)/n

with N_kj the words counted in class k. The metric is the Fisher together with the curvature of the
smoothing α. (Of the multinomial's diag(θ) − θθᵀ the diagonal part alone is kept: a score sums to
zero over the words of a class, and on such vectors the two inverses are the same.)

Scores of a Gaussian mixture, the generative model Fisher kernels were invented for.

log p(x) = log Σ_k π_k N(x; μ_k, Σ_k). With responsibilities r_k = p(k | x), C_k C_kᵀ = Σ_k and
u_k = C_k⁻¹(x − μ_k), the scores in the coordinates of the Fisher-vector literature are

    weights       logits of π             r_k − π_k
    means         μ_k + C_k e_k           r_k u_k
    covariances   C_k exp(E_k) C_kᵀ       r_k (u_k u_kᵀ − I)/2     (E symmetric)

all at e = E = 0. They do not depend on the units of x. For "diag" E is diagonal (log-variances),
for "spherical" a multiple of I (one log-variance), for "tied" one E serves all components; an
off-diagonal entry of E stands in two places, hence its score is twice the matrix's entry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import scipy.linalg
from scipy.special import logsumexp, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB

from exempla.arrays import is_sparse
from exempla.data import plain_labels, refuse_data, unpack
from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT, Labels, Layer, Oracle, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.anatomy import keep_layers
from exempla.oracles.sklearn.data import (
    ReadingOracle,
    SklearnBatch,
    SklearnExamples,
    notes_of,
    prepare,
)
from exempla.oracles.sklearn.unwrap import is_fitted, require_fitted, unwrap

BATCH_BYTES = 64 * 2**20
CLOSED_FORM = 4096


class _GenerativeBase(ReadingOracle):
    """Scores of a classifier that was fitted to log p(x, y), one dense block a layer.

    A subclass gives the gradient of log p(x, k) weighted by r (`_blocks`), and the closed-form
    Fisher as one row per coordinate (`_fisher_blocks`).
    """

    likelihood = "generative"
    fisher_note = "exact: the closed form of p(x, y)"
    names: tuple[str, ...]
    _fitted_prior: bool
    """Whether the class shares were learnt, not given."""
    _log_prior: np.ndarray

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        super().__init__(model)
        if likelihood not in ("auto", self.likelihood):
            raise ExemplaError("A generative classifier is its own likelihood: leave it at 'auto'.")
        self._parameters = parameters
        if is_fitted(model):
            self._bind()

    @abstractmethod
    def _take_apart(self, last: Any, train: SklearnExamples | None) -> None:
        """Keep what scores need; `train` is None before training data are known."""

    @abstractmethod
    def _blocks(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        """Σ_k r_k ∇ log p(x, k), a block a layer; `prior` is what it is for the class weights."""

    @abstractmethod
    def _fisher_blocks(self) -> list[np.ndarray]:
        """Rows of a root of the Fisher of one (x, y), a block a layer: (rows, size), or where it is
        diagonal (size,)."""

    def _bind(self) -> None:
        self._take_apart(self._open(), None)
        self.notes = notes_of(
            self._opened.note,
            f"{type(self._last).__name__} is fitted to log p(x, y) and asked for log p(y | x): "
            "training rows are scored by the first, questioned rows by the second",
        )

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        self._take_apart(self._last, train)
        blocks = self._fisher_blocks()
        kept = keep_layers(self._layer_names(), self._parameters)
        self._kept, self._roots = kept, blocks
        size = sum(blocks[i].shape[-1] for i in kept)
        if size > CLOSED_FORM:
            self.fisher_note = f"exact over classes above {CLASS_CUT:g}, at the examples' own x"
        self.layers = tuple(
            Layer(self._layer_names()[i], 1, blocks[i].shape[-1], np.zeros(1)) for i in kept
        )

    def _layer_names(self) -> list[str]:
        """The class weights come first, and only if they were fitted."""
        return list(self.names if self._fitted_prior else self.names[1:])

    @property
    def implicit_penalty(self) -> float:
        # fitted in closed form: nothing held it back from its optimum, so nothing is to be damped
        return 0.0

    def _posterior(self, X: Any) -> np.ndarray:
        return np.exp(np.asarray(self._last.predict_log_proba(X), dtype=np.float64))

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """∇ log p(x, y) of training rows, ∇ log p(y | x) of questioned ones."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            p = self._posterior(batch.X)
            y = batch.codes if labels == "true" else p.argmax(axis=1)
            hot = np.eye(p.shape[1])[y]
            r = hot - p if examples.questioned else hot
            # d log π_k / d logits is e_k − π, and the r of a questioned row sum to zero
            prior = r if examples.questioned else hot - np.exp(self._log_prior)
            yield self._rows(batch, self._blocks(batch.X, r, prior))

    def _rows(self, batch: SklearnBatch, blocks: list[np.ndarray]) -> ScoreRows:
        a = np.ones((len(batch.positions), 1))
        if batch.weights is not None:
            a = a * batch.weights[:, None]
        return ScoreRows(batch.positions, tuple(Factors(a, blocks[i]) for i in self._kept))

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """The closed form, the same for every example; past CLOSED_FORM parameters, where its rows
        would be too many, the expectation over the model's labels at the examples themselves."""
        if self.n_parameters > CLOSED_FORM:
            return self._expected_rows(examples)
        return self._closed_rows(examples)

    def _closed_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """The closed form's rows, spread over the examples."""
        roots = _block_diagonal([self._roots[i] for i in self._kept])
        n, mean = len(examples), 1.0
        if examples.weights is not None:
            mean = float(examples.weights.mean())
        total = max(n, len(roots))
        which = np.arange(total) % len(roots)
        repeats = np.bincount(which)
        sizes = np.cumsum([layer.size for layer in self.layers])[:-1]
        step = max(1, BATCH_BYTES // (8 * roots.shape[1]))
        for start in range(0, total, step):
            at = which[start : start + step]
            rows = roots[at] * np.sqrt(n * mean / repeats[at])[:, None]
            sample = np.arange(start, start + len(at)) % n
            ones = np.ones((len(at), 1))
            parts = np.split(rows, sizes, axis=1)
            yield ScoreRows(sample, tuple(Factors(ones, part) for part in parts))

    def _expected_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """√p(k|x)·∇ log p(x, k), a row for every class that carries probability."""
        for batch in self._batches(examples):
            p = self._posterior(batch.X)
            rows, classes = np.nonzero(p > CLASS_CUT)
            hot = np.eye(p.shape[1])[classes]
            root = np.sqrt(p[rows, classes])
            blocks = self._blocks(batch.X[rows], hot, hot - np.exp(self._log_prior))
            weights = root if batch.weights is None else root * np.sqrt(batch.weights[rows])
            some = SklearnBatch(batch.positions[rows], None, None, weights)
            yield self._rows(some, blocks)

    def predict(self, examples: SklearnExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = [self._posterior(b.X).argmax(axis=1) for b in self._batches(examples)]
        return self._in_words(np.concatenate(found))

    def log_likelihood(self, examples: SklearnExamples) -> np.ndarray:
        """log p(y | x) of each example under its given label."""
        self._check_labels(examples, "true")
        found = []
        for batch in self._batches(examples):
            log_p = np.asarray(self._last.predict_log_proba(batch.X), dtype=np.float64)
            found.append(log_p[np.arange(len(log_p)), batch.codes])
        return np.concatenate(found)

    def _batches(self, examples: SklearnExamples) -> Iterator[SklearnBatch]:
        width = max(self.n_parameters, self._features)
        return examples.batches(int(np.clip(BATCH_BYTES // (24 * max(1, width)), 1, 4096)))


def _block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    """The layers' roots in one matrix: layers do not mix.

    >>> _block_diagonal([np.array([2.0, 3.0]), np.array([[4.0]])])
    array([[2., 0., 0.],
           [0., 3., 0.],
           [0., 0., 4.]])
    """
    whole = [np.diag(block) if block.ndim == 1 else block for block in blocks]
    return np.asarray(scipy.linalg.block_diag(*whole))


_NAMES = ["weights", "means", "covariances"]
_MIXTURE_BATCH_BYTES = 64 * 2**20
DRAWS = 4


class MixtureOracle(Oracle):
    """Scores of a GaussianMixture, alone or at the end of a Pipeline.

    The Fisher is that of p(x) itself, the same for every example: `DRAWS` fresh points from the
    mixture stand in for each.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.mixture import GaussianMixture
    >>> X, _ = load_iris(return_X_y=True)
    >>> oracle = MixtureOracle(GaussianMixture(2, random_state=0).fit(X))
    >>> [(layer.name, layer.d_out) for layer in oracle.layers]
    [('weights', 2), ('means', 8), ('covariances', 20)]
    """

    likelihood = "mixture"

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        if likelihood not in ("auto", self.likelihood):
            raise ExemplaError("A GaussianMixture is its own likelihood: leave it at 'auto'.")
        self.model, self.seed = model, seed
        self.fisher_note = f"sampled: {DRAWS} points of the mixture per example, seed {seed}"
        self._kept = keep_layers(_NAMES, parameters)
        self.layers: tuple[Layer, ...] = ()
        if is_fitted(model):
            self._bind()

    def _bind(self) -> None:
        require_fitted(self.model)
        self._transform, mixture = unwrap(self.model)
        self._mixture = mixture
        self._kind: str = mixture.covariance_type
        self._means = np.asarray(mixture.means_, dtype=np.float64)
        self._log_weights = np.log(np.asarray(mixture.weights_, dtype=np.float64))
        K, d = self._means.shape
        # C_k⁻¹ transposed, (K, d, d), whatever the covariance type
        root = np.asarray(mixture.precisions_cholesky_, dtype=np.float64)
        eye = np.eye(d)
        if self._kind == "tied":
            root = np.broadcast_to(root, (K, d, d))
        elif self._kind == "diag":
            root = root[:, :, None] * eye
        elif self._kind == "spherical":
            root = root[:, None, None] * eye
        self._root = root
        sizes = [
            K,
            K * d,
            _covariance_scores(np.zeros((1, K, d)), np.ones((1, K)), self._kind).shape[1],
        ]
        self.layers = tuple(Layer(_NAMES[i], 1, sizes[i], np.zeros(1)) for i in self._kept)

    def read(self, data: Any, *, role: Literal["train", "test"]) -> SklearnExamples:
        """Check the data; labels are allowed, kept, and play no part."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        names = getattr(self._mixture, "feature_names_in_", None)
        features = self._means.shape[1]
        X, transform = prepare(given.X, self._transform, features, names, problems)
        if X is not None and is_sparse(X):
            problems.append("X is sparse, and GaussianMixture needs a dense array")
        if given.weights is not None and role == "train":
            problems.append(
                "GaussianMixture is fitted without sample_weight, so it has no use here"
            )
        refuse_data(problems, role)
        labels = None if given.y is None else plain_labels(given.y)
        return SklearnExamples(
            X, labels=labels, ids=given.ids, transform=transform, needs_labels=False
        )

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """∇θ log p(x) of each example; a density has no labels to choose between."""
        for batch in examples.batches(self._batch_size()):
            yield self._rows(batch.positions, batch.X)

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Scores at points drawn from the mixture, in place of the examples."""
        rng = np.random.default_rng(self.seed)
        size = self._batch_size()
        positions = np.repeat(np.arange(len(examples)), DRAWS)
        for start in range(0, len(positions), size):
            at = positions[start : start + size]
            yield self._rows(at, self._draw(len(at), rng), DRAWS**-0.5)

    def predict(self, examples: SklearnExamples) -> np.ndarray:
        """The component each example most probably comes from."""
        found = [self._whiten(b.X)[1].argmax(axis=1) for b in self._batches(examples)]
        return np.concatenate(found)

    def log_likelihood(self, examples: SklearnExamples) -> np.ndarray:
        """log p(x) of each example."""
        return np.concatenate(
            [logsumexp(self._whiten(b.X)[1], axis=1) for b in self._batches(examples)]
        )

    def _batches(self, examples: SklearnExamples) -> Iterator[Any]:
        return examples.batches(self._batch_size())

    def _batch_size(self) -> int:
        return int(np.clip(_MIXTURE_BATCH_BYTES // (8 * max(1, 3 * self.n_parameters)), 1, 4096))

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        K, d = self._means.shape
        k = rng.choice(K, size=n, p=np.exp(self._log_weights) / np.exp(self._log_weights).sum())
        # u = (x − μ) root, hence x = μ + u root⁻¹
        return self._means[k] + np.einsum(
            "ni,nij->nj", rng.normal(size=(n, d)), np.linalg.inv(self._root)[k]
        )

    def _whiten(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u (n, K, d), and log π_k N(x; μ_k, Σ_k) (n, K)."""
        u = np.stack([(X - mu) @ root for mu, root in zip(self._means, self._root)], axis=1)
        log_det = np.log(np.einsum("kii->ki", self._root)).sum(axis=1)
        log_normal = log_det - (u**2).sum(axis=2) / 2 - X.shape[1] * np.log(2 * np.pi) / 2
        return u, self._log_weights + log_normal

    def _rows(self, positions: np.ndarray, X: np.ndarray, scale: float = 1.0) -> ScoreRows:
        u, joint = self._whiten(X)
        r = softmax(joint, axis=1)
        blocks = [
            r - np.exp(self._log_weights),
            (r[:, :, None] * u).reshape(len(X), -1),
            _covariance_scores(u, r, self._kind),
        ]
        a = np.ones((len(X), 1))
        return ScoreRows(positions, tuple(Factors(a, blocks[i] * scale) for i in self._kept))


def _covariance_scores(u: np.ndarray, r: np.ndarray, kind: str) -> np.ndarray:
    """r_k (u_k u_kᵀ − I)/2, the entries of E that this kind of covariance has, (n, entries)."""
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


_SINGULAR = 1e-10


def is_generative(model: Any) -> bool:
    """Whether the class-wise Gaussians of this model are known here."""
    return isinstance(
        model, GaussianNB | LinearDiscriminantAnalysis | QuadraticDiscriminantAnalysis
    )


class GenerativeOracle(_GenerativeBase):
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
        kept = values > _SINGULAR * values[-1]
        return vectors[:, kept] / np.sqrt(values[kept])

    def _whitened(self, X: np.ndarray) -> np.ndarray:
        """u, (n, K, d)."""
        return np.stack([(X - mu) @ root for mu, root in zip(self._means, self._root)], axis=1)

    def _blocks(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        u = self._whitened(np.asarray(X))
        means = (r[:, :, None] * u).reshape(len(u), -1)
        blocks = [means, _covariance_scores(u, r, self._kind)]
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
    if root.shape[0] != root.shape[1] or not v.min() > _SINGULAR * v.max():
        raise ExemplaError(
            "QuadraticDiscriminantAnalysis has a singular covariance for one of its classes: give "
            "it reg_param > 0, or use LinearDiscriminantAnalysis."
        )
    return root


def is_naive_bayes(model: Any) -> bool:
    """Whether this naive Bayes classifier is known here."""
    return isinstance(model, MultinomialNB | BernoulliNB)


class NaiveBayesOracle(_GenerativeBase):
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
