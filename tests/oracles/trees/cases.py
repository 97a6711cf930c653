"""Every library and objective, listed once; libraries that are not installed are left out."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

TREES = 12
"""Few enough that no class's probability falls below what the Fisher leaves out."""

BINARY, CLASSES, NUMBERS = "binary", "classes", "numbers"


def lightgbm(kind: str, **more: Any) -> Any:
    import lightgbm

    made = lightgbm.LGBMRegressor if kind == NUMBERS else lightgbm.LGBMClassifier
    return made(n_estimators=TREES, num_leaves=7, verbosity=-1, n_jobs=1, **more)


def xgboost(kind: str, **more: Any) -> Any:
    import xgboost

    made = xgboost.XGBRegressor if kind == NUMBERS else xgboost.XGBClassifier
    return made(n_estimators=TREES, max_depth=3, n_jobs=1, **more)


def catboost(kind: str, **more: Any) -> Any:
    import catboost

    made = catboost.CatBoostRegressor if kind == NUMBERS else catboost.CatBoostClassifier
    return made(
        iterations=TREES, depth=3, verbose=0, thread_count=1, allow_writing_files=False, **more
    )


def hist(kind: str, **more: Any) -> Any:
    made = HistGradientBoostingRegressor if kind == NUMBERS else HistGradientBoostingClassifier
    return made(max_iter=TREES, max_leaf_nodes=7, **more)


def boosting(kind: str, **more: Any) -> Any:
    made = GradientBoostingRegressor if kind == NUMBERS else GradientBoostingClassifier
    return made(n_estimators=TREES, max_depth=2, random_state=0, **more)


def needs(library: str) -> Any:
    """Skips a case whose library is not installed."""
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


LIBRARIES = {
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "catboost": catboost,
    "hist": hist,
    "boosting": boosting,
}
OBJECTIVES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "lightgbm": {
        "binary": (BINARY, {}),
        "scale_pos_weight": (BINARY, {"scale_pos_weight": 3.0}),
        "is_unbalance": (BINARY, {"is_unbalance": True}),
        "multiclass": (CLASSES, {}),
        "one-vs-rest": (CLASSES, {"objective": "multiclassova"}),
        "squared": (NUMBERS, {}),
        "poisson": (NUMBERS, {"objective": "poisson"}),
        "quantile": (NUMBERS, {"objective": "quantile", "alpha": 0.8}),
    },
    "xgboost": {
        "binary": (BINARY, {}),
        "scale_pos_weight": (BINARY, {"scale_pos_weight": 3.0}),
        "multiclass": (CLASSES, {}),
        "squared": (NUMBERS, {}),
        "poisson": (NUMBERS, {"objective": "count:poisson"}),
        "quantile": (NUMBERS, {"objective": "reg:quantileerror", "quantile_alpha": 0.8}),
    },
    "catboost": {
        "binary": (BINARY, {}),
        "scale_pos_weight": (BINARY, {"scale_pos_weight": 3.0}),
        "balanced": (BINARY, {"auto_class_weights": "Balanced"}),
        "lossguide": (BINARY, {"grow_policy": "Lossguide"}),
        "multiclass": (CLASSES, {}),
        "one-vs-rest": (CLASSES, {"loss_function": "MultiClassOneVsAll"}),
        "squared": (NUMBERS, {}),
        "poisson": (NUMBERS, {"loss_function": "Poisson"}),
        "quantile": (NUMBERS, {"loss_function": "Quantile:alpha=0.8"}),
    },
    "hist": {
        "binary": (BINARY, {}),
        "balanced": (BINARY, {"class_weight": "balanced"}),
        "multiclass": (CLASSES, {}),
        "squared": (NUMBERS, {}),
        "poisson": (NUMBERS, {"loss": "poisson"}),
        "quantile": (NUMBERS, {"loss": "quantile", "quantile": 0.8}),
    },
    "boosting": {
        "binary": (BINARY, {}),
        "multiclass": (CLASSES, {}),
        "squared": (NUMBERS, {}),
        "quantile": (NUMBERS, {"loss": "quantile", "alpha": 0.8}),
    },
}


def module_of(library: str) -> str:
    return "sklearn" if library in ("hist", "boosting") else library


EVERY = [
    pytest.param(library, name, id=f"{library}-{name}", marks=needs(module_of(library)))
    for library, objectives in OBJECTIVES.items()
    for name in objectives
]
EACH = [pytest.param(library, id=library, marks=needs(module_of(library))) for library in LIBRARIES]


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    if kind == BINARY:
        X, y = load_breast_cancer(return_X_y=True)
        return X[:240], y[:240]
    if kind == CLASSES:
        return load_iris(return_X_y=True)
    X, y = load_diabetes(return_X_y=True)
    return X[:240], y[:240]


def fitted(library: str, name: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """The fitted model of one case, and its training data."""
    kind, more = OBJECTIVES[library][name]
    X, y = data(kind)
    return LIBRARIES[library](kind, **more).fit(X, y), X, y


def frame(n: int = 300, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Missing numbers, a column of categories, some missing, and words to predict."""
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n)
    kind = rng.choice(list("uvwxyz"), n)
    y = np.where(size + 2 * np.isin(kind, ["x", "u"]) + rng.normal(size=n) > 0.7, "yes", "no")
    size[rng.random(n) < 0.2] = np.nan
    kinds = pd.Series(np.where(rng.random(n) < 0.1, None, kind)).astype("category")
    return pd.DataFrame({"size": size, "count": rng.integers(0, 9, n), "kind": kinds}), y
