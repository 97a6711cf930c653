"""User-supplied scores: a matrix that already exists, or functions that compute scores.

Pass `ArrayScores` (a matrix of scores), `ScoreModel` (a gradient function) or the result of
`ScoreModel.from_log_prob` (a log-likelihood function) to `Explainer` in place of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from exempla.arrays import real_numbers
from exempla.checks import check_seed, is_real, whole_number
from exempla.data import as_matrix, index_of, listing, n_rows, refuse_data, unpack
from exempla.errors import ExemplaError
from exempla.oracles.base import Factors, Labels, Layer, Oracle, RowExamples, ScoreRows

__all__ = ["ArrayOracle", "ArrayScores", "ScoreModel"]


@dataclass(frozen=True)
class ArrayScores:
    """Use a matrix of scores that already exists.

    `fit` takes the training scores and `explain` those of the test examples. Row i of a (t, P)
    matrix is ∇θ log p(y_i | x_i, θ̂). The metric is the empirical Fisher, unless `fit` is given
    `(scores, fisher)` with `fisher` of shape (t, P) or (t, c, P): c rows per training example whose
    outer products sum to E_{y ~ model}[s sᵀ].

    Parameters
    ----------
    penalty : float
        λ of an L2 penalty λ/2·‖θ‖² on the mean loss.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.oracles import make_oracle
    >>> oracle = make_oracle(ArrayScores())
    >>> train = oracle.read(np.eye(3), role="train")
    >>> oracle.n_parameters, oracle.fisher_note
    (3, 'empirical: the given scores')
    """

    penalty: float = 0.0


@dataclass(frozen=True)
class ScoreModel:
    """Describe a model by its gradient.

    Parameters
    ----------
    score : callable (x, y) -> (n, P)
        ∇θ log p(y | x, θ̂) of each row of a batch; y is None if the data have no labels.
    log_prob : callable (x, y) -> (n,), optional
        Log-likelihood of each row.
    sample : callable (x, rng) -> y, optional
        Draw labels from the model for these x (for data without labels, draw new x). With it the
        metric is the true Fisher, estimated from `draws` labels per example; without it, the
        empirical Fisher.
    predict : callable x -> y, optional
        Predicted labels, for `labels="predicted"`.
    draws : int
        Labels drawn per example.
    seed : int
        Seed of the draws.
    penalty : float
        λ of an L2 penalty λ/2·‖θ‖² on the mean loss.
    batch_size : int
        Rows per call of the functions.

    Examples
    --------
    >>> import numpy as np
    >>> slope = 2.0  # y ~ Normal(slope·x, 1)
    >>> model = ScoreModel(
    ...     score=lambda x, y: (y - slope * x)[:, None] * x[:, None],
    ...     sample=lambda x, rng: slope * x + rng.normal(size=len(x)),
    ... )
    >>> from exempla.oracles import make_oracle
    >>> oracle = make_oracle(model)
    >>> train = oracle.read((np.array([1.0, 2.0]), np.array([3.0, 4.0])), role="train")
    >>> next(oracle.scores(train)).factors[0].g
    array([[1.],
           [0.]])
    """

    score: Callable[[Any, Any], Any]
    log_prob: Callable[[Any, Any], Any] | None = None
    sample: Callable[[Any, np.random.Generator], Any] | None = None
    predict: Callable[[Any], Any] | None = None
    draws: int = 4
    seed: int = 0
    penalty: float = 0.0
    batch_size: int = 1024

    @classmethod
    def from_log_prob(
        cls,
        log_prob: Callable[[np.ndarray, Any, Any], Any],
        theta: Any,
        *,
        step: float = 1e-5,
        **options: Any,
    ) -> ScoreModel:
        """Compute the score of log p(y | x, θ) by central differences at `theta`.

        This takes 2P evaluations per batch.

        Parameters
        ----------
        log_prob : callable (theta, x, y) -> (n,)
            Log-likelihood of each row.
        theta : array-like (P,)
            The fitted parameters.
        step : float
            Step of the differences, relative to each parameter (absolute below 1).
        **options
            Other parameters of `ScoreModel`.

        Returns
        -------
        ScoreModel

        Examples
        --------
        >>> import numpy as np
        >>> normal = lambda theta, x, y: -0.5 * (y - theta[0] * x) ** 2
        >>> model = ScoreModel.from_log_prob(normal, [2.0])
        >>> model.score(np.array([1.0]), np.array([3.0])).round(6)
        array([[1.]])
        """
        theta = np.array(theta, dtype=np.float64).ravel()
        steps = step * np.maximum(1.0, np.abs(theta))

        def score(x: Any, y: Any) -> np.ndarray:
            columns = []
            for h, unit in zip(steps, np.eye(len(theta)), strict=True):
                up, down = (np.asarray(log_prob(theta + d * unit, x, y)) for d in (h, -h))
                columns.append((up - down) / (2 * h))
            return np.stack(columns, axis=1)

        return cls(score, log_prob=lambda x, y: log_prob(theta, x, y), **options)


@dataclass(frozen=True)
class _ArrayExamples(RowExamples):
    """Scores, or the data of a ScoreModel, with labels and weights."""

    fisher: np.ndarray | None = None

    per_row: ClassVar[tuple[str, ...]] = (*RowExamples.per_row, "fisher")


class ArrayOracle(Oracle):
    """Scores from `ArrayScores` or a `ScoreModel`: one block of parameters, not factored."""

    likelihood = "custom"

    def __init__(self, model: ArrayScores | ScoreModel) -> None:
        _refuse_options(model)
        self._given = isinstance(model, ArrayScores)
        if isinstance(model, ArrayScores):  # the data are the scores
            model = ScoreModel(lambda x, _: x, draws=1, penalty=model.penalty)
        self.model = model
        self._density = False  # True if the training data have no labels: p(x)
        self.fisher_note = "empirical: the given scores"
        if model.sample is not None:
            self.fisher_note = f"sampled: {model.draws} label(s) per example, seed {model.seed}"

    def read(self, data: Any, *, role: Literal["train", "test"]) -> _ArrayExamples:
        """Check the data by scoring all rows once."""
        read = self._read_scores if self._given else self._read_data
        examples = read(data, role)
        width, bad = 0, []
        for rows, batch in examples.chunks(self.model.batch_size):
            unlabelled = examples.labels is None and examples.needs_labels
            g = self._gradient(batch.X, self.predict(batch) if unlabelled else batch.labels)
            width = g.shape[1]
            bad.append(rows[~np.isfinite(g).all(axis=1)])
        if width == 0:
            raise ExemplaError(
                "score(x, y) returned no columns, so the model has no parameters: return some."
            )
        if role == "train":
            self.layers = (Layer("scores", 1, width, np.array([float(self.model.penalty)])),)
        elif self.layers and width != self.n_parameters:
            raise ExemplaError(
                f"The test scores have {width} columns but the training scores "
                f"{self.n_parameters}: both must be gradients of the same parameters."
            )
        if len(wrong := np.concatenate(bad)):
            raise ExemplaError(
                f"The {role} scores are NaN or infinite in {listing(wrong)}: leave those rows out."
            )
        return examples

    def _read_data(self, data: Any, role: str) -> _ArrayExamples:
        problems: list[str] = []
        X, y, weights, ids = unpack(data, problems)
        refuse_data(problems, role)
        if role == "train":
            self._density = y is None
        return _ArrayExamples(
            X,
            labels=None if y is None else np.asarray(y),
            weights=weights if role == "train" else None,
            ids=ids,
            needs_labels=not self._density,
        )

    def _read_scores(self, data: Any, role: str) -> _ArrayExamples:
        scores, fisher = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        try:
            matrix = np.asarray(as_matrix(scores), dtype=np.float64)
            rows = None if fisher is None else np.asarray(as_matrix(fisher), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ExemplaError(
                f"The {role} scores must be a dense matrix of real numbers ({error})."
            ) from None
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ExemplaError(
                f"The {role} scores must be a (rows, parameters) matrix with at least one row, "
                f"not of shape {matrix.shape}."
            )
        if rows is not None:
            n, width = matrix.shape
            if rows.ndim not in (2, 3) or rows.shape[0] != n or rows.shape[-1] != width:
                raise ExemplaError(
                    f"The Fisher rows have shape {rows.shape}: with scores of shape {matrix.shape} "
                    f"they must be {matrix.shape} or ({n}, rows per example, {width})."
                )
            rows = rows.reshape(n, -1, width)
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=(1, 2)))
            if len(bad):
                raise ExemplaError(f"The Fisher rows are NaN or infinite in {listing(bad)}.")
            self.fisher_note = "as given"
        return _ArrayExamples(matrix, ids=index_of(scores), fisher=rows, needs_labels=False)

    def _gradient(self, x: Any, y: Any) -> np.ndarray:
        g, n = real_numbers(self.model.score(x, y), "The result of score(x, y)"), n_rows(x)
        if g.ndim != 2 or len(g) != n:
            raise ExemplaError(
                f"score(x, y) must return one gradient per row, ({n}, parameters) here, but "
                f"returned shape {g.shape}."
            )
        return g

    def scores(self, examples: _ArrayExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield one row per example, in order, in batches."""
        if self._given and labels == "predicted":
            raise ExemplaError(
                "Given scores already fix the labels they were computed at: pass scores under the "
                "predicted labels and leave labels at 'true'."
            )
        for rows, batch in examples.chunks(self.model.batch_size):
            y = batch.labels if labels == "true" else self.predict(batch)
            g = self._gradient(batch.X, y)
            yield _dense(rows, g if batch.weights is None else g * batch.weights[:, None])

    def fisher_rows(self, examples: _ArrayExamples) -> Iterator[ScoreRows]:
        """Yield the given Fisher rows, scores at sampled labels, or the scores themselves."""
        sample = self.model.sample
        draws = 1 if sample is None else self.model.draws
        rng = np.random.default_rng(self.model.seed)
        for rows, batch in examples.chunks(self.model.batch_size):
            if batch.fisher is not None:
                each, width = batch.fisher.shape[1:]
                yield _dense(np.repeat(rows, each), batch.fisher.reshape(-1, width))
                continue
            root = 1.0 if batch.weights is None else np.sqrt(batch.weights)[:, None]
            for _ in range(draws):
                x, y = batch.X, batch.labels
                if sample is not None:
                    drawn = sample(x, rng)
                    x, y = (drawn, None) if y is None else (x, drawn)
                yield _dense(rows, self._gradient(x, y) * root / np.sqrt(draws))

    def predict(self, examples: _ArrayExamples) -> np.ndarray:
        """Return the predictions of the user's function."""
        predict = self.model.predict
        if predict is None:
            raise ExemplaError(
                "These examples have no labels and the model cannot predict any: give (X, y), or "
                "ScoreModel(predict=...)."
            )
        return np.concatenate(
            [np.asarray(predict(b.X)) for _, b in examples.chunks(self.model.batch_size)]
        )

    def log_likelihood(self, examples: _ArrayExamples) -> np.ndarray:
        """Return log p(y | x, θ̂) of each example under its given label."""
        log_prob = self.model.log_prob
        if log_prob is None:
            raise ExemplaError("This model has no log-likelihood: give ScoreModel(log_prob=...).")
        batches = examples.chunks(self.model.batch_size)
        return np.concatenate([np.asarray(log_prob(b.X, b.labels)) for _, b in batches])


def _refuse_options(model: ArrayScores | ScoreModel) -> None:
    """Raise if an option is invalid."""
    if not is_real(model.penalty) or not 0 <= model.penalty < np.inf:
        raise ExemplaError(f"penalty is {model.penalty!r}: give a finite number of at least zero.")
    if isinstance(model, ArrayScores):
        return
    for name in ("score", "log_prob", "sample", "predict"):
        function = getattr(model, name)
        if not callable(function) and (name == "score" or function is not None):
            raise ExemplaError(f"{name} is {function!r:.60}: give a function.")
    for name in ("draws", "batch_size"):
        value = getattr(model, name)
        if not whole_number(value) or value < 1:
            raise ExemplaError(f"{name} must be at least 1, a whole number, not {value!r}.")
    check_seed(model.seed)


def _dense(sample: np.ndarray, g: np.ndarray) -> ScoreRows:
    return ScoreRows(sample, (Factors(np.ones((len(g), 1)), g),))
