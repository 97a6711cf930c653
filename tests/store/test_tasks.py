"""Jobs with their rows on disk say what they say with them in memory."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import exempla
from exempla.store import RowSet, StoredRows
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


def test_fix_labels_by_sbq(tmp_path):
    X, y = noisy()
    train, curated = (X[:400], y[:400]), (X[401:], y[401:])
    job = {"method": "sbq", "progress": False}
    for name, rows in {"trusted": curated, "alone": None}.items():
        plain = exempla.fix_labels(LogisticRegression(), train, rows, k=150, **job)
        job["store"] = tmp_path / name
        kept = exempla.fix_labels(LogisticRegression(), train, rows, k=150, **job)
        np.testing.assert_array_equal(plain.indices, kept.indices)
        np.testing.assert_allclose(plain.weights, kept.weights, rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(plain.alignment, kept.alignment, rtol=1e-4, atol=1e-6)
        one, other = plain.contradicting[0], kept.contradicting[0]
        np.testing.assert_array_equal(one.indices, other.indices)
        (white,) = job.pop("store").glob("white-*")
        assert len(shards(white, ".")) == len(shards(tmp_path / name)) == 8
        shards(white, ".")[3].unlink()  # as if it had been killed: the same call continues
        again = exempla.fix_labels(
            LogisticRegression(), train, rows, k=150, store=tmp_path / name, **job
        )
        np.testing.assert_array_equal(plain.indices, again.indices)


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


@pytest.mark.parametrize("k", [12, 330])
def test_summarize(tmp_path, k, monkeypatch):
    """Up to 300 picks two choices are compared, beyond one; copies of examples are far apart."""
    X, y = noisy()
    X[450:], y[450:] = X[:50], y[:50]
    model = LogisticRegression(C=0.5).fit(X, y)
    job = {"train": (X, y), "k": k, "progress": False}
    plain = exempla.summarize(model, **job)
    kept = exempla.summarize(model, store=tmp_path, **job)
    np.testing.assert_array_equal(plain.indices, kept.indices)
    np.testing.assert_allclose(plain.weights, kept.weights, rtol=1e-4)
    assert plain.total == kept.total
    assert plain.explained == pytest.approx(kept.explained, rel=1e-6)
    rows = StoredRows.of(shards(tmp_path))
    assert len(shards(tmp_path)) > 6
    np.testing.assert_array_equal(rows[450:], rows[:50])
    shards(tmp_path)[2].unlink()  # as if it had been killed: only what is missing is made
    written, write = [], RowSet.write
    monkeypatch.setattr(RowSet, "write", lambda *a: (written.append(a[1]), write(*a)))
    again = exempla.summarize(model, store=tmp_path, **job)
    np.testing.assert_array_equal(plain.indices, again.indices)
    assert len(written) == 1
    with pytest.raises(exempla.ExemplaError, match="belongs to another job: it differs in k"):
        exempla.summarize(model, (X, y), k - 1, store=tmp_path, progress=False)


def test_labels_that_are_no_classes_have_no_store(tmp_path):
    X, _ = noisy()
    with pytest.raises(exempla.ExemplaError, match="store= needs one class label per row"):
        exempla.fix_labels(Ridge(), (X, X[:, 0]), store=tmp_path, progress=False)
