"""Earlier stages of boosting, and the penalty that a learning rate amounts to."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.linear_model import Ridge

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import is_checkpoint, make_oracle
from exempla.oracles.sklearn.losses import AsymmetricLaplace
from exempla.oracles.trees.oracle import earlier_stages
from tests.oracles.trees.cases import EACH, fitted


@pytest.mark.parametrize("library", EACH)
def test_half_of_the_trees_predict_as_half_of_the_model_does(library: str) -> None:
    whole, X, y = fitted(library, "binary")
    stage = earlier_stages(whole, [0.5])[0]
    train = stage.read((X, y), role="train")
    oracle = make_oracle(whole)
    oracle.read((X, y), role="train")
    half = oracle._reader.n_trees // 2
    values = oracle._reader.values[: oracle._reader.starts[half], 0]
    leaves = oracle._reader.leaves(X)[:, :half] + oracle._reader.starts[:half]
    expected = values[leaves].sum(axis=1) + oracle._base[0]
    np.testing.assert_allclose(stage._outputs(train.X)[:, 0], expected)


def test_stages_are_averaged_and_have_no_vote() -> None:
    model, X, y = fitted("hist", "binary")
    stages = earlier_stages(model)
    assert all(is_checkpoint(stage) for stage in stages)
    assert not is_checkpoint(make_oracle(model))
    several = exempla.Explainer([model, *stages], progress=False).fit((X, y))
    each = [exempla.Explainer(m, progress=False).fit((X, y)) for m in [model, *stages]]
    test = (X[:5], y[:5])
    expected = np.mean([one.influence(test) for one in each], axis=0)
    np.testing.assert_allclose(several.influence(test), expected)


def test_stages_of_what_is_not_boosted_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="not boosted"):
        earlier_stages(RandomForestClassifier())
    with pytest.raises(ExemplaError, match="shares"):
        earlier_stages(HistGradientBoostingRegressor(), [0.0])


def test_one_stump_is_ridge_regression_on_its_leaves() -> None:
    """One tree with learning rate 1 and an l2 of its own: δ is (mean H + l2)/n, σ² apart."""
    _, X, y = fitted("hist", "squared")
    model = HistGradientBoostingRegressor(
        max_iter=1, learning_rate=0.5, l2_regularization=10.0, max_leaf_nodes=4
    ).fit(X, y)
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    variance = explainer.oracles[0].family.variance
    leaves = int(explainer.oracles[0]._reader.sizes[0])
    expected = (1 / leaves + 10.0 / len(y)) / 0.5 / variance
    assert explainer.features.damping == pytest.approx(expected)


def test_damping_follows_the_learning_rate() -> None:
    _, X, y = fitted("hist", "squared")
    found = []
    for rate in (0.1, 0.2):
        model = HistGradientBoostingRegressor(max_iter=5, learning_rate=rate).fit(X, y)
        explainer = exempla.Explainer(model, progress=False).fit((X, y))
        found.append(explainer.features.damping * explainer.oracles[0].family.variance)
    assert found[0] == pytest.approx(2 * found[1], rel=0.2)


def test_other_models_damping_is_as_it_was() -> None:
    _, X, y = fitted("hist", "squared")
    assert make_oracle(Ridge().fit(X, y)).implicit_penalty is None


def test_the_laplace_score_is_the_derivative_and_its_fisher_the_variance() -> None:
    family = AsymmetricLaplace(0.3, scale=2.0)
    outputs, y = np.array([[0.5], [1.0]]), np.array([2.0, -1.0])
    step = 1e-6
    slope = (family.log_prob(outputs + step, y) - family.log_prob(outputs - step, y)) / (2 * step)
    np.testing.assert_allclose(family.score(outputs, y)[:, 0], slope, rtol=1e-6)
    many = np.zeros((200_000, 1))
    rng = np.random.default_rng(0)
    below = rng.random(len(many)) < 0.3  # exponential on either side of the quantile
    drawn = np.where(below, -1, 1) * rng.exponential(2.0 / np.where(below, 0.7, 0.3))
    assert np.mean(drawn < 0) == pytest.approx(0.3, abs=0.01)
    spread = np.mean(family.score(many, drawn) ** 2)
    assert family.fisher_root(many)[1][0, 0] ** 2 == pytest.approx(spread, rel=0.01)


def test_an_ensemble_sure_of_everything_says_so() -> None:
    _, X, y = fitted("hist", "multiclass")
    few, many = (
        HistGradientBoostingClassifier(max_iter=count, min_samples_leaf=2).fit(X, y)
        for count in (5, 150)
    )
    for model, said in ((few, False), (many, True)):
        found = exempla.explain(model, (X, y), (X[50:60], y[50:60]), k=3, progress=False)
        assert any("earlier_stages" in note for note in found.warnings) == said
