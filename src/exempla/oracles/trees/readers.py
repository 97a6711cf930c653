"""One leaf reader per boosting library: LightGBM, XGBoost, CatBoost and scikit-learn's two.

With its structure fixed, a boosted ensemble is linear in its leaf values:

    outputs(x) = base + Σ_t value[t, leaf_t(x)]

A `LeafReader` says which leaf of every tree a row falls into, what the leaves add, which output
each tree contributes to, and under which likelihood the ensemble was trained; the rest of the
package does not depend on the library. Leaves are computed by the library itself, so missing values
and categorical splits are handled as in its own predictions: LightGBM and XGBoost are read through
`pred_leaf`, CatBoost through `calc_leaf_indexes`, and scikit-learn's GradientBoosting through
`apply`. HistGradientBoosting has no public `apply`; its trees predict their leaf numbers once these
replace the leaf values.
"""

from __future__ import annotations

import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from exempla.errors import UnsupportedModelError
from exempla.oracles.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    OneVsRest,
    Poisson,
)
from exempla.oracles.sklearn.base import class_weights
from exempla.oracles.sklearn.losses import AsymmetricLaplace, CustomObjective

__all__ = ["LeafReader", "number_leaves", "read_leaves", "refuse"]


class LeafReader(ABC):
    """The leaves of one fitted ensemble."""

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

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def leaves(self, X: Any) -> np.ndarray:
        """Return the (n, T) leaf of every tree that each row falls into, counted from 0."""

    @abstractmethod
    def margins(self, X: Any) -> Any:
        """Return the library's own raw predictions, (n, outputs) or, for one output, (n,)."""

    def _set_trees(self, values: list[np.ndarray], outputs: Any) -> None:
        """Set the trees: the values of their leaves, and the output each adds to."""
        self.sizes = np.array([len(one) for one in values], dtype=np.int64)
        self.values = np.concatenate(values).astype(np.float64)[:, None]
        self.outputs = np.asarray(outputs, dtype=np.int64)

    def weight_of_classes(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the factor of each class's loss in training; None if there is none."""
        return class_weights(self.class_weight, self.classes, codes)

    @property
    def n_trees(self) -> int:
        return len(self.sizes)

    @property
    def starts(self) -> np.ndarray:
        """(T,) position of each tree's first leaf among all leaves."""
        return np.cumsum(self.sizes) - self.sizes


def number_leaves(nodes: Any, is_leaf: list[np.ndarray]) -> np.ndarray:
    """Convert (n, T) node numbers to leaf numbers; `is_leaf` marks the leaves of each tree."""
    nodes = np.asarray(nodes).astype(np.int64).reshape(len(nodes), -1)
    columns = [(np.cumsum(leaf) - 1)[nodes[:, t]] for t, leaf in enumerate(is_leaf)]
    return np.stack(columns, axis=1)


def refuse(reasons: dict[str, bool]) -> None:
    """Raise the first message whose reason holds against a model."""
    for message, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(message)


# ---- objectives

_OBJECTIVES: dict[Callable[..., Likelihood], str] = {
    Bernoulli: "binary binary:logistic binary:logitraw Logloss CrossEntropy",
    Categorical: "multiclass multi:softprob multi:softmax MultiClass",
    OneVsRest: "multiclassova MultiClassOneVsAll",
    Gaussian: "regression reg:squarederror RMSE squared_error",
    partial(AsymmetricLaplace, 0.5): "regression_l1 reg:absoluteerror MAE absolute_error",
    AsymmetricLaplace: "quantile reg:quantileerror Quantile",
    Poisson: "poisson count:poisson Poisson",
}
"""The names of each likelihood in LightGBM, XGBoost, CatBoost and scikit-learn."""


def _family(setting: str, name: str, level: Any = 0.5) -> Likelihood:
    """Return the likelihood of a library's objective; raise if it has none."""
    for family, names in _OBJECTIVES.items():
        if name in names.split():
            return family(float(level)) if family is AsymmetricLaplace else family()
    raise UnsupportedModelError(
        f"{setting} {name!r} has no likelihood here: use the one for two classes, several classes, "
        "one-vs-rest, squared error, absolute error, a quantile or Poisson counts."
    )


@dataclass(frozen=True)
class _Gradient:
    """Gradient and Hessian of a user's objective (a class, so that it can be pickled)."""

    objective: Any

    def __call__(self, y: np.ndarray, outputs: np.ndarray) -> tuple[Any, Any]:
        if hasattr(self.objective, "calc_ders_range"):  # CatBoost: derivatives of minus the loss
            pairs = self.objective.calc_ders_range(outputs.tolist(), y.tolist(), None)
            first, second = np.array(pairs, dtype=np.float64).T
            return -first, -second
        given = inspect.signature(self.objective).parameters.values()
        extra = [p for p in given if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        # LightGBM passes weights as third and groups as fourth argument, if they are declared
        return self.objective(y, outputs, *[None] * max(len(extra) - 2, 0))


def _custom_family(objective: Any, n_outputs: int, discrete: bool) -> Likelihood:
    """Return the loss of a user's objective, which has to have one output."""
    several = (
        "This model was trained with a custom objective of several outputs, whose Hessian is "
        "unknown: use a built-in objective, or one model per class."
    )
    refuse({several: n_outputs > 1})
    return CustomObjective(_Gradient(objective), discrete)


# ---- libraries


class _CatBoostLeaves(LeafReader):
    """Leaves of `CatBoostClassifier`, `CatBoostRegressor` and `CatBoost`.

    CatBoost keeps only the trees of the best iteration. With several classes, each leaf holds a
    value for every class.
    """

    tolerance = 1e-7

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        settings = model.get_params() if hasattr(model, "get_params") else {}
        loss: Any = settings.get("loss_function")
        custom = hasattr(loss, "calc_ders_range")
        if not custom:  # CatBoost cannot list all settings of a Python objective
            settings = model.get_all_params()
            loss = str(settings.get("loss_function"))  # "Name:option=value;…"
        self.sizes = np.asarray(model.get_tree_leaf_counts(), dtype=np.int64)
        values = np.asarray(model.get_leaf_values(), dtype=np.float64)
        self.n_outputs = values.size // int(self.sizes.sum())
        scale, _ = model.get_scale_and_bias()
        self.values = scale * values.reshape(-1, self.n_outputs)
        self.outputs = np.full(len(self.sizes), -1 if self.n_outputs > 1 else 0)
        self.rate = float(settings.get("learning_rate", 1.0))
        self.l2 = float(settings.get("l2_leaf_reg", 0.0))
        if custom:
            self.family = _custom_family(loss, self.n_outputs, discrete=False)
        else:
            name, _, options = loss.partition(":")
            more = dict(part.split("=", 1) for part in options.split(";") if "=" in part)
            self.family = _family("CatBoost's loss_function", name, more.get("alpha", 0.5))
        # categories are encoded differently in training, so rows fall into other leaves
        self.newton_steps = not model.get_cat_feature_indices()
        if self.family.discrete:
            self.classes = np.asarray(model.classes_)
        self._auto, self._given = (settings.get(f"{n}class_weights") for n in ("auto_", ""))

    def leaves(self, X: Any) -> np.ndarray:
        return np.asarray(self.model.calc_leaf_indexes(X))

    def margins(self, X: Any) -> Any:
        return self.model.predict(X, prediction_type="RawFormulaVal")

    def weight_of_classes(self, codes: np.ndarray) -> np.ndarray | None:
        if self._given is not None:
            return np.asarray(self._given, dtype=np.float64)
        if self._auto in (None, "None") or self.classes is None:
            return None
        counts = np.bincount(codes, minlength=len(self.classes)).astype(np.float64)
        ratio = counts.max() / np.maximum(counts, 1.0)
        return np.sqrt(ratio) if self._auto == "SqrtBalanced" else ratio


class _LightGBMLeaves(LeafReader):
    """Leaves of `LGBMClassifier`, `LGBMRegressor` and `lightgbm.Booster`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._booster = booster = getattr(model, "booster_", model)
        text = booster.model_to_string(num_iteration=-1)
        self._settings = dict(re.findall(r"^\[(\w+): (.*)\]$", text, re.MULTILINE))
        kind = self._settings.get("boosting")
        objective = re.search(r"^objective=(.*)$", text, re.MULTILINE)
        name, *more = objective.group(1).split() if objective else ["none"]
        refuse(
            {
                "LightGBM's dart rescales earlier trees, so leaf values cannot be traced to "
                "training rows: use boosting_type='gbdt'.": kind == "dart",
                "LightGBM's boosting_type='rf' is a forest: use scikit-learn's RandomForest, which "
                "exempla supports, or boosting_type='gbdt'.": kind == "rf",
                "LightGBM's linear_tree=True fits a linear model in every leaf instead of a value: "
                "use linear_tree=False.": self._settings.get("linear_tree") == "1",
                "LightGBM's sigmoid is not 1, so its outputs are not log-odds: use sigmoid=1.": any(
                    one.startswith("sigmoid:") and float(one[8:]) != 1.0 for one in more
                ),
            }
        )
        self.n_outputs = each = booster.num_model_per_iteration()
        own: Any = getattr(model, "objective", None)
        if callable(own):
            self.family = _custom_family(own, each, hasattr(model, "n_classes_"))
        else:
            name = " ".join([name, *more]) if "sqrt" in more else name
            alpha = self._settings.get("alpha", 0.5)
            self.family = _family("LightGBM's objective", name, alpha)
        # after early stopping the trees beyond the best iteration do not predict
        best = booster.best_iteration
        self._iterations = best if best and best > 0 else booster.current_iteration()
        trees = range(self._iterations * each)
        counts = [int(n) for n in re.findall(r"^num_leaves=(\d+)$", text, re.MULTILINE)]
        value = booster.get_leaf_output
        values = [np.array([value(t, i) for i in range(counts[t])]) for t in trees]
        self._set_trees(values, np.arange(len(trees)) % each)
        self.rate = float(self._settings.get("learning_rate", 1.0))
        self.l2 = float(self._settings.get("lambda_l2", 0.0))
        self.folds_start = self._settings.get("boost_from_average") == "1" and not callable(own)
        self.class_weight = getattr(model, "class_weight", None)
        if self.family.discrete:
            self.classes = np.asarray(getattr(model, "classes_", np.arange(max(each, 2))))

    def leaves(self, X: Any) -> np.ndarray:
        found = self._booster.predict(X, pred_leaf=True, num_iteration=self._iterations)
        return np.asarray(found).reshape(len(found), -1)

    def margins(self, X: Any) -> Any:
        return self._booster.predict(X, raw_score=True, num_iteration=self._iterations)

    def weight_of_classes(self, codes: np.ndarray) -> np.ndarray | None:
        own = super().weight_of_classes(codes)
        if self.family.name != Bernoulli.name:
            return own
        weights = np.ones(2) if own is None else own
        if self._settings.get("is_unbalance") == "1":
            counts = np.bincount(codes, minlength=2)
            # the rarer class gets the total weight of the more frequent one
            weights = weights * np.maximum(counts[::-1] / np.maximum(counts, 1), 1.0)
        weights[1] *= float(self._settings.get("scale_pos_weight", 1.0))
        return None if np.all(weights == 1) else weights


class _XGBoostLeaves(LeafReader):
    """Leaves of `XGBClassifier`, `XGBRegressor` and `xgboost.Booster`."""

    tolerance = 1e-5
    """XGBoost sums in single precision."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._booster = booster = model.get_booster() if hasattr(model, "get_booster") else model
        learner = json.loads(booster.save_config())["learner"]
        kind, objective = learner["gradient_booster"]["name"], learner["objective"]
        strategy = learner["learner_train_param"]["multi_strategy"]
        levels = objective.get("quantile_loss_param", {}).get("quantile_alpha", "0.5")
        levels = np.ravel(json.loads(levels) if isinstance(levels, str) else levels)
        refuse(
            {
                "XGBoost's dart rescales earlier trees, so leaf values cannot be traced to "
                "training rows: use booster='gbtree'.": kind == "dart",
                f"XGBoost's booster={kind!r} has no trees: use booster='gbtree', or scikit-learn's "
                "linear models.": kind != "gbtree",
                "XGBoost's multi_strategy='multi_output_tree' is not supported, because its leaves "
                "hold vectors: use 'one_output_per_tree'.": strategy != "one_output_per_tree",
                "This XGBoost model predicts several quantiles at once: explain one model per "
                "quantile.": len(levels) > 1,
                "This XGBoost model predicts several targets at once: explain one model per "
                "target.": int(learner["learner_model_param"]["num_target"]) > 1,
            }
        )
        self.n_outputs = max(1, int(learner["learner_model_param"]["num_class"]))
        own: Any = getattr(model, "objective", None)
        if callable(own):
            self.family = _custom_family(own, self.n_outputs, hasattr(model, "n_classes_"))
        else:
            self.family = _family("XGBoost's objective", objective["name"], levels[0])
        settings = learner["gradient_booster"]["tree_train_param"]
        self.rate, self.l2 = float(settings["eta"]), float(settings["reg_lambda"])
        # after early stopping the trees beyond the best iteration do not predict
        best = booster.attr("best_iteration")
        self._range = (0, 0 if best is None else int(best) + 1)
        kept = booster if best is None else booster[: self._range[1]]
        forest = json.loads(kept.save_raw("json"))["learner"]["gradient_booster"]["model"]
        self._is_leaf = [np.asarray(t["left_children"]) < 0 for t in forest["trees"]]
        # the file stores a leaf's value in place of a split's threshold
        thresholds = [np.asarray(t["split_conditions"], np.float64) for t in forest["trees"]]
        values = [one[leaf] for one, leaf in zip(thresholds, self._is_leaf)]
        self._set_trees(values, forest["tree_info"])
        if self.family.discrete:
            known = getattr(model, "classes_", np.arange(max(self.n_outputs, 2)))
            self.classes = np.asarray(known)
        positive = float(objective.get("reg_loss_param", {}).get("scale_pos_weight", 1.0))
        if positive != 1.0 and self.classes is not None:
            self.class_weight = {self.classes[1].item(): positive}

    def leaves(self, X: Any) -> np.ndarray:
        return number_leaves(self._predict(X, pred_leaf=True), self._is_leaf)

    def margins(self, X: Any) -> Any:
        return self._predict(X, output_margin=True)

    def _predict(self, X: Any, **how: bool) -> np.ndarray:
        from xgboost import DMatrix

        missing = getattr(self.model, "missing", None)
        data = DMatrix(
            X,
            missing=np.nan if missing is None else missing,
            enable_categorical=True,
            feature_types=getattr(self.model, "feature_types", None),
        )
        return np.asarray(self._booster.predict(data, iteration_range=self._range, **how))


class _SklearnLeaves(LeafReader):
    """What scikit-learn's two boosted ensembles share."""

    def __init__(self, model: Any, n_outputs: int) -> None:
        super().__init__(model)
        self.n_outputs, self.rate = n_outputs, float(model.learning_rate)
        self.classes = getattr(model, "classes_", None)
        if self.classes is not None:
            self.family = Bernoulli() if n_outputs == 1 else Categorical()
        else:
            level = getattr(model, "quantile", getattr(model, "alpha", None)) or 0.5
            self.family = _family(f"The loss of {type(model).__name__},", model.loss, level)

    def margins(self, X: Any) -> Any:
        if self.classes is not None:
            return self.model.decision_function(X)
        found = self.model.predict(X)
        return np.log(found) if isinstance(self.family, Poisson) else found


class _GradientBoostingLeaves(_SklearnLeaves):
    """Leaves of `GradientBoostingClassifier` and `GradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        refuse(
            {
                f"{type(model).__name__}(init=...) starts from another model's predictions, which "
                "are not part of its trees: leave init=None or 'zero'.": model.init
                not in (None, "zero"),
                "GradientBoostingClassifier(loss='exponential') has no likelihood: use "
                "loss='log_loss'.": model.loss == "exponential",
            }
        )
        super().__init__(model, model.estimators_.shape[1])
        trees = [one.tree_ for one in model.estimators_.ravel()]  # stage by stage
        self._is_leaf = [tree.children_left < 0 for tree in trees]
        values = [self.rate * t.value[leaf, 0, 0] for t, leaf in zip(trees, self._is_leaf)]
        self._set_trees(values, np.arange(len(trees)) % self.n_outputs)

    def leaves(self, X: Any) -> np.ndarray:
        return number_leaves(self.model.apply(X), self._is_leaf)


class _HistGradientBoostingLeaves(_SklearnLeaves):
    """Leaves of `HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, int(model.n_trees_per_iteration_))
        trees = [tree for stage in model._predictors for tree in stage]
        values = [tree.nodes["value"][tree.nodes["is_leaf"].astype(bool)] for tree in trees]
        self._set_trees(values, np.arange(len(trees)) % self.n_outputs)
        self._counting = [_with_numbers(tree) for tree in trees]
        self.l2 = float(model.l2_regularization)
        self.class_weight = getattr(model, "class_weight", None)

    def leaves(self, X: Any) -> np.ndarray:
        ready = self.model._preprocess_X(X, reset=False)
        known, places = self.model._bin_mapper.make_known_categories_bitsets()
        columns = [
            tree.predict(ready, known_cat_bitsets=known, f_idx_map=places, n_threads=1)
            for tree in self._counting
        ]
        return np.stack(columns, axis=1).astype(np.int64)


def _with_numbers(tree: Any) -> Any:
    """Return a copy of the tree that predicts the number of the leaf."""
    counting = copy(tree)
    counting.nodes = tree.nodes.copy()
    leaf = counting.nodes["is_leaf"].astype(bool)
    counting.nodes["value"][leaf] = np.arange(leaf.sum())
    return counting


_LIBRARIES: dict[str, Callable[[Any], LeafReader]] = {
    "lightgbm": _LightGBMLeaves,
    "xgboost": _XGBoostLeaves,
    "catboost": _CatBoostLeaves,
}


def read_leaves(model: Any) -> LeafReader:
    """Return the reader of a fitted ensemble; raise if it is not linear in leaf values."""
    for kind in type(model).__mro__:  # a subclass may be defined anywhere
        library = kind.__module__.partition(".")[0]
        if library in _LIBRARIES:
            return _LIBRARIES[library](model)
    hist = hasattr(model, "_predictors")
    return _HistGradientBoostingLeaves(model) if hist else _GradientBoostingLeaves(model)
