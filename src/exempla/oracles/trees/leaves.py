"""Leaves of an ensemble as sparse inputs of a layer: one column per leaf.

With its structure fixed, a boosted ensemble is linear in its leaf values:

    outputs(x) = base + Σ_t value[t, leaf_t(x)]

A `LeafReader` says which leaf of every tree a row falls into, what the leaves add, which output
each tree contributes to, and under which likelihood the ensemble was trained; the rest of the
package does not depend on the library. Leaves are computed by the library itself, so missing values
and categorical splits are handled as in its own predictions.

Trees that contribute to the same output form one layer. If leaves hold a value for every output,
all trees form one layer. Indicator matrices are never dense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from exempla.data import n_rows, take_rows
from exempla.oracles.base import RowExamples
from exempla.oracles.factors import Factors, Pairs
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.data import Batch, class_weights

MAX_KEPT_BYTES = 2**30
"""Leaves are kept up to this size, and otherwise computed again when needed."""
CHUNK_BYTES = 2**26
"""Memory of the leaves that the library computes at a time, at eight bytes each."""
_BLOCK_ROWS = 64
"""Examples summed together: their sums and one tree's rows of the table fit in the cache."""


class LeafReader(ABC):
    """The leaves of one fitted ensemble."""

    model: Any
    """The fitted model."""
    sizes: np.ndarray
    """(T,) number of leaves of each tree."""
    outputs: np.ndarray
    """(T,) output that each tree adds to; −1 if its leaves hold a value for every output."""
    values: np.ndarray
    """(Σ sizes, 1 or outputs) what each leaf adds, learning rate included, tree after tree."""
    n_outputs: int
    family: Likelihood
    classes: np.ndarray | None = None
    rate: float = 1.0
    """Learning rate."""
    l2: float = 0.0
    """Added to a leaf's sum of Hessians before its step is computed."""
    class_weight: dict | str | None = None
    tolerance: float = 1e-9
    """Largest difference between the library's outputs and the sum of leaf values, relative."""
    newton_steps: bool = True
    """True if leaf values are Newton steps on the training rows in the leaves of `leaves`."""
    folds_start: bool = False
    """True if the first tree of each output includes the starting point of boosting."""

    @abstractmethod
    def leaves(self, X: Any) -> np.ndarray:
        """Return the (n, T) leaf of every tree that each row falls into, counted from 0."""

    @abstractmethod
    def margins(self, X: Any) -> np.ndarray:
        """Return the library's own raw predictions, (n, outputs)."""

    def weight_of_classes(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the factor of each class's loss in training; None if there is none."""
        if self.class_weight is None or self.classes is None:
            return None
        return class_weights(self.class_weight, self.classes, codes, None)

    @property
    def n_trees(self) -> int:
        return len(self.sizes)

    @property
    def starts(self) -> np.ndarray:
        """(T,) position of each tree's first leaf among all leaves."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)


def number_leaves(nodes: np.ndarray, is_leaf: list[np.ndarray]) -> np.ndarray:
    """Convert (n, T) node numbers to leaf numbers; `is_leaf` marks the leaves of each tree.

    >>> number_leaves(np.array([[1], [4]]), [np.array([False, True, False, True, True])])
    array([[0],
           [2]])
    """
    out = np.empty(nodes.shape, dtype=np.int64)
    for tree, leaf in enumerate(is_leaf):
        out[:, tree] = (np.cumsum(leaf) - 1)[nodes[:, tree]]
    return out


# ---- layers


@dataclass(frozen=True)
class LeafColumns:
    """The trees of one layer, and the columns of their leaves."""

    trees: np.ndarray
    """Positions among all trees."""
    sizes: np.ndarray
    """Number of leaves of each."""
    outputs: np.ndarray
    """The outputs that they add to."""

    @property
    def width(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def first(self, count: int) -> LeafColumns:
        """Return the same for the first trees."""
        return replace(self, trees=self.trees[:count], sizes=self.sizes[:count])

    def inputs(self, leaves: np.ndarray) -> csr_array:
        """Return the (n, width) indicators of (n, T) leaves of all trees."""
        n, count = len(leaves), len(self.trees)
        here = leaves if count == leaves.shape[1] else leaves[:, self.trees]
        columns = (here + self.starts.astype(np.int32)).astype(np.int32, copy=False)
        rows = np.arange(0, n * count + 1, count, dtype=np.int32)
        return csr_array((np.ones(n * count), columns.ravel(), rows), shape=(n, self.width))


def columns_of(reader: LeafReader, share: float = 1.0) -> list[LeafColumns]:
    """Return the layers of an ensemble, restricted to the first `share` of its trees."""
    found = []
    for output in np.unique(reader.outputs):
        trees = np.flatnonzero(reader.outputs == output)
        trees = trees[: max(1, round(share * len(trees)))]
        adds_to = np.arange(reader.n_outputs) if output < 0 else np.array([output])
        found.append(LeafColumns(trees, reader.sizes[trees], adds_to))
    return found


def values_of(reader: LeafReader, columns: list[LeafColumns]) -> list[np.ndarray]:
    """Return the leaf values of each layer, (width, outputs of the layer)."""
    starts, found = reader.starts, []
    for c in columns:
        pieces = [reader.values[starts[t] : starts[t] + reader.sizes[t]] for t in c.trees]
        found.append(np.concatenate(pieces))
    return found


def summed_values(
    columns: list[LeafColumns], values: list[np.ndarray], leaves: np.ndarray, outputs: int
) -> np.ndarray:
    """Return the sum of each row's leaf values, (n, outputs)."""
    total = np.zeros((len(leaves), outputs))
    for c, value in zip(columns, values, strict=True):
        if len(c.trees):
            total[:, c.outputs] += c.inputs(leaves) @ value[: c.width]
    return total


@cache
def _compiled_gather() -> Any:
    """Compile `_gather` with an on-disk cache, or without one if no folder is writable.

    Numba takes 60 MB, so it is not imported for models that are not trees.
    """
    import numba

    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True}
    try:
        return numba.njit(cache=True, **options)(_gather)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**options)(_gather)


def _gather(columns, table, out):
    n, count = columns.shape
    fours = count - count % 4
    for start in range(0, n, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, n)
        for tree in range(0, fours, 4):  # four at a time: each sum is read and written once
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
    """Sum rows of a table: row i of the result is the sum of table[columns[i]].

    SciPy would multiply the indicators in double precision, one example at a time. Here the rows of
    one tree stay in the processor's cache while many examples are summed.

    >>> sum_of_rows(np.array([[0, 2]]), np.eye(3, dtype=np.float32))
    array([[1., 0., 1.]], dtype=float32)
    """
    table = np.ascontiguousarray(table)
    out = np.zeros((len(columns), table.shape[1]), dtype=table.dtype)
    _compiled_gather()(columns, table, out)
    return out


class LeafFactors(Factors):
    """Scores whose inputs are leaf indicators.

    Their projection onto a sketch is a sum of rows of its basis, computed in single precision;
    exact products stay in double precision.
    """

    def project_pairs(self, basis_in: Any, basis_out: Any, pairs: Pairs) -> Any:
        leaves = self.a.indices.reshape(len(self), -1)  # one per tree, each with value 1
        inputs = sum_of_rows(leaves, np.asarray(basis_in, dtype=np.float32))
        outputs = (self.g @ basis_out).astype(np.float32)
        if not np.array_equal(pairs.inputs, np.arange(inputs.shape[1])):
            inputs = inputs[:, pairs.inputs]
        inputs *= outputs if outputs.shape[1] == 1 else outputs[:, pairs.outputs]
        return inputs

    def take(self, positions: np.ndarray) -> Factors:
        return LeafFactors(self.a[positions], self.g[positions])


# ---- a user's rows


@dataclass(frozen=True)
class LeafPass:
    """Compute the leaves of raw rows (a class, not a closure, so that it can be pickled)."""

    leaves: Callable[[Any], np.ndarray]
    transform: Callable[[Any], Any] | None
    n_trees: int
    dtype: np.dtype

    def prepared(self, X: Any) -> Any:
        """Return the rows as the trees see them."""
        X = X if self.transform is None else self.transform(X)
        return np.asarray(X) if isinstance(X, list) else X

    def __call__(self, X: Any) -> np.ndarray:
        n, step = n_rows(X), max(1, CHUNK_BYTES // (8 * self.n_trees))
        out = np.empty((n, self.n_trees), dtype=self.dtype)
        for start in range(0, n, step):
            rows = np.arange(start, min(start + step, n))
            out[rows[0] : rows[-1] + 1] = self.leaves(self.prepared(take_rows(X, rows)))
        return out


@dataclass(frozen=True)
class TreeExamples(RowExamples):
    """Checked rows and the leaves they fall into."""

    read: LeafPass | None = None
    leaves: np.ndarray | None = None
    """(n, T); None if they are too large to keep."""

    per_row: ClassVar[tuple[str, ...]] = (*RowExamples.per_row, "leaves")

    @staticmethod
    def of(X: Any, read: LeafPass, **fields: Any) -> TreeExamples:
        """Compute the leaves now if they can be kept."""
        size = n_rows(X) * read.n_trees * read.dtype.itemsize
        if size > MAX_KEPT_BYTES:
            return TreeExamples(X, read=read, **fields)
        return TreeExamples(X, read=read, leaves=read(X), made_bytes=size, **fields)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, `size` at a time."""
        for rows, some in self.chunks(size):
            assert self.read is not None
            leaves = self.read(some.X) if some.leaves is None else some.leaves
            yield Batch(rows, leaves, some.codes, some.weights)
