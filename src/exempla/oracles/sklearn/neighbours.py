"""Nearest neighbours: every training row has a vote, and its vote is its parameter.

A neighbour model has no parameters besides its rows. Give row i the weight ω_i (1 as fitted). Then

    p(c | x) = (Σ_i ω_i k_i(x) [y_i = c] + ε) / (Σ_i ω_i k_i(x) + Cε),

where k_i(x) is the weight of i among the neighbours of x (zero for all other rows), and Cε is one
vote spread over the C classes, so that a class without a neighbour is unlikely, not impossible. The
score of a test row is ∂ log p / ∂ω, with one entry for each of its neighbours; that of a training
row is its own ω_i, and the metric is the identity. Influence is therefore ∂ log p(y | x)/∂ω_i, the
value of row i's vote. It does not account for the row that would take its place. A regression is
the mean of its neighbours under a Gaussian with the variance of the leave-one-out errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from exempla.errors import ExemplaError
from exempla.oracles.base import Labels, Layer, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.base import Batch, FittedOracle, SklearnExamples

MAX_ROWS = 6144
"""Training rows that can each be a parameter: the kernel of all pairs has to fit in memory."""
_BATCH_ROWS = 1024


class NeighbourOracle(FittedOracle):
    """Scores of KNeighborsClassifier and KNeighborsRegressor.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = NeighbourOracle(KNeighborsClassifier(3).fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> rows = next(oracle.scores(oracle.read((X[:1], y[:1]), role="test")))
    >>> rows.factors[0].a.nnz  # an entry for each neighbour
    3
    """

    likelihood = "neighbours"
    takes_weights = False
    fisher_note = "the identity: all votes count the same"

    @property
    def implicit_penalty(self) -> float:
        return 0.0  # votes are given, not fitted: there is nothing to damp

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        if parameters is not None:
            raise ExemplaError(
                "Nearest neighbours have no layers to choose from: leave parameters at None."
            )
        super().__init__(model, likelihood)

    def _inspect(self, model: Any) -> None:
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
                f"{name} was fitted on {fitted:,} rows and the training data have {n:,}: give the "
                "rows it was fitted on."
            )
        if n > MAX_ROWS:
            raise ExemplaError(
                f"{name} has {n:,} rows, and exempla supports up to {MAX_ROWS:,} because every row "
                "is a parameter: explain a surrogate (exempla.surrogate), or fit fewer rows."
            )
        kind: Any = np.float64 if self._classes is None else np.int64
        self._y: Any = np.asarray(train.codes, dtype=kind)
        if self._y.ndim > 1:
            raise ExemplaError(f"{name} has several outputs: use MultiOutputRegressor.")
        self.layers = (Layer("votes", n, 1, np.zeros(n)),)
        if self._classes is None:
            # without an argument, kneighbors returns the neighbours of every row except itself
            votes = self._votes(*self._last.kneighbors())
            mean = np.asarray(votes @ self._y).ravel() / np.asarray(votes.sum(axis=1)).ravel()
            self._variance = float(np.mean((self._y - mean) ** 2)) or 1.0

    def _votes(self, distance: np.ndarray, index: np.ndarray) -> sp.csr_array:
        """Return k_i(x), (n, training rows)."""
        how = self._last.weights
        if how == "distance":
            exact = distance == 0
            near = np.where(exact.any(axis=1, keepdims=True), exact * 1.0, 0.0)
            safe = np.where(distance > 0, distance, 1.0)
            values = np.where(exact.any(axis=1, keepdims=True), near, 1 / safe)
        else:
            values = np.ones_like(distance) if how in (None, "uniform") else how(distance)
        # normalise, so that votes do not depend on the unit of distance
        values = np.asarray(values) / np.maximum(values.mean(axis=1, keepdims=True), 1e-300)
        starts = np.arange(0, index.size + 1, index.shape[1])
        shape = (len(index), int(self._last.n_samples_fit_))
        return sp.csr_array((values.ravel(), index.ravel(), starts), shape=shape)

    def _batches(self, examples: SklearnExamples, copies: int = 1) -> Iterator[Batch]:
        return examples.batches(_BATCH_ROWS)

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield a training row's own vote, or the value of each vote for a test row."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            if examples.is_test:
                a = self._vote_values(batch, labels)
            else:
                a = self._own_votes(examples.places(batch.positions))
            yield ScoreRows(batch.positions, (Factors(a, np.ones((len(batch.positions), 1))),))

    def _own_votes(self, positions: np.ndarray) -> sp.csr_array:
        n, width = len(positions), self.layers[0].d_in
        return sp.csr_array((np.ones(n), (np.arange(n), positions)), shape=(n, width))

    def _vote_values(self, batch: Batch, labels: Labels) -> sp.csr_array:
        votes = self._votes(*self._last.kneighbors(batch.inputs))
        total = np.asarray(votes.sum(axis=1)).ravel()
        rows = np.repeat(np.arange(len(total)), np.diff(votes.indptr))
        codes: Any = batch.codes
        if self._classes is None:
            mean = np.asarray(votes @ self._y).ravel() / total
            pull = (codes - mean) / self._variance / total
            slope = (self._y[votes.indices] - mean[rows]) * pull[rows]
        else:
            C = len(self._classes)
            each = np.asarray(votes @ np.eye(C)[self._y]) + 1.0 / C  # Σ_i k_i [y_i = c] + ε
            total = each.sum(axis=1)
            y = codes if labels == "true" else each.argmax(axis=1)
            agrees = self._y[votes.indices] == y[rows]
            slope = agrees / each[rows, y[rows]] - 1 / total[rows]
        return sp.csr_array((votes.data * slope, votes.indices, votes.indptr), shape=votes.shape)

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """Yield one unit row for every training row."""
        for rows, _ in examples.chunks(_BATCH_ROWS):
            a = self._own_votes(examples.places(rows))
            yield ScoreRows(rows, (Factors(a, np.ones((len(rows), 1))),))

    def _predicted(self, batch: Batch) -> np.ndarray:
        return np.asarray(self._last.predict(batch.inputs))

    def _log_prob(self, batch: Batch) -> np.ndarray:
        if self._classes is None:
            r, v = batch.codes - self._predicted(batch).ravel(), self._variance
            return -(r**2 / v + np.log(2 * np.pi * v)) / 2
        # predict_proba averages n_neighbors votes of mean one; add ε for every class
        k, C = int(self._last.n_neighbors), len(self._classes)
        p = (k * self._last.predict_proba(batch.inputs) + 1.0 / C) / (k + 1.0)
        return np.log(p[np.arange(len(p)), batch.codes])
