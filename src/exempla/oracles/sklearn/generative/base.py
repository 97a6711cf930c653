"""What all generative classifiers share: r, closed-form Fisher rows, and their predictions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.linalg

from exempla.errors import ExemplaError
from exempla.factors import Factors
from exempla.likelihoods import Likelihood
from exempla.oracles.base import CLASS_CUT, Labels, Layer, ScoreRows
from exempla.oracles.sklearn.anatomy import keep_layers
from exempla.oracles.sklearn.data import SklearnBatch, SklearnExamples
from exempla.oracles.sklearn.reading import ReadingOracle, notes_of
from exempla.oracles.sklearn.unwrap import is_fitted

__all__ = ["GenerativeBase"]

BATCH_BYTES = 64 * 2**20
CLOSED_FORM = 4096


class GenerativeBase(ReadingOracle):
    """Scores of a classifier that was fitted to log p(x, y), one dense block a layer.

    A subclass gives the gradient of log p(x, k) weighted by r (`_blocks`), and the closed-form
    Fisher as one row per coordinate (`_fisher_blocks`).
    """

    likelihood = "generative"
    fisher_note = "exact: the closed form of p(x, y)"
    names: tuple[str, ...]
    _fitted_prior: bool
    """Whether the class shares were learnt, not given."""
    _log_prior: np.ndarray

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        super().__init__(model)
        if likelihood not in ("auto", self.likelihood):
            raise ExemplaError("A generative classifier is its own likelihood: leave it at 'auto'.")
        self._parameters = parameters
        if is_fitted(model):
            self._bind()

    @abstractmethod
    def _take_apart(self, last: Any, train: SklearnExamples | None) -> None:
        """Keep what scores need; `train` is None before training data are known."""

    @abstractmethod
    def _blocks(self, X: Any, r: np.ndarray, prior: np.ndarray) -> list[np.ndarray]:
        """Σ_k r_k ∇ log p(x, k), a block a layer; `prior` is what it is for the class weights."""

    @abstractmethod
    def _fisher_blocks(self) -> list[np.ndarray]:
        """Rows of a root of the Fisher of one (x, y), a block a layer: (rows, size), or where it is
        diagonal (size,)."""

    def _bind(self) -> None:
        self._take_apart(self._open(), None)
        self.notes = notes_of(
            self._opened.note,
            f"{type(self._last).__name__} is fitted to log p(x, y) and asked for log p(y | x): "
            "training rows are scored by the first, questioned rows by the second",
        )

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        self._take_apart(self._last, train)
        blocks = self._fisher_blocks()
        kept = keep_layers(self._layer_names(), self._parameters)
        self._kept, self._roots = kept, blocks
        size = sum(blocks[i].shape[-1] for i in kept)
        if size > CLOSED_FORM:
            self.fisher_note = f"exact over classes above {CLASS_CUT:g}, at the examples' own x"
        self.layers = tuple(
            Layer(self._layer_names()[i], 1, blocks[i].shape[-1], np.zeros(1)) for i in kept
        )

    def _layer_names(self) -> list[str]:
        """The class weights come first, and only if they were fitted."""
        return list(self.names if self._fitted_prior else self.names[1:])

    @property
    def implicit_penalty(self) -> float:
        # fitted in closed form: nothing held it back from its optimum, so nothing is to be damped
        return 0.0

    def _posterior(self, X: Any) -> np.ndarray:
        return np.exp(np.asarray(self._last.predict_log_proba(X), dtype=np.float64))

    def scores(self, examples: SklearnExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """∇ log p(x, y) of training rows, ∇ log p(y | x) of questioned ones."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            p = self._posterior(batch.X)
            y = batch.codes if labels == "true" else p.argmax(axis=1)
            hot = np.eye(p.shape[1])[y]
            r = hot - p if examples.questioned else hot
            # d log π_k / d logits is e_k − π, and the r of a questioned row sum to zero
            prior = r if examples.questioned else hot - np.exp(self._log_prior)
            yield self._rows(batch, self._blocks(batch.X, r, prior))

    def _rows(self, batch: SklearnBatch, blocks: list[np.ndarray]) -> ScoreRows:
        a = np.ones((len(batch.positions), 1))
        if batch.weights is not None:
            a = a * batch.weights[:, None]
        return ScoreRows(batch.positions, tuple(Factors(a, blocks[i]) for i in self._kept))

    def fisher_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """The closed form, the same for every example; past CLOSED_FORM parameters, where its rows
        would be too many, the expectation over the model's labels at the examples themselves."""
        if self.n_parameters > CLOSED_FORM:
            return self._expected_rows(examples)
        return self._closed_rows(examples)

    def _closed_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """The closed form's rows, spread over the examples."""
        roots = block_diagonal([self._roots[i] for i in self._kept])
        n, mean = len(examples), 1.0
        if examples.weights is not None:
            mean = float(examples.weights.mean())
        total = max(n, len(roots))
        which = np.arange(total) % len(roots)
        repeats = np.bincount(which)
        sizes = np.cumsum([layer.size for layer in self.layers])[:-1]
        step = max(1, BATCH_BYTES // (8 * roots.shape[1]))
        for start in range(0, total, step):
            at = which[start : start + step]
            rows = roots[at] * np.sqrt(n * mean / repeats[at])[:, None]
            sample = np.arange(start, start + len(at)) % n
            ones = np.ones((len(at), 1))
            parts = np.split(rows, sizes, axis=1)
            yield ScoreRows(sample, tuple(Factors(ones, part) for part in parts))

    def _expected_rows(self, examples: SklearnExamples) -> Iterator[ScoreRows]:
        """√p(k|x)·∇ log p(x, k), a row for every class that carries probability."""
        for batch in self._batches(examples):
            p = self._posterior(batch.X)
            rows, classes = np.nonzero(p > CLASS_CUT)
            hot = np.eye(p.shape[1])[classes]
            root = np.sqrt(p[rows, classes])
            blocks = self._blocks(batch.X[rows], hot, hot - np.exp(self._log_prior))
            weights = root if batch.weights is None else root * np.sqrt(batch.weights[rows])
            some = SklearnBatch(batch.positions[rows], None, None, weights)
            yield self._rows(some, blocks)

    def predict(self, examples: SklearnExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = [self._posterior(b.X).argmax(axis=1) for b in self._batches(examples)]
        return self._in_words(np.concatenate(found))

    def log_likelihood(self, examples: SklearnExamples) -> np.ndarray:
        """log p(y | x) of each example under its given label."""
        self._check_labels(examples, "true")
        found = []
        for batch in self._batches(examples):
            log_p = np.asarray(self._last.predict_log_proba(batch.X), dtype=np.float64)
            found.append(log_p[np.arange(len(log_p)), batch.codes])
        return np.concatenate(found)

    def _batches(self, examples: SklearnExamples) -> Iterator[SklearnBatch]:
        width = max(self.n_parameters, self._features)
        return examples.batches(int(np.clip(BATCH_BYTES // (24 * max(1, width)), 1, 4096)))


def block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    """The layers' roots in one matrix: layers do not mix.

    >>> block_diagonal([np.array([2.0, 3.0]), np.array([[4.0]])])
    array([[2., 0., 0.],
           [0., 3., 0.],
           [0., 0., 4.]])
    """
    whole = [np.diag(block) if block.ndim == 1 else block for block in blocks]
    return np.asarray(scipy.linalg.block_diag(*whole))
