"""Leaves of CatBoost, through `calc_leaf_indexes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.errors import UnsupportedModelError
from exempla.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    OneVsRest,
    Poisson,
)
from exempla.oracles.trees.leaves.base import LeafReader
from exempla.oracles.trees.quantile import AsymmetricLaplace

__all__ = ["CatBoostLeaves"]


class CatBoostLeaves(LeafReader):
    """`CatBoostClassifier`, `CatBoostRegressor` and `CatBoost`.

    CatBoost keeps the best iteration's trees only. In a model of several classes each leaf holds a
    value for every class.
    """

    tolerance = 1e-7

    def __init__(self, model: Any) -> None:
        self.model = model
        settings = model.get_all_params()
        self.family = family(settings)
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


def family(settings: dict[str, Any]) -> Likelihood:
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
