"""The last linear layer of a model together with its inputs, which are computed once.

Scores at other parameters of this layer need no further pass through the model: the outputs are aθ,
and the score is a gᵀ with g = ∂ log p(y | outputs)/∂ outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exempla.arrays import Array, is_sparse
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.oracles.base import CLASS_CUT, in_float64
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.base import unwrap_estimator
from exempla.oracles.sklearn.oracle import SklearnOracle

_BATCH = 8192
_TOLERANCE = 1e-3
"""Log-likelihoods from a module's recorded inputs and from itself may differ by this much."""


@dataclass(frozen=True)
class LastLayer:
    """p(y | x) = family(a θ): one linear layer and the examples that pass through it."""

    a: Array
    """(n, d_in) inputs of the layer, its ones for a bias included; CSR if the data is."""
    codes: np.ndarray
    """Labels as the family wants them."""
    family: Likelihood
    theta: np.ndarray
    """(d_in, d_out) the fitted parameters."""
    penalty: np.ndarray
    """(d_in,) L2 coefficients of the mean loss."""
    scale: np.ndarray | None = None
    """What the estimator multiplies each example's loss by (class weights), in a refit too."""
    counts: np.ndarray | None = None
    """How often each example stands in the data (sample weights); a summary replaces these."""
    ids: np.ndarray | None = None
    """The user's own names of the examples."""

    def __len__(self) -> int:
        return int(self.a.shape[0])

    @property
    def discrete(self) -> bool:
        """Whether labels are classes."""
        return self.family.discrete

    @property
    def size(self) -> float:
        """n, or the sum of the counts."""
        return float(len(self)) if self.counts is None else float(self.counts.sum())

    def take(self, rows: np.ndarray) -> LastLayer:
        """The same layer with some of the examples."""
        named = {name: getattr(self, name) for name in ("scale", "counts", "ids")}
        some = {name: None if each is None else each[rows] for name, each in named.items()}
        return replace(self, a=self.a[rows], codes=self.codes[rows], **some)

    def batches(self, size: int = _BATCH) -> Iterator[LastLayer]:
        """The examples in order, so many at a time."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """g of each example at parameters (d_in, d_out)."""
        g = np.asarray(self.family.score(self.a @ theta, self.codes))
        return g if self.scale is None else g * self.scale[:, None]

    def fisher(self, cut: float = CLASS_CUT) -> np.ndarray:
        """Mean Fisher of the layer, (p, p) in the order of θ.ravel(), without the penalty.

        Classes with a probability of at most `cut` are left out.
        """
        d_in, d_out = self.theta.shape
        total = np.zeros((d_in, d_out, d_in, d_out))
        for part in self.batches():
            moment = part.output_moments(cut)
            for c in range(d_out):
                for e in range(c + 1):
                    scale, a = moment[:, c, e][:, None], part.a
                    scaled = a.multiply(scale).T if is_sparse(a) else (a * scale).T
                    product = scaled @ a
                    total[:, c, :, e] += product.toarray() if is_sparse(product) else product
                    total[:, e, :, c] = total[:, c, :, e]
        return total.reshape(d_in * d_out, d_in * d_out) / self.size

    def fisher_diagonal(self) -> np.ndarray:
        """The diagonal of `fisher`, for layers too wide for a matrix."""
        total = np.zeros(self.theta.shape)
        for part in self.batches():
            moment = part.output_moments()
            squares = part.a.multiply(part.a) if is_sparse(part.a) else part.a**2
            total += squares.T @ np.einsum("ncc->nc", moment)
        return total.ravel() / self.size

    def curved(self, directions: np.ndarray) -> np.ndarray:
        """E[g gᵀ]u of each example, for directions u (n, d_out) of the outputs."""
        return np.einsum("nce,ne->nc", self.output_moments(0.0), directions)

    def output_moments(self, cut: float = CLASS_CUT) -> np.ndarray:
        """E[g gᵀ] over the model's own labels, (n, d_out, d_out), as often as it counts."""
        d_out = self.theta.shape[1]
        at, root = self.family.fisher_root(self.a @ self.theta, cut)
        moment = np.zeros((len(self), d_out, d_out))
        np.add.at(moment, at, root[:, :, None] * root[:, None, :])
        for times in (self.scale, self.counts):
            moment = moment if times is None else moment * times[:, None, None]
        return moment


def read_last_layer(
    model: Any, train: Any, likelihood: Any = "auto", parameters: Any = None, device: Any = None
) -> LastLayer:
    """The model's last linear layer with the training data in it."""
    if hasattr(model, "named_modules"):
        return _read_torch_layer(model, train, likelihood, parameters, device)
    oracle = make_oracle(model, likelihood, parameters)
    if oracle.trees or not isinstance(oracle, SklearnOracle):
        inner = unwrap_estimator(model).model if oracle.trees else model
        raise UnsupportedModelError(
            f"{type(inner).__name__} cannot be summarised: k rows can stand for all data in a "
            "refit of weights, but not of the splits of trees; give a linear model, a perceptron "
            "or a torch module with a linear last layer, or use clean to leave rows out."
        )
    examples = oracle.read(train, role="train")
    if len(oracle.layers) > 1:
        # of a perceptron only the last layer is linear in what it sees
        oracle = SklearnOracle(model, likelihood, [oracle.layers[-1].name])
        examples = oracle.read(train, role="train")
    layer = next(iter(oracle.layers))
    inputs = [rows.factors[0] for rows in oracle.scores(examples)]
    a = inputs[0].join(inputs[1:]).a
    assert examples.codes is not None
    theta = oracle.theta.reshape(layer.d_in, layer.d_out)
    counts = _given_weights(train)
    scale = examples.weights
    if scale is not None and counts is not None:
        scale = np.divide(scale, counts, out=np.ones_like(scale), where=counts > 0)
    family, codes = oracle.family, examples.codes
    return LastLayer(a, codes, family, theta, layer.penalty, scale, counts, examples.ids)


def _read_torch_layer(
    model: Any, train: Any, likelihood: Any, parameters: Any, device: Any
) -> LastLayer:
    """The module's last linear layer; its inputs are recorded in one forward pass."""
    from exempla.oracles.torch.likelihood import FamilyHead
    from exempla.oracles.torch.model import unwrap_module
    from exempla.oracles.torch.oracle import TorchOracle

    name = _linear_layer(unwrap_module(model), parameters)
    oracle = TorchOracle(model, likelihood, unwrap_module(model).get_submodule(name), device)
    examples = oracle.read(train, role="train")
    if not isinstance(oracle.head, FamilyHead) or oracle.head.link != "logits":
        raise UnsupportedModelError(
            f"a model under the {oracle.likelihood} likelihood cannot be summarised: it takes one "
            "that returns logits, means or log-rates, one vector per example."
        )
    # the oracle may work on a copy on another device: the layer is found there by its name
    layer: Any = unwrap_module(oracle.model).get_submodule(name)
    seen: list[np.ndarray] = []
    handle = layer.register_forward_pre_hook(
        lambda _, inputs: seen.append(in_float64(inputs[0]))  # returns None: inputs stay
    )
    try:
        theirs = oracle.log_likelihood(examples)
    finally:
        handle.remove()
    if examples.labels is None:
        raise ExemplaError("the training data has no labels: give (X, y).")
    if any(part.ndim != 2 for part in seen):
        raise UnsupportedModelError(
            "the last linear layer sees several positions of an example: a summary needs one "
            "that sees each example once."
        )
    a, theta, codes = np.concatenate(seen), in_float64(layer.weight).T, np.asarray(examples.labels)
    if layer.bias is not None:
        theta = np.vstack([theta, in_float64(layer.bias)])
        a = np.hstack([a, np.ones((len(a), 1))])
    ours = oracle.head.family.log_prob(a @ theta, codes)
    if not np.allclose(ours, theirs, atol=_TOLERANCE, rtol=_TOLERANCE):
        raise UnsupportedModelError(
            "the chosen layer's outputs are not the model's: name the last linear layer with "
            "parameters=."
        )
    penalty, counts = np.zeros(len(theta)), _given_weights(train)
    return LastLayer(a, codes, oracle.head.family, theta, penalty, None, counts, examples.ids)


def _linear_layer(model: Any, wanted: Any) -> str:
    """Name of the wanted linear layer, or of the last one of the module."""
    from torch import nn

    if isinstance(wanted, list | tuple) and len(wanted) == 1:
        wanted = wanted[0]
    found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, module in reversed(found.items()):
        if wanted is None or module is wanted or f"{wanted}" in (name, f"{name}.weight"):
            return name
    raise UnsupportedModelError(
        f"parameters={wanted!r} is not one linear layer of the model; its linear layers are "
        f"{list(found) or 'none'}."
    )


def _given_weights(train: Any) -> np.ndarray | None:
    """The sample weights of (X, y, sample_weight)."""
    given = train[2] if isinstance(train, tuple) and len(train) == 3 else None
    return None if given is None else np.asarray(given, dtype=np.float64)
