"""Kernel machines as linear models: support vectors and Gaussian processes.

f(x) = Σ_i c_i k(x_i, x) + b is linear in φ(x), and what training can change of it lies in the span
of the training rows. In coordinates of that span,

    φ(x) = k(x, Z) V Λ^(−1/2),    k(Z, Z) = V Λ Vᵀ,

with the training rows as landmarks Z, the weights are w = φ(X)ᵀc, ‖w‖² is the machine's own penalty
cᵀKc, and everything a linear model has follows. Past `LANDMARKS` rows a part of them serves
(Nyström): the rows the machine keeps first, then others evenly spread.

Nearest neighbours: every training row has a vote, and its vote is its parameter.

A neighbour model has no parameters but its rows. Give row i the weight ω_i (one, as fitted): then

    p(c | x) = (Σ_i ω_i k_i(x) [y_i = c] + ε) / (Σ_i ω_i k_i(x) + Cε),

with k_i(x) the weight of i among the neighbours of x, zero beyond them, and ε one vote spread over
the C classes, so that a class without a neighbour is unlikely, not impossible. A questioned row's
score is ∂ log p / ∂ω, which has an entry for each of its neighbours; a training row's is its own
ω_i, and the metric is the identity. Influence is then ∂ log p(y | x)/∂ω_i: what the vote of row i
is worth. (That another row moves up when one is removed is not in it.) A regression is the mean of
its neighbours under a Gaussian with the variance that leave-one-out errors have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.svm import SVC, SVR

from exempla.arrays import Array, is_sparse
from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import Labels, Layer, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Bernoulli, Gaussian, Likelihood
from exempla.oracles.sklearn.data import ReadingOracle, SklearnBatch, SklearnExamples, notes_of
from exempla.oracles.sklearn.dense import Anatomy, DenseNetwork, Penalty
from exempla.oracles.sklearn.families import Margin, Tube
from exempla.oracles.sklearn.linear import margin_note, one_vs_rest_signs, tube_note
from exempla.oracles.sklearn.unwrap import is_fitted

LANDMARKS = 2048
_NEGLIGIBLE = 1e-10
"""Eigenvalues of k(Z, Z) below this share of the largest are rounding."""


@dataclass(frozen=True)
class _Span:
    """x in coordinates of the span of some rows in the kernel's space.

    >>> span = _Span.of(np.array([[1.0, 0.0], [0.0, 2.0]]), lambda a, b: a @ b.T)
    >>> phi = span(np.array([[3.0, 4.0]]))
    >>> float((phi @ phi.T).round(9)[0, 0])  # 3² + 4²
    25.0
    """

    landmarks: Array
    kernel: Callable[[Array, Array], np.ndarray]
    directions: np.ndarray
    """V Λ^(−1/2), (landmarks, dimensions)."""

    @staticmethod
    def of(landmarks: Array, kernel: Callable[[Array, Array], np.ndarray]) -> _Span:
        values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
        if values[0] < -1e-8 * values[-1]:
            raise UnsupportedModelError(
                "This kernel is not positive definite (the sigmoid is not), so it is no dot "
                "product of features and has no scores: use 'rbf', 'poly' or 'linear'."
            )
        kept = values > _NEGLIGIBLE * values[-1]
        return _Span(landmarks, kernel, vectors[:, kept] / np.sqrt(values[kept]))

    @property
    def n_features(self) -> int:
        return int(self.landmarks.shape[1])

    def __call__(self, X: Array) -> np.ndarray:
        return self.kernel(X, self.landmarks) @ self.directions


def _spread_landmarks(kept: Array, X: Array) -> Array:
    """The rows the machine keeps, then training rows evenly spread, LANDMARKS at most."""
    n = n_rows(X)
    # up to LANDMARKS rows all of them serve, and what is kept is among them
    room = LANDMARKS if n <= LANDMARKS else max(LANDMARKS - n_rows(kept), 0)
    some = X if n <= room else take_rows(X, np.linspace(0, n - 1, room).astype(np.int64))
    if is_sparse(kept) or is_sparse(some):
        return sp.csr_array(sp.vstack([sp.csr_array(kept), sp.csr_array(some)], format="csr"))
    return np.unique(np.vstack([kept, some]), axis=0)


@dataclass(frozen=True)
class _Machine:
    """f = scale·(duals k(kept, x)) + bias + offset, duals (outputs, kept)."""

    parts: Anatomy
    kept: Array
    duals: np.ndarray
    bias: np.ndarray | None
    kernel: Callable[[Array, Array], np.ndarray]
    scale: float = 1.0
    offset: float = 0.0

    def spanned(self, landmarks: Array) -> DenseNetwork:
        """The machine as a linear layer in the span of these rows."""
        span = _Span.of(landmarks, self.kernel)
        weights = self.scale * (self.duals @ span(self.kept))
        return DenseNetwork((weights,), (self.bias,), first=span, offset=self.offset)

    @property
    def anatomy(self) -> Anatomy:
        """As far as the machine alone tells: in the span of the rows it keeps."""
        return replace(self.parts, network=self.spanned(self.kept), with_training=self)

    def __call__(self, X: Array) -> Anatomy:
        """The same in the span of its training rows too."""
        note = self.parts.note
        if n_rows(X) > LANDMARKS:
            note += (
                f"{'; ' if note else ''}the kernel's space is seen through {LANDMARKS:,} of "
                f"{n_rows(X):,} training rows (Nyström)"
            )
        network = self.spanned(_spread_landmarks(self.kept, X))
        return replace(self.parts, network=network, note=note, with_training=self)


# ---- support vectors


def _svm_kernel(model: Any) -> Callable[[Array, Array], np.ndarray]:
    if model.kernel == "precomputed" or callable(model.kernel):
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps no rows to compare with where its kernel is precomputed "
            "or a function: name a kernel, such as 'rbf'."
        )
    # gamma="scale" is resolved in fit, and kept nowhere else
    given = {"gamma": model._gamma, "degree": model.degree, "coef0": model.coef0}
    return partial(pairwise_kernels, metric=model.kernel, filter_params=True, **given)


_BLANK = DenseNetwork((np.zeros((1, 1)),), (None,))


def _svc(model: SVC) -> Anatomy:
    classes, two = np.asarray(model.classes_), len(model.classes_) == 2
    duals, signs = _pairs(model)
    parts = Anatomy(
        _BLANK,
        Margin("hinge", one_vs_rest_signs(2) if two else signs),
        Penalty(1 / model.C, "sum"),
        classes=classes,
        class_weight=model.class_weight,
        note=margin_note(model, "hinge"),
    )
    kept, bias = _rows(model.support_vectors_), np.array(model.intercept_, dtype=np.float64)
    return _Machine(parts, kept, duals, bias, _svm_kernel(model)).anatomy


def _pairs(model: SVC) -> tuple[np.ndarray, np.ndarray]:
    """Dual coefficients of each pair of classes, (pairs, support vectors), and (classes, pairs)
    signs: of pair i < j the decision is positive for class i (for two classes: for the second)."""
    coefficients = _plain(model.dual_coef_)
    n_classes = len(model.classes_)
    if n_classes == 2:
        return coefficients, one_vs_rest_signs(2)
    owner = np.repeat(np.arange(n_classes), model.n_support_)
    rows, signs = [], []
    for i in range(n_classes):
        for j in range(i + 1, n_classes):
            row = np.where(owner == i, coefficients[j - 1], 0.0)
            rows.append(np.where(owner == j, coefficients[i], row))
            signs.append((np.arange(n_classes) == i) * 1.0 - (np.arange(n_classes) == j))
    return np.array(rows), np.array(signs).T


def _svr(model: SVR) -> Anatomy:
    duals = _plain(model.dual_coef_)
    tube = Tube(float(model.epsilon))
    parts = Anatomy(_BLANK, tube, Penalty(1 / model.C, "sum"), note=tube_note(model, False))
    kept, bias = _rows(model.support_vectors_), np.array(model.intercept_, dtype=np.float64)
    return _Machine(parts, kept, duals, bias, _svm_kernel(model)).anatomy


def _rows(kept: Any) -> Array:
    return sp.csr_array(kept) if is_sparse(kept) else np.array(kept, dtype=np.float64)


def _plain(duals: Any) -> np.ndarray:
    return np.array(duals.toarray() if is_sparse(duals) else duals, dtype=np.float64)


# ---- Gaussian processes


@dataclass(frozen=True)
class _Smooth:
    """A process's kernel without its noise: what two different rows share."""

    kernel: Any

    def __call__(self, X: Array, Z: Array) -> np.ndarray:
        # with a second argument a WhiteKernel counts for nothing, even of a row with itself
        return self.kernel(np.asarray(X), np.asarray(Z))


def _gpr(model: GaussianProcessRegressor) -> Anatomy:
    """The posterior mean: ridge regression in the kernel's space, its noise the process's own."""
    kept, name = np.asarray(model.X_train_, dtype=np.float64), type(model).__name__
    kernel: Any = model.kernel_
    smooth = _Smooth(kernel)
    noise = np.diag(kernel(kept) - smooth(kept, kept)) + model.alpha
    if np.ptp(noise) > 1e-9 * noise.max():
        raise UnsupportedModelError(
            f"{name} has a noise of its own for every row: give one number as alpha."
        )
    duals = np.asarray(model.alpha_, dtype=np.float64).reshape(len(kept), -1).T
    if len(duals) > 1:
        raise UnsupportedModelError(
            f"{name} has several outputs: use MultiOutputRegressor({name}())."
        )
    scale, offset = _units(model, (duals @ smooth(kept, kept))[0], kept)
    variance = float(noise[0]) * scale**2
    # Σ(y − f)²/2σ² + ‖w/scale‖²/2, times σ² as every Gaussian's penalty is before it is divided
    parts = Anatomy(_BLANK, Gaussian(variance), Penalty(variance / scale**2, "sum"))
    return _Machine(parts, kept, duals, None, smooth, scale, offset).anatomy


def _units(model: Any, f: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """Scale and offset from the process to y, where it was fitted to (y − offset)/scale."""
    if not model.normalize_y:
        return 1.0, 0.0
    said = model.predict(kept)
    spread = f - f.mean()
    scale = float(spread @ said / (spread @ spread)) if np.ptp(f) > 0 else 1.0
    return scale, float(said.mean() - scale * f.mean())


def _binary_process(inner: Any, classes: np.ndarray) -> Anatomy:
    """A process under a logistic link, at the mode that its Laplace approximation is built on."""
    kept = np.asarray(inner.X_train_, dtype=np.float64)
    duals = (np.asarray(inner.y_train_, dtype=np.float64) - inner.pi_)[None, :]
    note = (
        "GaussianProcessClassifier is seen at the mode of its Laplace approximation; predict_proba "
        "averages around it, so that its probabilities are a little less extreme"
    )
    parts = Anatomy(_BLANK, Bernoulli(), Penalty(1.0, "sum"), classes=classes, note=note)
    return _Machine(parts, kept, duals, None, _Smooth(inner.kernel_)).anatomy


def _gpc(model: GaussianProcessClassifier) -> Anatomy:
    return _binary_process(model.base_estimator_, np.asarray(model.classes_))


KERNELS: dict[type, Callable[[Any], Anatomy]] = {
    SVC: _svc,
    SVR: _svr,
    GaussianProcessRegressor: _gpr,
    GaussianProcessClassifier: _gpc,  # of two classes; more are several of these
}


MOST_ROWS = 6144
"""Training rows that can each be a parameter: a kernel of all pairs has to fit."""
_BATCH = 1024


def is_neighbours(model: Any) -> bool:
    """Whether this is a model of k nearest neighbours."""
    return isinstance(model, KNeighborsClassifier | KNeighborsRegressor)


class NeighbourOracle(ReadingOracle):
    """Scores of KNeighborsClassifier and KNeighborsRegressor.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = NeighbourOracle(KNeighborsClassifier(3).fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> rows = next(oracle.scores(oracle.read((X[:1], y[:1]), role="test")))
    >>> rows.factors[0].a.nnz  # an entry for each neighbour
    3
    """

    likelihood = "neighbours"
    takes_weights = False
    fisher_note = "the identity: a vote is worth a vote"

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        super().__init__(model)
        if likelihood not in ("auto", self.likelihood) or parameters is not None:
            raise ExemplaError(
                "Nearest neighbours have no likelihood and no layers to choose from: leave "
                "likelihood and parameters at their defaults."
            )
        if is_fitted(model):
            self._bind()

    def _bind(self) -> None:
        name = type(self._open()).__name__
        self.notes = notes_of(
            self._opened.note,
            f"{name} has no parameters but its rows: answers say what each neighbour's vote is "
            "worth, not which row would take its place",
        )

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        n, fitted = len(train), int(self._last.n_samples_fit_)
        if n != fitted:
            raise ExemplaError(
                f"{type(self._last).__name__} was fitted on {fitted:,} rows and the training data "
                f"have {n:,}: give the rows it was fitted on."
            )
        if n > MOST_ROWS:
            raise ExemplaError(
                f"{type(self._last).__name__} of {n:,} rows has as many votes, and up to "
                f"{MOST_ROWS:,} can be told apart here: explain a surrogate of it "
                "(exempla.surrogate), or fit it to fewer rows."
            )
        kind: Any = np.float64 if self._classes is None else np.int64
        self._y: Any = np.asarray(train.codes, dtype=kind)
        if self._y.ndim > 1:
            raise ExemplaError("Neighbours of several outputs: use MultiOutputRegressor.")
        self.layers = (Layer("votes", n, 1, np.zeros(n)),)
        self._variance = 1.0
        if self._classes is None:
            # without X: the neighbours of every training row but itself
            votes = self._votes(*self._last.kneighbors())
            mean = np.asarray(votes @ self._y).ravel() / np.asarray(votes.sum(axis=1)).ravel()
            self._variance = float(np.mean((self._y - mean) ** 2)) or 1.0

    @staticmethod
    def _own(positions: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
        ones = np.ones(len(positions))
        return sp.csr_array((ones, (np.arange(len(positions)), positions)), shape=shape)

    @property
    def implicit_penalty(self) -> float:
        return 0.0  # votes are what they are: nothing is to be damped

    def _votes(self, distance: np.ndarray, index: np.ndarray) -> sp.csr_array:
        """k_i(x), (n, training rows)."""
        how = self._last.weights
        if how == "distance":
            exact = distance == 0
            near = np.where(exact.any(axis=1, keepdims=True), exact * 1.0, 0.0)
            safe = np.where(distance > 0, distance, 1.0)
            values = np.where(exact.any(axis=1, keepdims=True), near, 1 / safe)
        else:
            values = np.ones_like(distance) if how in (None, "uniform") else how(distance)
        # comparable votes, whatever the unit of distance
        values = np.asarray(values) / np.maximum(values.mean(axis=1, keepdims=True), 1e-300)
        starts = np.arange(0, index.size + 1, index.shape[1])
        shape = (len(index), int(self._last.n_samples_fit_))
        return sp.csr_array((values.ravel(), index.ravel(), starts), shape=shape)

    def _shares(self, votes: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
        """Σ_i k_i [y_i = c] + ε, (n, C), and its sum."""
        C = len(self._classes if self._classes is not None else ())
        each = np.asarray(votes @ np.eye(C)[self._y]) + 1.0 / C
        return each, each.sum(axis=1)

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """A training row's own vote; what each vote is worth to a questioned row."""
        self._check_labels(examples, labels)
        n = self.layers[0].d_in
        for batch in examples.batches(_BATCH):
            if examples.questioned:
                a = self._worth(batch, labels)
            else:
                own = examples.places(batch.positions)
                a = self._own(own, (len(own), n))
            yield ScoreRows(batch.positions, (Factors(a, np.ones((len(batch.positions), 1))),))

    def _worth(self, batch: SklearnBatch, labels: Labels) -> sp.csr_array:
        votes = self._votes(*self._last.kneighbors(batch.X))
        codes: Any = batch.codes
        if self._classes is None:
            total = np.asarray(votes.sum(axis=1)).ravel()
            mean = np.asarray(votes @ self._y).ravel() / total
            pull = (codes - mean) / self._variance / total
            rows = np.repeat(np.arange(len(mean)), np.diff(votes.indptr))
            slope = (self._y[votes.indices] - mean[rows]) * pull[rows]
        else:
            each, total = self._shares(votes)
            y = codes if labels == "true" else each.argmax(axis=1)
            rows = np.repeat(np.arange(len(total)), np.diff(votes.indptr))
            agrees = self._y[votes.indices] == y[rows]
            slope = agrees / each[rows, y[rows]] - 1 / total[rows]
        return sp.csr_array((votes.data * slope, votes.indices, votes.indptr), shape=votes.shape)

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """One unit row for every training row."""
        n = self.layers[0].d_in
        for start in range(0, len(examples), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(examples)))
            a = self._own(examples.places(rows), (len(rows), n))
            yield ScoreRows(rows, (Factors(a, np.ones((len(rows), 1))),))

    def predict(self, examples: SklearnExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = np.concatenate([self._last.predict(b.X) for b in examples.batches(_BATCH)])
        return found if self._opened.labels is None else self._opened.labels.outside(found)

    def log_likelihood(self, examples: SklearnExamples) -> np.ndarray:
        """log p(y | x) of each example under its given label, every class with its share of ε."""
        self._check_labels(examples, "true")
        found = []
        for batch in examples.batches(_BATCH):
            if self._classes is None:
                r = batch.codes - np.asarray(self._last.predict(batch.X)).ravel()
                v = getattr(self, "_variance", 1.0)
                found.append(-(r**2 / v + np.log(2 * np.pi * v)) / 2)
                continue
            # predicted shares are those of n_neighbors votes of mean one, to which ε is added
            k, C = int(self._last.n_neighbors), len(self._classes)
            p = (k * self._last.predict_proba(batch.X) + 1.0 / C) / (k + 1.0)
            found.append(np.log(p[np.arange(len(p)), batch.codes]))
        return np.concatenate(found)
