"""Leaves of scikit-learn's GradientBoosting, through its own `apply`."""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.errors import UnsupportedModelError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from exempla.oracles.trees.leaves.base import LeafReader, numbered
from exempla.oracles.trees.quantile import AsymmetricLaplace

__all__ = ["GradientBoostingLeaves"]


class GradientBoostingLeaves(LeafReader):
    """`GradientBoostingClassifier` and `GradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        refuse(model)
        trees = model.estimators_.ravel()  # stage by stage, an output after the other
        self._is_leaf = [tree.tree_.children_left < 0 for tree in trees]
        self.sizes = np.array([leaf.sum() for leaf in self._is_leaf])
        self.n_outputs = model.estimators_.shape[1]
        self.outputs = np.tile(np.arange(self.n_outputs), len(model.estimators_))
        self.rate = float(model.learning_rate)
        values = [tree.tree_.value[leaf, 0, 0] for tree, leaf in zip(trees, self._is_leaf)]
        self.values = self.rate * np.concatenate(values)[:, None]
        self.classes = getattr(model, "classes_", None)
        self.family = family(model, self.n_outputs)

    def leaves(self, X: Any) -> np.ndarray:
        nodes = self.model.apply(X).astype(np.int64)
        return numbered(nodes.reshape(len(nodes), -1), self._is_leaf)

    def margins(self, X: Any) -> np.ndarray:
        found = self.model.predict(X) if self.classes is None else self.model.decision_function(X)
        return np.asarray(found, dtype=np.float64).reshape(-1, self.n_outputs)


def refuse(model: Any) -> None:
    """Say what of it is not linear in leaf values."""
    if model.init is not None and model.init != "zero":
        raise UnsupportedModelError(
            f"{type(model).__name__}(init=...) starts from another model's predictions, of which "
            "its trees know nothing: leave init=None or 'zero'."
        )
    if model.loss == "exponential":
        raise UnsupportedModelError(
            "GradientBoostingClassifier(loss='exponential') gives labels no likelihood: use "
            "loss='log_loss'."
        )


def family(model: Any, n_outputs: int) -> Likelihood:
    """The likelihood that the loss is minus the logarithm of."""
    if hasattr(model, "classes_"):
        return Bernoulli() if n_outputs == 1 else Categorical()
    losses = {
        "squared_error": Gaussian(),
        "absolute_error": AsymmetricLaplace(0.5),
        "quantile": AsymmetricLaplace(float(model.alpha)),
    }
    if model.loss not in losses:
        raise UnsupportedModelError(
            f"{type(model).__name__}(loss={model.loss!r}) is not the logarithm of a likelihood "
            f"known here: use one of {', '.join(losses)}."
        )
    return losses[model.loss]
