"""What removing the picked examples is predicted to do, against sums written out and retraining."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import scale

import exempla
from exempla.kernel import kernel as effect
from exempla.kernel.basis import IdentitySketch


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    X, noisy = scale(X), y.copy()
    noisy[:40] = 1 - noisy[:40]
    model = LogisticRegression(C=0.1).fit(X[:400], noisy[:400])
    return model, (X[:400], noisy[:400]), (X[400:], y[400:])


def written_out_step(explainer: exempla.Explainer, picked: np.ndarray) -> np.ndarray:
    """(nM − Σ over the removed of their Fisher)⁻¹ times minus their summed scores, densely."""
    (embedding,) = explainer.embeddings
    oracle, train, n = embedding.oracle, embedding.train, explainer.n_train
    write = IdentitySketch(oracle.layers).project
    rows = np.concatenate([write(batch) for batch in oracle.fisher_rows(train)])
    gone = np.concatenate([write(batch) for batch in oracle.fisher_rows(train.take(picked))])
    scores = np.concatenate([write(batch) for batch in oracle.scores(train)])
    kept = rows.T @ rows - gone.T @ gone
    kept += n * np.diag(IdentitySketch(oracle.layers).penalty)
    kept += n * explainer.features.damping * np.eye(len(kept))
    return -np.linalg.solve(kept, scores[picked].sum(0))


def scores_of(explainer: exempla.Explainer, test: tuple) -> np.ndarray:
    (embedding,) = explainer.embeddings
    return embedding.embed(embedding.oracle.read(test, role="test"), "true")[0]


def test_of_a_regression_it_is_a_newton_step():
    X, y = load_diabetes(return_X_y=True)
    X = scale(X)
    model = Ridge().fit(X[:300], y[:300])
    explainer = exempla.Explainer(model, progress=False).fit((X[:300], y[:300]))
    test, weights = (X[300:], y[300:]), np.linspace(1, 2, 142)
    found = explainer.explain(test, k=40, weights=weights)
    share = weights / weights.sum()
    change = share @ scores_of(explainer, test) @ written_out_step(explainer, found.indices)
    assert found.removal["log_likelihood"] == pytest.approx(change, rel=1e-8)
    assert found.predicted_change == found.removal["log_likelihood"]
    influence = explainer.influence(test) @ share
    assert change > -1.05 * influence[found.indices].sum() > 0, "influences alone fall short"
    draws = [
        -influence[np.random.default_rng(seed).choice(300, 40, replace=False)].sum()
        for seed in range(4000)
    ]
    assert found.removal["random_baseline"] == pytest.approx(np.mean(draws), abs=np.std(draws) / 15)
    assert found.removal["random_sd"] == pytest.approx(np.std(draws), rel=0.05)
    assert found.removal["n_fixed"] is None


def test_of_classes_it_stays_below_certainty_and_counts_what_turns(cancer):
    model, train, test = cancer
    explainer = exempla.Explainer(model, progress=False).fit(train)
    found = explainer.explain(test, k=60)
    p = model.predict_proba(test[0])[np.arange(169), test[1]]
    change = scores_of(explainer, test) @ written_out_step(explainer, found.indices)
    moved = np.log(p / (1 - p)) + change / (1 - p)
    after = np.log(1 / (1 + np.exp(-moved)))
    assert found.removal["log_likelihood"] == pytest.approx(np.mean(after - np.log(p)), rel=1e-6)
    assert found.removal["n_fixed"] == np.sum((p <= 0.5) & (moved > 0))
    assert found.removal["n_broken"] == np.sum((p > 0.5) & (moved <= 0))
    assert f"{found.removal['n_broken']} would become wrong." in found.finding


def test_many_fisher_rows_leave_the_sum_of_influences(cancer, monkeypatch):
    model, train, test = cancer
    explainer = exempla.Explainer(model, progress=False).fit(train)
    monkeypatch.setattr(effect, "MAX_FISHER_ROWS", 5)
    found = explainer.explain(test, k=60)
    p = model.predict_proba(test[0])[np.arange(169), test[1]]
    moved = np.log(p / (1 - p)) - explainer.influence(test)[found.indices].sum(0) / (1 - p)
    assert found.removal["n_fixed"] == np.sum((p <= 0.5) & (moved > 0))
    expected = np.mean(-np.logaddexp(0, -moved) - np.log(p))
    assert found.removal["log_likelihood"] == pytest.approx(expected, rel=1e-6)


def test_the_prediction_is_what_verify_checks(cancer, tmp_path):
    model, train, test = cancer
    found = exempla.explain_errors(model, train, test, k=30, progress=False)
    checked = found.verify(seeds=1)
    assert checked.predicted == found.predicted_change
    assert 0.8 < checked.retrained / checked.predicted < 1.25
    assert f"predicted {checked.predicted:+.3g}, retrained {checked.retrained:+.3g}" in str(checked)
    kept = json.loads(found.to_json(tmp_path / "answer.json").read_text())
    assert kept["removal"] == found.removal
    harmful = exempla.clean(model, train, test, k=30, progress=False)
    assert harmful.verify(seeds=1).predicted == pytest.approx(harmful.predicted_change)


def test_sentences_of_one_and_of_many(cancer):
    model, train, test = cancer
    explainer = exempla.Explainer(model, progress=False).fit(train)
    one = explainer.explain((test[0][:1], test[1][:1]), k=1, side="proponents")
    assert one.finding.startswith("Without this 1 of 400 training rows, the correct answer should")
    assert "less likely (1 random row: " in one.finding
    each = explainer.explain_each((test[0][:2], test[1][:2]), k=3)
    assert each[0].removal == {}
    assert each[0].finding == "3 of 400 training rows were picked."
    assert np.isnan(each[0].predicted_change)
