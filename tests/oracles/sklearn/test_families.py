"""Scores of the linear models beyond the common ones, against finite differences of losses that
are written here once more, from scikit-learn's own predictions; penalties at a fitted optimum."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gamma
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LassoCV,
    LassoLars,
    LassoLarsCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.metrics import mean_tweedie_deviance
from sklearn.svm import LinearSVC, LinearSVR

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.oracles.likelihoods import Gaussian, Poisson
from exempla.oracles.sklearn.losses import _CORNER, Huber, Tweedie
from tests.oracles.sklearn.case import (
    COUNTS,
    HARD,
    NUMBERS,
    PAIRS,
    RNG,
    SPECIES,
    WEIGHTS,
    X,
    dense,
    finite_differences,
    model_name,
    read_train,
    summed,
)

POSITIVE = RNG.gamma(3.0, np.exp(0.3 * X[:, 0]) / 3.0)
WITH_ZEROS = np.where(RNG.random(len(X)) < 0.3, 0.0, POSITIVE)
EXACT = {"tol": 1e-12, "max_iter": 100_000}


# ---- the losses once more, at scikit-learn's own predictions


def deviance(power, phi):
    def log_prob(model, X, y):
        mean = model.predict(X)
        each = [mean_tweedie_deviance([a], [b], power=power) for a, b in zip(y, mean)]
        return -np.array(each) / (2 * phi)

    return log_prob


def huber(delta, s2):
    def log_prob(model, X, y):
        r = np.abs(y - model.predict(X))
        return -np.where(r < delta, r**2 / 2, delta * r - delta**2 / 2) / s2

    return log_prob


def rounded(z, t):
    return t * np.log1p(np.exp(z / t))


def tube(epsilon, t):
    def log_prob(model, X, y):
        r = y - model.predict(X)
        return -rounded(r - epsilon, t) - rounded(-r - epsilon, t)

    return log_prob


def squared_tube(epsilon):
    def log_prob(model, X, y):
        return -(np.maximum(np.abs(y - model.predict(X)) - epsilon, 0) ** 2)

    return log_prob


def margins(loss):
    def log_prob(model, X, y):
        f = model.decision_function(X).reshape(len(X), -1)
        names = model.classes_[1:] if f.shape[1] == 1 else model.classes_
        m = np.where(np.asarray(y)[:, None] == names, 1, -1) * f
        return -loss(m).sum(axis=1)

    return log_prob


def hinge(m):
    return rounded(1 - m, _CORNER)


def squared_hinge(m):
    return np.maximum(1 - m, 0) ** 2


def modified_huber(m):
    return np.where(m >= -1, np.maximum(1 - m, 0) ** 2, -4 * m)


def quiet(model, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(*data)


SGD = {"max_iter": 2000, "tol": 1e-6, "random_state": 0}
CLASSIFIERS = [
    (LinearSVC(), HARD, squared_hinge),
    (LinearSVC(loss="hinge"), SPECIES, hinge),
    (LinearSVC(fit_intercept=False), SPECIES, squared_hinge),
    (SGDClassifier(**SGD), HARD, hinge),
    (
        SGDClassifier(loss="squared_hinge", learning_rate="adaptive", eta0=1e-3, **SGD),
        SPECIES,
        squared_hinge,
    ),
    (SGDClassifier(loss="modified_huber", **SGD), SPECIES, modified_huber),
]


@pytest.mark.parametrize(("model", "y", "loss"), CLASSIFIERS, ids=model_name)
def test_margin_scores_are_finite_differences_of_the_loss(model, y, loss):
    model = quiet(copy.deepcopy(model), X, y)
    oracle, examples = read_train(model, X, y)
    (scores,) = dense(oracle.scores(examples))
    (expected,) = finite_differences(model, margins(loss), X, y, h=1e-6)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(oracle.log_likelihood(examples), margins(loss)(model, X, y))
    assert oracle.predict(examples).tolist() == model.predict(X).tolist()
    assert "without a likelihood" in str(oracle.notes)
    with pytest.raises(UnsupportedModelError, match="gives labels no probability"):
        oracle.family.fisher_root(np.zeros((2, 1)))


@pytest.mark.parametrize(
    "model",
    [LinearSVC(C=0.2), LinearSVR(C=0.2, epsilon=0.3, loss="squared_epsilon_insensitive")],
    ids=model_name,
)
def test_the_metric_of_a_loss_is_its_curvature_and_its_penalty_balances(model):
    y = HARD if isinstance(model, LinearSVC) else NUMBERS
    model = quiet(model.set_params(tol=1e-10, max_iter=1_000_000), X, y)
    oracle, train = read_train(model, X, y)
    theta = oracle.theta
    total = np.concatenate([s.sum(axis=0).ravel() for s in dense(oracle.scores(train))])
    np.testing.assert_allclose(total, len(X) * oracle.layers[0].penalty * theta, atol=2e-3)
    assert np.abs(total).max() > 0.1
    hessian = np.empty((len(theta), len(theta)))
    for j in range(len(theta)):
        step = 1e-6 * (np.arange(len(theta)) == j)
        up, down = (
            np.hstack(
                [f.dense() for rows in oracle.at(theta + s).scores(train) for f in rows.factors]
            )
            for s in (step, -step)
        )
        hessian[j] = -(up - down).sum(axis=0) / 2e-6
    np.testing.assert_allclose(summed(oracle, train), hessian, rtol=1e-4, atol=1e-3)


REGRESSIONS = [
    (GammaRegressor(alpha=0.1), POSITIVE, lambda f: deviance(2, f.scale)),
    (TweedieRegressor(power=1.5, alpha=0.1), WITH_ZEROS, lambda f: deviance(1.5, f.scale)),
    (TweedieRegressor(power=3, alpha=0.1), POSITIVE, lambda f: deviance(3, f.scale)),
    (TweedieRegressor(power=0, link="log"), POSITIVE, lambda f: deviance(0, f.scale)),
    (TweedieRegressor(power=1), COUNTS, lambda f: deviance(1, 1.0)),
    (TweedieRegressor(power=0), NUMBERS, lambda f: deviance(0, f.variance)),
    (HuberRegressor(alpha=0.3), NUMBERS, lambda f: huber(f.threshold, f.scale)),
    (BayesianRidge(), NUMBERS, lambda f: deviance(0, f.variance)),
    (SGDRegressor(**SGD), NUMBERS, lambda f: deviance(0, f.variance)),
    (SGDRegressor(loss="huber", **SGD), NUMBERS, lambda f: huber(0.1, f.scale)),
    (SGDRegressor(loss="epsilon_insensitive", **SGD), NUMBERS, lambda f: tube(0.1, f.corner)),
    (
        SGDRegressor(loss="squared_epsilon_insensitive", **SGD),
        NUMBERS,
        lambda f: squared_tube(0.1),
    ),
    (LinearSVR(epsilon=0.2), NUMBERS, lambda f: tube(0.2, f.corner)),
    (
        LinearSVR(epsilon=0.2, loss="squared_epsilon_insensitive"),
        NUMBERS,
        lambda f: squared_tube(0.2),
    ),
]


@pytest.mark.parametrize(("model", "y", "made"), REGRESSIONS, ids=model_name)
def test_regression_scores_are_finite_differences_of_the_loss(model, y, made):
    model = quiet(copy.deepcopy(model), X, y)
    oracle, examples = read_train(model, X, y)
    log_prob = made(oracle.family)
    (scores,) = dense(oracle.scores(examples))
    (expected,) = finite_differences(model, log_prob, X, y, h=1e-6)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    constant = oracle.log_likelihood(examples) - log_prob(model, X, y)
    if not isinstance(oracle.family, Tweedie | Poisson):  # theirs depends on y
        np.testing.assert_allclose(constant, constant[0], atol=1e-9)
    np.testing.assert_allclose(oracle.predict(examples), model.predict(X))


SPARSE = [
    Lasso(alpha=0.4),
    ElasticNet(alpha=0.5, l1_ratio=0.8),
    LassoCV(),
    ElasticNetCV(l1_ratio=[0.5]),
    LassoLars(alpha=0.4),
    LassoLarsCV(),
    ARDRegression(),
]


@pytest.mark.parametrize("model", SPARSE, ids=model_name)
def test_sparse_models_are_scored_on_their_active_set(model):
    wide = np.hstack([X, np.random.default_rng(5).normal(size=(len(X), 4))])
    model = copy.deepcopy(model).fit(wide, NUMBERS)
    active = np.flatnonzero(model.coef_)
    oracle, train = read_train(model, wide, NUMBERS)
    assert "nonzero" in str(oracle.notes)
    (scores,) = dense(oracle.scores(train))
    log_prob = deviance(0, oracle.family.variance)
    (expected,) = finite_differences(model, log_prob, wide, NUMBERS)
    np.testing.assert_allclose(scores, expected[:, :, [*active, -1]], atol=1e-5)
    assert len(active) < 8 or not isinstance(model, Lasso | ElasticNet | LassoLars)


@pytest.mark.parametrize("sample_weight", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("model", "y", "l1"),
    [
        (Lasso(alpha=0.3, **EXACT), NUMBERS, 0.3),
        (ElasticNet(alpha=0.4, l1_ratio=0.25, **EXACT), NUMBERS, 0.1),
        (BayesianRidge(), NUMBERS, 0.0),
        (GammaRegressor(alpha=0.2, solver="newton-cholesky", **EXACT), POSITIVE, 0.0),
        (
            TweedieRegressor(power=1.5, alpha=0.2, solver="newton-cholesky", **EXACT),
            WITH_ZEROS,
            0.0,
        ),
        (HuberRegressor(alpha=2.0, tol=1e-10, max_iter=10_000), NUMBERS, 0.0),
    ],
    ids=model_name,
)
def test_scores_balance_the_penalty_at_the_optimum(model, y, l1, sample_weight):
    model = copy.deepcopy(model)
    model.fit(X, y, sample_weight=sample_weight)
    data = (X, y) if sample_weight is None else (X, y, sample_weight)
    oracle, train = read_train(model, *data)
    total = dense(oracle.scores(train))[0].sum(axis=0)[0]
    (layer,) = oracle.layers
    pull = len(X) * layer.penalty * oracle.theta
    if l1:
        mean_weight = 1.0 if sample_weight is None else sample_weight.mean()
        corner = l1 * mean_weight * len(X) / oracle.family.variance
        pull[:-1] += corner * np.sign(oracle.theta[:-1])
    np.testing.assert_allclose(total, pull, atol=1e-3 * np.abs(pull).max())
    assert np.abs(pull).max() > 0.1


def test_ard_penalises_each_column_by_its_own_precision():
    model = ARDRegression(tol=1e-10, max_iter=1000).fit(X, NUMBERS)
    oracle, train = read_train(model, X, NUMBERS)
    total = dense(oracle.scores(train))[0].sum(axis=0)[0]
    pull = len(X) * oracle.layers[0].penalty * oracle.theta
    np.testing.assert_allclose(total, pull, atol=1e-2 * np.abs(pull).max())


def test_fishers_of_the_likelihoods_are_expectations():
    outputs = np.array([[0.3], [-0.7]])
    family = Tweedie(2.0, scale=0.4)
    for out in outputs:
        mean = np.exp(out[0])
        spread = quad(
            lambda y, m=mean: gamma.pdf(y, 2.5, scale=0.4 * m) * ((y - m) / (0.4 * m)) ** 2, 0, 99
        )[0]
        assert family.fisher_root(out[None])[1][0, 0] ** 2 == pytest.approx(spread, rel=1e-6)
    # the density integrates to one, and its squared score to the Fisher
    robust = Huber(1.2, scale=0.7)
    one = np.zeros((1, 1))

    def density(r):
        return float(np.exp(robust.log_prob(one, np.array([r]))[0]))

    assert 2 * quad(density, 0, 60)[0] == pytest.approx(1.0, rel=1e-6)
    squared = quad(lambda r: density(r) * robust.score(one, np.array([r]))[0, 0] ** 2, 0, 60)[0]
    assert robust.fisher_root(one)[1][0, 0] ** 2 == pytest.approx(2 * squared, rel=1e-6)


def test_gamma_and_inverse_gaussian_densities_are_scipys():
    y = np.array([0.5, 2.0])
    found = Tweedie(2.0, scale=0.4).log_prob(np.array([[0.1], [0.4]]), y)
    expected = gamma.logpdf(y, 2.5, scale=0.4 * np.exp([0.1, 0.4]))
    np.testing.assert_allclose(found, expected)
    inverse = Tweedie(3.0, scale=0.4)
    total = quad(lambda v: np.exp(inverse.log_prob(np.array([[0.2]]), np.array([v]))[0]), 1e-9, 200)
    assert total[0] == pytest.approx(1.0, rel=1e-5)


def test_dispersion_and_corner_come_from_the_training_data():
    oracle, _ = read_train(GammaRegressor().fit(X, POSITIVE), X, POSITIVE)
    mean = GammaRegressor().fit(X, POSITIVE).predict(X)
    assert oracle.family.scale == pytest.approx(np.mean((POSITIVE / mean - 1) ** 2))
    assert isinstance(make_oracle(TweedieRegressor(power=0).fit(X, NUMBERS)).family, Gaussian)
    with pytest.raises(ExemplaError, match="is negative in rows 0, 1, 2, 3, 4 and 145 more"):
        read_train(GammaRegressor().fit(X, POSITIVE), X, -POSITIVE)
    with pytest.raises(UnsupportedModelError, match=r"MultiOutputRegressor\(Lasso\(\)\)"):
        make_oracle(Lasso(alpha=0.01).fit(X, PAIRS))
    with pytest.raises(UnsupportedModelError, match="smaller alpha"):
        make_oracle(Lasso(alpha=100, fit_intercept=False).fit(X, NUMBERS))
