"""Nearest neighbours: every training row has a vote, and its vote is its parameter.

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

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from exempla.errors import ExemplaError
from exempla.factors import Factors
from exempla.likelihoods import Likelihood
from exempla.oracles.base import Labels, Layer, ScoreRows
from exempla.oracles.sklearn.data import SklearnBatch, SklearnExamples
from exempla.oracles.sklearn.reading import ReadingOracle, notes_of
from exempla.oracles.sklearn.unwrap import is_fitted

__all__ = ["NeighbourOracle", "is_neighbours"]

MOST_ROWS = 6144
"""Training rows that can each be a parameter: a kernel of all pairs has to fit."""
BATCH = 1024


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
        for batch in examples.batches(BATCH):
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
        for start in range(0, len(examples), BATCH):
            rows = np.arange(start, min(start + BATCH, len(examples)))
            a = self._own(examples.places(rows), (len(rows), n))
            yield ScoreRows(rows, (Factors(a, np.ones((len(rows), 1))),))

    def predict(self, examples: SklearnExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = np.concatenate([self._last.predict(b.X) for b in examples.batches(BATCH)])
        return found if self._opened.labels is None else self._opened.labels.outside(found)

    def log_likelihood(self, examples: SklearnExamples) -> np.ndarray:
        """log p(y | x) of each example under its given label, every class with its share of ε."""
        self._check_labels(examples, "true")
        found = []
        for batch in examples.batches(BATCH):
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
