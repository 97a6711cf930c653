"""A user's data for an ensemble of trees: the leaves of every row, read once where they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError
from exempla.oracles.base import Examples

__all__ = ["ReadLeaves", "TreeBatch", "TreeExamples"]

KEEP_BYTES = 2**30
"""Leaves are kept if they fit in this; otherwise they are asked again when they are needed."""
ASKED_BYTES = 2**26
"""Leaves asked of the library at a time, which gives them in eight bytes each."""


class TreeBatch(NamedTuple):
    """Consecutive examples."""

    positions: np.ndarray
    leaves: np.ndarray
    """(n, T), from 0 in every tree."""
    codes: np.ndarray | None
    weights: np.ndarray | None


@dataclass(frozen=True)
class ReadLeaves:
    """Rows as the user has them become leaves (an object, not a closure: it must survive
    pickling)."""

    leaves: Callable[[Any], np.ndarray]
    transform: Callable[[Any], Any] | None
    n_trees: int
    kind: np.dtype

    def prepared(self, X: Any) -> Any:
        """What the trees see of these rows."""
        X = X if self.transform is None else self.transform(X)
        return np.asarray(X) if isinstance(X, list) else X

    @property
    def chunk(self) -> int:
        """Rows asked at a time."""
        return max(1, ASKED_BYTES // (8 * self.n_trees))

    def __call__(self, X: Any) -> np.ndarray:
        n = n_rows(X)
        out = np.empty((n, self.n_trees), dtype=self.kind)
        for start in range(0, n, self.chunk):
            rows = np.arange(start, min(start + self.chunk, n))
            out[rows[0] : rows[-1] + 1] = self.leaves(self.prepared(take_rows(X, rows)))
        return out


@dataclass(frozen=True)
class TreeExamples(Examples):
    """Checked rows. `codes` are labels as the likelihood wants them: class codes or numbers."""

    X: Any
    read: ReadLeaves
    leaves: np.ndarray | None = None
    """(n, T); None where they are too many to keep."""
    codes: np.ndarray | None = None
    weights: np.ndarray | None = None
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None
    made_bytes: int = 0

    @staticmethod
    def of(X: Any, read: ReadLeaves, **more: Any) -> TreeExamples:
        """Read the leaves now, if they may be kept; whatever the library refuses is said."""
        size = n_rows(X) * read.n_trees * read.kind.itemsize
        if size > KEEP_BYTES:
            return TreeExamples(X, read, **more)
        return TreeExamples(X, read, leaves=read(X), made_bytes=size, **more)

    def __len__(self) -> int:
        return n_rows(self.X)

    def take(self, positions: np.ndarray) -> TreeExamples:
        """The examples at these positions, in this order."""
        positions = np.asarray(positions)
        parts = {
            name: getattr(self, name) for name in ("leaves", "codes", "weights", "labels", "ids")
        }
        some = {name: None if part is None else part[positions] for name, part in parts.items()}
        return replace(self, X=take_rows(self.X, positions), **some)

    def batches(self, size: int) -> Iterator[TreeBatch]:
        """The examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            here = slice(start, min(start + size, len(self)))
            rows = np.arange(here.start, here.stop)
            leaves = self.leaves[here] if self.leaves is not None else None
            yield TreeBatch(
                rows,
                self.read(take_rows(self.X, rows)) if leaves is None else leaves,
                None if self.codes is None else self.codes[here],
                None if self.weights is None else self.weights[here],
            )


def refused(error: Exception) -> ExemplaError:
    """What a library says against the user's rows, in one sentence."""
    said = str(error).strip().splitlines()
    return ExemplaError(f"the model refuses X ({said[0].rstrip('.') if said else type(error)}).")
