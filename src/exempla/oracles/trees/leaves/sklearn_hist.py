"""Leaves of scikit-learn's HistGradientBoosting.

It has no public `apply`. Its trees do predict, missing values and categories included: with the
number of each leaf in place of its value, a tree's own prediction is the leaf.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from exempla.errors import UnsupportedModelError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.trees.leaves.base import LeafReader
from exempla.oracles.trees.quantile import AsymmetricLaplace

__all__ = ["HistGradientBoostingLeaves"]


class HistGradientBoostingLeaves(LeafReader):
    """`HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.family = family(model)
        stages = model._predictors
        trees = [tree for stage in stages for tree in stage]
        self.n_outputs = int(model.n_trees_per_iteration_)
        self.outputs = np.tile(np.arange(self.n_outputs), len(stages))
        self._counting = [with_numbers(tree) for tree in trees]
        is_leaf = [tree.nodes["is_leaf"].astype(bool) for tree in trees]
        self.sizes = np.array([leaf.sum() for leaf in is_leaf])
        values = [tree.nodes["value"][leaf] for tree, leaf in zip(trees, is_leaf)]
        self.values = np.concatenate(values)[:, None].astype(np.float64)
        self.rate, self.l2 = float(model.learning_rate), float(model.l2_regularization)
        self.classes = getattr(model, "classes_", None)
        self.class_weight = getattr(model, "class_weight", None)

    def leaves(self, X: Any) -> np.ndarray:
        ready = self.model._preprocess_X(X, reset=False)
        known, places = self.model._bin_mapper.make_known_categories_bitsets()
        out = np.empty((len(ready), self.n_trees), dtype=np.int64)
        for place, tree in enumerate(self._counting):
            out[:, place] = tree.predict(
                ready, known_cat_bitsets=known, f_idx_map=places, n_threads=1
            )
        return out

    def margins(self, X: Any) -> np.ndarray:
        if self.classes is not None:
            found = self.model.decision_function(X)
        else:
            found = self.model.predict(X)
            found = np.log(found) if isinstance(self.family, Poisson) else found
        return np.asarray(found, dtype=np.float64).reshape(-1, self.n_outputs)


def with_numbers(tree: Any) -> Any:
    """A copy of the tree that predicts the number of the leaf."""
    counting = copy(tree)
    counting.nodes = tree.nodes.copy()
    leaf = counting.nodes["is_leaf"].astype(bool)
    counting.nodes["value"][leaf] = np.arange(leaf.sum())
    return counting


def family(model: Any) -> Likelihood:
    """The likelihood that the loss is minus the logarithm of."""
    if hasattr(model, "classes_"):
        return Bernoulli() if model.n_trees_per_iteration_ == 1 else Categorical()
    if model.loss == "quantile":
        return AsymmetricLaplace(float(model.quantile))
    losses = {
        "squared_error": Gaussian(),
        "poisson": Poisson(),
        "absolute_error": AsymmetricLaplace(0.5),
    }
    if model.loss not in losses:
        raise UnsupportedModelError(
            f"{type(model).__name__}(loss={model.loss!r}) has no likelihood here: use one of "
            f"{', '.join([*losses, 'quantile'])}."
        )
    return losses[model.loss]
