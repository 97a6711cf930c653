"""Whether a model agrees with the labels it is explained with: said before anything else.

A model that has hardly learned its training rows, or whose classes are numbered otherwise than the
labels, blames the wrong examples, and nothing else in the answer would show it.
"""

from __future__ import annotations

from weakref import finalize

import numpy as np

from exempla.effect import CLASSES
from exempla.embedding import Embedding
from exempla.errors import ExemplaError

__all__ = ["disagreement"]

LOOKED_AT = 2_000
"""Training rows a model is tried on, evenly spaced, to see whether it learned anything."""
FEW = 20
"""With fewer rows a share says nothing."""
LEAST_R2 = 0.05
POSITIONS = ("tokens", "pixels")
"""Likelihoods with a class at every position."""
NOT_COUNTED = (-100, 255)
SWAPPED = 0.1
"""So much more of the rows right with the classes numbered otherwise is no accident."""
MOST_CLASSES = 300
"""Classes of which the best renaming is looked for."""
_KNOWN: dict[int, str] = {}
"""What was found of training sets that are still in use, by their identity."""


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
    oracle, train = embedding.oracle, embedding.train
    if oracle.likelihood not in (*CLASSES, *POSITIONS, "gaussian") or len(train) < FEW:
        return ""
    rows = np.unique(np.linspace(0, len(train) - 1, min(len(train), LOOKED_AT)).astype(int))
    some = train.take(rows)
    if some.labels is None:
        return ""
    labels = np.asarray(some.labels)
    if labels.ndim != 1 and oracle.likelihood not in POSITIONS:
        return ""
    try:
        said = np.asarray(oracle.predict(some))
    except ExemplaError:  # what is wrong with these rows is said where they are scored
        return ""
    if said.shape != labels.shape or (labels.dtype == object and labels.ndim != 1):
        return ""
    if oracle.likelihood in POSITIONS:
        counted = ~np.isin(labels, NOT_COUNTED)
        said, labels = said[counted], labels[counted]
    if not len(labels):
        return ""
    return (
        _poor_numbers(said, labels)
        if oracle.likelihood == "gaussian"
        else _poor_classes(*_alike(said, labels), len(rows))
    )


def _alike(said: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as text; numbers written in one way first (1, 1.0 and True are one class)."""
    kinds = said.dtype.kind + labels.dtype.kind
    if all(kind in "biuf" for kind in kinds):
        said, labels = said.astype(np.float64), labels.astype(np.float64)
        if not (np.any(said % 1) or np.any(labels % 1)):
            said, labels = said.astype(np.int64), labels.astype(np.int64)
    return said.astype(str), labels.astype(str)


def _poor_classes(said: np.ndarray, labels: np.ndarray, rows: int) -> str:
    """`rows` are independent: positions of one example are not."""
    right = float(np.mean(said == labels))
    commonest = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
    poor = right <= commonest + 2 * np.sqrt(right * (1 - right) / rows)
    otherwise, pairs = _renumbered(said, labels)
    if otherwise > right + SWAPPED + 2 / np.sqrt(rows):
        return (
            f"The model gives {right:.1%} of its training rows the label they carry, and would "
            f"give {otherwise:.1%} if its classes were numbered otherwise (what it calls "
            f"{pairs}): check the order of the classes."
        )
    if not poor:
        return ""
    return (
        f"The model is hardly better than always giving the commonest answer, even on its training "
        f"rows ({right:.1%} right against {commonest:.1%}): what it blames says little about the "
        "data."
    )


def _renumbered(said: np.ndarray, labels: np.ndarray) -> tuple[float, str]:
    """The share right under the best renaming of the model's classes, and the changes."""
    from scipy.optimize import linear_sum_assignment

    names = np.unique(np.concatenate([said, labels]))
    if len(names) > MOST_CLASSES:
        return 0.0, ""
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (np.searchsorted(names, said), np.searchsorted(names, labels)), 1)
    # of renamings that are as good, the one that keeps most names
    rows, columns = linear_sum_assignment(counts + 1e-6 * np.eye(len(names)), maximize=True)
    changed = [f"{names[r]} is {names[c]}" for r, c in zip(rows, columns) if r != c]
    return float(counts[rows, columns].sum() / len(labels)), ", ".join(changed[:3])


def _poor_numbers(said: np.ndarray, labels: np.ndarray) -> str:
    spread = float(np.var(labels.astype(np.float64)))
    share = 1 - float(np.mean((said - labels) ** 2)) / spread if spread > 0 else 1.0
    if share > LEAST_R2:
        return ""
    return (
        f"The model is hardly better than always giving the mean, even on its training rows "
        f"(R² {share:.2f}): what it blames says little about the data."
    )
