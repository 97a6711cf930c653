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

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from exempla.errors import ExemplaError
from exempla.oracles.base import Factors, Labels, Layer, ScoreRows
from exempla.oracles.likelihoods import Gaussian
from exempla.oracles.sklearn.base import FittedOracle, SklearnExamples, keep_layers

MAX_ROWS = 6144
"""Training rows that can each be a parameter: the kernel of all pairs has to fit in memory."""


class NeighbourOracle(FittedOracle):
    """Scores of KNeighborsClassifier and KNeighborsRegressor."""

    likelihood = "neighbours"
    takes_weights = False
    fisher_note = "the identity: all votes count the same"

    @property
    def implicit_penalty(self) -> float:
        return 0.0  # votes are given, not fitted: there is nothing to damp

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
        if n > MAX_ROWS:
            raise ExemplaError(
                f"{name} has {n:,} rows, and exempla supports up to {MAX_ROWS:,} because every row "
                "is a parameter: explain a surrogate (exempla.surrogate), or fit fewer rows."
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
