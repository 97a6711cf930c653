"""Each likelihood against itself: its score is the slope of its log-probability, and its Fisher
root squares to the expectation over its own labels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, poisson

from exempla.errors import ExemplaError
from exempla.oracles.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    OneVsRest,
    Poisson,
    resolve,
)

RNG = np.random.default_rng(0)
CODES = np.array([0, 2, 1, 2])
CASES = [
    pytest.param(Categorical(), RNG.normal(size=(4, 3)), CODES, id="categorical"),
    pytest.param(OneVsRest(), RNG.normal(size=(4, 3)), CODES, id="one-vs-rest"),
    pytest.param(Bernoulli(), RNG.normal(size=(4, 1)), CODES % 2, id="bernoulli"),
    pytest.param(Gaussian(0.7), RNG.normal(size=(4, 1)), RNG.normal(size=4), id="gaussian"),
    pytest.param(Gaussian(0.7), RNG.normal(size=(4, 2)), RNG.normal(size=(4, 2)), id="gaussian-2"),
    pytest.param(Poisson(), RNG.normal(size=(4, 1)), np.array([0.0, 3, 1, 7]), id="poisson"),
    pytest.param(Poisson(), RNG.normal(size=(4, 2)), np.arange(8.0).reshape(4, 2), id="poisson-2"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "y"), CASES)
def test_score_is_the_slope_of_log_prob(likelihood, outputs, y):
    h = 1e-6
    slopes = np.empty_like(outputs)
    for j in range(outputs.shape[1]):
        step = h * np.eye(outputs.shape[1])[j]
        up, down = likelihood.log_prob(outputs + step, y), likelihood.log_prob(outputs - step, y)
        slopes[:, j] = (up - down) / (2 * h)
    np.testing.assert_allclose(likelihood.score(outputs, y), slopes, atol=1e-8)


def squared(likelihood, outputs, cut=0.0):
    """Σ r rᵀ of each example's Fisher rows."""
    rows, root = likelihood.fisher_root(outputs, cut)
    total = np.zeros((len(outputs), outputs.shape[1], outputs.shape[1]))
    np.add.at(total, rows, root[:, :, None] * root[:, None, :])
    return total


@pytest.mark.parametrize("outputs", [RNG.normal(size=(5, 4)), 30 * RNG.normal(size=(5, 4))])
def test_categorical_fisher_is_the_expectation_over_classes(outputs):
    every = [np.full(5, c) for c in range(4)]
    expected = sum(
        np.exp(Categorical().log_prob(outputs, y))[:, None, None]
        * np.einsum("ni,nj->nij", s := Categorical().score(outputs, y), s)
        for y in every
    )
    np.testing.assert_allclose(squared(Categorical(), outputs), expected, atol=1e-14)


def test_one_vs_rest_fisher_is_the_expectation_over_all_answers():
    outputs = RNG.normal(size=(3, 3))
    p = 1 / (1 + np.exp(-outputs))
    expected = np.zeros((3, 3, 3))
    for answers in np.ndindex(2, 2, 2):  # all 2³ joint answers of three independent questions
        a = np.array(answers)
        weight = np.prod(np.where(a == 1, p, 1 - p), axis=1)
        g = a - p
        expected += weight[:, None, None] * np.einsum("ni,nj->nij", g, g)
    np.testing.assert_allclose(squared(OneVsRest(), outputs), expected, atol=1e-14)


def test_scalar_fishers_are_the_variances_of_their_scores_and_one_row_each():
    outputs = RNG.normal(size=(4, 1))
    p = 1 / (1 + np.exp(-outputs[:, 0]))
    counts = np.arange(200)
    rate = np.exp(outputs[:, 0])
    variance = [np.sum(poisson.pmf(counts, m) * (counts - m) ** 2) for m in rate]
    for likelihood, expected in [
        (Bernoulli(), p * (1 - p)),
        (Poisson(), variance),
        (Gaussian(0.7), np.full(4, 1 / 0.7)),
    ]:
        rows, _ = likelihood.fisher_root(outputs)
        assert rows.tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(squared(likelihood, outputs).ravel(), expected, rtol=1e-10)


def test_several_gaussian_outputs_have_the_identity_over_variance():
    np.testing.assert_allclose(
        squared(Gaussian(0.5), np.zeros((2, 3))), np.broadcast_to(np.eye(3) / 0.5, (2, 3, 3))
    )


def test_the_cut_drops_only_improbable_classes():
    outputs = np.log([[0.6, 0.39995, 0.00005]])
    rows, root = Categorical().fisher_root(outputs, 1e-4)
    assert rows.tolist() == [0, 0]
    assert root.shape == (2, 3)
    lost = squared(Categorical(), outputs) - squared(Categorical(), outputs, 1e-4)
    assert 0 < np.trace(lost[0]) < 1e-4 * 2


@pytest.mark.parametrize("big", [800.0, -800.0])
def test_extreme_outputs_stay_finite(big):
    outputs = np.array([[big, 0.0, -big]])
    for likelihood in (Categorical(), OneVsRest()):
        assert np.isfinite(likelihood.log_prob(outputs, np.array([2]))).all()
        assert np.isfinite(likelihood.score(outputs, np.array([2]))).all()
        assert np.isfinite(likelihood.fisher_root(outputs)[1]).all()
    assert Bernoulli().log_prob(np.array([[big]]), np.array([0]))[0] == min(-big, 0.0)


def test_log_prob_agrees_with_scipy():
    outputs, y = RNG.normal(size=(5, 1)), RNG.normal(size=5)
    expected = norm.logpdf(y, outputs[:, 0], np.sqrt(0.3))
    np.testing.assert_allclose(Gaussian(0.3).log_prob(outputs, y), expected)
    counts = np.arange(5.0)
    expected = poisson.logpmf(counts, np.exp(outputs[:, 0]))
    np.testing.assert_allclose(Poisson().log_prob(outputs, counts), expected)


def test_predictions():
    assert Categorical().predict(np.array([[0.0, 2.0], [1.0, 0.0]])).tolist() == [1, 0]
    assert Bernoulli().predict(np.array([[-0.1], [0.1]])).tolist() == [0, 1]
    assert Gaussian().predict(np.array([[1.0], [2.0]])).tolist() == [1.0, 2.0]
    assert Gaussian().predict(np.ones((3, 2))).shape == (3, 2)
    assert Poisson().predict(np.array([[0.0]])).tolist() == [1.0]


def test_gaussian_variance_is_the_weighted_mean_square_unless_given():
    outputs, y = np.zeros((2, 1)), np.array([1.0, 3.0])
    assert Gaussian().fitted(outputs, y).variance == 5.0
    assert Gaussian().fitted(outputs, y, np.array([3.0, 1.0])).variance == 3.0
    assert Gaussian(2.0).fitted(outputs, y).variance == 2.0
    with pytest.raises(ExemplaError, match="scale of the gaussian likelihood is unknown"):
        Gaussian().score(outputs, y)


def test_resolve():
    assert resolve("categorical") == Categorical()
    assert resolve(Gaussian(3.0)).variance == 3.0  # type: ignore[attr-defined]
    with pytest.raises(ExemplaError, match="categorical, bernoulli"):
        resolve("cauchy")


@pytest.mark.parametrize(("likelihood", "outputs", "y"), CASES)
def test_torch_and_numpy_agree(likelihood, outputs, y):
    torch = pytest.importorskip("torch")
    o, t = torch.from_numpy(outputs), torch.from_numpy(y)
    np.testing.assert_allclose(likelihood.log_prob(o, t), likelihood.log_prob(outputs, y))
    np.testing.assert_allclose(likelihood.score(o, t), likelihood.score(outputs, y), atol=1e-15)
    for ours, theirs in zip(likelihood.fisher_root(outputs), likelihood.fisher_root(o)):
        np.testing.assert_allclose(ours, theirs, atol=1e-15)
    np.testing.assert_allclose(likelihood.predict(outputs), likelihood.predict(o))
