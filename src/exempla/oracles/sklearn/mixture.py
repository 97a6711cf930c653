"""Scores of a Gaussian mixture, the generative model Fisher kernels were invented for.

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

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp, softmax

from exempla.arrays import is_sparse
from exempla.data import plain_labels, refuse_data, unpack
from exempla.errors import ExemplaError
from exempla.factors import Factors
from exempla.likelihoods import Likelihood
from exempla.oracles.base import Labels, Layer, Oracle, ScoreRows
from exempla.oracles.sklearn.anatomy import keep_layers
from exempla.oracles.sklearn.data import SklearnExamples, prepare
from exempla.oracles.sklearn.unwrap import is_fitted, require_fitted, unwrap

__all__ = ["MixtureOracle", "covariance_scores"]

NAMES = ["weights", "means", "covariances"]
BATCH_BYTES = 64 * 2**20
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
        self._kept = keep_layers(NAMES, parameters)
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
            covariance_scores(np.zeros((1, K, d)), np.ones((1, K)), self._kind).shape[1],
        ]
        self.layers = tuple(Layer(NAMES[i], 1, sizes[i], np.zeros(1)) for i in self._kept)

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
        return int(np.clip(BATCH_BYTES // (8 * max(1, 3 * self.n_parameters)), 1, 4096))

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
            covariance_scores(u, r, self._kind),
        ]
        a = np.ones((len(X), 1))
        return ScoreRows(positions, tuple(Factors(a, blocks[i] * scale) for i in self._kept))


def covariance_scores(u: np.ndarray, r: np.ndarray, kind: str) -> np.ndarray:
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
