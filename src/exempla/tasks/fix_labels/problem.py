"""The question put to `fix_labels`, checked: training rows, then curated rows, one vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from exempla.arrays import is_tensor, to_numpy
from exempla.data import listing, n_rows, plain_labels, stack_rows, take_rows, unpack
from exempla.errors import ExemplaError

__all__ = ["LabelProblem", "read_problem"]


@dataclass(frozen=True)
class LabelProblem:
    """Training rows 0 … n_train − 1, then the curated rows."""

    X: Any
    codes: np.ndarray
    """Given labels as positions in `classes`; those of the curated rows are true."""
    classes: np.ndarray
    n_train: int
    weights: np.ndarray | None = None
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def train(self) -> np.ndarray:
        return np.arange(self.n_train)

    @property
    def curated(self) -> np.ndarray:
        return np.arange(self.n_train, len(self))

    def inputs(self, rows: np.ndarray) -> Any:
        """X of these rows; X itself, not a copy, if they are all."""
        everything = len(rows) == len(self) and np.array_equal(rows, np.arange(len(self)))
        return self.X if everything else take_rows(self.X, rows)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Given labels in the user's vocabulary."""
        return self.classes[self.codes[rows]]

    def weights_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.weights is None else self.weights[rows]

    def once(self, labels: Any) -> np.ndarray:
        """Codes of the labels the curated rows once had."""
        y = plain_labels(labels) if not isinstance(labels, np.ndarray) else labels
        m = len(self.curated)
        if np.ndim(y) != 1 or len(y) != m:
            raise ExemplaError(
                f"original_labels must hold one label for each of the {m} curated rows, but has "
                f"shape {np.shape(y)}."
            )
        names = {name: code for code, name in enumerate(self.classes.tolist())}
        plain = np.asarray(y).tolist()
        unseen = sorted({label for label in plain if label not in names}, key=str)
        if unseen:
            named = ", ".join(map(repr, unseen[:5]))
            raise ExemplaError(
                f"original_labels: {named} never occur in train; give labels of the same kind."
            )
        return np.array([names[label] for label in plain], dtype=np.int64)

    def class_sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many of these rows each class can be learnt from: those that weigh anything."""
        if self.weights is not None:
            rows = rows[self.weights[rows] > 0]
        return np.bincount(self.codes[rows], minlength=len(self.classes))


def read_problem(train: Any, curated: Any) -> LabelProblem:
    """Check both sets; every problem found is told at once."""
    problems: list[str] = []
    given = _labelled(train, "train", problems)
    X, y, weights, ids = given
    classes = np.unique(y)
    if len(y) and len(classes) < 2:
        problems.append(f"train: all labels are {classes[0].item()!r}, and two classes are needed")
    if curated is None:
        _raise(problems)
        return _known(LabelProblem(X, np.searchsorted(classes, y), classes, len(y), weights, ids))
    if _is_empty(curated):
        raise ExemplaError("the curated set is empty: give rows, or leave curated=None.")
    trusted = _labelled(curated, "curated", problems)
    _compare(given, trusted, classes, problems)
    _raise(problems)
    Xc, yc, wc, _ = trusted
    if weights is not None or wc is not None:
        parts = [np.ones(len(v)) if w is None else w for v, w in ((y, weights), (yc, wc))]
        weights = np.concatenate(parts)
    codes = np.searchsorted(classes, np.concatenate([y, yc.astype(classes.dtype)]))
    return _known(LabelProblem(stack_rows(X, Xc), codes, classes, len(y), weights, ids))


class _Labelled(NamedTuple):
    X: Any
    y: np.ndarray
    """Empty where the labels could not be read."""
    weights: np.ndarray | None
    ids: np.ndarray | None


def _labelled(data: Any, whose: str, problems: list[str]) -> _Labelled:
    """X, labels, weights and ids of one set."""
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no labels: give (X, y) as {whose}.")
    found: list[str] = []
    if is_tensor(data[0]) and data[0].is_sparse:
        found.append("X is a sparse tensor: give a dense one")
    given = unpack((data[0], *map(_in_numpy, data[1:])), found)
    y = np.array([]) if given.y is None else _checked_labels(plain_labels(given.y), found)
    problems.extend(f"{whose}: {problem}" for problem in found)
    return _Labelled(given.X, y, given.weights, given.ids)


def _in_numpy(part: Any) -> Any:
    return to_numpy(part) if is_tensor(part) else part


def _checked_labels(y: np.ndarray, found: list[str]) -> np.ndarray:
    """One class name per row, in this machine's byte order; empty if they are anything else."""
    if y.ndim != 1:
        found.append(f"y must hold one label per row, but has shape {y.shape}")
    elif len(missing := np.flatnonzero(pd.isna(y))):
        found.append(f"labels are missing in {listing(missing)}")
    elif y.dtype.kind in "cSV":
        found.append(f"labels are of type {y.dtype}: give text or whole numbers")
    elif y.dtype.kind == "f" and len(odd := np.flatnonzero((np.floor(y) != y) | np.isinf(y))):
        found.append(f"labels must name classes, not measure like {y[odd[0]]:g} in row {odd[0]}")
    elif y.dtype == object:
        return _one_kind(y, found)
    else:
        return y.astype(y.dtype.newbyteorder("="), copy=False)
    return np.array([])


def _one_kind(y: np.ndarray, found: list[str]) -> np.ndarray:
    """Labels kept as Python objects, if they can be told apart and sorted."""
    if all(isinstance(label, str) for label in y):
        return y.astype(str)
    kinds = sorted({type(label).__name__ for label in y})
    try:
        set(y.tolist())
        np.unique(y)
    except TypeError:
        found.append(
            f"labels are of the kinds {', '.join(kinds)}: give all as text or all as whole numbers"
        )
        return np.array([])
    return y


def _is_empty(data: Any) -> bool:
    X = data[0] if isinstance(data, tuple) and data else data
    return (hasattr(X, "shape") or isinstance(X, Sequence)) and n_rows(X) == 0


def _compare(
    train: _Labelled, curated: _Labelled, classes: np.ndarray, problems: list[str]
) -> None:
    """Whether the curated rows are of the same kind as the training rows."""
    if len(train.y) and len(curated.y):
        unseen = sorted(set(curated.y.tolist()) - set(classes.tolist()), key=str)
        if unseen:
            named = ", ".join(map(repr, unseen[:5]))
            problems.append(f"curated: labels {named} never occur in train")
        elif len(np.unique(curated.y)) < 2:
            problems.append("curated: only one class is present, so no wrong label can be shown")
    names = [getattr(part.X, "columns", None) for part in (train, curated)]
    if names[0] is not None and names[1] is not None and set(names[0]) != set(names[1]):
        unshared = sorted(set(names[0]) ^ set(names[1]), key=str)
        named = ", ".join(map(repr, unshared[:5]))
        problems.append(f"curated: both must have the same columns, but only one set has {named}")
        return
    shapes: list[tuple[int, ...]] = [
        tuple(getattr(part.X, "shape", ())) for part in (train, curated)
    ]
    if not all(shapes) or shapes[0][1:] == shapes[1][1:]:
        return
    if all(len(shape) == 2 for shape in shapes):
        widths = [shape[-1] for shape in shapes]
        problems.append(
            f"curated: {widths[1]} columns, but train has {widths[0]}; both must have the same "
            "columns, in the same order"
        )
    else:
        problems.append(f"curated: X has shape {shapes[1]}, but that of train has {shapes[0]}")


def _known(problem: LabelProblem) -> LabelProblem:
    """The problem, if every class can be learnt from some row."""
    unlearnt = problem.classes[problem.class_sizes(np.arange(len(problem))) == 0]
    if len(unlearnt):
        named = ", ".join(map(repr, unlearnt[:5].tolist()))
        raise ExemplaError(
            f"every row labelled {named} has weight zero, so no model can learn that label: leave "
            "these rows out, or let some of them weigh."
        )
    return problem


def _raise(problems: list[str]) -> None:
    if problems:
        raise ExemplaError(f"the labels cannot be checked: {'; '.join(problems)}.")
