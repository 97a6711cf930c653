"""Kernel machines as linear models: support vectors and Gaussian processes.

f(x) = Σ_i c_i k(x_i, x) + b is linear in φ(x), and what training can change of it lies in the span
of the training rows. In coordinates of that span,

    φ(x) = k(x, Z) V Λ^(−1/2),    k(Z, Z) = V Λ Vᵀ,

with the training rows as landmarks Z, the weights are w = φ(X)ᵀc, ‖w‖² is the machine's own penalty
cᵀKc, and everything a linear model has follows. Past `LANDMARKS` rows a part of them serves
(Nyström): the rows the machine keeps first, then others evenly spread.
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
from exempla.likelihoods import Bernoulli, Gaussian
from exempla.oracles.sklearn.dense import DenseNetwork
from exempla.oracles.sklearn.families import Margin, Tube
from exempla.oracles.sklearn.linear import margin_note, one_vs_rest_signs, tube_note
from exempla.oracles.sklearn.parts import Anatomy, Penalty

__all__ = ["KERNELS", "Span", "binary_process"]

LANDMARKS = 2048
NEGLIGIBLE = 1e-10
"""Eigenvalues of k(Z, Z) below this share of the largest are rounding."""


@dataclass(frozen=True)
class Span:
    """x in coordinates of the span of some rows in the kernel's space.

    >>> span = Span.of(np.array([[1.0, 0.0], [0.0, 2.0]]), lambda a, b: a @ b.T)
    >>> phi = span(np.array([[3.0, 4.0]]))
    >>> float((phi @ phi.T).round(9)[0, 0])  # 3² + 4²
    25.0
    """

    landmarks: Array
    kernel: Callable[[Array, Array], np.ndarray]
    directions: np.ndarray
    """V Λ^(−1/2), (landmarks, dimensions)."""

    @staticmethod
    def of(landmarks: Array, kernel: Callable[[Array, Array], np.ndarray]) -> Span:
        values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
        if values[0] < -1e-8 * values[-1]:
            raise UnsupportedModelError(
                "This kernel is not positive definite (the sigmoid is not), so it is no dot "
                "product of features and has no scores: use 'rbf', 'poly' or 'linear'."
            )
        kept = values > NEGLIGIBLE * values[-1]
        return Span(landmarks, kernel, vectors[:, kept] / np.sqrt(values[kept]))

    @property
    def n_features(self) -> int:
        return int(self.landmarks.shape[1])

    def __call__(self, X: Array) -> np.ndarray:
        return self.kernel(X, self.landmarks) @ self.directions


def spread_landmarks(kept: Array, X: Array) -> Array:
    """The rows the machine keeps, then training rows evenly spread, LANDMARKS at most."""
    n = n_rows(X)
    # up to LANDMARKS rows all of them serve, and what is kept is among them
    room = LANDMARKS if n <= LANDMARKS else max(LANDMARKS - n_rows(kept), 0)
    some = X if n <= room else take_rows(X, np.linspace(0, n - 1, room).astype(np.int64))
    if is_sparse(kept) or is_sparse(some):
        return sp.csr_array(sp.vstack([sp.csr_array(kept), sp.csr_array(some)], format="csr"))
    return np.unique(np.vstack([kept, some]), axis=0)


@dataclass(frozen=True)
class Machine:
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
        span = Span.of(landmarks, self.kernel)
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
        network = self.spanned(spread_landmarks(self.kept, X))
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
    return Machine(parts, kept, duals, bias, _svm_kernel(model)).anatomy


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
    return Machine(parts, kept, duals, bias, _svm_kernel(model)).anatomy


def _rows(kept: Any) -> Array:
    return sp.csr_array(kept) if is_sparse(kept) else np.array(kept, dtype=np.float64)


def _plain(duals: Any) -> np.ndarray:
    return np.array(duals.toarray() if is_sparse(duals) else duals, dtype=np.float64)


# ---- Gaussian processes


@dataclass(frozen=True)
class Smooth:
    """A process's kernel without its noise: what two different rows share."""

    kernel: Any

    def __call__(self, X: Array, Z: Array) -> np.ndarray:
        # with a second argument a WhiteKernel counts for nothing, even of a row with itself
        return self.kernel(np.asarray(X), np.asarray(Z))


def _gpr(model: GaussianProcessRegressor) -> Anatomy:
    """The posterior mean: ridge regression in the kernel's space, its noise the process's own."""
    kept, name = np.asarray(model.X_train_, dtype=np.float64), type(model).__name__
    kernel: Any = model.kernel_
    smooth = Smooth(kernel)
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
    return Machine(parts, kept, duals, None, smooth, scale, offset).anatomy


def _units(model: Any, f: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """Scale and offset from the process to y, where it was fitted to (y − offset)/scale."""
    if not model.normalize_y:
        return 1.0, 0.0
    said = model.predict(kept)
    spread = f - f.mean()
    scale = float(spread @ said / (spread @ spread)) if np.ptp(f) > 0 else 1.0
    return scale, float(said.mean() - scale * f.mean())


def binary_process(inner: Any, classes: np.ndarray) -> Anatomy:
    """A process under a logistic link, at the mode that its Laplace approximation is built on."""
    kept = np.asarray(inner.X_train_, dtype=np.float64)
    duals = (np.asarray(inner.y_train_, dtype=np.float64) - inner.pi_)[None, :]
    note = (
        "GaussianProcessClassifier is seen at the mode of its Laplace approximation; predict_proba "
        "averages around it, so that its probabilities are a little less extreme"
    )
    parts = Anatomy(_BLANK, Bernoulli(), Penalty(1.0, "sum"), classes=classes, note=note)
    return Machine(parts, kept, duals, None, Smooth(inner.kernel_)).anatomy


def _gpc(model: GaussianProcessClassifier) -> Anatomy:
    return binary_process(model.base_estimator_, np.asarray(model.classes_))


KERNELS: dict[type, Callable[[Any], Anatomy]] = {
    SVC: _svc,
    SVR: _svr,
    GaussianProcessRegressor: _gpr,
    GaussianProcessClassifier: _gpc,  # of two classes; more are several of these
}
