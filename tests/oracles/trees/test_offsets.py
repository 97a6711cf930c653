"""Offsets, custom objectives and unknown weights are refused, or supported where possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from tests.oracles.trees.cases import BINARY, LIBRARIES, NUMBERS, needs

X, Y = load_diabetes(return_X_y=True)
XC, YC = load_breast_cancer(return_X_y=True)
OFFSET = Y.mean() + 1000 * X[:, 2]


def squared(y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return f - y, np.ones_like(f)


def lopsided(y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = np.where(f > y, 5.0, 1.0)
    return scale * (f - y), scale


class CatBoostSquares:
    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> Any:
        found = []
        for i in range(len(targets)):  # CatBoost compiles this with numba
            found.append((targets[i] - approxes[i], -1.0))
        return found


def with_offset(library: str) -> Any:
    model = LIBRARIES[library](NUMBERS)
    if library == "lightgbm":
        return model.fit(X, Y, init_score=OFFSET)
    if library == "xgboost":
        return model.fit(X, Y, base_margin=OFFSET)
    import catboost

    return model.fit(catboost.Pool(X, Y, baseline=OFFSET))


BOOSTERS = [pytest.param(name, marks=needs(name)) for name in ("lightgbm", "xgboost", "catboost")]


@pytest.mark.parametrize("library", BOOSTERS)
def test_an_offset_of_training_is_refused(library: str) -> None:
    with pytest.raises(ExemplaError, match="init_score, base_margin, baseline"):
        make_oracle(with_offset(library)).read((X, Y), role="train")


@pytest.mark.parametrize("library", [*BOOSTERS, "hist"])
def test_weights_of_training_that_were_not_passed_are_refused(library: str) -> None:
    weights = np.where(YC == 1, 50.0, 1.0)
    model = LIBRARIES[library](BINARY).fit(XC, YC, sample_weight=weights)
    oracle = make_oracle(model)
    assert len(oracle.read((XC, YC, weights), role="train")) == len(YC)
    with pytest.raises(ExemplaError, match=r"\(X, y, sample_weight\)"):
        oracle.read((XC, YC), role="train")


@pytest.mark.parametrize("library", [*BOOSTERS, "hist", "boosting"])
def test_a_subset_of_the_training_rows_is_accepted(library: str) -> None:
    model = LIBRARIES[library](NUMBERS).fit(X, Y)
    some = np.random.default_rng(0).permutation(len(Y))[:100]
    assert len(make_oracle(model).read((X[some], Y[some]), role="train")) == 100


@needs("xgboost")
def test_a_native_custom_objective_is_refused() -> None:
    import xgboost

    def far(predictions: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.cos(data.get_label()), np.ones(len(predictions))

    booster = xgboost.train({"max_depth": 3}, xgboost.DMatrix(X, Y), 12, obj=far)
    with pytest.raises(ExemplaError, match="native custom objective"):
        make_oracle(booster).read((X, Y), role="train")


@pytest.mark.parametrize("library", BOOSTERS)
def test_a_custom_objective_is_scored_by_its_own_gradient(library: str) -> None:
    """Squared error as a custom objective has the influence of the built-in one, σ² apart."""
    catboost = library == "catboost"
    own: Any = {"loss_function": CatBoostSquares(), "eval_metric": "RMSE"} if catboost else {}
    own = own or {"objective": squared}
    oracle = make_oracle(LIBRARIES[library](NUMBERS, **own).fit(X, Y))
    train = oracle.read((X, Y), role="train")
    assert oracle.likelihood == "custom objective"
    outputs = oracle._outputs(train.X)[:, 0]
    rows = next(oracle.scores(train))
    np.testing.assert_allclose(rows.factors[0].g[:, 0], Y - outputs)
    np.testing.assert_allclose(
        oracle.log_likelihood(train), -((Y - outputs) ** 2 - Y**2) / 2, rtol=1e-9
    )


@pytest.mark.parametrize("library", [p for p in BOOSTERS if p.values[0] != "catboost"])
def test_a_custom_objective_can_be_explained(library: str) -> None:
    model = LIBRARIES[library](NUMBERS, objective=lopsided).fit(X, Y)
    found = exempla.explain(model, (X, Y), (X[:9], Y[:9]), k=3, progress=False)
    assert len(found) == 3


@needs("lightgbm")
def test_a_custom_objective_of_several_outputs_is_refused() -> None:
    def softmax(y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(f - f.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return p - np.eye(3)[y.astype(int)], p * (1 - p)

    y = np.digitize(Y, [100, 200])
    model = LIBRARIES["lightgbm"]("classes", objective=softmax).fit(X, y)
    with pytest.raises(UnsupportedModelError, match="custom objective of several outputs"):
        make_oracle(model)


def test_boosting_from_another_model_is_refused() -> None:
    model = GradientBoostingRegressor(n_estimators=3, init=Ridge()).fit(X, Y)
    with pytest.raises(UnsupportedModelError, match="starts from another model's predictions"):
        make_oracle(model)


def test_trees_inside_a_transformed_target_see_transformed_labels() -> None:
    inner = HistGradientBoostingRegressor(max_iter=12, max_leaf_nodes=7)
    model = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp).fit(X, Y)
    oracle, plain = make_oracle(model), make_oracle(model.regressor_)
    train, expected = (o.read((X, y), role="train") for o, y in ((oracle, Y), (plain, np.log(Y))))
    np.testing.assert_allclose(train.codes, np.log(Y))
    np.testing.assert_allclose(oracle.log_likelihood(train), plain.log_likelihood(expected))
    np.testing.assert_allclose(oracle.predict(train), model.predict(X))
