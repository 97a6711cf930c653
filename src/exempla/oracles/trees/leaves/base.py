"""What a reader of leaves promises: after it, nobody knows which library grew the trees.

With its structure fixed a boosted ensemble is linear in its leaf values:

    outputs(x) = base + Σ_t value[t, leaf_t(x)]

so a reader says which leaf of every tree a row falls into, what the leaves are worth, which output
each tree adds to, and under which likelihood. Leaves are asked of the library itself, so missing
values and categorical splits mean here what they mean there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from exempla.likelihoods import Likelihood
from exempla.oracles.sklearn.labels import class_weights

__all__ = ["LeafReader", "numbered"]


class LeafReader(ABC):
    """One fitted ensemble, by its leaves."""

    model: Any
    """The fitted model."""
    sizes: np.ndarray
    """(T,) leaves of each tree."""
    outputs: np.ndarray
    """(T,) the output each tree adds to; −1 where its leaves hold a value for every output."""
    values: np.ndarray
    """(Σ sizes, 1), or (Σ sizes, outputs) where leaves hold a value for every output; what a leaf
    adds, learning rate included, tree after tree."""
    n_outputs: int
    family: Likelihood
    classes: np.ndarray | None = None
    rate: float = 1.0
    """Learning rate."""
    l2: float = 0.0
    """What is added to a leaf's sum of Hessians before its step is taken."""
    class_weight: dict | str | None = None
    tolerance: float = 1e-9
    """How far, relative to the values summed, the library's own outputs may be from their sum."""

    @abstractmethod
    def leaves(self, X: Any) -> np.ndarray:
        """(n, T) the leaf of every tree that each row falls into, from 0."""

    @abstractmethod
    def margins(self, X: Any) -> np.ndarray:
        """(n, outputs) the library's own raw predictions: what the sum of leaf values must be."""

    def weight_of_classes(self, codes: np.ndarray) -> np.ndarray | None:
        """What the loss of each class is multiplied by in training; None where by nothing."""
        if self.class_weight is None or self.classes is None:
            return None
        return class_weights(self.class_weight, self.classes, codes, None)

    @property
    def n_trees(self) -> int:
        return len(self.sizes)

    @property
    def starts(self) -> np.ndarray:
        """(T,) the first leaf of each tree among all leaves."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)


def numbered(nodes: np.ndarray, is_leaf: list[np.ndarray]) -> np.ndarray:
    """(n, T) numbers of leaves from (n, T) numbers of nodes; `is_leaf` marks each tree's leaves.

    >>> numbered(np.array([[1], [4]]), [np.array([False, True, False, True, True])])
    array([[0],
           [2]])
    """
    out = np.empty(nodes.shape, dtype=np.int64)
    for tree, leaf in enumerate(is_leaf):
        out[:, tree] = (np.cumsum(leaf) - 1)[nodes[:, tree]]
    return out
