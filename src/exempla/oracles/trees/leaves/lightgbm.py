"""Leaves of LightGBM, through `pred_leaf`; of an `LGBMModel` or a `Booster`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from exempla.errors import UnsupportedModelError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, OneVsRest, Poisson
from exempla.oracles.trees.leaves.base import LeafReader
from exempla.oracles.trees.quantile import AsymmetricLaplace

__all__ = ["LightGBMLeaves"]


class LightGBMLeaves(LeafReader):
    """`LGBMClassifier`, `LGBMRegressor` and `lightgbm.Booster`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._booster = booster = getattr(model, "booster_", model)
        text = booster.model_to_string(num_iteration=1)
        self._settings = dict(re.findall(r"^\[(\w+): (.*)\]$", text, re.MULTILINE))
        refuse(self._settings)
        self.family = family(text)
        each = booster.num_model_per_iteration()
        # after early stopping the trees beyond the best iteration do not predict
        best = booster.best_iteration
        self._iterations = best if best and best > 0 else booster.current_iteration()
        trees = range(self._iterations * each)
        self.n_outputs = each
        self.outputs = np.arange(len(trees)) % each
        values = leaf_values(booster, trees)
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


def leaf_values(booster: Any, trees: range) -> list[np.ndarray]:
    """What each tree's leaves add, asked leaf by leaf; how many there are, of the model's text."""
    text = booster.model_to_string(num_iteration=-1)
    counts = [int(n) for n in re.findall(r"^num_leaves=(\d+)$", text, re.MULTILINE)]
    return [np.array([booster.get_leaf_output(t, i) for i in range(counts[t])]) for t in trees]


def refuse(settings: dict[str, str]) -> None:
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


def family(text: str) -> Likelihood:
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
