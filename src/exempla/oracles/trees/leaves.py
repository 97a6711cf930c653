"""One reader of leaves per library, found by where the model's class comes from.

Inside: base (what a reader promises), lightgbm, xgboost, catboost, sklearn_boosting, sklearn_hist;
forest (whose leaves are means, not steps).

The likelihood of quantile regression: the pinball loss is minus its logarithm.

What a reader of leaves promises: after it, nobody knows which library grew the trees.

With its structure fixed a boosted ensemble is linear in its leaf values:

    outputs(x) = base + Σ_t value[t, leaf_t(x)]

so a reader says which leaf of every tree a row falls into, what the leaves are worth, which output
each tree adds to, and under which likelihood. Leaves are asked of the library itself, so missing
values and categorical splits mean here what they mean there.

Leaves of scikit-learn's forests, what they hold, and which rows every tree was grown on.

Leaves of scikit-learn's GradientBoosting, through its own `apply`.

Leaves of scikit-learn's HistGradientBoosting.

It has no public `apply`. Its trees do predict, missing values and categories included: with the
number of each leaf in place of its value, a tree's own prediction is the leaf.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from exempla.arrays import Array
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.sklearn.families import class_weights


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


_HERE = "exempla.oracles.trees"
_READERS = {
    ("lightgbm", "LGBMModel"): ("boosters", "LightGBMLeaves"),
    ("lightgbm", "Booster"): ("boosters", "LightGBMLeaves"),
    ("xgboost", "XGBModel"): ("boosters", "XGBoostLeaves"),
    ("xgboost", "Booster"): ("boosters", "XGBoostLeaves"),
    ("catboost", "CatBoost"): ("boosters", "CatBoostLeaves"),
    ("sklearn", "BaseGradientBoosting"): ("leaves", "GradientBoostingLeaves"),
    ("sklearn", "BaseHistGradientBoosting"): ("leaves", "HistGradientBoostingLeaves"),
}
_FORESTS = {("sklearn", "ForestClassifier"), ("sklearn", "ForestRegressor")}


def _kinds(model: Any) -> list[tuple[str, str]]:
    """(library, name) of the model's class and all classes it is built on."""
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__]


def _find_reader(model: Any) -> tuple[str, str] | None:
    """Module and name of the reader for this model; None if there is none.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> _find_reader(GradientBoostingClassifier())
    ('leaves', 'GradientBoostingLeaves')
    """
    return next((_READERS[kind] for kind in _kinds(model) if kind in _READERS), None)


def is_boosted(model: Any) -> bool:
    """Whether this is a boosted ensemble of trees, fitted or not."""
    return _find_reader(model) is not None


def is_forest(model: Any) -> bool:
    """Whether this is one of scikit-learn's forests."""
    return any(kind in _FORESTS for kind in _kinds(model))


def read_leaves(model: Any) -> LeafReader:
    """The reader of a fitted ensemble, which refuses what is not linear in leaf values."""
    found = _find_reader(model)
    assert found is not None, f"{type(model).__name__} has no reader"
    return getattr(import_module(f"{_HERE}.{found[0]}"), found[1])(model)


@dataclass(frozen=True)
class AsymmetricLaplace(Likelihood):
    """A number whose τ-quantile is the output: p(y) = τ(1−τ)/b · exp(−ρ_τ(y − output)/b).

    ρ_τ(u) = u·(τ − [u < 0]) is the pinball loss. The scale b is fitted afterwards, as the variance
    of least squares is: the mean pinball loss of the training data. τ = ½ is least absolute error.

    >>> import numpy as np
    >>> low = AsymmetricLaplace(0.25).fitted(np.zeros((2, 1)), np.array([1.0, -1.0]))
    >>> low.scale, low.score(np.zeros((2, 1)), np.array([1.0, -1.0])).ravel()
    (0.5, array([ 0.5, -1.5]))
    """

    quantile: float
    scale: float | None = None
    name = "asymmetric laplace"
    discrete = False

    def fitted(
        self, outputs: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
    ) -> AsymmetricLaplace:
        """The same with b = weighted mean pinball loss, unless b was given."""
        if self.scale is not None:
            return self
        return replace(self, scale=float(np.average(self._pinball(outputs, y), weights=weights)))

    def _pinball(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        apart = y - outputs[:, 0]
        return apart * (self.quantile - (apart < 0))

    @property
    def _b(self) -> float:
        if self.scale is None:
            raise ExemplaError("The Laplace likelihood has no scale yet: read training data first.")
        return self.scale

    def log_prob(self, outputs: Array, y: Array) -> Array:
        constant = math.log(self.quantile * (1 - self.quantile) / self._b)
        return constant - self._pinball(outputs, y) / self._b

    def score(self, outputs: Array, y: Array) -> Array:
        return (self.quantile - (y[:, None] < outputs)) / self._b

    def fisher_root(self, outputs: Array, cut: float = 0.0) -> tuple[Array, Array]:
        # y lies below the quantile with probability τ: E[g²] = τ(1 − τ)/b²
        root = math.sqrt(self.quantile * (1 - self.quantile)) / self._b
        return np.arange(len(outputs)), np.full((len(outputs), 1), root)

    def predict(self, outputs: Array) -> Array:
        return outputs[:, 0]

    def sample(self, outputs: Array, rng: np.random.Generator) -> Array:
        below = rng.random(len(outputs)) < self.quantile
        rate = np.where(below, 1 - self.quantile, self.quantile) / self._b
        away = rng.exponential(1 / rate)
        return outputs[:, 0] + np.where(below, -away, away)


class ForestLeaves:
    """`RandomForest…` and `ExtraTrees…` with bootstrap samples."""

    def __init__(self, model: Any) -> None:
        self.model = model
        _refuse_forest(model)
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


def _refuse_forest(model: Any) -> None:
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


class GradientBoostingLeaves(LeafReader):
    """`GradientBoostingClassifier` and `GradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        _refuse_boosting(model)
        trees = model.estimators_.ravel()  # stage by stage, an output after the other
        self._is_leaf = [tree.tree_.children_left < 0 for tree in trees]
        self.sizes = np.array([leaf.sum() for leaf in self._is_leaf])
        self.n_outputs = model.estimators_.shape[1]
        self.outputs = np.tile(np.arange(self.n_outputs), len(model.estimators_))
        self.rate = float(model.learning_rate)
        values = [tree.tree_.value[leaf, 0, 0] for tree, leaf in zip(trees, self._is_leaf)]
        self.values = self.rate * np.concatenate(values)[:, None]
        self.classes = getattr(model, "classes_", None)
        self.family = _boosting_family(model, self.n_outputs)

    def leaves(self, X: Any) -> np.ndarray:
        nodes = self.model.apply(X).astype(np.int64)
        return numbered(nodes.reshape(len(nodes), -1), self._is_leaf)

    def margins(self, X: Any) -> np.ndarray:
        found = self.model.predict(X) if self.classes is None else self.model.decision_function(X)
        return np.asarray(found, dtype=np.float64).reshape(-1, self.n_outputs)


def _refuse_boosting(model: Any) -> None:
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


def _boosting_family(model: Any, n_outputs: int) -> Likelihood:
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


class HistGradientBoostingLeaves(LeafReader):
    """`HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.family = _hist_family(model)
        stages = model._predictors
        trees = [tree for stage in stages for tree in stage]
        self.n_outputs = int(model.n_trees_per_iteration_)
        self.outputs = np.tile(np.arange(self.n_outputs), len(stages))
        self._counting = [_with_numbers(tree) for tree in trees]
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


def _with_numbers(tree: Any) -> Any:
    """A copy of the tree that predicts the number of the leaf."""
    counting = copy(tree)
    counting.nodes = tree.nodes.copy()
    leaf = counting.nodes["is_leaf"].astype(bool)
    counting.nodes["value"][leaf] = np.arange(leaf.sum())
    return counting


def _hist_family(model: Any) -> Likelihood:
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
