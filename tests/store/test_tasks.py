"""Jobs with their rows on disk say what they say with them in memory."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import exempla
from tests.store.case import problem, shards, small_shards, without_residual


@pytest.fixture(autouse=True)
def many_shards(monkeypatch):
    small_shards(monkeypatch)


def noisy():
    _, (X, y) = problem(500)
    y = y.copy()
    y[::25] = (y[::25] + 1) % 3
    return X, y


def test_fix_labels(tmp_path):
    X, y = noisy()
    train, curated = (X[:400], y[:400]), (X[401:], y[401:])
    jobs = [{"progress": False}, {"progress": False, "store": tmp_path}]
    for rows in (curated, None):
        plain, kept = (
            exempla.fix_labels(LogisticRegression(), train, rows, k=15, **job) for job in jobs
        )
        np.testing.assert_array_equal(plain.indices, kept.indices)
        np.testing.assert_allclose(plain.alignment, kept.alignment, rtol=1e-4, atol=1e-6)
        one, other = plain.contradicting[0], kept.contradicting[0]
        np.testing.assert_array_equal(one.indices, other.indices)
    assert shards(tmp_path)
    with pytest.raises(exempla.ExemplaError, match="ranks rows in memory"):
        exempla.fix_labels(LogisticRegression(), train, curated, method="sbq", store=tmp_path)


@pytest.mark.parametrize("sketch", ["auto", 6])
def test_clean(tmp_path, sketch, monkeypatch):
    without_residual(monkeypatch)
    X, y = noisy()
    model = LogisticRegression().fit(X[:400], y[:400])
    for selector in (None, exempla.SBQ(noise=10)):
        job = {"ask": "all", "selector": selector, "sketch": sketch, "progress": False}
        plain = exempla.clean(model, (X[:400], y[:400]), (X[400:], y[400:]), 9, **job)
        kept = exempla.clean(
            model, (X[:400], y[:400]), (X[400:], y[400:]), 9, store=tmp_path, **job
        )
        np.testing.assert_array_equal(plain.indices, kept.indices)
        np.testing.assert_allclose(plain.weights, kept.weights, rtol=1e-6)


def test_explain_errors_and_explain(tmp_path):
    X, y = noisy()
    model = LogisticRegression().fit(X[:400], y[:400])
    data = (X[:400], y[:400]), (X[400:], y[400:])
    for job in (exempla.explain_errors, exempla.explain):
        plain = job(model, *data, k=7, progress=False)
        kept = job(model, *data, k=7, progress=False, store=tmp_path)
        np.testing.assert_array_equal(plain.indices, kept.indices)
