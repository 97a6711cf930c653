"""Whether a model agrees with the labels it is explained with: said before anything else.

A model that has hardly learned its training rows, or whose classes are numbered otherwise than the
labels, blames the wrong examples, and nothing else in the answer would show it."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

from exempla.data import n_rows, take_examples
from exempla.errors import ExemplaError
from exempla.influence import CLASSES
from exempla.kernel.embed import Embedding

LOOKED_AT = 2_000
"""Rows a model is tried on, evenly spaced, to see whether it learned anything."""
FEW = 20
"""With fewer rows a share says nothing."""
_LEAST_R2 = 0.05
"""R² from which on a regression has learned something."""
_POSITIONS = ("tokens", "pixels")
"""Likelihoods with a class at every position."""
_NOT_COUNTED = (-100, 255)
_SWAPPED = 0.1
"""So much more of the rows right with the classes numbered otherwise is no accident."""
_MOST_CLASSES = 300
"""Classes of which the best renaming is looked for."""
_KNOWN: dict[int, str] = {}
"""What was found of training sets that are still in use, by their identity."""


class Judged(NamedTuple):
    """What a model said about some rows, what they are, and which rows they were, in words."""

    said: np.ndarray
    labels: np.ndarray
    classes: bool
    rows: str
    chosen: bool = False
    """Whether the caller may have chosen these rows for being hard."""
    independent: int | None = None
    """How many of the labels are so, where not all: positions of one example are not."""

    @property
    def score(self) -> float:
        """Accuracy, or R² of numbers.

        >>> Judged(np.array(["a", "b"]), np.array(["a", "a"]), True, "here").score
        0.5
        """
        if self.classes:
            return float(np.mean(self.said.astype(str) == self.labels.astype(str)))
        spread = float(np.var(self.labels.astype(np.float64)))
        return 1 - float(np.mean((self.said - self.labels) ** 2)) / spread if spread > 0 else 1.0

    @property
    def baseline(self) -> float:
        """The accuracy of the majority class, or the R² of the mean."""
        if not self.classes:
            return 0.0
        return float(np.unique(self.labels, return_counts=True)[1].max() / len(self.labels))

    @property
    def trials(self) -> int:
        """How many labels are independent."""
        return self.independent or len(self.labels)

    @property
    def spread(self) -> float:
        """Standard error of an accuracy."""
        return float(np.sqrt(self.score * (1 - self.score) / self.trials))

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
    """At most `LOOKED_AT` of n rows, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(int))


def disagreement(embedding: Embedding) -> str:
    """A sentence that says if the model has hardly learned its own training rows, or numbers their
    classes otherwise; "" if not, or where that cannot be told."""
    train = embedding.train
    key = id(train)
    if key not in _KNOWN:
        found = _looked_at(embedding)
        finalize(train, _KNOWN.pop, key, None)
        _KNOWN[key] = found
    return _KNOWN[key]


def _looked_at(embedding: Embedding) -> str:
    train = embedding.train
    try:
        some = train.take(spaced(len(train)))
        found = judge_examples(embedding.oracle, some, "its training rows", positions=True)
    except ExemplaError:  # what is wrong with these rows is said where they are scored
        return ""
    if found is None:
        return ""
    otherwise = _numbered_otherwise(found) if found.classes else ""
    return otherwise or (poor_sentence(found, f"even on {found.rows}") if found.poor else "")


def _alike(said: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as text; numbers written in one way first (1, 1.0 and True are one class)."""
    kinds = said.dtype.kind + labels.dtype.kind
    if all(kind in "biuf" for kind in kinds):
        said, labels = said.astype(np.float64), labels.astype(np.float64)
        if not (np.any(said % 1) or np.any(labels % 1)):
            said, labels = said.astype(np.int64), labels.astype(np.int64)
    return said.astype(str), labels.astype(str)


def _numbered_otherwise(found: Judged) -> str:
    """A sentence if far more rows would be right with the classes numbered otherwise."""
    share, pairs = _renumbered(found.said, found.labels)
    if share <= found.score + _SWAPPED + 2 / np.sqrt(found.trials):
        return ""
    return (
        f"The model gives {found.score:.1%} of its training rows the label they carry, and would "
        f"give {share:.1%} if its classes were numbered otherwise (what it calls "
        f"{pairs}): check the order of the classes."
    )


def _renumbered(said: np.ndarray, labels: np.ndarray) -> tuple[float, str]:
    """The share right under the best renaming of the model's classes, and the changes."""
    from scipy.optimize import linear_sum_assignment

    names = np.unique(np.concatenate([said, labels]))
    if len(names) > _MOST_CLASSES:
        return 0.0, ""
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (np.searchsorted(names, said), np.searchsorted(names, labels)), 1)
    # of renamings that are as good, the one that keeps most names
    rows, columns = linear_sum_assignment(counts + 1e-6 * np.eye(len(names)), maximize=True)
    changed = [f"{names[r]} is {names[c]}" for r, c in zip(rows, columns) if r != c]
    return float(counts[rows, columns].sum() / len(labels)), ", ".join(changed[:3])


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
    if labels is None or len(examples) < FEW or not (labels.ndim == 1 or per_position):
        return None
    if oracle.likelihood not in (*CLASSES, "gaussian") and not per_position:
        return None
    said = np.asarray(oracle.predict(examples))
    if said.shape != labels.shape or (labels.dtype == object and labels.ndim != 1):
        return None
    if per_position:
        counted = ~np.isin(labels, _NOT_COUNTED)
        said, labels = said[counted], labels[counted]
    if not len(labels):
        return None
    classes = oracle.likelihood != "gaussian"
    said, labels = _alike(said, labels) if classes else (said, labels)
    return Judged(said, labels, classes, rows, independent=len(examples))
