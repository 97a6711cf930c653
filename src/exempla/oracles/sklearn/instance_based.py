"""Models that consist of their training rows: kernel machines and nearest neighbours.

**Kernel machines** (support vectors and Gaussian processes) are linear models of φ(x):
f(x) = Σ_i c_i k(x_i, x) + b, and training can only change f in the span of the training rows. In
coordinates of that span,

    φ(x) = k(x, Z) V Λ^(−1/2),    k(Z, Z) = V Λ Vᵀ,

with the training rows as landmarks Z, the weights are w = φ(X)ᵀc, and ‖w‖² = cᵀKc is the machine's
own penalty; the rest follows as for a linear model. Beyond `_MAX_LANDMARKS` rows a subset is used
(Nyström): the support vectors first, then training rows at even distances.

**Nearest neighbours.** Every training row has a vote, and its vote is its parameter. Give row i the
weight ω_i (1 as fitted). Then

    p(c | x) = (Σ_i ω_i k_i(x) [y_i = c] + ε) / (Σ_i ω_i k_i(x) + Cε),

where k_i(x) is the weight of i among the neighbours of x (zero for all other rows), and Cε is one
vote spread over the C classes, so that a class without a neighbour is unlikely, not impossible. The
score of a test row is ∂ log p / ∂ω, with one entry for each of its neighbours; that of a training
row is its own ω_i, and the metric is the identity. Influence is therefore ∂ log p(y | x)/∂ω_i, the
value of row i's vote. It does not account for the row that would take its place. A regression is
the mean of its neighbours under a Gaussian with the variance of the leave-one-out errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC, SVR

from exempla.arrays import Array, is_sparse
from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import Factors, Labels, Layer, ScoreRows
from exempla.oracles.likelihoods import Bernoulli, Gaussian, Likelihood
from exempla.oracles.sklearn.base import FittedOracle, SklearnExamples, keep_layers
from exempla.oracles.sklearn.losses import Margin, Tube
from exempla.oracles.sklearn.oracle import DenseModel

_MAX_LANDMARKS = 2048
_ROUNDING_SHARE = 1e-10
"""Eigenvalues of k(Z, Z) below this fraction of the largest are rounding errors."""
_MAX_VOTES = 6144
"""Training rows that can each be a parameter: the kernel of all pairs has to fit in memory."""


@dataclass(frozen=True)
class _Span:
    """Coordinates of x in the span of landmark rows in the kernel's feature space."""

    landmarks: Array
    kernel: Callable[[Array, Array], np.ndarray]
    directions: np.ndarray
    """V Λ^(−1/2), (landmarks, dimensions)."""

    @staticmethod
    def of(landmarks: Array, kernel: Callable[[Array, Array], np.ndarray]) -> _Span:
        values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
        if values[0] < -1e-8 * values[-1]:
            raise UnsupportedModelError(
                "This kernel is not positive definite (the sigmoid kernel, for instance, is not), "
                "so it has no feature space and no scores: use 'rbf', 'poly' or 'linear'."
            )
        kept = values > _ROUNDING_SHARE * values[-1]
        return _Span(landmarks, kernel, vectors[:, kept] / np.sqrt(values[kept]))

    def __call__(self, X: Array) -> np.ndarray:
        return self.kernel(X, self.landmarks) @ self.directions


def _spread_landmarks(kept: Array, X: Array) -> Array:
    """Return the machine's own rows, then evenly spaced training rows, _MAX_LANDMARKS at most."""
    n = n_rows(X)
    # up to _MAX_LANDMARKS training rows, all of them are used; the machine's own are among them
    room = _MAX_LANDMARKS if n <= _MAX_LANDMARKS else max(_MAX_LANDMARKS - n_rows(kept), 0)
    some = X if n <= room else take_rows(X, np.linspace(0, n - 1, room).astype(np.int64))
    if is_sparse(kept) or is_sparse(some):
        return sp.csr_array(sp.vstack([sp.csr_array(kept), sp.csr_array(some)], format="csr"))
    return np.unique(np.vstack([kept, some]), axis=0)


@dataclass(frozen=True)
class _Machine:
    """f = scale·(duals k(kept, x)) + bias + offset, with duals of shape (outputs, kept)."""

    kept: Array
    duals: np.ndarray
    kernel: Callable[[Array, Array], np.ndarray]
    bias: np.ndarray | None = None
    scale: float = 1.0
    offset: float = 0.0

    def dense(self, likelihood: Likelihood, penalty: float, **fields: Any) -> DenseModel:
        """Return the machine as a dense model, before its training data are known."""
        return self._spanned(DenseModel((), self.bias is not None, likelihood, penalty, **fields))

    def _spanned(self, model: DenseModel, X: Array | None = None) -> DenseModel:
        """Return a linear layer in the span of the machine's own rows, or of its training rows."""
        landmarks, note = self.kept, model.note
        if X is not None:
            landmarks = _spread_landmarks(self.kept, X)
            if n_rows(X) > _MAX_LANDMARKS:
                note += (
                    f"{'; ' if note else ''}the kernel's feature space is approximated with "
                    f"{_MAX_LANDMARKS:,} of {n_rows(X):,} training rows (Nyström)"
                )
        span = _Span.of(landmarks, self.kernel)
        block = self.scale * (self.duals @ span(self.kept)).T
        block = block if self.bias is None else np.vstack([block, self.bias])
        return replace(model, blocks=(block,), first=span, note=note, offset=self.offset,
                       n_inputs=int(landmarks.shape[1]),
                       with_training=partial(self._spanned, model))  # fmt: skip


# ---- support vectors


def _vectors(model: Any, duals: np.ndarray) -> _Machine:
    """Return the machine of a support vector model."""
    if model.kernel == "precomputed" or callable(model.kernel):
        raise UnsupportedModelError(
            f"{type(model).__name__} with a precomputed or callable kernel does not keep the rows "
            "that exempla needs: name a kernel, such as 'rbf'."
        )
    # fit resolves gamma="scale" and stores it only here
    given = {"gamma": model._gamma, "degree": model.degree, "coef0": model.coef0}
    kernel = partial(pairwise_kernels, metric=model.kernel, filter_params=True, **given)
    rows, bias = model.support_vectors_, np.array(model.intercept_, dtype=np.float64)
    kept = sp.csr_array(rows) if is_sparse(rows) else np.array(rows, dtype=np.float64)
    return _Machine(kept, duals, kernel, bias)


def _pairs(model: SVC) -> tuple[np.ndarray, np.ndarray]:
    """Return the dual coefficients of each pair of classes, (pairs, support vectors), and signs.

    The signs are (classes, pairs): for a pair i < j the decision is positive for class i (with two
    classes, for the second).
    """
    coefficients = _plain(model.dual_coef_)
    n_classes = len(model.classes_)
    if n_classes == 2:
        return coefficients, Margin.one_vs_rest("hinge", 2).signs
    owner = np.repeat(np.arange(n_classes), model.n_support_)
    rows, signs = [], []
    for i in range(n_classes):
        for j in range(i + 1, n_classes):
            row = np.where(owner == i, coefficients[j - 1], 0.0)
            rows.append(np.where(owner == j, coefficients[i], row))
            signs.append((np.arange(n_classes) == i) * 1.0 - (np.arange(n_classes) == j))
    return np.array(rows), np.array(signs).T


def _plain(duals: Any) -> np.ndarray:
    return np.array(duals.toarray() if is_sparse(duals) else duals, dtype=np.float64)


# ---- Gaussian processes


@dataclass(frozen=True)
class _Smooth:
    """A process's kernel without its noise term."""

    kernel: Any

    def __call__(self, X: Array, Z: Array) -> np.ndarray:
        # with a second argument a WhiteKernel is zero, even between a row and itself
        return self.kernel(np.asarray(X), np.asarray(Z))


def _gpr(model: GaussianProcessRegressor) -> DenseModel:
    """The posterior mean is ridge regression in the kernel's space with the process's noise."""
    kept, name = np.asarray(model.X_train_, dtype=np.float64), type(model).__name__
    kernel: Any = model.kernel_
    smooth = _Smooth(kernel)
    noise = np.diag(kernel(kept) - smooth(kept, kept)) + model.alpha
    if np.ptp(noise) > 1e-9 * noise.max():
        raise UnsupportedModelError(
            f"{name} has a different noise level for each row: give one number as alpha."
        )
    duals = np.asarray(model.alpha_, dtype=np.float64).reshape(len(kept), -1).T
    if len(duals) > 1:
        raise UnsupportedModelError(
            f"{name} has several outputs: use MultiOutputRegressor({name}())."
        )
    scale, offset = _units(model, (duals @ smooth(kept, kept))[0], kept)
    variance = float(noise[0]) * scale**2
    # minimises Σ(y − f)²/2σ² + ‖w/scale‖²/2; times σ², because loss_scale divides by it later
    machine = _Machine(kept, duals, smooth, None, scale, offset)
    return machine.dense(Gaussian(variance), variance / scale**2)


def _units(model: Any, f: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """Return the scale and offset of y, if the process was fitted to (y − offset)/scale."""
    if not model.normalize_y:
        return 1.0, 0.0
    predicted = model.predict(kept)
    spread = f - f.mean()
    scale = float(spread @ predicted / (spread @ spread)) if np.ptp(f) > 0 else 1.0
    return scale, float(predicted.mean() - scale * f.mean())


def _gpc(model: GaussianProcessClassifier) -> DenseModel:
    """A process of two classes with a logistic link, at the mode of its Laplace approximation."""
    inner: Any = model.base_estimator_
    kept = np.asarray(inner.X_train_, dtype=np.float64)
    duals = (np.asarray(inner.y_train_, dtype=np.float64) - inner.pi_)[None, :]
    note = (
        "GaussianProcessClassifier is explained at the mode of its Laplace approximation; the "
        "probabilities of predict_proba average around it and are slightly less extreme"
    )
    return _Machine(kept, duals, _Smooth(inner.kernel_)).dense(Bernoulli(), 1.0, note=note)


def read_kernel(model: Any) -> DenseModel:
    """Read a fitted kernel machine as a linear model in the kernel's feature space."""
    if isinstance(model, SVC):
        duals, signs = _pairs(model)
        return _vectors(model, duals).dense(Margin("hinge", signs), 1 / model.C)
    if isinstance(model, SVR):
        machine = _vectors(model, _plain(model.dual_coef_))
        return machine.dense(Tube(float(model.epsilon)), 1 / model.C)
    # a classifier of two classes; see wrappers.py for more
    return _gpr(model) if isinstance(model, GaussianProcessRegressor) else _gpc(model)


# ---- nearest neighbours


class NeighbourOracle(FittedOracle):
    """Scores of KNeighborsClassifier and KNeighborsRegressor."""

    likelihood = "neighbours"
    takes_weights = False
    fisher_note = "the identity: all votes count the same"
    implicit_penalty = 0.0  # votes are given, not fitted: there is nothing to damp

    def _inspect(self, model: Any) -> None:
        keep_layers(["votes"], self._parameters)
        self._variance = 1.0
        self.notes = self._remarks(
            f"{type(model).__name__} has no parameters besides its rows: answers show the value of "
            "each neighbour's vote, not which row would take its place",
        )

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        n, fitted = len(train), int(self._last.n_samples_fit_)
        name = type(self._last).__name__
        if n != fitted:
            raise ExemplaError(
                f"{name} was fitted on {fitted:,} rows, not on these {n:,}: give its own rows."
            )
        if n > _MAX_VOTES:
            raise ExemplaError(
                f"{name} has {n:,} rows, and exempla supports up to {_MAX_VOTES:,} because every "
                "row is a parameter: explain a surrogate (exempla.surrogate), or fit fewer rows."
            )
        kind: Any = np.float64 if self.classes is None else np.int64
        self._y: Any = np.asarray(train.codes, dtype=kind)
        if self._y.ndim > 1:
            raise ExemplaError(f"{name} has several outputs: use MultiOutputRegressor.")
        self.layers = (Layer("votes", n, 1, np.zeros(n)),)
        if self.classes is None:
            # without an argument, kneighbors returns the neighbours of every row except itself
            votes = self._votes(*self._last.kneighbors())
            mean = np.asarray(votes @ self._y).ravel() / np.asarray(votes.sum(axis=1)).ravel()
            self._variance = float(np.mean((self._y - mean) ** 2)) or 1.0

    def _votes(self, distance: np.ndarray, index: np.ndarray) -> sp.csr_array:
        """Return k_i(x), (n, training rows)."""
        how = self._last.weights
        if how == "distance":
            exact = distance == 0  # a row at no distance outvotes all others
            found = exact.any(axis=1, keepdims=True)
            values = np.where(found, exact, 1 / np.where(exact, 1.0, distance))
        else:
            values = np.ones_like(distance) if how in (None, "uniform") else how(distance)
        # normalise, so that votes do not depend on the unit of distance
        values = np.asarray(values) / np.maximum(values.mean(axis=1, keepdims=True), 1e-300)
        starts = np.arange(0, index.size + 1, index.shape[1])
        shape = (len(index), int(self._last.n_samples_fit_))
        return sp.csr_array((values.ravel(), index.ravel(), starts), shape=shape)

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield a training row's own vote, or the value of each vote for a test row."""
        self._check_labels(examples, labels)
        for at, part in self._batches(examples):
            a = self._vote_values(part, labels) if examples.is_test else self._own_votes(part)
            yield ScoreRows(at, (Factors(a, np.ones((len(at), 1))),))

    def _own_votes(self, part: SklearnExamples) -> sp.csr_array:
        own, n = np.asarray(part.origin), len(part)
        return sp.csr_array((np.ones(n), (np.arange(n), own)), shape=(n, self.layers[0].d_in))

    def _vote_values(self, part: SklearnExamples, labels: Labels) -> sp.csr_array:
        votes = self._votes(*self._last.kneighbors(part.X))
        total = np.asarray(votes.sum(axis=1)).ravel()
        rows = np.repeat(np.arange(len(total)), np.diff(votes.indptr))
        codes: Any = part.codes
        if self.classes is None:
            mean = np.asarray(votes @ self._y).ravel() / total
            pull = (codes - mean) / self._variance / total
            slope = (self._y[votes.indices] - mean[rows]) * pull[rows]
        else:
            C = len(self.classes)
            each = np.asarray(votes @ np.eye(C)[self._y]) + 1.0 / C  # Σ_i k_i [y_i = c] + ε
            total = each.sum(axis=1)
            y = codes if labels == "true" else each.argmax(axis=1)
            agrees = self._y[votes.indices] == y[rows]
            slope = agrees / each[rows, y[rows]] - 1 / total[rows]
        return sp.csr_array((votes.data * slope, votes.indices, votes.indptr), shape=votes.shape)

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield one unit row for every training row."""
        for at, part in self._batches(examples):
            yield ScoreRows(at, (Factors(self._own_votes(part), np.ones((len(at), 1))),))

    def _log_prob(self, part: SklearnExamples) -> np.ndarray:
        if self.classes is None:
            mean = self._predicted(part).reshape(-1, 1)
            return Gaussian(self._variance).log_prob(mean, part.codes)
        # predict_proba averages n_neighbors votes of mean one; add ε for every class
        k, C = int(self._last.n_neighbors), len(self.classes)
        p = (k * self._last.predict_proba(part.X) + 1.0 / C) / (k + 1.0)
        return np.log(p[np.arange(len(p)), part.codes])
