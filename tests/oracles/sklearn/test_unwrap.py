"""Penalties and weights: at a fitted optimum Σ w_i s_i = n·λ·θ, which proves both at once."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeCV,
    SGDClassifier,
)
from sklearn.neural_network import MLPClassifier

from exempla.errors import ExemplaWarning
from tests.oracles.sklearn.case import (
    CODES,
    COUNTS,
    CV_OPTIONS,
    ELASTIC,
    HARD,
    NUMBERS,
    PAIRS,
    SPECIES,
    WEIGHTS,
    X,
    dense,
    flat_scores,
    model_name,
    read_train,
)

EXACT = {"tol": 1e-12, "max_iter": 10_000}


def residual_at_optimum(model, y, sample_weight=None):
    model.fit(X, y, sample_weight=sample_weight)
    data = (X, y) if sample_weight is None else (X, y, sample_weight)
    oracle, examples = read_train(model, *data)
    (layer,) = oracle.layers
    total = dense(oracle.scores(examples))[0].sum(axis=0)
    theta = np.atleast_2d(model.coef_)
    if model.fit_intercept:
        theta = np.c_[theta, np.broadcast_to(model.intercept_, len(theta))]
    pull = len(X) * layer.penalty * theta
    assert np.abs(flat_scores(oracle, examples)).max() > 0.1  # the sum is not zero trivially
    return np.abs(total - pull).max(), np.abs(pull).max()


@pytest.mark.parametrize("sample_weight", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LogisticRegression(solver="newton-cholesky", C=0.3, **EXACT), HARD),
        (LogisticRegression(solver="newton-cg", fit_intercept=False, **EXACT), SPECIES),
        (LogisticRegression(solver="newton-cg", class_weight="balanced", **EXACT), HARD),
        (
            LogisticRegression(
                solver="newton-cg",
                class_weight={"setosa": 3.0, "versicolor": 0.5, "virginica": 1.0},
                **EXACT,
            ),
            SPECIES,
        ),
        (LogisticRegression(solver="liblinear", intercept_scaling=3.0, **EXACT), HARD),
        (Ridge(alpha=7.0), NUMBERS),
        (Ridge(alpha=7.0, fit_intercept=False), PAIRS),
        (RidgeCV(alphas=[5.0]), NUMBERS),
        (PoissonRegressor(alpha=0.4, solver="newton-cholesky", **EXACT), COUNTS),
    ],
    ids=model_name,
)
def test_scores_balance_the_penalty_at_the_optimum(model, y, sample_weight):
    gap, size = residual_at_optimum(copy.deepcopy(model), y, sample_weight)
    assert size > 0.1
    assert gap < 1e-5


def test_no_penalty_means_a_zero_sum_of_scores():
    for model, y in [
        (LinearRegression(), NUMBERS),
        (LogisticRegression(C=np.inf, solver="newton-cg", **EXACT), (X[:, 1] > 0) ^ (CODES == 1)),
    ]:
        gap, size = residual_at_optimum(model, y)
        assert size == 0.0
        assert gap < 1e-5


def test_logistic_cv_uses_the_chosen_c():
    model = LogisticRegressionCV(
        Cs=[0.02], cv=2, solver="newton-cg", scoring="neg_log_loss", **CV_OPTIONS, **EXACT
    )
    gap, size = residual_at_optimum(model, SPECIES)
    assert size > 0.1
    assert gap < 1e-5


def test_sgd_penalty_is_alpha_and_the_optimum_is_near():
    model = SGDClassifier(
        loss="log_loss", alpha=0.05, max_iter=3000, tol=None, random_state=0, average=True
    )
    gap, size = residual_at_optimum(model, HARD)
    assert size > 5
    assert gap < 0.02 * size  # SGD stops near its optimum, not at it


def test_perceptron_penalty_follows_the_rows_its_gradient_saw():
    options = {"alpha": 3.0, "max_iter": 2000, "random_state": 0, "activation": "tanh"}
    model = MLPClassifier((4,), solver="lbfgs", tol=1e-12, max_fun=50_000, **options)
    model.fit(X, SPECIES)
    oracle, examples = read_train(model, X, SPECIES)
    for layer, scores, W in zip(oracle.layers, dense(oracle.scores(examples)), model.coefs_):
        total = scores.sum(axis=0)
        np.testing.assert_allclose(total[:, :-1], len(X) * layer.penalty[:-1] * W.T, atol=0.02)
        assert np.abs(total[:, :-1]).max() > 1.0
        assert layer.penalty[-1] == 0.0
    batched = MLPClassifier((4,), alpha=3.0, batch_size=30, max_iter=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle, _ = read_train(batched.fit(X, SPECIES), X, SPECIES)
    assert oracle.layers[0].penalty[0] == pytest.approx(3.0 / 30)


def test_l1_penalties_are_told():
    model = LogisticRegression(solver="saga", l1_ratio=0.25, C=0.5, max_iter=5000, **ELASTIC)
    model.fit(X, HARD)
    with pytest.warns(ExemplaWarning, match="only the L2 part"):
        oracle, _ = read_train(model, X, HARD)
    assert oracle.layers[0].penalty[0] == pytest.approx(0.75 / (0.5 * len(X)))
