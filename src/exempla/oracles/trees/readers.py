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


def refuse(reasons: dict[str, bool]) -> None:
    """Raise the first message whose reason holds against a model."""
    for message, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(message)


def _family(known: dict[str, Likelihood], name: str, setting: str, shown: str = "") -> Likelihood:
    """Return the likelihood of a loss; raise if it has none."""
    if name not in known:
        raise UnsupportedModelError(
            f"{setting} {shown or name!r} has no likelihood here: use one of {', '.join(known)}."
        )
    return known[name]


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


def _custom_family(objective: Callable[..., Any], n_outputs: int, discrete: bool) -> Likelihood:
    """Return the loss of a user's objective, which has to have one output."""
    several = (
        "This model was trained with a custom objective of several outputs, whose Hessian is "
        "unknown: use a built-in objective, or one model per class."
    )
    refuse({several: n_outputs > 1})
    return CustomObjective(_Gradient(objective), discrete)


class _CatBoostLeaves(LeafReader):
    """Leaves of `CatBoostClassifier`, `CatBoostRegressor` and `CatBoost`.

    CatBoost keeps only the trees of the best iteration. With several classes, each leaf holds a
    value for every class.
    """

    tolerance = 1e-7

    def __init__(self, model: Any) -> None:
        self.model = model
        settings = _catboost_settings(model)
        self.sizes = np.asarray(model.get_tree_leaf_counts(), dtype=np.int64)
        values = np.asarray(model.get_leaf_values(), dtype=np.float64)
        self.n_outputs = values.size // int(self.sizes.sum())
        scale, _ = model.get_scale_and_bias()
        self.values = scale * values.reshape(-1, self.n_outputs)
        several = self.n_outputs > 1
        self.outputs = np.full(len(self.sizes), -1 if several else 0)
        self.rate = float(settings.get("learning_rate", 1.0))
        self.l2 = float(settings.get("l2_leaf_reg", 0.0))
        self.family = _catboost_family(settings, self.n_outputs)
        # categories are encoded differently in training, so rows fall into other leaves
        self.newton_steps = not model.get_cat_feature_indices()
        if self.family.discrete:
            self.classes = np.asarray(model.classes_)
        self._auto = settings.get("auto_class_weights", "None")
        given = settings.get("class_weights")
        self._given = None if given is None else np.asarray(given, dtype=np.float64)

    def leaves(self, X: Any) -> np.ndarray:
        return np.asarray(self.model.calc_leaf_indexes(X))

    def margins(self, X: Any) -> np.ndarray:
        found = self.model.predict(X, prediction_type="RawFormulaVal")
        return np.asarray(found, dtype=np.float64).reshape(-1, self.n_outputs)

    def weight_of_classes(self, codes: np.ndarray) -> np.ndarray | None:
        if self._given is not None:
            return self._given
        if self._auto in (None, "None") or self.classes is None:
            return None
        counts = np.bincount(codes, minlength=len(self.classes)).astype(np.float64)
        ratio = counts.max() / np.maximum(counts, 1.0)
        return np.sqrt(ratio) if self._auto == "SqrtBalanced" else ratio


def _catboost_settings(model: Any) -> dict[str, Any]:
    given = model.get_params() if hasattr(model, "get_params") else {}
    if hasattr(given.get("loss_function"), "calc_ders_range"):
        return given  # CatBoost cannot list all settings of a Python objective
    return model.get_all_params()


def _catboost_family(settings: dict[str, Any], n_outputs: int) -> Likelihood:
    """Return the likelihood of the model's loss, written "Name:option=value;…"."""
    loss: Any = settings.get("loss_function")
    if hasattr(loss, "calc_ders_range"):
        return _custom_family(loss, n_outputs, discrete=False)
    name, _, options = str(loss).partition(":")
    more = dict(part.split("=", 1) for part in options.split(";") if "=" in part)
    known: dict[str, Likelihood] = {
        "Logloss": Bernoulli(),
        "CrossEntropy": Bernoulli(),
        "MultiClass": Categorical(),
        "MultiClassOneVsAll": OneVsRest(),
        "RMSE": Gaussian(),
        "MAE": AsymmetricLaplace(0.5),
        "Quantile": AsymmetricLaplace(float(more.get("alpha", 0.5))),
        "Poisson": Poisson(),
    }
    return _family(known, name, "CatBoost's loss_function")


class _LightGBMLeaves(LeafReader):
    """Leaves of `LGBMClassifier`, `LGBMRegressor` and `lightgbm.Booster`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._booster = booster = getattr(model, "booster_", model)
        text = booster.model_to_string(num_iteration=1)
        self._settings = dict(re.findall(r"^\[(\w+): (.*)\]$", text, re.MULTILINE))
        kind = self._settings.get("boosting")
        refuse(
            {
                "LightGBM's dart drops and rescales earlier trees while it grows new ones, so leaf "
                "values cannot be traced to training rows: use boosting_type='gbdt'.": kind
                == "dart",
                "LightGBM's boosting_type='rf' is a forest: use scikit-learn's RandomForest, which "
                "exempla supports, or boosting_type='gbdt'.": kind == "rf",
                "LightGBM's linear_tree=True fits a linear model in every leaf instead of a value: "
                "use linear_tree=False.": self._settings.get("linear_tree") == "1",
            }
        )
        each = booster.num_model_per_iteration()
        own: Any = getattr(model, "objective", None)
        self.family = (
            _custom_family(own, each, hasattr(model, "n_classes_"))
            if callable(own)
            else _lightgbm_family(text)
        )
        # after early stopping the trees beyond the best iteration do not predict
        best = booster.best_iteration
        self._iterations = best if best and best > 0 else booster.current_iteration()
        trees = range(self._iterations * each)
        self.n_outputs = each
        self.outputs = np.arange(len(trees)) % each
        values = _leaf_values(booster, trees)
        self.sizes = np.array([len(one) for one in values])
        self.values = np.concatenate(values)[:, None]
        self.rate = float(self._settings.get("learning_rate", 1.0))
        self.l2 = float(self._settings.get("lambda_l2", 0.0))
        self.folds_start = self._settings.get("boost_from_average") == "1" and not callable(own)
        self.class_weight = getattr(model, "class_weight", None)
        if self.family.discrete:
            self.classes = np.asarray(getattr(model, "classes_", np.arange(max(each, 2))))

    def leaves(self, X: Any) -> np.ndarray:
        found = self._booster.predict(X, pred_leaf=True, num_iteration=self._iterations)
        return np.asarray(found).reshape(len(found), -1)

    def margins(self, X: Any) -> np.ndarray:
        found = self._booster.predict(X, raw_score=True, num_iteration=self._iterations)
        return np.asarray(found, dtype=np.float64).reshape(-1, self.n_outputs)

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


def _leaf_values(booster: Any, trees: range) -> list[np.ndarray]:
    """Return what each tree's leaves add; their number is parsed from the model's text."""
    text = booster.model_to_string(num_iteration=-1)
    counts = [int(n) for n in re.findall(r"^num_leaves=(\d+)$", text, re.MULTILINE)]
    return [np.array([booster.get_leaf_output(t, i) for i in range(counts[t])]) for t in trees]


def _lightgbm_family(text: str) -> Likelihood:
    """Return the likelihood of the objective that the model's text names."""
    found = re.search(r"^objective=(.*)$", text, re.MULTILINE)
    name, *more = found.group(1).split() if found else ["none"]
    settings = dict(part.split(":", 1) for part in more if ":" in part)
    skewed = float(settings.get("sigmoid", 1.0)) != 1.0
    refuse({"LightGBM's sigmoid is not 1, so its outputs are not log-odds: use sigmoid=1.": skewed})
    alpha = re.search(r"^\[alpha: (.*)\]$", text, re.MULTILINE)
    known: dict[str, Likelihood] = {
        "binary": Bernoulli(),
        "multiclass": Categorical(),
        "multiclassova": OneVsRest(),
        "regression": Gaussian(),
        "regression_l1": AsymmetricLaplace(0.5),
        "poisson": Poisson(),
        "quantile": AsymmetricLaplace(float(alpha.group(1)) if alpha else 0.5),
    }
    shown = " ".join([name, *more])
    return _family(known, shown if "sqrt" in more else name, "LightGBM's objective", repr(shown))


class _XGBoostLeaves(LeafReader):
    """Leaves of `XGBClassifier`, `XGBRegressor` and `xgboost.Booster`."""

    tolerance = 1e-5
    """XGBoost sums in single precision."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._booster = booster = model.get_booster() if hasattr(model, "get_booster") else model
        learner = json.loads(booster.save_config())["learner"]
        kind = learner["gradient_booster"]["name"]
        strategy = learner["learner_train_param"]["multi_strategy"]
        refuse(
            {
                "XGBoost's dart drops and rescales earlier trees while it grows new ones, so leaf "
                "values cannot be traced to training rows: use booster='gbtree'.": kind == "dart",
                f"XGBoost's booster={kind!r} has no trees: use booster='gbtree', or scikit-learn's "
                "linear models.": kind != "gbtree",
                "XGBoost's multi_strategy='multi_output_tree' is not supported, because its leaves "
                "hold vectors: use 'one_output_per_tree'.": strategy != "one_output_per_tree",
                "This XGBoost model predicts several targets at once: explain one model per "
                "target.": int(learner["learner_model_param"]["num_target"]) > 1,
            }
        )
        self.n_outputs = max(1, int(learner["learner_model_param"]["num_class"]))
        own: Any = getattr(model, "objective", None)
        self.family = (
            _custom_family(own, self.n_outputs, hasattr(model, "n_classes_"))
            if callable(own)
            else _xgboost_family(learner)
        )
        settings = learner["gradient_booster"]["tree_train_param"]
        self.rate, self.l2 = float(settings["eta"]), float(settings["reg_lambda"])
        # after early stopping the trees beyond the best iteration do not predict
        best = booster.attr("best_iteration")
        self._range = (0, 0 if best is None else int(best) + 1)
        kept = booster if best is None else booster[: self._range[1]]
        forest = json.loads(kept.save_raw("json"))["learner"]["gradient_booster"]["model"]
        self._is_leaf = [np.asarray(t["left_children"]) < 0 for t in forest["trees"]]
        self.sizes = np.array([leaf.sum() for leaf in self._is_leaf])
        # the file stores a leaf's value in place of a split's threshold
        thresholds = [np.asarray(t["split_conditions"], np.float64) for t in forest["trees"]]
        values = [one[leaf] for one, leaf in zip(thresholds, self._is_leaf)]
        self.values = np.concatenate(values)[:, None]
        self.outputs = np.asarray(forest["tree_info"], dtype=np.int64)
        if self.family.discrete:
            known = getattr(model, "classes_", np.arange(max(self.n_outputs, 2)))
            self.classes = np.asarray(known)
        weighted = learner["objective"].get("reg_loss_param", {})
        positive = float(weighted.get("scale_pos_weight", 1.0))
        if positive != 1.0 and self.classes is not None:
            self.class_weight = {self.classes[1].item(): positive}

    def leaves(self, X: Any) -> np.ndarray:
        found = self._predict(X, pred_leaf=True)
        return number_leaves(found.astype(np.int64).reshape(len(found), -1), self._is_leaf)

    def margins(self, X: Any) -> np.ndarray:
        return self._predict(X, output_margin=True).astype(np.float64).reshape(-1, self.n_outputs)

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


def _xgboost_family(learner: dict[str, Any]) -> Likelihood:
    """Return the likelihood of the model's objective."""
    objective = learner["objective"]
    text = objective.get("quantile_loss_param", {}).get("quantile_alpha", "0.5")
    levels = json.loads(text) if isinstance(text, str) else text
    levels = levels if isinstance(levels, list) else [levels]
    several = "This XGBoost model predicts several quantiles at once"
    refuse({f"{several}: explain one model per quantile.": len(levels) > 1})
    known: dict[str, Likelihood] = {
        "binary:logistic": Bernoulli(),
        "binary:logitraw": Bernoulli(),
        "multi:softprob": Categorical(),
        "multi:softmax": Categorical(),
        "reg:squarederror": Gaussian(),
        "reg:absoluteerror": AsymmetricLaplace(0.5),
        "reg:quantileerror": AsymmetricLaplace(float(levels[0])),
        "count:poisson": Poisson(),
    }
    return _family(known, objective["name"], "XGBoost's objective")


# ---- scikit-learn


class _GradientBoostingLeaves(LeafReader):
    """Leaves of `GradientBoostingClassifier` and `GradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        refuse(
            {
                f"{type(model).__name__}(init=...) starts from another model's predictions, which "
                "are not part of its trees: leave init=None or 'zero'.": model.init
                not in (None, "zero"),
                "GradientBoostingClassifier(loss='exponential') has no likelihood: use "
                "loss='log_loss'.": model.loss == "exponential",
            }
        )
        trees = model.estimators_.ravel()  # stage by stage, one output after the other
        self._is_leaf = [tree.tree_.children_left < 0 for tree in trees]
        self.sizes = np.array([leaf.sum() for leaf in self._is_leaf])
        self.n_outputs = model.estimators_.shape[1]
        self.outputs = np.tile(np.arange(self.n_outputs), len(model.estimators_))
        self.rate = float(model.learning_rate)
        values = [tree.tree_.value[leaf, 0, 0] for tree, leaf in zip(trees, self._is_leaf)]
        self.values = self.rate * np.concatenate(values)[:, None]
        self.classes = getattr(model, "classes_", None)
        self.family = _sklearn_family(model, self.n_outputs)

    def leaves(self, X: Any) -> np.ndarray:
        nodes = self.model.apply(X).astype(np.int64)
        return number_leaves(nodes.reshape(len(nodes), -1), self._is_leaf)

    def margins(self, X: Any) -> np.ndarray:
        found = self.model.predict(X) if self.classes is None else self.model.decision_function(X)
        return np.asarray(found, dtype=np.float64).reshape(-1, self.n_outputs)


def _sklearn_family(model: Any, n_outputs: int, **more: Likelihood) -> Likelihood:
    """Return the likelihood whose negative logarithm is the loss."""
    if hasattr(model, "classes_"):
        return Bernoulli() if n_outputs == 1 else Categorical()
    quantile = getattr(model, "quantile", getattr(model, "alpha", None))
    losses: dict[str, Likelihood] = {
        "squared_error": Gaussian(),
        **more,
        "absolute_error": AsymmetricLaplace(0.5),
        "quantile": AsymmetricLaplace(float(quantile or 0.5)),
    }
    return _family(losses, model.loss, f"The loss of {type(model).__name__},")


class _HistGradientBoostingLeaves(LeafReader):
    """Leaves of `HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.n_outputs = int(model.n_trees_per_iteration_)
        self.family = _sklearn_family(model, self.n_outputs, poisson=Poisson())
        stages = model._predictors
        trees = [tree for stage in stages for tree in stage]
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
    """Return a copy of the tree that predicts the number of the leaf."""
    counting = copy(tree)
    counting.nodes = tree.nodes.copy()
    leaf = counting.nodes["is_leaf"].astype(bool)
    counting.nodes["value"][leaf] = np.arange(leaf.sum())
    return counting


# ---- registry

_READERS: dict[tuple[str, str], Callable[[Any], LeafReader]] = {
    ("lightgbm", "LGBMModel"): _LightGBMLeaves,
    ("lightgbm", "Booster"): _LightGBMLeaves,
    ("xgboost", "XGBModel"): _XGBoostLeaves,
    ("xgboost", "Booster"): _XGBoostLeaves,
    ("catboost", "CatBoost"): _CatBoostLeaves,
    ("sklearn", "BaseGradientBoosting"): _GradientBoostingLeaves,
    ("sklearn", "BaseHistGradientBoosting"): _HistGradientBoostingLeaves,
}


def read_leaves(model: Any) -> LeafReader:
    """Return the reader of a fitted ensemble; raise if it is not linear in leaf values."""
    # by the names of the class and its base classes, so that no library is imported
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__]
    return next(_READERS[kind] for kind in kinds if kind in _READERS)(model)
