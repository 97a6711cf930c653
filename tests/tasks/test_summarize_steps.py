"""The parts of `summarize`, each against a slow or dense twin."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from exempla.tasks.summarize import best_total, fit_weights, left_out
from exempla.tasks.summarize.last_layer import LastLayer, read_last_layer
from exempla.tasks.summarize.posterior import (
    candidates,
    first_equal,
    posterior,
    stratified_sample,
    with_every_class,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 4))
LABELS = RNG.integers(0, 3, 90)
COUNTS = RNG.poisson(2.0, 90)


def layer_of(model, y, weights=None) -> LastLayer:
    data = (X, y) if weights is None else (X, y, weights)
    return read_last_layer(model, data)


CASES = [
    (LogisticRegression(), (LABELS > 0).astype(int)),
    (LogisticRegression(), LABELS),
    (Ridge(), X[:, 0] + RNG.standard_normal(90)),
    (PoissonRegressor(), COUNTS),
]


def test_weights_sum_to_one_and_the_ridge_makes_them_equal():
    rows = RNG.standard_normal((12, 30))
    target = rows.mean(0) + 0.2
    free, tied = fit_weights(rows, target, 1e-9), fit_weights(rows, target, 1e9)
    assert free.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(tied, 1 / 12, rtol=1e-5)
    assert np.linalg.norm(free @ rows - target) < np.linalg.norm(tied @ rows - target)


def test_no_weight_falls_below_the_floor():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    weights = fit_weights(rows, np.array([1.0, 0.0]), 0.0, floor=0.1)
    assert weights.min() > 0.01
    assert weights[0] > 0.9


@pytest.mark.parametrize(("model", "y"), CASES)
def test_the_fisher_is_the_expectation_over_the_models_labels(model, y):
    layer = layer_of(model.fit(X, y), y)
    oracle_rows = []
    for i in range(len(layer)):
        at, root = layer.family.fisher_root(layer.a[i : i + 1] @ layer.theta, 0.0)
        assert (at == 0).all()
        oracle_rows += [np.outer(layer.a[i], r).ravel() for r in root]
    dense = sum(np.outer(r, r) for r in oracle_rows) / len(layer)
    # classes below the cut carry next to nothing
    np.testing.assert_allclose(layer.fisher(), dense, atol=2e-4 * np.abs(dense).max())
    np.testing.assert_allclose(layer.fisher_diagonal(), np.diag(layer.fisher()))


@pytest.mark.parametrize(("model", "y"), CASES)
def test_feature_rows_average_to_the_target(model, y):
    layer = layer_of(model.fit(X, y), y)
    around = posterior(layer, 5, np.random.default_rng(1))
    rows = np.empty((len(layer), around.width), dtype=np.float32)
    around.fill(rows, layer)
    np.testing.assert_allclose(rows.mean(0), around.mean(layer), atol=1e-5)


def test_rows_are_scores_whitened_by_the_fisher_at_each_draw():
    y = (LABELS > 0).astype(int)
    layer = layer_of(LogisticRegression().fit(X, y), y)
    around = posterior(layer, 5, np.random.default_rng(1))
    metric = layer.fisher() + np.diag(layer.penalty) * len(layer) / 5
    np.testing.assert_allclose(around.whitening @ around.whitening.T, np.linalg.inv(metric))
    rows = np.empty((len(layer), around.width), dtype=np.float32)
    around.fill(rows, layer)
    gram = np.zeros((90, 90))
    for theta in around.thetas:
        s = layer.a * layer.residuals(theta)
        gram += s @ np.linalg.solve(metric, s.T) / len(around.thetas)
    np.testing.assert_allclose(rows @ rows.T, gram, atol=1e-4)


def test_draws_spread_as_far_as_k_examples_leave_open():
    y = (LABELS > 0).astype(int)
    layer = layer_of(LogisticRegression().fit(X, y), y)
    few, many = (posterior(layer, k, np.random.default_rng(0), draws=4000) for k in (4, 400))
    metric = layer.fisher() + np.diag(layer.penalty) * len(layer) / 4
    spread = np.cov((few.thetas - layer.theta).reshape(4000, -1).T)
    np.testing.assert_allclose(spread, np.linalg.inv(metric) / 8, atol=0.1 * spread.max())
    assert np.std(many.thetas - layer.theta) < 0.3 * np.std(few.thetas - layer.theta)


def test_sparse_and_dense_heads_agree():
    y = (LABELS > 0).astype(int)
    model = LogisticRegression().fit(X, y)
    dense = layer_of(model, y)
    sparse = read_last_layer(model, (sp.csr_array(X), y))
    np.testing.assert_allclose(sparse.fisher(), dense.fisher(), atol=1e-12)
    np.testing.assert_allclose(sparse.fisher_diagonal(), dense.fisher_diagonal(), atol=1e-12)


def test_every_class_is_shown_and_only_spare_picks_leave():
    classes = np.array([0, 0, 0, 0, 1, 2, 2])
    rows = np.eye(7)
    target = np.arange(7.0)
    found = with_every_class(np.array([0, 1, 2]), classes, rows, target)
    assert found.tolist() == [0, 6, 4] or sorted(classes[found]) == [0, 1, 2]
    assert 6 in found  # the best of class 2
    unchanged = np.array([0, 4, 5])
    np.testing.assert_array_equal(with_every_class(unchanged, classes, rows, target), unchanged)


def test_a_sample_keeps_rare_classes():
    classes = np.r_[np.zeros(5000, int), np.ones(3, int)]
    sample = stratified_sample(classes, np.arange(5003), 200, np.random.default_rng(0))
    assert len(np.unique(sample)) == 200
    assert (classes[sample] == 1).sum() == 3


def test_a_sample_by_leverage_keeps_what_few_examples_show():
    leverage = np.ones(5000)
    leverage[:20] = 500.0
    rng = np.random.default_rng(0)
    by_chance = stratified_sample(None, np.arange(5000), 200, rng)
    by_leverage = stratified_sample(None, np.arange(5000), 200, rng, leverage)
    assert len(np.unique(by_leverage)) == 200
    assert (by_leverage < 20).sum() >= 18
    assert (by_chance < 20).sum() < 5


def test_leverage_is_the_squared_norm_of_the_whitened_score():
    y = (LABELS > 0).astype(int)
    layer = layer_of(LogisticRegression().fit(X, y), y)
    around = posterior(layer, 90, np.random.default_rng(1))
    s = layer.a * layer.residuals(layer.theta)
    metric = layer.fisher() + np.diag(layer.penalty)
    expected = np.einsum("ij,ij->i", s, np.linalg.solve(metric, s.T).T)
    np.testing.assert_allclose(around.leverage(layer), expected)


def test_what_nobody_picked_is_left_out():
    y = (LABELS > 0).astype(int)
    layer = layer_of(LogisticRegression().fit(X, y), y)
    choices = [(np.arange(10), np.full(10, 0.1)), (np.arange(5, 15), np.full(10, 0.1))]
    found = left_out(layer, choices, np.random.default_rng(0))
    np.testing.assert_array_equal(found, np.arange(15, 90))
    nearly_all = [(np.arange(85), np.full(85, 1 / 85))]
    assert len(left_out(layer, nearly_all, np.random.default_rng(0))) == 0


def test_the_best_total_is_found_and_ties_go_to_n():
    iris, y = load_iris(return_X_y=True)
    layer = read_last_layer(LogisticRegression(max_iter=500).fit(iris, y), (iris, y))
    picked = (np.arange(10), np.full(10, 0.1))

    def peaked(rows, weights, others):
        return -np.abs(np.log(weights.sum() / 12.0)) * np.ones(len(others))

    choice, total = best_total([picked], peaked, np.arange(5), layer)
    assert choice == 0
    assert 5 < total < 25
    flat = best_total([picked], lambda *_: np.zeros(5), np.arange(5), layer)
    assert flat == (0, 150.0)


def test_draws_do_not_hang_on_the_signs_of_eigenvectors(monkeypatch):
    layer = layer_of(LogisticRegression().fit(X, LABELS), LABELS)
    once = posterior(layer, 5, np.random.default_rng(1))
    real = np.linalg.eigh

    def turned(matrix):
        values, vectors = real(matrix)
        return values, vectors * np.where(np.arange(len(values)) % 2, 1.0, -1.0)

    monkeypatch.setattr(np.linalg, "eigh", turned)
    again = posterior(layer, 5, np.random.default_rng(1))
    np.testing.assert_allclose(again.thetas, once.thetas, rtol=1e-9, atol=1e-12)


def test_equal_examples_have_equal_rows_and_the_first_is_picked():
    rng = np.random.default_rng(0)
    inputs = np.vstack([X, X[40:60]])
    labels = np.r_[LABELS, LABELS[40:60]]
    model = LogisticRegression().fit(inputs, labels)
    # what layers below would round differently at another place
    nudged = np.vstack([X, X[40:60] * (1 + 1e-15 * rng.standard_normal((20, 4)))])
    for given in (inputs, nudged, sp.csr_array(inputs)):
        layer = read_last_layer(model, (given, labels))
        expected = np.r_[np.arange(90), np.arange(40, 60)]
        np.testing.assert_array_equal(first_equal(layer), expected)
        pool = candidates(layer, posterior(layer, 10, rng), 10, rng)
        np.testing.assert_array_equal(pool.rows[90:], pool.rows[40:60])
    other = np.r_[LABELS, (LABELS[40:60] + 1) % 3]
    assert (first_equal(read_last_layer(model, (inputs, other))) == np.arange(110)).all()


def test_wide_sparse_rows_are_those_of_the_dense_layer(monkeypatch):
    part = import_module("exempla.tasks.summarize.posterior")
    monkeypatch.setattr(part, "FULL_FISHER", 3)
    monkeypatch.setattr(part, "WIDTH", 64)
    monkeypatch.setattr(part, "BATCH_BYTES", 2**15)  # several batches
    inputs = X * (np.random.default_rng(3).random(X.shape) < 0.4)
    model = LogisticRegression().fit(inputs, LABELS)
    made = []
    for given in (inputs, sp.csr_array(inputs)):
        layer = read_last_layer(model, (given, LABELS))
        around = posterior(layer, 5, np.random.default_rng(1))
        rows = np.empty((90, around.width), dtype=np.float32)
        around.fill(rows, layer)
        np.testing.assert_allclose(rows.mean(0), around.mean(layer), atol=1e-5)
        made.append((rows, around.leverage(layer)))
    np.testing.assert_allclose(made[0][0], made[1][0], atol=1e-6)
    np.testing.assert_allclose(made[0][1], made[1][1])
