"""Dense layers in NumPy: forward to the outputs, backward to the factors (a, g) of every layer.

A linear model is a network with one layer. CSR inputs stay CSR.

`DenseModel` describes a fitted model: its layers, likelihood and penalty. Every penalty is brought
to one form: the mean over the n rows of w_i·(−log p_i), plus Σ λ/2·v² over the weights v. At a
fitted optimum therefore Σ_i w_i s_i = n·λ·v, which the tests check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from exempla.arrays import Array, is_sparse
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Likelihood

_ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    # φ(z), and φ′(z) written in h = φ(z)
    "identity": (lambda z: z, np.ones_like),
    "logistic": (expit, lambda h: h * (1 - h)),
    "tanh": (np.tanh, lambda h: 1 - h**2),
    "relu": (lambda z: np.maximum(z, 0), lambda h: (h > 0).astype(h.dtype)),
}


class _FeatureMap(Protocol):
    """A transformation of x before the first layer, without parameters."""

    @property
    def n_features(self) -> int:
        """Columns of x."""
        ...

    def __call__(self, X: Array) -> Array: ...


@dataclass(frozen=True)
class Columns:
    """Select columns of x: those with a nonzero coefficient in a sparse model.

    >>> Columns(np.array([2]), 3)(np.array([[5.0, 6.0, 7.0]]))
    array([[7.]])
    """

    kept: np.ndarray
    n_features: int

    def __call__(self, X: Array) -> Array:
        return X[:, self.kept]


@dataclass(frozen=True)
class DenseNetwork:
    """outputs = W_L φ(… φ(W_1 x + b_1) …) + b_L; a bias may be None.

    >>> import numpy as np
    >>> line = DenseNetwork((np.array([[2.0]]),), (np.array([1.0]),))
    >>> inputs, outputs = line.forward(np.array([[3.0]]))
    >>> outputs
    array([[7.]])
    >>> line.backward(inputs, np.array([[1.0]]))[0].a  # the input, and a 1 for the bias
    array([[3., 1.]])
    """

    weights: tuple[np.ndarray, ...]
    """One (d_out, d_in) matrix per layer."""
    biases: tuple[np.ndarray | None, ...]
    activation: str = "identity"
    first: _FeatureMap | None = None
    """Transformation of x before the first layer; None: none."""
    offset: float = 0.0
    """A constant added to the outputs; not a parameter."""

    @property
    def n_features(self) -> int:
        return self.weights[0].shape[1] if self.first is None else self.first.n_features

    @property
    def n_outputs(self) -> int:
        return self.weights[-1].shape[0]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(d_in, d_out) of each layer, with the bias as an additional input."""
        return [
            (W.shape[1] + (b is not None), W.shape[0]) for W, b in zip(self.weights, self.biases)
        ]

    def forward(self, X: Array) -> tuple[list[Array], np.ndarray]:
        """Return the inputs of every layer (with a column of ones for a bias), and the outputs."""
        phi = _ACTIVATIONS[self.activation][0]
        inputs, z = [], X if self.first is None else self.first(X)
        for depth, (W, b) in enumerate(zip(self.weights, self.biases)):
            h = z if depth == 0 else phi(z)
            inputs.append(h if b is None else _with_ones(h))
            z = h @ W.T if b is None else h @ W.T + b
        return inputs, z + self.offset if self.offset else z

    def backward(self, inputs: list[Array], g: np.ndarray) -> tuple[Factors, ...]:
        """Return the factors of every layer, given ∂ log p / ∂ outputs."""
        slope = _ACTIVATIONS[self.activation][1]
        factors: list[Factors] = [Factors(inputs[-1], g)]
        for depth in range(len(self.weights) - 1, 0, -1):
            h = inputs[depth][:, : self.weights[depth].shape[1]]
            g = (g @ self.weights[depth]) * slope(h)
            factors.append(Factors(inputs[depth - 1], g))
        return tuple(reversed(factors))


def _with_ones(X: Array) -> Array:
    """Append a column of ones to X; CSR stays CSR."""
    ones = np.ones((X.shape[0], 1))
    if is_sparse(X):
        return sp.csr_array(sp.hstack([X, sp.csr_array(ones)], format="csr"))
    return np.hstack([X, ones])


@dataclass(frozen=True)
class Penalty:
    """A penalty strength/2·v² on every weight v, added to a sum or a mean of losses.

    >>> Penalty(6.0, "sum").per_row(n=3, mean_weight=2.0)
    2.0
    """

    strength: float
    added_to: Literal["sum", "mean", "weighted mean"]
    batch: int | None = None
    """Rows per mini-batch, if the sum is over a mini-batch."""

    def per_row(self, n: int, mean_weight: float) -> float:
        """Return λ relative to the mean of w_i·loss_i over n rows, before any loss scale."""
        if self.added_to == "sum":
            return self.strength / min(n, self.batch or n)
        # a weighted mean divides by Σ w_i = n·mean_weight, whereas the objective divides by n
        return self.strength * (mean_weight if self.added_to == "weighted mean" else 1.0)


@dataclass(frozen=True)
class DenseModel:
    """A fitted model as dense layers under a likelihood, with its penalty."""

    network: DenseNetwork
    likelihood: Likelihood
    penalty: Penalty
    classes: np.ndarray | None = None
    class_weight: dict | str | None = None
    balanced_by_weight: bool = False
    """True if class_weight="balanced" counts examples by their weight."""
    intercept_penalty: float = 0.0
    """λ of the intercept, as a multiple of that of the weights."""
    column_penalty: np.ndarray | None = None
    """λ of each input column, as a multiple of the common one; None: all equal."""
    note: str = ""
    """A remark for every explanation: approximations, and what is left out."""
    with_training: Callable[[Any], DenseModel] | None = None
    """Returns the model once its training inputs are known, if its features depend on them."""
