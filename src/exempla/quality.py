"""Whether a model agrees with the labels it is explained with: stated before anything else.

A model that has hardly learned its training rows, or whose classes are in another order than the
labels, blames the wrong examples, and nothing else in the answer would show it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from exempla.data import n_rows, take_examples
from exempla.errors import ExemplaError
from exempla.kernel.embed import Embedding
from exempla.oracles.base import CLASSES

MAX_JUDGED = 2_000
"""Most rows that a model is judged on."""
MIN_JUDGED = 20
"""Fewest rows that a model is judged on."""
_LEAST_R2 = 0.05
"""R² from which on a regression has learned something."""
_POSITIONS = ("tokens", "pixels")
"""Likelihoods with a class at every position."""
_NOT_COUNTED = (-100, 255)
"""Labels of positions that do not count."""
_REORDERED_GAIN = 0.1
"""Accuracy that another order of the classes must gain before it is reported."""
_MAX_CLASSES = 300
"""Most classes whose best order is looked for."""


class Judged(NamedTuple):
    """What a model predicted for some rows, their labels, and which rows they were, in words."""

    predicted: np.ndarray
    labels: np.ndarray
    classes: bool
    rows: str
    chosen: bool = False
    """Whether the caller may have chosen these rows for being hard."""
    independent: int | None = None
    """Number of independent labels, if not all are: positions of one example are not."""

    @property
    def score(self) -> float:
        """Accuracy, or R² of numbers."""
        if self.classes:
            return float(np.mean(self.predicted.astype(str) == self.labels.astype(str)))
        error = float(np.mean((self.predicted - self.labels) ** 2))
        spread = float(np.var(self.labels.astype(np.float64)))
        return 1 - error / spread if spread > 0 else 1.0

    @property
    def baseline(self) -> float:
        """The accuracy of the majority class, or the R² of the mean."""
        if not self.classes:
            return 0.0
        return float(np.unique(self.labels, return_counts=True)[1].max() / len(self.labels))

    @property
    def spread(self) -> float:
        """Standard error of an accuracy."""
        return float(np.sqrt(self.score * (1 - self.score) / self.trials))

    @property
    def trials(self) -> int:
        """Number of independent labels."""
        return self.independent or len(self.labels)

    @property
    def poor(self) -> bool:
        """Whether it is hardly better than the baseline."""
        if self.classes:
            return self.score <= self.baseline + 2 * self.spread
        return self.score <= _LEAST_R2


def poor_sentence(found: Judged, where: str, but: str = "") -> str:
    """Return a sentence: the model is no better than the baseline, and where that was measured."""
    if found.classes:
        baseline = "the majority-class baseline"
        figures = f"accuracy {found.score:.1%} against {found.baseline:.1%}"
    else:
        baseline, figures = "predicting the mean", f"R² {found.score:.2f}"
    return (
        f"The model is hardly better than {baseline}, {where} ({figures}): {but}its explanations "
        "say little about the data."
    )


def spaced(n: int) -> np.ndarray:
    """Return at most `MAX_JUDGED` of n rows, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, MAX_JUDGED)).astype(int))


def disagreement(embedding: Embedding) -> str:
    """Return a sentence if the model has hardly learned its own training rows, or has their classes
    in another order; "" if not, or if that is not known."""
    train = embedding.train
    known = vars(train)  # looked at once for each training set
    if "_disagreement" not in known:
        known["_disagreement"] = ""
        try:
            some = train.take(spaced(len(train)))
            found = judge_examples(embedding.oracle, some, "its training rows", positions=True)
        except ExemplaError:  # what is wrong with these rows is reported where they are scored
            found = None
        if found is not None:
            poor = poor_sentence(found, f"even on {found.rows}") if found.poor else ""
            known["_disagreement"] = (found.classes and _reordered(found)) or poor
    return known["_disagreement"]


def _reordered(found: Judged) -> str:
    """Return a sentence if far more rows would be right with the classes in another order."""
    from scipy.optimize import linear_sum_assignment

    names, codes = np.unique(np.concatenate([found.predicted, found.labels]), return_inverse=True)
    if len(names) > _MAX_CLASSES:
        return ""
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, tuple(np.split(codes, 2)), 1)
    # of orders that are as good, the one that keeps most names
    rows, columns = linear_sum_assignment(counts + 1e-6 * np.eye(len(names)), maximize=True)
    share = float(counts[rows, columns].sum() / len(found.labels))
    if share <= found.score + _REORDERED_GAIN + 2 / np.sqrt(found.trials):
        return ""
    changed = [f"{names[r]} is {names[c]}" for r, c in zip(rows, columns) if r != c]
    return (
        f"The model gives {found.score:.1%} of its training rows the label they carry, and would "
        f"give {share:.1%} if its classes were numbered otherwise (what it calls "
        f"{', '.join(changed[:3])}): check the order of the classes."
    )


def _alike(predicted: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both as text, numbers written alike first (1, 1.0 and True are one class)."""
    if all(kind in "biuf" for kind in predicted.dtype.kind + labels.dtype.kind):
        predicted, labels = predicted.astype(np.float64), labels.astype(np.float64)
        if not (np.any(predicted % 1) or np.any(labels % 1)):
            predicted, labels = predicted.astype(np.int64), labels.astype(np.int64)
    return predicted.astype(str), labels.astype(str)


def judge_test(oracle: Any, test: Any, rows: str) -> Judged | None:
    """Judge a model on test data as given; None if these cannot be read in part."""
    first = test[0] if isinstance(test, tuple) else test
    try:
        n = n_rows(getattr(first, "dataset", first))  # a loader counts batches
        read = oracle.read(take_examples(test, spaced(n)), role="test")
        return judge_examples(oracle, read, rows)
    except (ExemplaError, AttributeError, TypeError, ValueError):
        return None


def judge_examples(oracle: Any, examples: Any, rows: str, positions: bool = False) -> Judged | None:
    """Judge a model on labelled examples; None if they are too few, or not one label each.

    With `positions`, a model with a class at every position is judged on all of them.
    """
    per_position = positions and oracle.likelihood in _POSITIONS
    labels = None if examples.labels is None else np.asarray(examples.labels)
    if labels is None or len(examples) < MIN_JUDGED or not (labels.ndim == 1 or per_position):
        return None
    if oracle.likelihood not in (*CLASSES, "gaussian") and not per_position:
        return None
    predicted = np.asarray(oracle.predict(examples))
    if predicted.shape != labels.shape or (labels.dtype == object and labels.ndim != 1):
        return None
    if per_position:
        counted = ~np.isin(labels, _NOT_COUNTED)
        predicted, labels = predicted[counted], labels[counted]
    if not len(labels):
        return None
    classes = oracle.likelihood != "gaussian"
    predicted, labels = _alike(predicted, labels) if classes else (predicted, labels)
    return Judged(predicted, labels, classes, rows, independent=len(examples))
