"""The question put to `fix_labels`, checked: training rows, then curated rows, one vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from exempla.data import listing, n_rows, plain_labels, stack_rows, unpack
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

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Given labels in the user's vocabulary."""
        return self.classes[self.codes[rows]]

    def weights_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.weights is None else self.weights[rows]


def read_problem(train: Any, curated: Any) -> LabelProblem:
    """Check both sets; every problem found is told at once."""
    problems: list[str] = []
    X, y, weights, ids = _labelled(train, "train", problems)
    classes = np.unique(y)
    if len(y) and len(classes) < 2:
        problems.append(f"train: all labels are {classes[0].item()!r}, and two classes are needed")
    if curated is None:
        _raise(problems)
        return LabelProblem(X, np.searchsorted(classes, y), classes, len(y), weights, ids)
    if n_rows(curated[0] if isinstance(curated, tuple) and curated else curated) == 0:
        raise ExemplaError("the curated set is empty: give rows, or leave curated=None.")
    Xc, yc, wc, _ = _labelled(curated, "curated", problems)
    if len(y) and len(yc):
        unseen = sorted(set(yc.tolist()) - set(classes.tolist()), key=str)
        if unseen:
            named = ", ".join(map(repr, unseen[:5]))
            problems.append(f"curated: labels {named} never occur in train")
        elif len(np.unique(yc)) < 2:
            problems.append("curated: only one class is present, so no wrong label can be shown")
    widths = [x.shape[1] if len(getattr(x, "shape", ())) == 2 else None for x in (X, Xc)]
    if None not in widths and widths[0] != widths[1]:
        problems.append(
            f"curated: {widths[1]} columns, but train has {widths[0]}; both must have the same "
            "columns, in the same order"
        )
    _raise(problems)
    if weights is not None or wc is not None:
        parts = [np.ones(len(v)) if w is None else w for v, w in ((y, weights), (yc, wc))]
        weights = np.concatenate(parts)
    codes = np.searchsorted(classes, np.concatenate([y, yc.astype(classes.dtype)]))
    return LabelProblem(stack_rows(X, Xc), codes, classes, len(y), weights, ids)


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
    labels = data[1].detach().cpu().numpy() if hasattr(data[1], "detach") else data[1]
    found: list[str] = []
    given = unpack((data[0], labels, *data[2:]), found)
    y = np.array([]) if given.y is None else plain_labels(given.y)
    if y.ndim != 1:
        found.append(f"y must hold one label per row, but has shape {y.shape}")
        y = np.array([])
    missing = np.flatnonzero(pd.isna(y))
    if len(missing):
        found.append(f"labels are missing in {listing(missing)}")
        y = np.array([])
    if y.dtype == object and all(isinstance(label, str) for label in y):
        y = y.astype(str)
    problems.extend(f"{whose}: {problem}" for problem in found)
    return _Labelled(given.X, y, given.weights, given.ids)


def _raise(problems: list[str]) -> None:
    if problems:
        raise ExemplaError(f"the labels cannot be judged: {'; '.join(problems)}.")
