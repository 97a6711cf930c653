"""Support vectors, Gaussian processes and neighbours: functions of the training rows themselves."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit, log_expit
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.metrics.pairwise import linear_kernel
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.oracles.sklearn import instance_based
from tests.oracles.sklearn.case import (
    CODES,
    HARD,
    NUMBERS,
    SPECIES,
    X,
    flat_scores,
    model_name,
    read_train,
    summed,
)

SMOOTH = RBF(1.5) + WhiteKernel(0.3)
MACHINES = [
    (SVC(C=2.0), HARD),
    (SVC(kernel="poly", degree=2, gamma=0.5, coef0=1.0), SPECIES),
    (SVC(class_weight="balanced"), SPECIES),
    (SVR(epsilon=0.2), NUMBERS),
    (GaussianProcessRegressor(SMOOTH), NUMBERS),
    (GaussianProcessRegressor(RBF(2.0), alpha=0.5, optimizer=None, normalize_y=True), NUMBERS),
    (GaussianProcessClassifier(RBF(1.5), optimizer=None), HARD),
]


def fitted(model, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(*data)


@pytest.mark.parametrize(("model", "y"), MACHINES, ids=model_name)
def test_a_kernel_machine_is_linear_in_the_span_of_its_rows(model, y):
    model = fitted(model, X, y)
    oracle, train = read_train(model, X, y)
    outputs = oracle._forward(train)[0]
    if isinstance(model, SVC):
        model.decision_function_shape = "ovo"
        expected = model.decision_function(X).reshape(outputs.shape)
    elif isinstance(model, GaussianProcessClassifier):
        inner = model.base_estimator_
        expected = inner.kernel_(X, inner.X_train_) @ (inner.y_train_ - inner.pi_)
    else:
        expected = model.predict(X)
    np.testing.assert_allclose(outputs, expected.reshape(outputs.shape), atol=1e-6)
    assert oracle.predict(train).tolist() == pytest.approx(model.predict(X).tolist())
    # the span carries the kernel itself
    phi = oracle._dense.first(X)
    kernel = oracle._dense.first.kernel
    np.testing.assert_allclose(phi @ phi.T, kernel(X, X), atol=1e-6)


@pytest.mark.parametrize(("model", "y"), MACHINES, ids=model_name)
def test_kernel_scores_are_finite_differences(model, y):
    oracle, train = read_train(fitted(model, X, y), X, y)
    theta, scores = (
        oracle.theta,
        np.hstack([f.dense() for f in next(iter(oracle.scores(train))).factors]),
    )
    weights = np.ones(len(X)) if train.weights is None else train.weights
    for j in np.linspace(0, len(theta) - 1, 7).astype(int):
        step = 1e-5 * (np.arange(len(theta)) == j)
        up, down = (oracle.at(theta + s).log_likelihood(train) for s in (step, -step))
        slope = weights * (up - down) / 2e-5
        np.testing.assert_allclose(scores[:, j], slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("model", "y"), MACHINES[4:], ids=model_name)
def test_processes_balance_their_prior(model, y):
    oracle, train = read_train(fitted(model, X, y), X, y)
    total = sum(f.dense().sum(axis=0) for r in oracle.scores(train) for f in r.factors)
    (layer,) = oracle.layers
    pull = len(X) * layer.penalty * oracle.theta
    np.testing.assert_allclose(total, pull, atol=1e-4 * np.abs(pull).max())
    assert np.abs(total).max() > 0.1


def test_support_vectors_nearly_balance_their_penalty():
    """Up to the rounding of the corner, on which the support vectors sit."""
    model = SVC(C=0.3).fit(X, HARD)
    oracle, train = read_train(model, X, HARD)
    total = sum(f.dense().sum(axis=0) for r in oracle.scores(train) for f in r.factors)
    pull = len(X) * oracle.layers[0].penalty * oracle.theta
    assert np.corrcoef(total, pull)[0, 1] > 0.85
    assert "corner rounded" in str(oracle.notes)


def test_the_process_fisher_is_the_hessian():
    model = GaussianProcessClassifier(RBF(2.0), optimizer=None).fit(X, HARD)
    oracle, train = read_train(model, X, HARD)
    phi = oracle._dense.first(X)
    p = expit(phi @ oracle.theta)
    np.testing.assert_allclose(
        summed(oracle, train), (phi * (p * (1 - p))[:, None]).T @ phi, atol=1e-9
    )
    expected = log_expit(np.where(HARD == "yes", 1, -1) * (phi @ oracle.theta))
    np.testing.assert_allclose(oracle.log_likelihood(train), expected)
    assert "Laplace" in str(oracle.notes)


def test_influence_on_a_process_is_what_a_refit_does():
    model = GaussianProcessRegressor(RBF(1.5), alpha=0.5, optimizer=None).fit(X, NUMBERS)
    test = (X[::9] + 0.1, NUMBERS[::9])
    found = exempla.Explainer(model, progress=False).fit((X, NUMBERS)).influence(test)
    some = np.arange(0, 150, 10)

    def log_p(keep):
        f = GaussianProcessRegressor(RBF(1.5), alpha=0.5, optimizer=None)
        return -((test[1] - f.fit(X[keep], NUMBERS[keep]).predict(test[0])) ** 2) / (2 * 0.5)

    everything = np.ones(len(X), dtype=bool)
    truth = [log_p(everything) - log_p(np.arange(len(X)) != i) for i in some]
    assert np.corrcoef(found[some].ravel(), np.ravel(truth))[0, 1] > 0.95


def test_sparse_rows_many_rows_and_pickling(monkeypatch):
    rows = sp.csr_matrix(X)
    dense, same = read_train(SVC().fit(X, HARD), X, HARD)
    sparse, also = read_train(SVC().fit(rows, HARD), rows, HARD)
    np.testing.assert_allclose(
        flat_scores(sparse, also) @ flat_scores(sparse, also).T,
        flat_scores(dense, same) @ flat_scores(dense, same).T,
        atol=1e-6,
    )
    other, there = pickle.loads(pickle.dumps((dense, same)))
    np.testing.assert_array_equal(flat_scores(other, there), flat_scores(dense, same))
    monkeypatch.setattr(instance_based, "_MAX_LANDMARKS", 60)
    few, train = read_train(SVC().fit(X, HARD), X, HARD)
    assert few.n_parameters <= 61
    assert "60 of 150 training rows" in str(few.notes)
    np.testing.assert_allclose(few.log_likelihood(train), dense.log_likelihood(same), atol=1e-5)


def test_machines_that_cannot_be_read_say_what_to_use():
    for machine in (
        SVC(kernel="precomputed").fit(linear_kernel(X), HARD),
        SVC(kernel=linear_kernel).fit(X, HARD),
    ):
        with pytest.raises(UnsupportedModelError, match="name a kernel"):
            make_oracle(machine)
    with pytest.raises(UnsupportedModelError, match="not positive definite"):
        make_oracle(SVC(kernel="sigmoid", gamma=0.1).fit(X, SPECIES))
    noisy = GaussianProcessRegressor(alpha=np.linspace(0.1, 1, len(X)), optimizer=None)
    with pytest.raises(UnsupportedModelError, match="one number as alpha"):
        make_oracle(noisy.fit(X, NUMBERS))
    with pytest.raises(UnsupportedModelError, match="multi_class='one_vs_rest'"):
        make_oracle(GaussianProcessClassifier(multi_class="one_vs_one").fit(X, SPECIES))


def test_a_linear_kernel_agrees_with_the_linear_machine():
    """The same loss in other coordinates: the same kernel between scores at the same weights."""
    model = SVC(kernel="linear", C=0.5).fit(X, HARD)
    twin = LinearSVC(loss="hinge").fit(X, HARD)
    twin.coef_, twin.intercept_ = model.coef_, model.intercept_
    one, two = (flat_scores(*read_train(m, X, HARD)) for m in (model, twin))
    np.testing.assert_allclose(one @ one.T, two @ two.T, atol=1e-5)


# ---- neighbours


def smoothed(model, weights, rows, y):
    """log p(y | x) with training rows weighed, in plain loops."""
    distance, index = model.kneighbors(rows)
    out = []
    for d, near, label in zip(distance, index, y):
        votes = np.ones(len(near)) if model.weights == "uniform" else 1 / d
        votes = votes / votes.mean() * weights[near]
        if hasattr(model, "classes_"):
            C = len(model.classes_)
            mine = votes[SPECIES[near] == label].sum() + 1 / C
            out.append(np.log(mine / (votes.sum() + 1)))
        else:
            out.append(label - votes @ NUMBERS[near] / votes.sum())
    return np.array(out)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_a_neighbour_is_worth_what_its_vote_changes(weights):
    model = KNeighborsClassifier(7, weights=weights).fit(X, SPECIES)
    oracle, _ = read_train(model, X, SPECIES)
    rows, y = X[::13] + 0.2, SPECIES[::13]
    asked = oracle.read((rows, y), role="test")
    found = np.vstack([f.a.toarray() for r in oracle.scores(asked) for f in r.factors])
    one = np.ones(len(X))
    np.testing.assert_allclose(
        oracle.log_likelihood(asked), smoothed(model, one, rows, y), atol=1e-9
    )
    for i in np.unique(model.kneighbors(rows)[1])[:25]:
        step = 1e-6 * (np.arange(len(X)) == i)
        rise = smoothed(model, one + step, rows, y) - smoothed(model, one - step, rows, y)
        np.testing.assert_allclose(found[:, i], rise / 2e-6, atol=1e-6)
    explainer = exempla.Explainer(model, progress=False).fit((X, SPECIES))
    np.testing.assert_allclose(explainer.influence((rows, y)), found.T, rtol=1e-5, atol=1e-9)
    answer = explainer.explain((rows, y), k=5)
    assert set(answer.indices.tolist()) <= set(np.unique(model.kneighbors(rows)[1]).tolist())
    assert "vote" in answer.warnings[0]


def test_neighbours_of_a_number():
    model = KNeighborsRegressor(5, weights="distance").fit(X, NUMBERS)
    oracle, train = read_train(model, X, NUMBERS)
    rows, y = X[::13] + 0.2, NUMBERS[::13]
    asked = oracle.read((rows, y), role="test")
    found = np.vstack([f.a.toarray() for r in oracle.scores(asked) for f in r.factors])
    one, v = np.ones(len(X)), oracle._variance
    for i in np.unique(model.kneighbors(rows)[1])[:25]:
        step = 1e-6 * (np.arange(len(X)) == i)
        up, down = (smoothed(model, one + s, rows, y) for s in (step, -step))
        np.testing.assert_allclose(found[:, i], -(up**2 - down**2) / (4e-6 * v), atol=1e-6)
    others = [
        NUMBERS[i] - model.set_params(n_neighbors=5).fit(X[keep], NUMBERS[keep]).predict(X[[i]])[0]
        for i in range(150)
        if len(keep := np.delete(np.arange(150), i))
    ]
    assert v == pytest.approx(np.mean(np.square(others)))  # a row's own vote left out
    model.fit(X, NUMBERS)
    assert oracle.predict(train).shape == (150,)


def test_neighbours_need_the_rows_they_were_fitted_on(monkeypatch):
    model = make_pipeline(StandardScaler(), KNeighborsClassifier()).fit(X, SPECIES)
    with pytest.raises(ExemplaError, match="fitted on 150 rows, not on these 149"):
        read_train(model, X[1:], SPECIES[1:])
    monkeypatch.setattr(instance_based, "_MAX_VOTES", 100)
    with pytest.raises(ExemplaError, match=r"exempla\.surrogate"):
        read_train(model, X, SPECIES)
    assert CODES.max() == 2
