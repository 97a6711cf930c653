"""Base classes of the oracles of fitted estimators: scikit-learn's and ensembles of trees.

`FittedOracle` unwraps the model, checks the user's rows and labels against it, and converts labels.
`OutputOracle` adds the scores of models whose outputs feed a likelihood: ∂ log p/∂ outputs times
the gradient of the outputs.
"""

from __future__ import annotations

import fnmatch
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Literal

import numpy as np

from exempla.arrays import is_sparse, nbytes_of
from exempla.data import plain_labels, refuse_data, unpack
from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT, Examples, Labels, Layer, Oracle, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Gaussian, Likelihood, resolve
from exempla.oracles.sklearn.data import Batch, SklearnExamples, encode, prepare
from exempla.oracles.sklearn.losses import AsymmetricLaplace, Huber
from exempla.oracles.sklearn.unwrap import is_fitted, require_fitted, unwrap

BATCH_BYTES = 64 * 2**20
"""Memory of the factors of one batch, in bytes."""
MAX_BATCH_ROWS = 4096


class FittedOracle(Oracle):
    """An oracle of a fitted estimator that may be wrapped.

    Subclasses read the estimator in `_inspect`, learn from training data in `_learn`, and set
    `layers` at the latest there. A subclass with a fixed `likelihood` accepts no other.
    """

    dense_only = False
    """True if the model cannot take sparse rows."""
    takes_weights = True
    """True if the model's `fit` takes sample weights."""
    needs_labels = True
    """False for densities p(x)."""
    _moved = False
    """True if the parameters are not the model's own (see `at`)."""
    _as_test = False
    """True if training rows are scored like test rows."""

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        self.model, self._parameters = model, parameters
        self.layers: tuple[Layer, ...] = ()
        self._wanted: Likelihood | None = None
        auto = isinstance(likelihood, str) and likelihood == "auto"
        fixed = getattr(type(self), "likelihood", None)
        if fixed is None:
            self._wanted = None if auto else resolve(likelihood)
            self.likelihood = "auto" if self._wanted is None else self._wanted.name
        elif not auto and likelihood != fixed:
            raise ExemplaError(
                f"{type(unwrap(model).model).__name__} defines its own likelihood: leave "
                "likelihood at 'auto'."
            )
        if self._is_fitted():
            self._bind()

    def by_prediction(self) -> FittedOracle:
        """Return an oracle that scores training rows the way it scores test rows."""
        other = copy(self)
        other._as_test = True
        return other

    @property
    def classes(self) -> np.ndarray | None:
        """The labels in the order of their codes; None for a regression."""
        return self._classes

    # ---- hooks

    @abstractmethod
    def _inspect(self, model: Any) -> None:
        """Read the unwrapped, fitted model."""

    @abstractmethod
    def _learn(self, train: Any, mean_weight: float) -> None:
        """Learn from the training data what scores depend on; `layers` are set after this."""

    @property
    def _features(self) -> int:
        """Number of columns of X that the model sees."""
        return int(self._last.n_features_in_)

    @property
    def _classes(self) -> np.ndarray | None:
        """The model's classes; None for a regression."""
        found = getattr(self._last, "classes_", None)
        return None if found is None else np.asarray(found)

    @property
    def _n_outputs(self) -> int:
        """Numbers per row that the model puts out."""
        return 1

    def _row_weights(self, codes: Any, sample_weight: np.ndarray | None) -> np.ndarray | None:
        """Return the training weight of each row, class weights included."""
        return sample_weight

    # ---- reading

    def _is_fitted(self) -> bool:
        return is_fitted(self.model)

    def _bind(self) -> None:
        """Read the model in its present state; it may have been refitted since."""
        if self._moved:
            return
        if not self._is_fitted():
            require_fitted(self.model)
        self._unwrapped = unwrap(self.model)
        self._transform, self._last = self._unwrapped.transform, self._unwrapped.model
        self._inspect(self._last)

    def _agree(self, own: Likelihood) -> Likelihood:
        """Return the model's own likelihood, or the user's if it only fixes the variance."""
        wanted = self._wanted
        if wanted is None or (wanted.discrete and own.discrete):
            return own
        if wanted.name != own.name:
            raise ExemplaError(
                f"{type(self._last).__name__} was fitted under the {own.name} likelihood, so "
                f"likelihood={wanted.name!r} would not give its scores: leave it at 'auto'."
            )
        return wanted

    def _remarks(self, *notes: str) -> tuple[str, ...]:
        """Return the notes of unwrapping and these, each once."""
        return tuple(dict.fromkeys(note for note in (self._unwrapped.note, *notes) if note))

    def read(self, data: Any, *, role: Literal["train", "test"]) -> Any:
        """Check the data; learn from training data what scores depend on."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        X, transform = self._check_rows(given.X, problems)
        labels = None if given.y is None else plain_labels(given.y)
        codes = None
        if labels is not None and self.needs_labels:
            codes = self._encode(labels, role, problems)
        if labels is None and self.needs_labels and role == "train" and not problems:
            problems.append("labels are missing: give (X, y)")
        if given.weights is not None and role == "train" and not self.takes_weights:
            problems.append(
                f"{type(self._last).__name__} is fitted without sample_weight, so it has no use "
                "here"
            )
        refuse_data(problems, role)
        weights = self._row_weights(codes, given.weights) if role == "train" else None
        examples = self._examples(X, transform, role, codes=codes, weights=weights, labels=labels,
                                  ids=given.ids, needs_labels=self.needs_labels)  # fmt: skip
        if role == "train":
            self._learn(examples, 1.0 if given.weights is None else float(given.weights.mean()))
        return examples

    def _check_rows(self, X: Any, problems: list[str]) -> tuple[Any, Any]:
        """Return the checked rows and the transform that remains."""
        names = getattr(self._last, "feature_names_in_", None)
        X, transform = prepare(X, self._transform, self._features, names, problems)
        if self.dense_only and X is not None and is_sparse(X):
            problems.append(f"X is sparse, and {type(self._last).__name__} needs a dense array")
        return X, transform

    def _examples(self, X: Any, transform: Any, role: str, **fields: Any) -> Examples:
        return SklearnExamples(
            X,
            transform=transform,
            made_bytes=nbytes_of(X) if transform is not self._transform else 0,
            is_test=self._as_test or role == "test",
            **fields,
        )

    def _encode(self, labels: np.ndarray, role: str, problems: list[str]) -> np.ndarray | None:
        if self._unwrapped.labels is not None:
            labels = self._unwrapped.labels.inside(labels)
        family = getattr(self, "family", None)
        return encode(labels, self._classes, self._n_outputs, family, role, problems)

    def _to_labels(self, predicted: np.ndarray) -> np.ndarray:
        """Convert predicted class codes or numbers to the user's vocabulary."""
        found = predicted if self._classes is None else self._classes[predicted]
        return found if self._unwrapped.labels is None else self._unwrapped.labels.outside(found)

    def _check_labels(self, examples: Any, labels: Labels) -> None:
        if labels == "true" and examples.codes is None:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and self._classes is None:
            raise ExemplaError(
                f"Under its own prediction a {self.likelihood} model's score is zero, so "
                "there is nothing to explain: give the true values as (X, y)."
            )


class OutputOracle(FittedOracle):
    """An oracle whose scores are ∂ log p/∂ outputs times the gradient of the outputs.

    Subclasses compute the outputs of a batch in `_forward` and the factors in `_factors`.
    """

    family: Likelihood
    """The likelihood that turns outputs and labels into scores."""
    _cut = 0.0
    """Probability below which a class is dropped from the Fisher."""

    @abstractmethod
    def _batches(self, examples: Any, copies: int = 1) -> Iterator[Batch]:
        """Yield batches whose factors, `copies` rows per example, stay within BATCH_BYTES."""

    @abstractmethod
    def _forward(self, inputs: Any) -> tuple[np.ndarray, Any]:
        """Return the outputs of a batch, and what `_factors` needs."""

    @abstractmethod
    def _factors(self, state: Any, g: np.ndarray, at: np.ndarray | None) -> tuple[Factors, ...]:
        """Return the factors of rows with these output gradients, taken at these examples."""

    def _outputs_and_codes(self, examples: Any) -> Iterator[tuple[np.ndarray, Any]]:
        return ((self._forward(b.inputs)[0], b.codes) for b in self._batches(examples))

    def _drop_rare_classes(self, drop: bool) -> None:
        self._cut = CLASS_CUT if drop else 0.0
        self.fisher_note = f"exact over classes above {CLASS_CUT:g}" if drop else "exact"

    def _fit_family(self, train: Any, advice: str) -> Likelihood:
        """Return the likelihood with its scale estimated from the training residuals."""
        parts = list(self._outputs_and_codes(train))
        outputs, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        fitted = self.family.fitted(outputs, y, train.weights)
        in_squares = isinstance(fitted, Gaussian | Huber | AsymmetricLaplace)
        rounding = 1e-20 * float(np.mean(np.square(y, dtype=np.float64))) if in_squares else 0.0
        if not fitted.loss_scale > rounding:
            raise ExemplaError(
                f"{type(self._last).__name__} fits its training data without any residual, so its "
                f"scores are all zero: {advice}."
            )
        return fitted

    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield one row per example, in order, in batches."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            outputs, state = self._forward(batch.inputs)
            y = batch.codes if labels == "true" else self.family.predict(outputs)
            g = self.family.score(outputs, y)
            if batch.weights is not None:
                g = g * batch.weights[:, None]
            yield ScoreRows(batch.positions, self._factors(state, g, None))

    def fisher_rows(self, examples: Any) -> Iterator[ScoreRows]:
        """Yield rows whose outer products sum to each example's Fisher, in batches."""
        for batch in self._batches(examples, self._n_outputs):
            outputs, state = self._forward(batch.inputs)
            at, root = self.family.curvature_root(outputs, batch.codes, self._cut)
            if batch.weights is not None:
                root = root * np.sqrt(batch.weights[at])[:, None]
            rows = ScoreRows(batch.positions[at], self._factors(state, root, at))
            yield self._counted(rows, outputs, batch)

    def _counted(self, rows: ScoreRows, outputs: np.ndarray, batch: Batch) -> ScoreRows:
        return rows

    def predict(self, examples: Any) -> np.ndarray:
        """Return the model's predictions, in the user's label vocabulary."""
        found = [self.family.predict(outputs) for outputs, _ in self._outputs_and_codes(examples)]
        return self._to_labels(np.concatenate(found))

    def log_likelihood(self, examples: Any) -> np.ndarray:
        """Return log p(y | x, θ̂) of each example under its given label."""
        self._check_labels(examples, "true")
        pairs = self._outputs_and_codes(examples)
        return np.concatenate([self.family.log_prob(outputs, y) for outputs, y in pairs])


def keep_layers(names: list[str], wanted: Sequence[str] | str | None) -> list[int]:
    """Return the positions of the wanted layers, given by name or glob; all of them for None.

    >>> keep_layers(["layer0", "layer1", "layer2"], ["layer2", "*0"])
    [0, 2]
    """
    if wanted is None:
        return list(range(len(names)))
    listed = wanted if isinstance(wanted, Sequence) else ()
    globs = [wanted] if isinstance(wanted, str) else list(listed)
    if not all(isinstance(glob, str) for glob in globs):
        globs = []
    if not globs or any(not fnmatch.filter(names, glob) for glob in globs):
        raise ExemplaError(
            f"parameters must name some of {names} (globs allowed), not {wanted!r:.80}."
        )
    return [i for i, name in enumerate(names) if any(fnmatch.fnmatchcase(name, g) for g in globs)]
