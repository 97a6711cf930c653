"""Summaries: a refit on k weighted rows must come close to the fit on all rows."""

from __future__ import annotations

import copy
import tracemalloc
from importlib import import_module

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
)
from sklearn.mixture import GaussianMixture
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.tasks.summarize import summarize


def made(n: int, p: int, seed: int = 0, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels from a known logistic model; `shift` makes one class rare."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    z = X @ rng.standard_normal(p) + shift
    return X, (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int)


def mean_log_likelihood(model, X, y) -> float:
    probabilities = model.predict_proba(X)
    return float(np.log(probabilities[np.arange(len(y)), y]).mean())


def refit(model, X, y, summary):
    return model.fit(X[summary.indices], y[summary.indices], sample_weight=summary.weights)


def test_a_summary_equals_the_full_data_where_random_rows_do_not():
    every_X, every_y = made(8000, 8)
    X, y, Xt, yt = every_X[:4000], every_y[:4000], every_X[4000:], every_y[4000:]
    model = LogisticRegression().fit(X, y)
    full = mean_log_likelihood(model, Xt, yt)
    summaries = [summarize(model, (X, y), 60, seed=seed, progress=False) for seed in range(3)]
    for seed, summary in enumerate(summaries):
        ours = mean_log_likelihood(refit(LogisticRegression(), X, y, summary), Xt, yt)
        chance = np.random.default_rng(seed).choice(len(X), 60, replace=False)
        random = mean_log_likelihood(LogisticRegression().fit(X[chance], y[chance]), Xt, yt)
        assert full - ours < 0.002
        assert full - random > 0.02
    assert np.mean([summary.explained for summary in summaries]) > 0.99


def test_with_total_n_the_refit_finds_the_same_parameters():
    X, y = made(3000, 5)
    model = LogisticRegression().fit(X, y)
    summary = summarize(model, (X, y), 100, total="n", progress=False)
    small = refit(LogisticRegression(), X, y, summary)
    np.testing.assert_allclose(small.coef_, model.coef_, atol=0.05)
    np.testing.assert_allclose(small.intercept_, model.intercept_, atol=0.05)


@pytest.mark.parametrize("total", ["k", "n", "auto"])
def test_weights_are_positive_and_sum_to_the_total(total):
    X, y = made(500, 4)
    summary = summarize(LogisticRegression().fit(X, y), (X, y), 30, total, progress=False)
    assert len(np.unique(summary.indices)) == 30
    assert (summary.weights > 0).all()
    if total != "auto":
        assert summary.weights.sum() == pytest.approx({"k": 30, "n": 500}[total])
    else:
        assert 0.9 <= summary.weights.sum() <= 500.001


def test_few_examples_of_many_parameters_stay_humble():
    X, y = made(1000, 20)
    few = summarize(LogisticRegression().fit(X, y), (X, y), 8, progress=False)
    many = summarize(LogisticRegression().fit(X, y), (X, y), 100, progress=False)
    # 8 rows cannot speak for 1000; 100 can
    assert few.weights.sum() < 50
    assert many.weights.sum() > 100


@pytest.mark.parametrize("k", [2, 5, 20])
def test_no_class_is_left_out(k):
    X, y = made(2000, 6, shift=-6.0)
    assert 2 <= y.sum() < 100
    summary = summarize(LogisticRegression().fit(X, y), (X, y), k, progress=False)
    assert set(y[summary.indices]) == {0, 1}


def test_the_only_examples_of_a_class_can_be_picked():
    X, y = made(300, 3)
    y = y.copy()
    y[7] = 2
    summary = summarize(LogisticRegression().fit(X, y), (X, y), 10, progress=False)
    assert 7 in summary.indices


def test_multinomial():
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    model = LogisticRegression().fit(X, y)
    summary = summarize(model, (X, y), 30, progress=False)
    small = refit(LogisticRegression(), X, y, summary)
    full = mean_log_likelihood(model, X, y)
    assert mean_log_likelihood(small, X, y) > full - 0.02


@pytest.mark.parametrize("model", [LinearRegression(), Ridge(alpha=5.0)])
def test_regression(model):
    X, y = load_diabetes(return_X_y=True)
    X = scale(X)
    model.fit(X, y)
    summary = summarize(model, (X, y), 60, total="n", progress=False)
    small = copy.deepcopy(model)
    refit(small, X, y, summary)
    error = np.mean((small.predict(X) - model.predict(X)) ** 2) / model.predict(X).var()
    chance = np.random.default_rng(0).choice(len(X), 60, replace=False)
    by_chance = copy.deepcopy(model).fit(X[chance], y[chance])
    worse = np.mean((by_chance.predict(X) - model.predict(X)) ** 2) / model.predict(X).var()
    assert error < 0.02
    assert error < 0.2 * worse


def test_poisson_does_not_see_the_total_and_keeps_n():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 4)) / 2
    y = rng.poisson(np.exp(X @ [0.5, -0.5, 0.3, 0.0] + 0.4))
    model = PoissonRegressor(alpha=1e-3, tol=1e-8, max_iter=1000).fit(X, y)
    summary = summarize(model, (X, y), 50, progress=False)
    assert summary.weights.sum() == pytest.approx(1500, rel=0.2)
    small = refit(PoissonRegressor(alpha=1e-3, tol=1e-8, max_iter=1000), X, y, summary)
    np.testing.assert_allclose(small.coef_, model.coef_, atol=0.05)


def test_sample_weights_count_as_repeated_rows():
    X, y = made(600, 3)
    times = np.random.default_rng(1).integers(0, 4, 600)
    model = LogisticRegression().fit(X, y, sample_weight=times)
    summary = summarize(model, (X, y, times), 60, total="n", progress=False)
    assert summary.weights.sum() == pytest.approx(times.sum())
    small = refit(LogisticRegression(), X, y, summary)
    np.testing.assert_allclose(small.coef_, model.coef_, atol=0.1)


def test_class_weights_are_left_to_the_estimator():
    X, y = made(2000, 3, shift=-2.0)
    weight = {0: 1.0, 1: 5.0}
    model = LogisticRegression(class_weight=weight).fit(X, y)
    summary = summarize(model, (X, y), 80, total="n", progress=False)
    small = refit(LogisticRegression(class_weight=weight), X, y, summary)
    np.testing.assert_allclose(small.coef_, model.coef_, atol=0.1)


def test_pipelines_sparse_rows_and_searches():
    X, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    dense = summarize(pipeline, (X, y), 20, progress=False)
    scaled = StandardScaler().fit_transform(X)
    plain = LogisticRegression().fit(scaled, y)
    np.testing.assert_array_equal(
        dense.indices, summarize(plain, (scaled, y), 20, progress=False).indices
    )
    sparse = summarize(plain, (sp.csr_array(scaled), y), 20, progress=False)
    np.testing.assert_array_equal(sparse.indices, dense.indices)
    search = LogisticRegressionCV(
        Cs=[0.1, 1.0], cv=3, l1_ratios=(0.0,), scoring="neg_log_loss", use_legacy_attributes=False
    )
    assert len(summarize(search.fit(scaled, y), (scaled, y), 20, progress=False)) == 20


def test_the_callers_model_and_data_stay_as_they_are():
    X, y = made(300, 3)
    model = LogisticRegression().fit(X, y)
    before, data = copy.deepcopy(vars(model)), X.copy()
    summarize(model, (X, y), 10, progress=False)
    for name, value in before.items():
        np.testing.assert_array_equal(vars(model)[name], value)
    np.testing.assert_array_equal(X, data)


def test_the_same_seed_gives_the_same_summary():
    X, y = made(400, 4)
    model = LogisticRegression().fit(X, y)
    one, same, other = (summarize(model, (X, y), 25, seed=s, progress=False) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.indices, same.indices)
    np.testing.assert_array_equal(one.weights, same.weights)
    assert set(one.indices) != set(other.indices)


def test_large_sets_take_their_candidates_from_a_part(monkeypatch):
    task = import_module("exempla.tasks.summarize.posterior")

    X, y = made(3000, 4, shift=-5.0)
    model = LogisticRegression().fit(X, y)
    monkeypatch.setattr(task, "ROW_BYTES", 400 * 4 * 152)
    summary = summarize(model, (X, y), 40, total="n", progress=False)
    assert summary.candidates == 400
    assert set(y[summary.indices]) == {0, 1}
    small = refit(LogisticRegression(), X, y, summary)
    np.testing.assert_allclose(small.coef_, model.coef_, atol=0.3)


def test_wide_layers_are_hashed_and_use_the_diagonal(monkeypatch):
    part = import_module("exempla.tasks.summarize.posterior")

    X, y = made(1500, 6)
    model = LogisticRegression().fit(X, y)
    monkeypatch.setattr(part, "FULL_FISHER", 3)
    monkeypatch.setattr(part, "WIDTH", 128)
    summary = summarize(model, (X, y), 80, total="n", progress=False)
    small = refit(LogisticRegression(), X, y, summary)
    np.testing.assert_allclose(small.coef_, model.coef_, atol=0.25)


def bags(n: int, p: int, seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    """Short texts as counts of p words, of which the common ones tell the two classes apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    often = np.stack([1.0 / np.arange(1, p + 1)] * 2)
    often[0, :60:2] *= 3
    often[1, 1:60:2] *= 3
    words = [rng.choice(p, 12, p=often[c] / often[c].sum()) for c in y]
    counts = (np.ones(12 * n), (np.repeat(np.arange(n), 12), np.concatenate(words)))
    return sp.csr_array(counts, shape=(n, p)), y


def test_a_wide_sparse_layer_is_never_made_dense():
    X, y = bags(1500, 30_000)
    dense = X.shape[0] * X.shape[1] * 8
    model = LogisticRegression().fit(X[:1000], y[:1000])
    tracemalloc.start()
    summary = summarize(model, (X[:1000], y[:1000]), 60, progress=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < dense / 3
    ours = refit(LogisticRegression(), X, y, summary)
    chance = np.random.default_rng(0).choice(1000, 60, replace=False)
    random = LogisticRegression().fit(X[chance], y[chance])
    held_out = X[1000:], y[1000:]
    assert mean_log_likelihood(ours, *held_out) > mean_log_likelihood(random, *held_out) + 0.02


def test_a_perceptron_by_its_last_layer():
    X, y = made(600, 4)
    model = MLPClassifier((8,), solver="lbfgs", alpha=0.1, max_iter=1000, random_state=0).fit(X, y)
    summary = summarize(model, (X, y), 40, total="n", progress=False)
    assert len(summary) == 40
    assert summary.explained > 0.5


def test_torch_by_its_last_layer():
    torch = pytest.importorskip("torch")
    X, y = made(800, 5)
    Xt, yt = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 2))

    def fit(net, A, b, weight):
        optimiser = torch.optim.LBFGS(net.parameters(), max_iter=100)
        w = torch.as_tensor(weight, dtype=torch.float32)

        def closure():
            optimiser.zero_grad()
            losses = torch.nn.functional.cross_entropy(net(A), b, reduction="none")
            penalty = sum((p**2).sum() for p in net.parameters()) / 2
            loss = ((w * losses).sum() + penalty) / w.sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        return net

    module = fit(module, Xt, yt, np.ones(800))
    before = {name: p.clone() for name, p in module.state_dict().items()}
    summary = summarize(module, (Xt, yt), 50, fit=fit, progress=False)
    assert all(torch.equal(before[name], p) for name, p in module.state_dict().items())
    small = fit(copy.deepcopy(module), Xt[summary.indices], yt[summary.indices], summary.weights)
    with torch.no_grad():
        full, ours = (torch.nn.functional.cross_entropy(m(Xt), yt).item() for m in (module, small))
    assert ours < full + 0.02
    assert set(y[summary.indices]) == {0, 1}
    with pytest.raises(ExemplaError, match="give fit="):
        summarize(module, (Xt, yt), 50, progress=False)


def test_nearly_everything_is_said_to_need_no_choice():
    X, y = made(60, 2)
    model = LogisticRegression().fit(X, y)
    with pytest.warns(ExemplaWarning, match="total"):
        summary = summarize(model, (X, y), 55, progress=False)
    assert summary.weights.sum() == pytest.approx(60)
    with pytest.warns(ExemplaWarning, match="total"):
        everything = summarize(model, (X, y), 60, progress=False)
    assert sorted(everything.indices) == list(range(60))


@pytest.mark.parametrize("k", [0, 61, 2.5])
def test_impossible_sizes_are_refused(k):
    X, y = made(60, 2)
    with pytest.raises(ExemplaError, match="k is"):
        summarize(LogisticRegression().fit(X, y), (X, y), k, progress=False)


@pytest.mark.parametrize("seed", ["a", -1, 2**33, 0.5])
def test_impossible_seeds_are_refused(seed):
    X, y = made(60, 2)
    with pytest.raises(ExemplaError, match="seed is"):
        summarize(LogisticRegression().fit(X, y), (X, y), 5, seed=seed, progress=False)


def test_examples_without_weight_are_not_picked_and_may_leave_fewer_than_k():
    X, y = made(60, 2)
    times = (np.arange(60) < 20).astype(float)
    model = LogisticRegression().fit(X, y, sample_weight=times)
    summary = summarize(model, (X, y, times), 30, total="n", progress=False)
    assert sorted(summary.indices) == list(range(20))
    assert len(summary.weights) == len(summary.gains) == 20


def test_unknown_totals_and_models_are_refused():
    X, y = made(60, 2)
    model = LogisticRegression().fit(X, y)
    with pytest.raises(ExemplaError, match="total='half'"):
        summarize(model, (X, y), 5, total="half", progress=False)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError):
        summarize(GaussianMixture(2).fit(X), (X, y), 5, total="k", progress=False)
    with pytest.raises(ExemplaError, match=r"must be \(X, y\)"):
        summarize(model, X, 5, progress=False)


def test_a_list_of_models_is_refused_in_a_sentence():
    X, y = made(40, 2)
    with pytest.raises(ExemplaError, match="one model, not a list"):
        summarize([LogisticRegression().fit(X, y)], (X, y), k=5)
