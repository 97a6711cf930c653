"""Scores of scikit-learn models: linear models and multi-layer perceptrons; see `mixture` for the
generative case.

`layers` carries the model's L2 penalty, which depends on the number of training rows and, for
least squares, on the residual variance: it is right once `read(data, role="train")` has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture

from exempla.arrays import is_sparse
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import CLASS_CUT, Labels, Layer, Oracle, ScoreRows
from exempla.oracles.likelihoods import Categorical, Gaussian, Likelihood, OneVsRest, resolve
from exempla.oracles.sklearn.anatomy import Anatomy, anatomy, has_anatomy, keep_layers, refused
from exempla.oracles.sklearn.data import ReadingOracle, SklearnBatch, SklearnExamples, notes_of
from exempla.oracles.sklearn.families import (
    class_weights,
    curvature_root,
    fitted_family,
    is_fitted_to_data,
    unit_of,
)
from exempla.oracles.sklearn.generative import (
    GenerativeOracle,
    MixtureOracle,
    NaiveBayesOracle,
    is_generative,
    is_naive_bayes,
)
from exempla.oracles.sklearn.kernels import NeighbourOracle, is_neighbours
from exempla.oracles.sklearn.unwrap import is_fitted, unwrap
from exempla.oracles.sklearn.wrappers import PartsOracle, has_parts

__all__ = ["SklearnOracle", "sklearn_oracle", "supports"]

BATCH_BYTES = 64 * 2**20
BATCH_ROWS = 4096


def sklearn_oracle(
    model: Any, likelihood: str | Likelihood = "auto", parameters: Sequence[str] | None = None
) -> Oracle:
    """The oracle of a scikit-learn model, fitted or not yet.

    `parameters` names the layers to keep: "coef" for a linear model, "layer0", "layer1", … for a
    perceptron, "weights", "means", "covariances" for a mixture (globs allowed); None keeps all.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = sklearn_oracle(LogisticRegression(max_iter=1000).fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [rows.factors[0].g.shape for rows in oracle.scores(train)]
    [(150, 3)]
    """
    maker = _maker_of(unwrap(model)[1])
    if maker is None:
        raise refused(unwrap(model)[1])
    return maker(model, likelihood, parameters)


def _maker_of(last: Any) -> Callable[..., Oracle] | None:
    """What makes the oracle of a model without its wrappers; None if nothing does."""
    if isinstance(last, type):
        return None
    if has_anatomy(last) and not has_parts(last):
        return SklearnOracle
    if isinstance(last, GaussianMixture):
        return MixtureOracle
    if is_generative(last):
        return GenerativeOracle
    if is_naive_bayes(last):
        return NaiveBayesOracle
    if is_neighbours(last):
        return NeighbourOracle
    return PartsOracle if has_parts(last) else None


def supports(model: Any) -> bool:
    """Whether `sklearn_oracle` takes this model.

    >>> from sklearn.linear_model import Ridge, RidgeClassifier
    >>> supports(Ridge()), supports(RidgeClassifier())
    (True, False)
    """
    try:
        sklearn_oracle(model)
    except UnsupportedModelError:
        return False
    return True


class SklearnOracle(ReadingOracle):
    """Scores of a model that is a stack of dense layers under a likelihood."""

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        super().__init__(model)
        auto = isinstance(likelihood, str) and likelihood == "auto"
        self._wanted = None if auto else resolve(likelihood)
        self._parameters = parameters
        self.likelihood = "auto" if self._wanted is None else self._wanted.name
        if is_fitted(model):
            self._bind()

    def _bind(self) -> None:
        """Take the model apart as it is now (it may have been refitted since)."""
        if self._moved:  # these parameters are not the model's own
            return
        self._parts: Anatomy = anatomy(self._open())
        self._likelihood = self._agreed(self._parts.likelihood)
        self.likelihood = self._likelihood.name
        self._kept = keep_layers(self._names(), self._parameters)
        # A linear model's Fisher is its Hessian, and stays exact; a network's drops what it can.
        several = isinstance(self._likelihood, Categorical | OneVsRest)
        self._cut = CLASS_CUT if several and len(self._parts.network.weights) > 1 else 0.0
        self.fisher_note = f"exact over classes above {self._cut:g}" if self._cut else "exact"
        self.notes = notes_of(self._opened.note, self._parts.note)

    def _agreed(self, own: Likelihood) -> Likelihood:
        """The model's own likelihood, unless the user fixed a Gaussian's variance."""
        wanted = self._wanted
        if wanted is None or (wanted.discrete and own.discrete):
            return own
        if wanted.name != own.name:
            raise ExemplaError(
                f"{type(self._last).__name__} was fitted under the {own.name} likelihood, so "
                f"likelihood={wanted.name!r} would not give its scores: leave it at 'auto'."
            )
        return wanted

    def _names(self) -> list[str]:
        depth = len(self._parts.network.weights)
        return ["coef"] if depth == 1 else [f"layer{i}" for i in range(depth)]

    @property
    def linear_in_inputs(self) -> bool:
        """Whether the first layer sees X as it was given: no step before it, no kernel."""
        return self._transform is None and self._parts.network.first is None

    @property
    def family(self) -> Likelihood:
        """The likelihood itself: what turns outputs and labels into scores."""
        return self._likelihood

    @property
    def theta(self) -> np.ndarray:
        """The kept layers' parameters: (d_in, d_out) blocks, the bias the last input row."""
        network = self._parts.network
        blocks = []
        for i in self._kept:
            b = network.biases[i]
            W = network.weights[i].T
            blocks.append(W if b is None else np.vstack([W, b]))
        return np.concatenate([block.ravel() for block in blocks])

    @property
    def theta_squares(self) -> list[tuple[int, float]]:
        sizes = [layer.size for layer in self.layers]
        parts = np.split(self.theta, np.cumsum(sizes)[:-1])
        return [(len(part), float(part @ part)) for part in parts]

    def at(self, theta: np.ndarray) -> SklearnOracle:
        """The same oracle at other parameters: for posterior draws and finite differences.

        It scores the examples this oracle has read; the model itself stays as it is.
        """
        theta = np.asarray(theta, dtype=np.float64)
        network = self._parts.network
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
        moved._parts = replace(
            self._parts, network=replace(network, weights=tuple(weights), biases=tuple(biases))
        )
        return moved

    # ---- reading

    @property
    def _features(self) -> int:
        return self._parts.network.n_features

    @property
    def _classes(self) -> np.ndarray | None:
        return self._parts.classes

    @property
    def _outputs(self) -> int:
        return self._parts.network.n_outputs

    @property
    def _family(self) -> Likelihood:
        return self._likelihood

    def _weights(
        self, codes: np.ndarray | None, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        parts = self._parts
        if parts.class_weight is None or parts.classes is None or codes is None:
            return sample_weight
        counted = sample_weight if parts.balanced_by_weight else None
        each = class_weights(parts.class_weight, parts.classes, codes, counted)[codes]
        return each if sample_weight is None else each * sample_weight

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        """Fit what the likelihood leaves open, and turn the model's own penalty into λ of the mean
        loss."""
        if self._parts.with_training is not None and not self._moved:
            self._parts = self._parts.with_training(train.whole())
        lam = self._parts.penalty.per_row(len(train), mean_weight)
        self._likelihood = self._fit_family(self._likelihood, train)
        # −log p is the model's loss divided by this (σ² for squares), and so must be its penalty
        lam /= unit_of(self._likelihood)
        network, names = self._parts.network, self._names()
        layers = []
        for i in self._kept:
            d_in, d_out = network.shapes[i]
            penalty = np.full(d_in, lam)
            if self._parts.column_penalty is not None:
                penalty[: len(self._parts.column_penalty)] *= self._parts.column_penalty
            if network.biases[i] is not None:
                penalty[-1] = lam * self._parts.intercept_penalty
            layers.append(Layer(names[i], d_in, d_out, penalty))
        self.layers = tuple(layers)
        self.notes = notes_of(self._opened.note, self._parts.note)

    def _fit_family(self, family: Likelihood, train: SklearnExamples) -> Likelihood:
        if not is_fitted_to_data(family):
            return family
        outputs = np.concatenate([self._outputs_of(batch) for batch in self._batches(train)])
        fitted = fitted_family(family, outputs, train.codes, train.weights)
        if isinstance(fitted, Gaussian):
            scale = float(np.mean(np.square(train.codes))) if train.codes is not None else 1.0
            if not (fitted.variance or 0.0) > 1e-20 * scale:
                raise ExemplaError(
                    f"{type(self._last).__name__} fits its training data without any residual, so "
                    "its scores are all zero: give it a penalty, or a variance with "
                    "likelihood=Gaussian(variance=...)."
                )
        return fitted

    # ---- scoring

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """One row per example, in order, in batches."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            inputs, outputs = self._parts.network.forward(batch.X)
            y = batch.codes if labels == "true" else self._likelihood.predict(outputs)
            g = self._likelihood.score(outputs, y)
            yield self._rows(batch.positions, inputs, g, batch.weights)

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Rows whose outer products sum to each example's Fisher, in batches."""
        likelihood = self._likelihood
        per_example = self._parts.network.n_outputs
        for batch in self._batches(examples, per_example):
            inputs, outputs = self._parts.network.forward(batch.X)
            at, root = curvature_root(likelihood, outputs, batch.codes, self._cut)
            w = None if batch.weights is None else np.sqrt(batch.weights[at])
            rows = self._rows(batch.positions[at], [a[at] for a in inputs], root, w)
            counted = None
            if not self._cut:
                counted = len(curvature_root(likelihood, outputs, batch.codes, CLASS_CUT)[0])
            yield replace(rows, counted=counted)

    def predict(self, examples: SklearnExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = [self._likelihood.predict(self._outputs_of(b)) for b in self._batches(examples)]
        return self._in_words(np.concatenate(found))

    def log_likelihood(self, examples: SklearnExamples) -> np.ndarray:
        """log p(y | x, θ̂) of each example under its given label."""
        self._check_labels(examples, "true")
        found = [
            self._likelihood.log_prob(self._outputs_of(b), b.codes) for b in self._batches(examples)
        ]
        return np.concatenate(found)

    def _outputs_of(self, batch: SklearnBatch) -> np.ndarray:
        return self._parts.network.forward(batch.X)[1]

    def _rows(
        self, positions: np.ndarray, inputs: list, g: np.ndarray, weights: np.ndarray | None
    ) -> ScoreRows:
        if weights is not None:
            g = g * weights[:, None]
        factors = self._parts.network.backward(inputs, g)
        return ScoreRows(positions, tuple(factors[i] for i in self._kept))

    def _batches(self, examples: SklearnExamples, copies: int = 1) -> Iterator[SklearnBatch]:
        """Batches whose factors, `copies` rows per example, stay within BATCH_BYTES."""
        width = sum(d_in + d_out for d_in, d_out in self._parts.network.shapes)
        if is_sparse(examples.X):
            width += examples.X.nnz // max(1, len(examples)) - self._parts.network.n_features
        size = BATCH_BYTES // (8 * copies * max(1, width))
        return examples.batches(int(np.clip(size, 1, BATCH_ROWS)))
