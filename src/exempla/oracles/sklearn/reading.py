"""Reading data for a scikit-learn model that has labels: what every oracle of one shares.

A subclass says in `_bind` what the fitted model is (`_features`, `_classes`, `_outputs`) and in
`_learn` what it takes from the training data.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any, Literal

import numpy as np

from exempla.arrays import is_sparse
from exempla.data import plain_labels, refuse_data, unpack
from exempla.errors import ExemplaError
from exempla.likelihoods import Likelihood
from exempla.oracles.base import Labels, Layer, Oracle
from exempla.oracles.sklearn.data import SklearnExamples, nbytes_of, prepare
from exempla.oracles.sklearn.labels import encode
from exempla.oracles.sklearn.unwrap import open_up, require_fitted

__all__ = ["ReadingOracle", "notes_of"]


class ReadingOracle(Oracle):
    """Checks the user's rows and labels against a fitted model."""

    dense_only = False
    """Whether the model cannot take sparse rows."""
    takes_weights = True
    """Whether its `fit` takes sample weights."""
    _moved = False
    _questions_all = False
    """Whether training rows are scored like questioned ones."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers: tuple[Layer, ...] = ()

    def by_prediction(self) -> ReadingOracle:
        """Training rows scored like questioned ones."""
        other = copy(self)
        other._questions_all = True
        return other

    @abstractmethod
    def _bind(self) -> None:
        """Take the model apart as it is now (it may have been refitted since)."""

    @abstractmethod
    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        """What only the training data tell; `layers` are right after this."""

    def _open(self) -> Any:
        """The fitted model inside its wrappers; remembers what is around it."""
        require_fitted(self.model)
        self._opened = open_up(self.model)
        self._transform, self._last = self._opened.transform, self._opened.last
        return self._last

    @property
    def _features(self) -> int:
        """Columns of X as the model sees them."""
        return int(self._last.n_features_in_)

    @property
    def _classes(self) -> np.ndarray | None:
        """The model's classes; None for a regression."""
        found = getattr(self._last, "classes_", None)
        return None if found is None else np.asarray(found)

    @property
    def _family(self) -> Likelihood | None:
        """What says which numbers the labels of a regression may be."""
        return None

    @property
    def _outputs(self) -> int:
        """Numbers a row that a regression predicts."""
        return 1

    def read(self, data: Any, *, role: Literal["train", "test"]) -> SklearnExamples:
        """Check the data; learn from training data what scores depend on."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        names = getattr(self._last, "feature_names_in_", None)
        X, transform = prepare(given.X, self._transform, self._features, names, problems)
        if self.dense_only and X is not None and is_sparse(X):
            problems.append(f"X is sparse, and {type(self._last).__name__} needs a dense array")
        labels = None if given.y is None else plain_labels(given.y)
        codes = None if labels is None else self._encode(labels, role, problems)
        if given.y is None and role == "train" and not problems:
            problems.append("labels are missing: give (X, y)")
        if given.weights is not None and role == "train" and not self.takes_weights:
            problems.append(
                f"{type(self._last).__name__} is fitted without sample_weight, so it has no use "
                "here"
            )
        refuse_data(problems, role)
        weights = self._weights(codes, given.weights) if role == "train" else None
        made = nbytes_of(X) if transform is not self._transform else 0
        examples = SklearnExamples(
            X, codes, weights, labels, given.ids, transform, made_bytes=made,
            questioned=self._questions_all or role == "test",
        )  # fmt: skip
        if role == "train":
            self._learn(examples, 1.0 if given.weights is None else float(given.weights.mean()))
        return examples

    def _encode(self, labels: np.ndarray, role: str, problems: list[str]) -> np.ndarray | None:
        if self._opened.labels is not None:
            labels = self._opened.labels.inside(labels)
        return encode(labels, self._classes, self._outputs, self._family, role, problems)

    def _weights(
        self, codes: np.ndarray | None, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        return sample_weight

    def _in_words(self, codes: np.ndarray) -> np.ndarray:
        """Predicted codes or numbers in the user's vocabulary."""
        said = codes if self._classes is None else self._classes[codes]
        return said if self._opened.labels is None else self._opened.labels.outside(said)

    def _check_labels(self, examples: SklearnExamples, labels: Labels) -> None:
        if labels == "true" and examples.codes is None:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and self._classes is None:
            raise ExemplaError(
                f"Under its own prediction a {self.likelihood} model's score is zero, so there is "
                "nothing to explain: give the true values as (X, y)."
            )


def notes_of(*notes: str) -> tuple[str, ...]:
    """What is to be said, each once.

    >>> notes_of("a", "", "b", "a")
    ('a', 'b')
    """
    return tuple(dict.fromkeys(note for note in notes if note))
