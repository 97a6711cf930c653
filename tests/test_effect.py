"""What removing the picked examples is predicted to do, against sums written out and retraining."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import scale

import exempla


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    X, noisy = scale(X), y.copy()
    noisy[:40] = 1 - noisy[:40]
    model = LogisticRegression(C=0.1).fit(X[:400], noisy[:400])
    return model, (X[:400], noisy[:400]), (X[400:], y[400:])


def test_of_a_regression_it_is_minus_the_summed_influence():
    X, y = load_diabetes(return_X_y=True)
    X = scale(X)
    model = Ridge().fit(X[:300], y[:300])
    explainer = exempla.Explainer(model, progress=False).fit((X[:300], y[:300]))
    weights = np.linspace(1, 2, 142)
    found = explainer.explain((X[300:], y[300:]), k=7, weights=weights)
    influence = explainer.influence((X[300:], y[300:])) @ (weights / weights.sum())
    assert found.removal["log_likelihood"] == pytest.approx(-influence[found.indices].sum())
    assert found.predicted_change == found.removal["log_likelihood"]
    draws = [
        -influence[np.random.default_rng(seed).choice(300, 7, replace=False)].sum()
        for seed in range(4000)
    ]
    assert found.removal["by_chance"] == pytest.approx(np.mean(draws), abs=np.std(draws) / 15)
    assert found.removal["by_chance_sd"] == pytest.approx(np.std(draws), rel=0.05)
    assert found.removal["mended"] is None


def test_of_classes_it_stays_below_certainty_and_counts_what_turns(cancer):
    model, train, test = cancer
    explainer = exempla.Explainer(model, progress=False).fit(train)
    found = explainer.explain(test, k=60)
    p = model.predict_proba(test[0])[np.arange(169), test[1]]
    change = -explainer.influence(test)[found.indices].sum(0)
    moved = np.log(p / (1 - p)) + change / (1 - p)
    after = np.log(1 / (1 + np.exp(-moved)))
    assert found.removal["log_likelihood"] == pytest.approx(np.mean(after - np.log(p)), rel=1e-6)
    assert found.removal["mended"] == np.sum((p <= 0.5) & (moved > 0))
    assert found.removal["spoiled"] == np.sum((p > 0.5) & (moved <= 0))
    assert f"{found.removal['spoiled']} of them would turn wrong" in found.finding


def test_the_prediction_is_what_verify_checks(cancer, tmp_path):
    model, train, test = cancer
    found = exempla.explain_errors(model, train, test, k=30, progress=False)
    checked = found.verify(seeds=1)
    assert checked.predicted == found.predicted_change
    assert 0.3 < checked.retrained / checked.predicted < 3
    assert f"predicted {checked.predicted:+.3g}, retrained {checked.retrained:+.3g}" in str(checked)
    kept = json.loads(found.to_json(tmp_path / "answer.json").read_text())
    assert kept["removal"] == found.removal
    harmful = exempla.clean(model, train, test, k=30, progress=False)
    assert harmful.verify(seeds=1).predicted == pytest.approx(harmful.effect.sum())


def test_sentences_of_one_and_of_many(cancer):
    model, train, test = cancer
    explainer = exempla.Explainer(model, progress=False).fit(train)
    one = explainer.explain((test[0][:1], test[1][:1]), k=1, side="proponents")
    assert one.finding.startswith("Removing this 1 of 400 training examples is predicted to lower")
    assert "of this prediction by" in one.finding
    each = explainer.explain_each((test[0][:2], test[1][:2]), k=3)
    assert each[0].removal == {}
    assert each[0].finding == "3 of 400 training examples were picked."
    assert np.isnan(each[0].predicted_change)
