"""One reader of leaves per library, found by where the model's class comes from.

Inside: base (what a reader promises), lightgbm, xgboost, catboost, sklearn_boosting, sklearn_hist;
forest (whose leaves are means, not steps).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from exempla.oracles.trees.leaves.base import LeafReader

__all__ = ["LeafReader", "find_reader", "is_boosted", "is_forest", "read_leaves"]

_HERE = "exempla.oracles.trees.leaves"
_READERS = {
    ("lightgbm", "LGBMModel"): ("lightgbm", "LightGBMLeaves"),
    ("lightgbm", "Booster"): ("lightgbm", "LightGBMLeaves"),
    ("xgboost", "XGBModel"): ("xgboost", "XGBoostLeaves"),
    ("xgboost", "Booster"): ("xgboost", "XGBoostLeaves"),
    ("catboost", "CatBoost"): ("catboost", "CatBoostLeaves"),
    ("sklearn", "BaseGradientBoosting"): ("sklearn_boosting", "GradientBoostingLeaves"),
    ("sklearn", "BaseHistGradientBoosting"): ("sklearn_hist", "HistGradientBoostingLeaves"),
}
_FORESTS = {("sklearn", "ForestClassifier"), ("sklearn", "ForestRegressor")}


def _kinds(model: Any) -> list[tuple[str, str]]:
    """(library, name) of the model's class and all classes it is built on."""
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__]


def find_reader(model: Any) -> tuple[str, str] | None:
    """Module and name of the reader for this model; None if there is none.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> find_reader(GradientBoostingClassifier())
    ('sklearn_boosting', 'GradientBoostingLeaves')
    """
    return next((_READERS[kind] for kind in _kinds(model) if kind in _READERS), None)


def is_boosted(model: Any) -> bool:
    """Whether this is a boosted ensemble of trees, fitted or not."""
    return find_reader(model) is not None


def is_forest(model: Any) -> bool:
    """Whether this is one of scikit-learn's forests."""
    return any(kind in _FORESTS for kind in _kinds(model))


def read_leaves(model: Any) -> LeafReader:
    """The reader of a fitted ensemble, which refuses what is not linear in leaf values."""
    found = find_reader(model)
    assert found is not None, f"{type(model).__name__} has no reader"
    return getattr(import_module(f"{_HERE}.{found[0]}"), found[1])(model)
