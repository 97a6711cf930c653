"""Kernel machines as linear models: support vectors and Gaussian processes.

f(x) = Σ_i c_i k(x_i, x) + b is linear in φ(x), and training can only change it in the span of the
training rows. In coordinates of that span,

    φ(x) = k(x, Z) V Λ^(−1/2),    k(Z, Z) = V Λ Vᵀ,

with the training rows as landmarks Z, the weights are w = φ(X)ᵀc, and ‖w‖² = cᵀKc is the machine's
own penalty; the rest follows as for a linear model. Beyond `MAX_LANDMARKS` rows a subset is used
(Nyström): the support vectors first, then training rows at even distances.
"""

from __future__ import annotations

from collections.abc import Callable
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
from exempla.errors import UnsupportedModelError
from exempla.oracles.likelihoods import Bernoulli, Gaussian, Likelihood
from exempla.oracles.sklearn.losses import Margin, Tube
from exempla.oracles.sklearn.oracle import DenseModel

__all__ = ["read_kernel"]

MAX_LANDMARKS = 2048
_ROUNDING_SHARE = 1e-10
"""Eigenvalues of k(Z, Z) below this fraction of the largest are rounding errors."""


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
    """Return the machine's own rows, then evenly spaced training rows, MAX_LANDMARKS at most."""
    n = n_rows(X)
    # up to MAX_LANDMARKS training rows, all of them are used; the machine's own are among them
    room = MAX_LANDMARKS if n <= MAX_LANDMARKS else max(MAX_LANDMARKS - n_rows(kept), 0)
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
            if n_rows(X) > MAX_LANDMARKS:
                note += (
                    f"{'; ' if note else ''}the kernel's feature space is approximated with "
                    f"{MAX_LANDMARKS:,} of {n_rows(X):,} training rows (Nyström)"
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


def _svc(model: SVC) -> DenseModel:
    duals, signs = _pairs(model)
    return _vectors(model, duals).dense(
        Margin("hinge", signs),
        1 / model.C,
        classes=np.asarray(model.classes_),
        class_weight=model.class_weight,
    )


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
    classes = np.asarray(model.classes_)
    machine = _Machine(kept, duals, _Smooth(inner.kernel_))
    return machine.dense(Bernoulli(), 1.0, classes=classes, note=note)


def read_kernel(model: Any) -> DenseModel:
    """Read a fitted kernel machine as a linear model in the kernel's feature space."""
    if isinstance(model, SVC):
        return _svc(model)
    if isinstance(model, SVR):
        machine = _vectors(model, _plain(model.dual_coef_))
        return machine.dense(Tube(float(model.epsilon)), 1 / model.C)
    # a classifier of two classes; see wrappers.py for more
    return _gpr(model) if isinstance(model, GaussianProcessRegressor) else _gpc(model)
