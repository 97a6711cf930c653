"""Leaves of scikit-learn's forests, what they hold, and which rows every tree was grown on."""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.trees.leaves.base import numbered

__all__ = ["ForestLeaves"]


class ForestLeaves:
    """`RandomForest…` and `ExtraTrees…` with bootstrap samples."""

    def __init__(self, model: Any) -> None:
        self.model = model
        refuse(model)
        trees = [one.tree_ for one in model.estimators_]
        self._is_leaf = [tree.children_left < 0 for tree in trees]
        self.sizes = np.array([leaf.sum() for leaf in self._is_leaf])
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)
        self.classes = getattr(model, "classes_", None)
        values = [tree.value[leaf, 0, :] for tree, leaf in zip(trees, self._is_leaf)]
        self.values = np.concatenate(values).astype(np.float64)
        """(Σ sizes, classes) shares of each class in a leaf; (Σ sizes, 1) means."""
        if self.classes is not None:
            self.values /= self.values.sum(axis=1, keepdims=True)
        weights = [tree.weighted_n_node_samples[leaf] for tree, leaf in zip(trees, self._is_leaf)]
        self.totals = np.concatenate(weights)
        """(Σ sizes,) weight of the rows in each leaf, a row drawn twice counted twice."""

    @property
    def n_trees(self) -> int:
        return len(self.sizes)

    def leaves(self, X: Any) -> np.ndarray:
        """(n, T) the leaf of every tree that each row falls into, from 0."""
        return numbered(np.asarray(self.model.apply(X), dtype=np.int64), self._is_leaf)

    def predictions(self, X: Any) -> np.ndarray:
        """The forest's own: (n, classes) probabilities, or (n, 1) numbers."""
        found = self.model.predict(X) if self.classes is None else self.model.predict_proba(X)
        return np.asarray(found, dtype=np.float64).reshape(len(found), -1)

    def drawn(self, n: int) -> np.ndarray:
        """(n, T) how often each training row was drawn for each tree."""
        out = np.zeros((n, self.n_trees), dtype=np.uint8)
        for tree, rows in enumerate(self.model.estimators_samples_):
            if len(rows) and rows.max() >= n:
                raise not_its_data(self.model)
            out[:, tree] = np.minimum(np.bincount(rows, minlength=n), 255)
        return out

    def made_of(self, leaves: np.ndarray, weights: np.ndarray, y: np.ndarray | None) -> bool:
        """Whether the leaves hold what these rows' weights and labels add up to."""
        flat = (leaves + self.starts).ravel()
        size = len(self.totals)

        def summed(each: np.ndarray) -> np.ndarray:
            return np.bincount(flat, weights=(weights * each[:, None]).ravel(), minlength=size)

        total = summed(np.ones(len(leaves)))
        if y is None or not np.allclose(total, self.totals, rtol=1e-5):
            return False
        parts = [y] if self.classes is None else [y == k for k in range(len(self.classes))]
        return all(
            np.allclose(summed(part) / total, self.values[:, k], rtol=1e-5, atol=1e-8)
            for k, part in enumerate(parts)
        )


def not_its_data(model: Any) -> ExemplaError:
    return ExemplaError(
        f"these are not the rows, labels and weights this {type(model).__name__} was fitted on, in "
        "their order, and which of them each tree drew is what a forest is explained by: give its "
        "own training data."
    )


def refuse(model: Any) -> None:
    """Say which forests have no out-of-bag rows."""
    name = type(model).__name__
    if not model.bootstrap:
        raise UnsupportedModelError(
            f"{name}(bootstrap=False) grows every tree on every row, so no row is out of bag and "
            f"all of them are fitted exactly: use {name}(bootstrap=True)."
        )
    if model.n_outputs_ > 1:
        raise UnsupportedModelError(
            f"this {name} predicts several outputs at once: explain one model per output."
        )
    if getattr(model, "class_weight", None) == "balanced_subsample":
        raise UnsupportedModelError(
            f"{name}(class_weight='balanced_subsample') weighs classes anew for every tree: use "
            "class_weight='balanced'."
        )
    if getattr(model, "criterion", None) in ("absolute_error", "poisson"):
        raise UnsupportedModelError(
            f"{name}(criterion={model.criterion!r}) has no weights that add up to its predictions "
            "here: use criterion='squared_error'."
        )
