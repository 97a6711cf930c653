"""Wrappers: the score of a questioned row is the gradient of the wrapper's own log-likelihood, by
finite differences over the arrays of the models inside."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from scipy.special import log_expit
from scipy.stats import norm
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    IsolationForest,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from tests.oracles.sklearn.case import (
    CODES,
    HARD,
    NUMBERS,
    PAIRS,
    SPECIES,
    X,
    flat_scores,
    read_train,
)

SOME = slice(0, 150, 6)
LABELS = np.c_[CODES == 1, X[:, 1] > 0, X[:, 0] + X[:, 1] > 0].astype(int)


def proba(model, rows, y):
    p = model.predict_proba(rows)
    return np.log(p[np.arange(len(y)), np.searchsorted(model.classes_, y)])


def product(model, rows, y):
    pairs = zip(model.classes_, model.estimators_)
    if len(model.classes_) == 2:
        pairs = [(model.classes_[1], model.estimators_[0])]
    return sum(log_expit(np.where(y == c, 1, -1) * m.decision_function(rows)) for c, m in pairs)


def each_label(model, rows, y):
    return sum(proba(m, rows, y[:, i]) for i, m in enumerate(model.estimators_))


def chained(model, rows, y):
    return sum(
        proba(m, np.hstack([rows, y[:, :i]]), y[:, i]) for i, m in enumerate(model.estimators_)
    )


def inside_calibration(model, rows, y):
    return np.mean([proba(c.estimator, rows, y) for c in model.calibrated_classifiers_], axis=0)


def differences(model, parts_of, log_prob, rows, y, h=1e-6):
    """Central differences over coef_ and intercept_ of every model inside, side by side."""
    columns = []
    for m, part in enumerate(parts_of(model)):
        coef, bias = np.atleast_2d(part.coef_), np.atleast_1d(part.intercept_)
        for i in range(coef.shape[1] + 1):
            for o in range(coef.shape[0]):
                each = []
                for step in (h, -h):
                    other = copy.deepcopy(model)
                    moved = parts_of(other)[m]
                    if i < coef.shape[1]:
                        np.atleast_2d(moved.coef_)[o, i] += step
                    else:
                        moved.intercept_ = (bias + step * (np.arange(len(bias)) == o)).reshape(
                            np.shape(part.intercept_)
                        )
                    each.append(log_prob(other, rows, y))
                columns.append((each[0] - each[1]) / (2 * h))
    return np.stack(columns, axis=1)


def flat(oracle, examples):
    return np.concatenate(
        [np.hstack([f.dense() for f in rows.factors]) for rows in oracle.scores(examples)]
    )


LR = LogisticRegression(max_iter=500)
TWO = [("a", LogisticRegression(C=0.1)), ("b", LogisticRegression(C=5.0, max_iter=500))]


def inner(model):
    return list(model.estimators_)


def uncalibrated(model):
    return [c.estimator for c in model.calibrated_classifiers_]


CASES = [
    (VotingClassifier(TWO, voting="soft", weights=[1, 3]), SPECIES, inner, proba),
    (BaggingClassifier(LR, 3, random_state=0), SPECIES, inner, proba),
    (OneVsRestClassifier(LR), SPECIES, inner, product),
    (OneVsRestClassifier(LR), HARD, inner, product),
    (MultiOutputClassifier(LR), LABELS, inner, each_label),
    (ClassifierChain(LR), LABELS, inner, chained),
    (CalibratedClassifierCV(LR, cv=3), SPECIES, uncalibrated, inside_calibration),
]


@pytest.mark.parametrize(
    ("model", "y", "parts_of", "log_prob"), CASES, ids=lambda v: type(v).__name__
)
def test_a_questions_score_is_the_gradient_of_the_whole(model, y, parts_of, log_prob):
    model = model.fit(X, y)
    oracle, _ = read_train(model, X, y)
    asked = oracle.read((X[SOME], y[SOME]), role="test")
    expected = differences(model, parts_of, log_prob, X[SOME], y[SOME])
    np.testing.assert_allclose(flat(oracle, asked), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(oracle.log_likelihood(asked), log_prob(model, X[SOME], y[SOME]))
    assert oracle.predict(asked).tolist() == model.predict(X[SOME]).tolist()


@pytest.mark.parametrize(
    "model",
    [
        VotingRegressor([("a", Ridge(2.0)), ("b", Ridge(50.0))], weights=[3, 1]),
        BaggingRegressor(Ridge(), 3, random_state=0),
    ],
    ids=lambda v: type(v).__name__,
)
def test_an_average_of_regressions(model):
    model = model.fit(X, NUMBERS)
    oracle, train = read_train(model, X, NUMBERS)
    variance = np.mean((NUMBERS - model.predict(X)) ** 2)

    def log_prob(m, rows, y):
        return norm.logpdf(y, m.predict(rows), np.sqrt(variance))

    asked = oracle.read((X[SOME], NUMBERS[SOME]), role="test")
    expected = differences(model, inner, log_prob, X[SOME], NUMBERS[SOME])
    np.testing.assert_allclose(flat(oracle, asked), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        oracle.log_likelihood(asked), log_prob(model, X[SOME], NUMBERS[SOME])
    )
    with pytest.raises(ExemplaError, match="score is zero"):
        list(oracle.scores(train, "predicted"))


def test_training_scores_are_each_parts_own_as_often_as_it_saw_the_row():
    model = BaggingClassifier(LR, 3, random_state=0, max_features=0.5).fit(X, SPECIES)
    oracle, train = read_train(model, X, SPECIES)
    found = flat(oracle, train).reshape(len(X), 3, -1)
    for m, part in enumerate(model.estimators_):
        columns = model.estimators_features_[m]
        counts = np.bincount(model.estimators_samples_[m], minlength=len(X))
        alone, same = read_train(part, X[:, columns], CODES)
        np.testing.assert_allclose(found[:, m], counts[:, None] * flat(alone, same))
    rows = list(oracle.fisher_rows(train))
    total = sum(
        np.hstack([f.dense() for f in r.factors]).T @ np.hstack([f.dense() for f in r.factors])
        for r in rows
    )
    blocks = total.reshape(3, found.shape[2], 3, -1)
    assert np.abs(blocks[0, :, 1]).max() == 0  # parts share no parameter
    assert np.abs(blocks[0, :, 0]).max() > 0
    assert np.isfinite(
        exempla.Explainer(model, progress=False).fit((X, SPECIES)).influence((X[:3], SPECIES[:3]))
    ).all()


def test_calibrated_parts_have_not_seen_their_fold():
    model = CalibratedClassifierCV(LinearSVC(), cv=3).fit(X, HARD)
    oracle, train = read_train(model, X, HARD)
    assert sorted(train.counts.sum(axis=0).tolist()) == [2.0] * 150  # two of three parts saw it
    assert "calibration" in str(oracle.notes)
    assert "hinge" in str(oracle.notes)
    answer = exempla.explain(model, (X, HARD), (X[SOME], HARD[SOME]), k=4, progress=False)
    assert len(answer) == 4
    assert any("calibration" in said for said in answer.warnings)


def test_many_class_processes_are_several_of_two():
    model = GaussianProcessClassifier(RBF(2.0), optimizer=None).fit(X, SPECIES)
    oracle, train = read_train(model, X, SPECIES)
    total = 0.0
    for name, one in zip(model.classes_, model.base_estimator_.estimators_):
        f = one.kernel_(X, one.X_train_) @ (one.y_train_ - one.pi_)
        total = total + log_expit(np.where(name == SPECIES, 1, -1) * f)
    np.testing.assert_allclose(oracle.log_likelihood(train), total, atol=1e-6)
    assert oracle.predict(train).tolist() == model.predict(X).tolist()


def test_several_numbers_and_their_chain():
    for model in (MultiOutputRegressor(Ridge()), RegressorChain(Ridge())):
        model.fit(X, PAIRS)
        oracle, train = read_train(model, X, PAIRS)
        assert len(oracle.layers) == 2
        np.testing.assert_allclose(oracle.predict(train), model.predict(X))
        assert np.isfinite(oracle.log_likelihood(train)).all()


def test_a_transformed_target_is_scored_where_its_model_lives():
    y = np.exp(NUMBERS / 3)
    model = TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp).fit(X, y)
    oracle, train = read_train(model, X, y)
    alone, same = read_train(Ridge().fit(X, np.log(y)), X, np.log(y))
    np.testing.assert_allclose(flat_scores(oracle, train), flat_scores(alone, same))
    np.testing.assert_allclose(oracle.predict(train), model.predict(X))
    assert train.labels.tolist() == y.tolist()


def test_stacking_explains_its_final_model_and_says_so():
    base = [("a", LogisticRegression()), ("b", KNeighborsClassifier())]
    model = StackingClassifier(base, LogisticRegression(C=2.0)).fit(X, SPECIES)
    oracle, train = read_train(model, X, SPECIES)
    seen = model.transform(X)
    alone, same = read_train(model.final_estimator_, seen, CODES)
    np.testing.assert_allclose(flat_scores(oracle, train), flat_scores(alone, same))
    assert oracle.predict(train).tolist() == model.predict(X).tolist()
    assert "base models" in str(oracle.notes)
    numbers = StackingRegressor([("a", Ridge())], Ridge()).fit(X, NUMBERS)
    assert read_train(numbers, X, NUMBERS)[0].n_parameters == 2
    with pytest.raises(ExemplaError, match="never saw: 'other'"):
        read_train(model, X, np.where(CODES == 0, "other", SPECIES))


def test_wrappers_in_wrappers_and_mixed_parts():
    parts = [("nb", GaussianNB()), ("lr", make_pipeline(StandardScaler(), LR))]
    voting = make_pipeline(StandardScaler(), VotingClassifier(parts, voting="soft"))
    model = GridSearchCV(voting, {"votingclassifier__weights": [[1, 1]]}, cv=2).fit(X, SPECIES)
    oracle, train = read_train(model, X, SPECIES)
    np.testing.assert_allclose(oracle.log_likelihood(train), proba(model, X, SPECIES))
    asked = oracle.read(X[SOME], role="test")
    own = oracle.read((X[SOME], model.predict(X[SOME])), role="test")
    np.testing.assert_allclose(
        np.vstack(
            [np.hstack([f.dense() for f in r.factors]) for r in oracle.scores(asked, "predicted")]
        ),
        flat(oracle, own),
    )
    answer = exempla.explain(model, (X, SPECIES), (X[SOME], SPECIES[SOME]), k=3, progress=False)
    assert len(answer) == 3
    other, same = pickle.loads(pickle.dumps((oracle, train)))
    np.testing.assert_array_equal(flat(other, same), flat(oracle, train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moved = TunedThresholdClassifierCV(LR).fit(X, HARD)
    assert "threshold" in read_train(moved, X, HARD)[0].notes[0]


def test_what_is_refused_is_refused_before_fitting():
    with pytest.raises(UnsupportedModelError, match="voting='soft'"):
        make_oracle(VotingClassifier(TWO))
    with pytest.raises(UnsupportedModelError, match="IsolationForest"):
        make_oracle(OneVsRestClassifier(IsolationForest()))
    assert make_oracle(BaggingClassifier(KNeighborsClassifier())).likelihood == "auto"


def test_an_average_of_other_models_is_refused():
    model = VotingRegressor([("a", PoissonRegressor()), ("b", Ridge())]).fit(X, np.exp(NUMBERS / 3))
    with pytest.raises(UnsupportedModelError, match="not around a poisson model"):
        make_oracle(model)
