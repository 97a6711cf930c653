"""Leaves of XGBoost, through `pred_leaf`; of an `XGBModel` or a `Booster`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from exempla.errors import UnsupportedModelError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.trees.leaves.base import LeafReader, numbered
from exempla.oracles.trees.quantile import AsymmetricLaplace

__all__ = ["XGBoostLeaves"]


class XGBoostLeaves(LeafReader):
    """`XGBClassifier`, `XGBRegressor` and `xgboost.Booster`."""

    tolerance = 1e-5
    """XGBoost adds up in single precision."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._booster = booster = model.get_booster() if hasattr(model, "get_booster") else model
        learner = json.loads(booster.save_config())["learner"]
        refuse(learner)
        self.family = family(learner)
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


def refuse(learner: dict[str, Any]) -> None:
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


def family(learner: dict[str, Any]) -> Likelihood:
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
