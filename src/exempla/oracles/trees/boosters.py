"""Leaves of CatBoost, through `calc_leaf_indexes`.

Leaves of LightGBM, through `pred_leaf`; of an `LGBMModel` or a `Booster`.

Leaves of XGBoost, through `pred_leaf`; of an `XGBModel` or a `Booster`.
"""

from __future__ import annotations

import json
import re
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
from exempla.oracles.trees.leaves import AsymmetricLaplace, LeafReader, numbered


class CatBoostLeaves(LeafReader):
    """`CatBoostClassifier`, `CatBoostRegressor` and `CatBoost`.

    CatBoost keeps the best iteration's trees only. In a model of several classes each leaf holds a
    value for every class.
    """

    tolerance = 1e-7

    def __init__(self, model: Any) -> None:
        self.model = model
        settings = model.get_all_params()
        self.family = _catboost_family(settings)
        self.sizes = np.asarray(model.get_tree_leaf_counts(), dtype=np.int64)
        values = np.asarray(model.get_leaf_values(), dtype=np.float64)
        self.n_outputs = values.size // int(self.sizes.sum())
        scale, _ = model.get_scale_and_bias()
        self.values = scale * values.reshape(-1, self.n_outputs)
        several = self.n_outputs > 1
        self.outputs = np.full(len(self.sizes), -1 if several else 0)
        self.rate = float(settings.get("learning_rate", 1.0))
        self.l2 = float(settings.get("l2_leaf_reg", 0.0))
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


def _catboost_family(settings: dict[str, Any]) -> Likelihood:
    """The likelihood of the model's loss, written "Name:option=value;…"."""
    name, _, options = str(settings["loss_function"]).partition(":")
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
    if name not in known:
        raise UnsupportedModelError(
            f"CatBoost's loss_function {name!r} has no likelihood here: use one of "
            f"{', '.join(known)}."
        )
    return known[name]


class LightGBMLeaves(LeafReader):
    """`LGBMClassifier`, `LGBMRegressor` and `lightgbm.Booster`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._booster = booster = getattr(model, "booster_", model)
        text = booster.model_to_string(num_iteration=1)
        self._settings = dict(re.findall(r"^\[(\w+): (.*)\]$", text, re.MULTILINE))
        _refuse_lightgbm(self._settings)
        self.family = _lightgbm_family(text)
        each = booster.num_model_per_iteration()
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
        if not isinstance(self.family, Bernoulli):
            return own
        weights = np.ones(2) if own is None else own
        if self._settings.get("is_unbalance") == "1":
            counts = np.bincount(codes, minlength=2)
            # the rarer class is raised to the weight of the commoner one
            weights = weights * np.maximum(counts[::-1] / np.maximum(counts, 1), 1.0)
        weights[1] *= float(self._settings.get("scale_pos_weight", 1.0))
        return None if np.all(weights == 1) else weights


def _leaf_values(booster: Any, trees: range) -> list[np.ndarray]:
    """What each tree's leaves add, asked leaf by leaf; how many there are, of the model's text."""
    text = booster.model_to_string(num_iteration=-1)
    counts = [int(n) for n in re.findall(r"^num_leaves=(\d+)$", text, re.MULTILINE)]
    return [np.array([booster.get_leaf_output(t, i) for i in range(counts[t])]) for t in trees]


def _refuse_lightgbm(settings: dict[str, str]) -> None:
    """Say what of it is not linear in leaf values."""
    if settings.get("boosting") == "dart":
        raise UnsupportedModelError(
            "LightGBM's dart drops and rescales earlier trees while it grows new ones, so no tree "
            "answers for what it learnt: use boosting_type='gbdt'."
        )
    if settings.get("boosting") == "rf":
        raise UnsupportedModelError(
            "LightGBM's boosting_type='rf' is a forest: use scikit-learn's RandomForest, whose "
            "out-of-bag weights exempla knows, or boosting_type='gbdt'."
        )
    if settings.get("linear_tree") == "1":
        raise UnsupportedModelError(
            "LightGBM's linear_tree=True fits a line in every leaf, which is no leaf value: use "
            "linear_tree=False."
        )


def _lightgbm_family(text: str) -> Likelihood:
    """The likelihood of the model's objective, as its text names it with its settings."""
    found = re.search(r"^objective=(.*)$", text, re.MULTILINE)
    name, *more = found.group(1).split() if found else ["none"]
    settings = dict(part.split(":", 1) for part in more if ":" in part)
    if float(settings.get("sigmoid", 1.0)) != 1.0:
        raise UnsupportedModelError(
            "LightGBM's sigmoid is not 1, so its outputs are no log-odds: use sigmoid=1."
        )
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
    if name not in known or "sqrt" in more:
        raise UnsupportedModelError(
            f"LightGBM's objective {' '.join([name, *more])!r} has no likelihood here: use one of "
            f"{', '.join(known)}."
        )
    return known[name]


class XGBoostLeaves(LeafReader):
    """`XGBClassifier`, `XGBRegressor` and `xgboost.Booster`."""

    tolerance = 1e-5
    """XGBoost adds up in single precision."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._booster = booster = model.get_booster() if hasattr(model, "get_booster") else model
        learner = json.loads(booster.save_config())["learner"]
        _refuse_xgboost(learner)
        self.family = _xgboost_family(learner)
        settings = learner["gradient_booster"]["tree_train_param"]
        self.rate, self.l2 = float(settings["eta"]), float(settings["reg_lambda"])
        # after early stopping the trees beyond the best iteration do not predict
        best = booster.attr("best_iteration")
        self._range = (0, 0 if best is None else int(best) + 1)
        kept = booster if best is None else booster[: self._range[1]]
        forest = json.loads(kept.save_raw("json"))["learner"]["gradient_booster"]["model"]
        self._is_leaf = [np.asarray(t["left_children"]) < 0 for t in forest["trees"]]
        self.sizes = np.array([leaf.sum() for leaf in self._is_leaf])
        # of a leaf, the file keeps its value in the place of a split's threshold
        thresholds = [np.asarray(t["split_conditions"], np.float64) for t in forest["trees"]]
        values = [one[leaf] for one, leaf in zip(thresholds, self._is_leaf)]
        self.values = np.concatenate(values)[:, None]
        self.outputs = np.asarray(forest["tree_info"], dtype=np.int64)
        self.n_outputs = max(1, int(learner["learner_model_param"]["num_class"]))
        if self.family.discrete:
            known = getattr(model, "classes_", np.arange(max(self.n_outputs, 2)))
            self.classes = np.asarray(known)
        weighted = learner["objective"].get("reg_loss_param", {})
        positive = float(weighted.get("scale_pos_weight", 1.0))
        if positive != 1.0 and self.classes is not None:
            self.class_weight = {self.classes[1].item(): positive}

    def leaves(self, X: Any) -> np.ndarray:
        found = self._predict(X, pred_leaf=True)
        return numbered(found.astype(np.int64).reshape(len(found), -1), self._is_leaf)

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


def _refuse_xgboost(learner: dict[str, Any]) -> None:
    """Say what of it is not linear in leaf values, one value a leaf."""
    kind = learner["gradient_booster"]["name"]
    if kind == "dart":
        raise UnsupportedModelError(
            "XGBoost's dart drops and rescales earlier trees while it grows new ones, so no tree "
            "answers for what it learnt: use booster='gbtree'."
        )
    if kind != "gbtree":
        raise UnsupportedModelError(
            f"XGBoost's booster={kind!r} has no trees: use booster='gbtree', or scikit-learn's "
            "linear models."
        )
    if learner["learner_train_param"]["multi_strategy"] != "one_output_per_tree":
        raise UnsupportedModelError(
            "XGBoost's multi_strategy='multi_output_tree' keeps vectors in its leaves, which its "
            "pred_leaf does not tell apart: use 'one_output_per_tree'."
        )
    if int(learner["learner_model_param"]["num_target"]) > 1:
        raise UnsupportedModelError(
            "this XGBoost model predicts several targets at once: explain one model per target."
        )


def _xgboost_family(learner: dict[str, Any]) -> Likelihood:
    """The likelihood of the model's objective."""
    objective = learner["objective"]
    name = objective["name"]
    known: dict[str, Likelihood] = {
        "binary:logistic": Bernoulli(),
        "binary:logitraw": Bernoulli(),
        "multi:softprob": Categorical(),
        "multi:softmax": Categorical(),
        "reg:squarederror": Gaussian(),
        "reg:absoluteerror": AsymmetricLaplace(0.5),
        "count:poisson": Poisson(),
    }
    if name == "reg:quantileerror":
        return AsymmetricLaplace(quantile(objective))
    if name not in known:
        raise UnsupportedModelError(
            f"XGBoost's objective {name!r} has no likelihood here: use one of "
            f"{', '.join([*known, 'reg:quantileerror'])}."
        )
    return known[name]


def quantile(objective: dict[str, Any]) -> float:
    """The one quantile asked for."""
    text = objective.get("quantile_loss_param", {}).get("quantile_alpha", "0.5")
    asked = json.loads(text) if isinstance(text, str) else text
    asked = asked if isinstance(asked, list) else [asked]
    if len(asked) > 1:
        raise UnsupportedModelError(
            "this XGBoost model predicts several quantiles at once: explain one model per quantile."
        )
    return float(asked[0])
