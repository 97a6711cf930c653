"""The reverse pass through boosting, against finite differences of boosting itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.trees.axil import boosting_gradients, boosting_influence
from exempla.oracles.trees.oracle import TreeOracle, earlier_stages
from tests.oracles.trees.cases import fitted, needs

CASES = [
    ("hist", "squared"),
    ("hist", "binary"),
    ("hist", "multiclass"),
    ("hist", "poisson"),
    pytest.param("lightgbm", "binary", marks=needs("lightgbm")),
    pytest.param("lightgbm", "squared", marks=needs("lightgbm")),
    pytest.param("xgboost", "squared", marks=needs("xgboost")),
]


def replayed(oracle: Any, train: Any, test: Any, weights: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Boost again with these weights and labels at fixed structure; test log-likelihoods."""
    from exempla.oracles.trees.axil import _ReversePass

    family, reader = oracle.family, oracle._reader
    start = _ReversePass(oracle, train, test).before[0][0]
    F, E = (np.tile(start, (len(part), 1)) for part in (train, test))
    labels = np.eye(F.shape[1])[train.codes] if family.name == "categorical" else y
    for stage in range(max(len(c.trees) for c in oracle._columns)):
        at, root = family.fisher_root(F)
        h = np.zeros_like(F)
        np.add.at(h, at, root**2)
        s, h = family.score(F, labels) * weights[:, None], h * weights[:, None]
        for c in oracle._columns:
            (o,), tree = c.outputs, c.trees[stage]
            leaf, size = train.X[:, tree].astype(int), c.sizes[stage]
            D = np.bincount(leaf, h[:, o], size) + reader.l2 / family.loss_scale
            theta = reader.rate * np.bincount(leaf, s[:, o], size) / D
            F[:, o] += theta[leaf]
            E[:, o] += theta[test.X[:, tree].astype(int)]
    return family.log_prob(E, test.codes)


def read(library: str, name: str) -> tuple[Any, Any, Any]:
    model, X, y = fitted(library, name)
    oracle = TreeOracle(model)
    return oracle, oracle.read((X, y), role="train"), oracle.read((X[:15], y[:15]), role="test")


@pytest.mark.parametrize(("library", "name"), CASES)
def test_weights_are_differentiated_through_all_rounds(library: str, name: str) -> None:
    oracle, train, test = read(library, name)
    found = boosting_gradients(oracle, train, test)[0]
    ones = np.ones(len(train))
    for row in (0, 7, 60):
        step = 1e-5 * (np.arange(len(train)) == row)
        ends = [replayed(oracle, train, test, ones + d, train.codes) for d in (step, -step)]
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(found[row], slope, rtol=2e-2, atol=2e-3 * np.abs(found).max())


def test_labels_are_differentiated_through_all_rounds() -> None:
    oracle, train, test = read("hist", "squared")
    _, found = boosting_gradients(oracle, train, test)
    ones, residual = np.ones(len(train)), train.codes - oracle._outputs(train.X)[:, 0]
    for row in (0, 7, 60):
        step = 1e-3 * (np.arange(len(train)) == row)
        ends = [replayed(oracle, train, test, ones, train.codes + d) for d in (step, -step)]
        slope = (ends[0] - ends[1]) / 2e-3
        np.testing.assert_allclose(found[row], slope * residual[row], rtol=1e-4)


def test_the_combination_has_an_equal_share_of_each() -> None:
    model, X, y = fitted("hist", "squared")
    test = (X[:5], y[:5])
    alone = exempla.Explainer(model, progress=False).fit((X, y))
    staged = exempla.Explainer([model, *earlier_stages(model)], progress=False).fit((X, y))
    oracle = alone.oracles[0]
    derivative, _ = boosting_gradients(
        oracle, *(oracle.read(d, role="test") for d in ((X, y), test))
    )
    fisher, stages = alone.influence(test), staged.influence(test)
    size = np.linalg.norm(fisher, axis=0)
    one, two, three = (part / np.linalg.norm(part, axis=0) for part in (fisher, stages, derivative))
    np.testing.assert_allclose(boosting_influence(alone, test), size * (one + three) / 2)
    np.testing.assert_allclose(boosting_influence(staged, test), size * (one + two + three) / 3)
    with pytest.raises(ExemplaError, match="no labels"):
        boosting_influence(alone, X[:5])


def test_models_that_cannot_be_differentiated_are_refused() -> None:
    model, X, y = fitted("hist", "quantile")
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    with pytest.raises(UnsupportedModelError, match="not Newton steps"):
        boosting_influence(explainer, (X[:5], y[:5]))
    linear = exempla.Explainer(Ridge().fit(X, y), progress=False).fit((X, y))
    with pytest.raises(UnsupportedModelError, match="for boosted trees"):
        boosting_influence(linear, (X[:5], y[:5]))


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_the_penalty_of_a_learning_rate_is_its_formula(rate: float) -> None:
    """δ·σ² = mean over leaves of H/n, divided by the rate, for squared error without l2."""
    _, X, y = fitted("hist", "squared")
    model = GradientBoostingRegressor(n_estimators=1, max_depth=1, learning_rate=rate).fit(X, y)
    oracle = TreeOracle(model)
    oracle.read((X, y), role="train")
    assert oracle.implicit_penalty * oracle.family.variance == pytest.approx(0.5 / rate)
