"""Leaves as inputs of a layer: one column a leaf, a one where a row falls into it; never dense.

Trees that add to the same output make one layer. Where leaves hold a value for every output, all
trees do.

Sums of rows of a table: what the product of a matrix of zeros and ones with it comes to.

SciPy multiplies in double precision, an example after the other; here the few rows of the basis
that a tree has stay in the processor's cache while many examples are added up.

XGBoost's classifier takes the labels 0, 1, 2, … alone; this one takes any, as all others do.

A user's data for an ensemble of trees: the leaves of every row, read once where they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from scipy.sparse import csr_array
from xgboost import XGBClassifier

from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError
from exempla.oracles.base import Examples
from exempla.oracles.factors import Factors, Pairs
from exempla.oracles.trees.leaves import LeafReader

_BLOCK = 64
"""Examples added up together: their sums and one tree's rows of the table fit in the cache."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with an on-disk cache, or without one where no folder can be written."""
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**options)(function)


@compiled
def _gather(columns, table, out):
    n, count = columns.shape
    fours = count - count % 4
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for tree in range(0, fours, 4):  # four at a time: a sum is read and written once for them
            for i in range(start, stop):
                a, b = table[columns[i, tree]], table[columns[i, tree + 1]]
                c, d = table[columns[i, tree + 2]], table[columns[i, tree + 3]]
                for j in range(out.shape[1]):
                    out[i, j] += (a[j] + b[j]) + (c[j] + d[j])
        for tree in range(fours, count):
            for i in range(start, stop):
                a = table[columns[i, tree]]
                for j in range(out.shape[1]):
                    out[i, j] += a[j]


def sum_of_rows(columns: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Row i of the result is the sum of the table's rows columns[i], in the table's precision.

    >>> sum_of_rows(np.array([[0, 2]]), np.eye(3, dtype=np.float32))
    array([[1., 0., 1.]], dtype=float32)
    """
    table = np.ascontiguousarray(table)
    out = np.zeros((len(columns), table.shape[1]), dtype=table.dtype)
    _gather(columns, table, out)
    return out


@dataclass(frozen=True)
class LeafColumns:
    """The trees of one layer, and where their leaves' columns begin."""

    trees: np.ndarray
    """Positions among all trees."""
    sizes: np.ndarray
    """Leaves of each."""
    outputs: np.ndarray
    """The outputs they add to."""

    @property
    def width(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def first(self, count: int) -> LeafColumns:
        """The same for the first of the trees."""
        return replace(self, trees=self.trees[:count], sizes=self.sizes[:count])

    def inputs(self, leaves: np.ndarray, weights: np.ndarray | None = None) -> csr_array:
        """(n, width) from (n, T) leaves of all trees; `weights` (n, trees) in place of ones."""
        n, count = len(leaves), len(self.trees)
        everything = count == leaves.shape[1]
        here = leaves if everything else leaves[:, self.trees]
        columns = (here + self.starts.astype(np.int32)).astype(np.int32, copy=False)
        values = np.ones(n * count) if weights is None else weights.ravel()
        rows = np.arange(0, n * count + 1, count, dtype=np.int32)
        return csr_array((values, columns.ravel(), rows), shape=(n, self.width))


class LeafFactors(Factors):
    """Scores whose inputs are leaf indicators: a projection onto a sketch is a sum of rows of its
    basis, in single precision. (What is exact stays in double.)"""

    def project_pairs(self, basis_in: Any, basis_out: Any, pairs: Pairs) -> Any:
        leaves = self.a.indices.reshape(len(self), -1)  # one of every tree, each worth 1
        inputs = sum_of_rows(leaves, np.asarray(basis_in, dtype=np.float32))
        outputs = (self.g @ basis_out).astype(np.float32)
        if not np.array_equal(pairs.inputs, np.arange(inputs.shape[1])):
            inputs = inputs[:, pairs.inputs]
        inputs *= outputs if outputs.shape[1] == 1 else outputs[:, pairs.outputs]
        return inputs

    def take(self, positions: np.ndarray) -> Factors:
        return LeafFactors(self.a[positions], self.g[positions])


def columns_of(reader: LeafReader, share: float = 1.0) -> list[LeafColumns]:
    """The layers of an ensemble: one per output, or one for all; of the first trees only."""
    found = []
    for output in np.unique(reader.outputs):
        trees = np.flatnonzero(reader.outputs == output)
        trees = trees[: max(1, round(share * len(trees)))]
        adds_to = np.arange(reader.n_outputs) if output < 0 else np.array([output])
        found.append(LeafColumns(trees, reader.sizes[trees], adds_to))
    return found


def values_of(reader: LeafReader, columns: list[LeafColumns]) -> list[np.ndarray]:
    """The leaf values of each layer, (width, outputs of the layer)."""
    starts, found = reader.starts, []
    for c in columns:
        pieces = [reader.values[starts[t] : starts[t] + reader.sizes[t]] for t in c.trees]
        found.append(np.concatenate(pieces))
    return found


def summed_values(
    columns: list[LeafColumns], values: list[np.ndarray], leaves: np.ndarray, outputs: int
) -> np.ndarray:
    """Φθ, (n, outputs)."""
    total = np.zeros((len(leaves), outputs))
    for c, value in zip(columns, values, strict=True):
        if len(c.trees):
            total[:, c.outputs] += c.inputs(leaves) @ value
    return total


class AnyLabelXGBClassifier(XGBClassifier):
    """`XGBClassifier` for labels in the user's own words.

    >>> model = AnyLabelXGBClassifier(n_estimators=2).fit([[0.0], [1.0]] * 9, ["no", "yes"] * 9)
    >>> model.predict([[1.0]]).tolist(), model.classes_.tolist()
    (['yes'], ['no', 'yes'])
    """

    _words: np.ndarray | None = None

    def fit(self, X: Any, y: Any, **more: Any) -> AnyLabelXGBClassifier:
        """Fit to positions among the sorted labels."""
        self._words = None  # XGBoost itself sees positions
        words, codes = np.unique(np.asarray(y), return_inverse=True)
        super().fit(X, codes, **more)
        self._words = words
        return self

    def predict(self, X: Any, **more: Any) -> np.ndarray:
        """The labels in the user's own words."""
        found = np.asarray(super().predict(X, **more))
        return found if self._words is None else self._words[found.astype(np.int64)]

    @property
    def classes_(self) -> np.ndarray:
        """The labels, sorted."""
        return np.asarray(super().classes_) if self._words is None else self._words


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
