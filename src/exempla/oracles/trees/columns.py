"""Leaves as inputs of a layer: one column a leaf, a one where a row falls into it; never dense.

Trees that add to the same output make one layer. Where leaves hold a value for every output, all
trees do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from exempla.factors import Factors, Pairs
from exempla.oracles.trees.gather import sum_of_rows
from exempla.oracles.trees.leaves import LeafReader

__all__ = ["LeafColumns", "LeafFactors", "columns_of", "summed_values", "values_of"]


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
