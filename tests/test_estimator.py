"""FisherExplainer behaves as scikit-learn's own estimators do and explains as Explainer does."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from exempla import ExemplaError, Explainer, FisherExplainer

CANNOT_APPLY: dict[str, str] = {}
"""check → reason. Empty: all of them apply and pass. (check_array_api_input skips itself unless
SCIPY_ARRAY_API is set; the wrapped models decide about array API input, not this class.)"""


@parametrize_with_checks(
    [FisherExplainer(), FisherExplainer(Ridge())],
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def test_explains_as_explainer_does(cancer):
    X, y = cancer
    inner = LogisticRegression(C=0.1)
    ours = FisherExplainer(inner).fit(X[:400], y[:400]).explain(X[400:420], y[400:420], k=7)
    model = clone(inner).fit(X[:400], y[:400])
    theirs = Explainer(model, progress=False).fit((X[:400], y[:400]))
    answer = theirs.explain((X[400:420], y[400:420]), k=7)
    assert ours.indices.tolist() == answer.indices.tolist()
    np.testing.assert_allclose(ours.weights, answer.weights)
    assert not hasattr(inner, "coef_"), "the caller's model must not be fitted"


def test_delegates_and_has_only_what_the_model_has(cancer):
    X, y = cancer
    model = FisherExplainer(LogisticRegression()).fit(X, y)
    plain = LogisticRegression().fit(X, y)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X))
    assert model.score(X, y) == plain.score(X, y)
    assert not hasattr(FisherExplainer(Ridge()), "predict_proba")


def test_without_labels_the_predictions_are_questioned(cancer):
    X, y = cancer
    answer = FisherExplainer().fit(X, y).explain(X[:3], k=2)
    assert answer.labels == "predicted"


def test_influence_has_one_row_per_training_example():
    X, y = load_diabetes(return_X_y=True)
    matrix = FisherExplainer(Ridge()).fit(X, y).influence(X[:4], y[:4])
    assert matrix.shape == (len(X), 4)
    assert np.isfinite(matrix).all()


def test_works_inside_a_search_and_around_a_pipeline(cancer):
    X, y = cancer
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    wrapped = FisherExplainer(pipeline)
    search = GridSearchCV(wrapped, {"estimator__logisticregression__C": [0.1, 1.0]}, cv=2)
    search.fit(X[:200], y[:200])
    assert len(search.best_estimator_.explain(X[200:205], y[200:205], k=4).indices) == 4


def test_mistakes_are_named(cancer):
    X, y = cancer
    with pytest.raises(NotFittedError):
        FisherExplainer().explain(X[:2], y[:2])
    with pytest.raises(ExemplaError, match="1 sample"):
        FisherExplainer(Ridge()).fit(X[:1], y[:1].astype(float))
