"""Scores of models that are dense layers under a likelihood: linear models, kernels, perceptrons.

`layers` carries the model's L2 penalty, which depends on the number of training rows and, for least
squares, on the residual variance. It is correct once `read(data, role="train")` has returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT, Layer, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Categorical, OneVsRest
from exempla.oracles.sklearn.base import BATCH_BYTES, OutputOracle, keep_layers
from exempla.oracles.sklearn.data import Batch, SklearnExamples, class_weights
from exempla.oracles.sklearn.kernels import KERNELS
from exempla.oracles.sklearn.linear import LINEAR, DenseModel

__all__ = ["SklearnOracle", "is_dense", "read_dense"]

MAX_BATCH_ROWS = 4096
_READERS = {**LINEAR, **KERNELS}


def is_dense(model: Any) -> bool:
    """Return True if `read_dense` knows this class of model, fitted or not."""
    return isinstance(model, tuple(_READERS))


def read_dense(model: Any) -> DenseModel:
    """Read a fitted model as dense layers under a likelihood.

    >>> from sklearn.linear_model import Ridge
    >>> read_dense(Ridge(alpha=2.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 1.0])).likelihood
    Gaussian(variance=None)
    """
    # the nearest ancestor that has a reader
    kind = next(kind for kind in type(model).__mro__ if kind in _READERS)
    return _READERS[kind](model)


class SklearnOracle(OutputOracle):
    """Scores of a model that is a stack of dense layers under a likelihood.

    `parameters` names the layers to keep: "coef" for a linear model, "layer0", "layer1", … for a
    perceptron (globs allowed); None keeps all.
    """

    def _inspect(self, model: Any) -> None:
        self._dense = read_dense(model)
        self.family = self._agree(self._dense.likelihood)
        self.likelihood = self.family.name
        depth = len(self._dense.network.weights)
        self._names = ["coef"] if depth == 1 else [f"layer{i}" for i in range(depth)]
        self._kept = keep_layers(self._names, self._parameters)
        # a linear model's Fisher is its Hessian and stays exact; a network's drops rare classes
        self._drop_rare_classes(depth > 1 and isinstance(self.family, Categorical | OneVsRest))
        self.notes = self._remarks(self._dense.note)

    @property
    def linear_in_inputs(self) -> bool:
        """True if the first layer sees X as given: no step before it, and no kernel."""
        return self._transform is None and self._dense.network.first is None

    @property
    def n_features(self) -> int:
        """Number of columns of X that the model sees."""
        return self._features

    # ---- parameters

    @property
    def theta(self) -> np.ndarray:
        """The kept layers' parameters: (d_in, d_out) blocks with the bias as last input row."""
        network, blocks = self._dense.network, []
        for i in self._kept:
            W, b = network.weights[i].T, network.biases[i]
            blocks.append((W if b is None else np.vstack([W, b])).ravel())
        return np.concatenate(blocks)

    @property
    def theta_squares(self) -> list[tuple[int, float]]:
        sizes = [layer.size for layer in self.layers]
        parts = np.split(self.theta, np.cumsum(sizes)[:-1])
        return [(len(part), float(part @ part)) for part in parts]

    def at(self, theta: np.ndarray) -> SklearnOracle:
        """Return the same oracle at other parameters, for posterior draws and finite differences.

        It scores the examples that this oracle has read. The model itself is not changed.
        """
        theta = np.asarray(theta, dtype=np.float64)
        network = self._dense.network
        sizes = [d_in * d_out for d_in, d_out in (network.shapes[i] for i in self._kept)]
        if theta.shape != (sum(sizes),):
            raise ExemplaError(f"theta has shape {theta.shape}; give ({sum(sizes)},) numbers.")
        weights, biases = list(network.weights), list(network.biases)
        for i, part in zip(self._kept, np.split(theta, np.cumsum(sizes)[:-1]), strict=True):
            block = part.reshape(network.shapes[i])
            if biases[i] is not None:
                block, biases[i] = block[:-1], block[-1]
            weights[i] = block.T
        moved = copy(self)
        moved._moved = True
        network = replace(network, weights=tuple(weights), biases=tuple(biases))
        moved._dense = replace(self._dense, network=network)
        return moved

    # ---- reading

    @property
    def _features(self) -> int:
        return self._dense.network.n_features

    @property
    def _classes(self) -> np.ndarray | None:
        return self._dense.classes

    @property
    def _n_outputs(self) -> int:
        return self._dense.network.n_outputs

    def _row_weights(self, codes: Any, sample_weight: np.ndarray | None) -> np.ndarray | None:
        dense = self._dense
        if dense.class_weight is None or dense.classes is None or codes is None:
            return sample_weight
        counted = sample_weight if dense.balanced_by_weight else None
        each = class_weights(dense.class_weight, dense.classes, codes, counted)[codes]
        return each if sample_weight is None else each * sample_weight

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        """Estimate the likelihood's scale and express the penalty as λ of the mean loss."""
        if self._dense.with_training is not None and not self._moved:
            self._dense = self._dense.with_training(train.whole())
        self.family = self._fit_family(
            train, "give it a penalty, or a variance with likelihood=Gaussian(variance=...)"
        )
        # −log p is the model's loss divided by loss_scale (σ² for squares), and so is its penalty
        lam = self._dense.penalty.per_row(len(train), mean_weight) / self.family.loss_scale
        network, layers = self._dense.network, []
        for i in self._kept:
            d_in, d_out = network.shapes[i]
            penalty = np.full(d_in, lam)
            if self._dense.column_penalty is not None:
                penalty[: len(self._dense.column_penalty)] *= self._dense.column_penalty
            if network.biases[i] is not None:
                penalty[-1] = lam * self._dense.intercept_penalty
            layers.append(Layer(self._names[i], d_in, d_out, penalty))
        self.layers = tuple(layers)
        self.notes = self._remarks(self._dense.note)

    # ---- scoring

    def _forward(self, inputs: Any) -> tuple[np.ndarray, Any]:
        activations, outputs = self._dense.network.forward(inputs)
        return outputs, activations

    def _factors(self, state: Any, g: np.ndarray, at: np.ndarray | None) -> tuple[Factors, ...]:
        inputs = state if at is None else [a[at] for a in state]
        factors = self._dense.network.backward(inputs, g)
        return tuple(factors[i] for i in self._kept)

    def _counted(self, rows: ScoreRows, outputs: np.ndarray, batch: Batch) -> ScoreRows:
        if self._cut:
            return rows
        return replace(
            rows, counted=len(self.family.curvature_root(outputs, batch.codes, CLASS_CUT)[0])
        )

    def _batches(self, examples: SklearnExamples, copies: int = 1) -> Iterator[Batch]:
        width = sum(d_in + d_out for d_in, d_out in self._dense.network.shapes)
        if is_sparse(examples.X):
            width += examples.X.nnz // max(1, len(examples)) - self._dense.network.n_features
        size = BATCH_BYTES // (8 * copies * max(1, width))
        return examples.batches(int(np.clip(size, 1, MAX_BATCH_ROWS)))
