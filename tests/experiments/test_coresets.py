"""Coreset baselines against what their papers promise."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from exempla.errors import ExemplaError, UnsupportedModelError
from experiments.baselines.coresets import (
    frank_wolfe,
    giga,
    hilbert_coreset,
    random_summary,
    sensitivities,
    sensitivity_coreset,
)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 4))
    y = (rng.random(1500) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5, 0.0]))).astype(int)
    return LogisticRegression().fit(X, y), X, y


@pytest.mark.parametrize("make", [giga, frank_wolfe])
def test_hilbert_coresets_approach_the_sum_and_stay_within_k(make):
    values = np.random.default_rng(1).standard_normal((400, 12)).astype(np.float32) + 0.5
    goal = values.sum(0)

    def error(k):
        weights = make(values, k)
        assert (weights >= 0).all()
        assert np.count_nonzero(weights) <= k
        return np.linalg.norm(weights @ values - goal) / np.linalg.norm(goal)

    few, many = error(3), error(40)
    assert many < 0.05
    assert many < 0.3 * few


def test_giga_beats_frank_wolfe():
    values = np.random.default_rng(2).standard_normal((300, 20)).astype(np.float32) + 0.3
    goal = values.sum(0)
    errors = [np.linalg.norm(f(values, 15) @ values - goal) for f in (giga, frank_wolfe)]
    assert errors[0] < errors[1]


def test_sensitivities_equal_the_formula():
    z = np.random.default_rng(3).standard_normal((60, 3))
    got = sensitivities(z, clusters=1, radius=1.5, seed=0)
    for n in (0, 17, 59):
        others = np.delete(z, n, axis=0)
        away = np.linalg.norm(others.mean(0) - z[n])
        assert got[n] == pytest.approx(60 / (1 + 59 * np.exp(-1.5 * away)))


def test_sensitivity_draws_are_unbiased(case):
    model, X, y = case
    sums = [
        sensitivity_coreset(model, (X, y), 200, seed=s).estimate(X[:, 0] > 1) for s in range(30)
    ]
    # Σ weights·f estimates Σ f over the data (stopping at k different examples adds a little)
    assert np.mean(sums) == pytest.approx((X[:, 0] > 1).sum(), rel=0.15)


@pytest.mark.parametrize("make", [random_summary, sensitivity_coreset, hilbert_coreset])
@pytest.mark.parametrize("total", ["k", "n", "auto"])
def test_all_are_called_like_summarize(case, make, total):
    model, X, y = case
    found = make(model, (X, y), 50, total, seed=3)
    assert len(np.unique(found.indices)) == len(found) <= 50
    assert (found.weights > 0).all()
    if total != "auto":
        assert found.weights.sum() == pytest.approx({"k": len(found), "n": 1500}[total])
    again = make(model, (X, y), 50, total, seed=3)
    np.testing.assert_array_equal(again.indices, found.indices)


def test_a_hilbert_coreset_finds_the_parameters(case):
    model, X, y = case
    for seed in range(4):
        found = hilbert_coreset(model, (X, y), 100, seed=seed)
        small = LogisticRegression().fit(
            X[found.indices], y[found.indices], sample_weight=found.weights
        )
        # the sum is the coreset's own estimate of n = 1500, and a rough one
        assert 750 < found.weights.sum() < 6000
        np.testing.assert_allclose(small.coef_, model.coef_, atol=0.05)


def test_what_they_cannot_do_is_said(case):
    model, X, y = case
    with pytest.raises(UnsupportedModelError, match="two classes"):
        sensitivity_coreset(Ridge().fit(X, y), (X, y), 5)
    with pytest.raises(ExemplaError, match="method="):
        hilbert_coreset(model, (X, y), 5, method="best")  # type: ignore[arg-type]
    with pytest.raises(ExemplaError, match="total="):
        random_summary(model, (X, y), 5, "all")  # type: ignore[arg-type]
