"""Forests: the kernel is RF-GAP, whose weights are what the forest predicts with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle

FORESTS = {
    "two classes": (RandomForestClassifier, load_breast_cancer),
    "three classes": (RandomForestClassifier, load_iris),
    "numbers": (RandomForestRegressor, load_diabetes),
    "extra classes": (ExtraTreesClassifier, load_breast_cancer),
    "extra numbers": (ExtraTreesRegressor, load_diabetes),
}


def fitted(name: str, **more: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    made, load = FORESTS[name]
    X, y = load(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))[:150]
    model = made(30, bootstrap=True, oob_score=True, random_state=0, **more)
    return model.fit(X[rows], y[rows]), X[rows], y[rows]


def gap(model: Any, X: np.ndarray, asked: np.ndarray | None = None) -> np.ndarray:
    """RF-GAP by its definition: weights of training rows for other rows, or out of bag."""
    leaves, n = model.apply(X), len(X)
    others = leaves if asked is None else model.apply(asked)
    total, trees = np.zeros((len(others), n)), np.zeros(len(others))
    for t, rows in enumerate(model.estimators_samples_):
        count = np.bincount(rows, minlength=n)
        counts_here = np.ones(len(others), dtype=bool) if asked is not None else count == 0
        same = (others[:, t][:, None] == leaves[:, t][None, :]) * count[None, :]
        share = same / np.maximum(same.sum(axis=1, keepdims=True), 1)
        total += np.where(counts_here[:, None], share, 0.0)
        trees += counts_here
    return total / np.maximum(trees, 1)[:, None]


@pytest.mark.parametrize("name", FORESTS)
def test_influence_is_gap_times_residuals(name: str) -> None:
    model, X, y = fitted(name)
    explainer = exempla.Explainer(model, progress=False).fit((X[:, :], y))
    _, load = FORESTS[name]
    other, labels = (part[-20:] for part in load(return_X_y=True))
    found = explainer.influence((other, labels))
    oracle: Any = explainer.oracles[0]
    weights = gap(model, X, other)  # (asked, training)
    train, test = explainer.embeddings[0].train, oracle.read((other, labels), role="test")
    own = oracle.family.score(train.outputs, train.codes)
    theirs = oracle.family.score(test.outputs, test.codes)
    np.testing.assert_allclose(found, weights.T * (own @ theirs.T), atol=1e-9)


@pytest.mark.parametrize("name", ["two classes", "numbers"])
def test_training_rows_are_predicted_out_of_bag(name: str) -> None:
    model, X, y = fitted(name)
    oracle: Any = make_oracle(model)
    train = oracle.read((X, y), role="train")
    if name == "numbers":
        np.testing.assert_allclose(train.outputs[:, 0], model.oob_prediction_)
        np.testing.assert_allclose(gap(model, X) @ y, model.oob_prediction_)
    else:
        p = np.clip(model.oob_decision_function_, 0.5 / 30, None)
        np.testing.assert_allclose(train.outputs[:, 0], np.log(p[:, 1] / p[:, 0]))


def test_new_rows_are_predicted_by_all_trees() -> None:
    model, X, y = fitted("three classes")
    oracle = make_oracle(model)
    test = oracle.read((X[:30], y[:30]), role="test")
    assert (oracle.predict(test) == model.predict(X[:30])).all()


def test_an_explanation_says_what_is_exact_and_what_is_an_analogy() -> None:
    model, X, y = fitted("numbers")
    found = exempla.explain(model, (X, y), (X[:9], y[:9]), k=3, progress=False)
    assert found.fisher == "identity"
    assert any("exact" in note and "analogy" in note for note in found.warnings)


def test_other_data_than_the_forests_own_are_refused() -> None:
    model, X, y = fitted("two classes")
    with pytest.raises(ExemplaError, match="own training data"):
        exempla.Explainer(model, progress=False).fit((X[::-1], y[::-1]))
    with pytest.raises(ExemplaError, match="own training data"):
        exempla.Explainer(model, progress=False).fit((X[:100], y[:100]))


def test_weights_of_rows_and_classes_count() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y, weights = X[:200], y[:200], np.random.default_rng(0).uniform(0.5, 2.0, 200)
    model = RandomForestClassifier(20, class_weight="balanced", random_state=0)
    model.fit(X, y, sample_weight=weights)
    assert exempla.Explainer(model, progress=False).fit((X, y, weights)).n_train == 200
    with pytest.raises(ExemplaError, match="own training data"):
        exempla.Explainer(model, progress=False).fit((X, 1 - y, weights))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ExtraTreesClassifier(5), "bootstrap=True"),
        (RandomForestClassifier(5, class_weight="balanced_subsample"), "class_weight='balanced'"),
        (RandomForestRegressor(5, criterion="poisson"), "squared_error"),
    ],
)
def test_forests_without_such_weights_are_refused(model: Any, said: str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(UnsupportedModelError, match=said):
        make_oracle(model.fit(X, y))


def test_many_rows_are_hashed_and_products_hold_on_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, X, y = fitted("numbers")
    exact = exempla.Explainer(model, progress=False).fit((X, y)).influence((X[:20], y[:20]))
    monkeypatch.setattr("exempla.oracles.trees.forest._MAX_EXACT_ROWS", 10)
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    assert explainer.oracles[0].n_parameters == 4096
    found = explainer.influence((X[:20], y[:20]))
    assert np.corrcoef(found.ravel(), exact.ravel())[0, 1] > 0.95
