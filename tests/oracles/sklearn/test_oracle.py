"""Scores of scikit-learn models against scikit-learn itself: finite differences of its own
probabilities, its own optimum, and expectations over its own labels."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
from scipy.special import expit
from sklearn.ensemble import IsolationForest, VotingClassifier
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
)
from sklearn.neighbors import NearestCentroid
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC, NuSVC

from benchmarks.mlp_from_weights import mlp_classifier_from_weights
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.oracles.likelihoods import Gaussian
from tests.oracles.sklearn.case import (
    CODES,
    COUNTS,
    CV_OPTIONS,
    HARD,
    NUMBERS,
    PAIRS,
    SPECIES,
    X,
    counts,
    dense,
    finite_differences,
    flat_scores,
    gaussian,
    model_name,
    one_vs_rest,
    perceptron,
    proba,
    read_train,
    summed,
)

COUNTING_PERCEPTRON = "loss" in inspect.signature(MLPRegressor).parameters

LINEAR = [
    (LogisticRegression(), HARD, proba),
    (LogisticRegression(fit_intercept=False), HARD, proba),
    (LogisticRegression(), SPECIES, proba),
    (LogisticRegression(fit_intercept=False, solver="newton-cg"), SPECIES, proba),
    (
        LogisticRegressionCV(Cs=3, cv=2, scoring="neg_log_loss", **CV_OPTIONS),
        CODES,
        proba,
    ),
    (SGDClassifier(loss="log_loss", random_state=0), HARD, proba),
    (SGDClassifier(loss="log_loss", random_state=0), SPECIES, one_vs_rest),
    (LinearRegression(), NUMBERS, gaussian(0.8)),
    (LinearRegression(fit_intercept=False), PAIRS, gaussian(0.8)),
    (Ridge(3.0), PAIRS, gaussian(0.8)),
    (RidgeCV(), NUMBERS, gaussian(0.8)),
    (PoissonRegressor(), COUNTS, counts),
]


@pytest.mark.parametrize(("model", "y", "log_prob"), LINEAR, ids=model_name)
def test_linear_scores_are_finite_differences(model, y, log_prob):
    model = copy.deepcopy(model).fit(X, y)
    regression = isinstance(model, LinearRegression | Ridge | RidgeCV)
    oracle = make_oracle(model, Gaussian(0.8) if regression else "auto")
    examples = oracle.read((X, y), role="train")
    (scores,) = dense(oracle.scores(examples))
    (expected,) = finite_differences(model, log_prob, X, y)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(oracle.log_likelihood(examples), log_prob(model, X, y), atol=1e-9)
    predicted = oracle.predict(examples)
    assert predicted.shape == model.predict(X).shape
    if oracle.likelihood in ("gaussian", "poisson"):
        np.testing.assert_allclose(predicted, model.predict(X))
    else:
        assert predicted.tolist() == model.predict(X).tolist()


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize(
    ("kind", "y", "log_prob", "options"),
    [
        (MLPClassifier, SPECIES, proba, {}),
        (MLPClassifier, HARD, proba, {}),
        (MLPRegressor, PAIRS, gaussian(0.8), {}),
        pytest.param(
            MLPRegressor,
            COUNTS,
            counts,
            {"loss": "poisson"},
            marks=pytest.mark.skipif(not COUNTING_PERCEPTRON, reason="scikit-learn before 1.7"),
        ),
    ],
    ids=["softmax", "binary", "gaussian", "poisson"],
)
def test_perceptron_scores_are_finite_differences_in_every_layer(
    activation, kind, y, log_prob, options
):
    model = perceptron(kind, activation, y, **options)
    oracle = make_oracle(model, Gaussian(0.8) if log_prob.__name__ == "log_prob" else "auto")
    examples = oracle.read((X[::5], y[::5]), role="train")
    scores = dense(oracle.scores(examples))
    expected = finite_differences(model, log_prob, X[::5], y[::5])
    assert [layer.name for layer in oracle.layers] == ["layer0", "layer1", "layer2"]
    assert [(one.d_out, one.d_in) for one in oracle.layers] == [s.shape[1:] for s in scores]
    for ours, theirs in zip(scores, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_one_vs_rest_liblinear_is_a_product_of_bernoullis():
    # newer scikit-learn refuses to fit this, older ones did: the fitted state is all that counts
    fitted = SGDClassifier(loss="log_loss", random_state=0).fit(X, SPECIES)
    model = LogisticRegression(solver="liblinear")
    for name in ("coef_", "intercept_", "classes_", "n_features_in_"):
        setattr(model, name, getattr(fitted, name))
    oracle, examples = read_train(model, X, SPECIES)
    assert oracle.likelihood == "one-vs-rest"
    (expected,) = finite_differences(model, one_vs_rest, X, SPECIES)
    np.testing.assert_allclose(dense(oracle.scores(examples))[0], expected, atol=1e-6)
    assert oracle.layers[0].penalty.tolist() == [1 / len(X)] * 5  # liblinear's intercept included


# ---- the true Fisher


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(C=0.05).fit(X, SPECIES),
        LogisticRegression().fit(X, HARD),
        perceptron(MLPClassifier, "tanh", SPECIES),
        perceptron(MLPClassifier, "relu", HARD),
    ],
    ids=lambda m: type(m).__name__,
)
def test_fisher_rows_are_the_expectation_over_the_models_labels(model):
    y = SPECIES if len(model.classes_) == 3 else HARD
    oracle, _ = read_train(model, X, y)
    p = model.predict_proba(X)
    expected = 0.0
    for c, name in enumerate(model.classes_):
        every = np.full(len(X), name)
        s = flat_scores(oracle, oracle.read((X, every), role="test"))
        expected = expected + (s * p[:, [c]]).T @ s
    found = summed(oracle, oracle.read((X, y), role="test"))
    # what the class cut leaves out is below its own size
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    assert np.abs(found).max() > 0


def test_binary_fisher_has_one_row_and_is_exact():
    model = LogisticRegression().fit(X, HARD)
    oracle, examples = read_train(model, X, HARD)
    assert sum(len(rows) for rows in oracle.fisher_rows(examples)) == len(X)
    assert oracle.fisher_note == "exact"
    p = model.predict_proba(X)[:, 1]
    a = np.c_[X, np.ones(len(X))]
    np.testing.assert_allclose(summed(oracle, examples), (a * (p * (1 - p))[:, None]).T @ a)


def test_regression_fishers_are_analytic():
    a = np.c_[X, np.ones(len(X))]
    model = PoissonRegressor(alpha=0.1).fit(X, COUNTS)
    oracle, examples = read_train(model, X, COUNTS)
    expected = (a * model.predict(X)[:, None]).T @ a
    np.testing.assert_allclose(summed(oracle, examples), expected, rtol=1e-9)
    model = Ridge().fit(X, PAIRS)
    oracle, examples = read_train(model, X, PAIRS)
    variance = np.mean((PAIRS - model.predict(X)) ** 2)
    expected = np.kron(np.eye(2), a.T @ a) / variance
    np.testing.assert_allclose(summed(oracle, examples), expected, rtol=1e-9, atol=1e-9)


def test_weights_scale_scores_and_fisher_once():
    model = LogisticRegression().fit(X, SPECIES)
    oracle, plain = read_train(model, X, SPECIES)
    oracle, weighted = read_train(model, X, SPECIES, np.full(len(X), 3.0))
    np.testing.assert_allclose(flat_scores(oracle, weighted), 3 * flat_scores(oracle, plain))
    np.testing.assert_allclose(summed(oracle, weighted), 3 * summed(oracle, plain))


# ---- labels, likelihoods, parameters


def test_predicted_labels_are_the_models_own():
    model = LogisticRegression().fit(X, SPECIES)
    oracle, _ = read_train(model, X, SPECIES)
    unlabelled = oracle.read(X, role="test")
    assert unlabelled.labels is None
    own = oracle.read((X, model.predict(X)), role="test")
    np.testing.assert_array_equal(
        flat_scores(oracle, unlabelled, "predicted"), flat_scores(oracle, own)
    )
    with pytest.raises(ExemplaError, match="no labels"):
        flat_scores(oracle, unlabelled)
    with pytest.raises(ExemplaError, match="no labels"):
        oracle.log_likelihood(unlabelled)


def test_a_regression_has_no_score_at_its_own_prediction():
    oracle, examples = read_train(Ridge().fit(X, NUMBERS), X, NUMBERS)
    with pytest.raises(ExemplaError, match="score is zero"):
        list(oracle.scores(examples, labels="predicted"))


def test_a_perfect_fit_has_no_variance():
    model = LinearRegression().fit(X, X @ [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ExemplaError, match="without any residual"):
        read_train(model, X, X @ [1.0, 2.0, 3.0, 4.0])


def test_a_wrong_likelihood_is_refused_and_a_right_one_taken():
    model = LogisticRegression().fit(X, HARD)
    assert make_oracle(model, "categorical").likelihood == "bernoulli"
    with pytest.raises(ExemplaError, match="fitted under the bernoulli likelihood"):
        make_oracle(model, "gaussian")


def test_parameters_choose_layers_by_name_or_glob():
    model = perceptron(MLPClassifier, "relu", SPECIES)
    oracle = make_oracle(model, parameters=["layer2"])
    examples = oracle.read((X, SPECIES), role="train")
    assert [layer.name for layer in oracle.layers] == ["layer2"]
    everything, same = read_train(model, X, SPECIES)
    np.testing.assert_array_equal(
        dense(oracle.scores(examples))[0], dense(everything.scores(same))[2]
    )
    with pytest.raises(ExemplaError, match=r"layer0.*not \['fc'\]"):
        make_oracle(model, parameters=["fc"])


def test_a_refitted_model_is_read_anew():
    model = LogisticRegression().fit(X, HARD)
    oracle, before = read_train(model, X, HARD)
    old = flat_scores(oracle, before)
    model.set_params(C=0.01).fit(X, HARD)
    after = oracle.read((X, HARD), role="train")
    assert np.abs(flat_scores(oracle, after) - old).max() > 0.1
    assert oracle.layers[0].penalty[0] == pytest.approx(1 / (0.01 * len(X)))


def test_reading_questions_does_not_forget_what_training_taught():
    model = Ridge(2.0).fit(X, NUMBERS)
    oracle, train = read_train(model, X, NUMBERS)
    before, layers = flat_scores(oracle, train), oracle.layers
    test = oracle.read((X[:3], NUMBERS[:3]), role="test")
    np.testing.assert_array_equal(flat_scores(oracle, test), before[:3])
    np.testing.assert_array_equal(flat_scores(oracle, train), before)
    assert oracle.layers is layers


def test_a_model_refitted_in_place_does_not_change_what_was_read():
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, HARD)
    oracle, train = read_train(model, X, HARD)
    before = flat_scores(oracle, train)
    model.partial_fit(X, HARD)
    np.testing.assert_array_equal(flat_scores(oracle, train), before)


def test_oracles_and_examples_survive_pickling():
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, SPECIES)
    oracle, train = read_train(pipe, X, SPECIES)
    other, same = pickle.loads(pickle.dumps((oracle, train)))
    np.testing.assert_array_equal(flat_scores(other, same), flat_scores(oracle, train))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (LogisticRegression, "is a class, not a model"),
        (RidgeClassifier(), "least squares on labels"),
        (NuSVC(), "nearest model it can is SVC"),
        (LinearSVC(multi_class="crammer_singer").fit(X, SPECIES), "leave multi_class at 'ovr'"),
        (NearestCentroid(), "nearest model it can is GaussianNB"),
        (IsolationForest(), "known likelihood.*exempla.surrogate"),
        (SGDClassifier(loss="perceptron"), "loss='perceptron'"),
        (VotingClassifier([("a", LogisticRegression())]), "voting='soft'"),
        (object(), "not a model exempla can score"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_unsupported_models_are_refused_in_the_constructor(model, reason):
    with pytest.raises(UnsupportedModelError, match=reason) as told:
        make_oracle(model)
    assert str(told.value).count(". ") <= 1  # what is wrong, and what works


def test_multilabel_and_unequal_alphas_are_refused():
    model = perceptron(MLPClassifier, "relu", np.c_[CODES == 0, CODES == 1])
    with pytest.raises(UnsupportedModelError, match="multilabel"):
        make_oracle(model)
    with pytest.raises(UnsupportedModelError, match="different alpha"):
        make_oracle(Ridge(alpha=np.array([1.0, 2.0])).fit(X, PAIRS))


def test_weights_from_elsewhere_become_a_perceptron():
    made = perceptron(MLPClassifier, "relu", SPECIES)
    layers = [(W.T, b) for W, b in zip(made.coefs_, made.intercepts_)]
    model = mlp_classifier_from_weights(layers, SPECIES, alpha=0.3)
    np.testing.assert_array_equal(model.predict_proba(X), made.predict_proba(X))
    oracle, _ = read_train(model, X, SPECIES)
    assert oracle.layers[1].penalty[0] == pytest.approx(0.3 / len(X))
    with pytest.raises(ExemplaError, match="last with 1 output"):
        mlp_classifier_from_weights(layers, HARD)
    with pytest.raises(ExemplaError, match="Layer 1 has"):
        mlp_classifier_from_weights([layers[0], layers[0], layers[2]], SPECIES)


def test_an_oracle_is_its_own_oracle():
    oracle = make_oracle(LogisticRegression())
    assert make_oracle(oracle) is oracle


def test_one_vs_rest_fisher_is_diagonal_in_the_classes():
    model = SGDClassifier(loss="log_loss", alpha=0.1, random_state=0).fit(X, SPECIES)
    oracle, examples = read_train(model, X, SPECIES)
    p = expit(model.decision_function(X))
    a = np.c_[X, np.ones(len(X))]
    found = summed(oracle, examples).reshape(3, 5, 3, 5)
    for c in range(3):
        v = np.where(p[:, c] * (1 - p[:, c]) > 1e-4, p[:, c] * (1 - p[:, c]), 0)
        np.testing.assert_allclose(found[c, :, c, :], (a * v[:, None]).T @ a, rtol=1e-9)
    np.testing.assert_array_equal(found[0, :, 1, :], 0.0)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(max_iter=500),
        Ridge(fit_intercept=False),
        MLPClassifier((3,), activation="tanh", max_iter=30, random_state=0),
    ],
)
def test_an_oracle_moved_to_other_parameters_scores_there(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = make_oracle(model.fit(X, CODES))
    train = oracle.read((X, CODES), role="train")
    theta = oracle.theta
    np.testing.assert_allclose(
        oracle.at(theta).log_likelihood(train), oracle.log_likelihood(train), atol=1e-12
    )
    other = theta + 0.1 * np.random.default_rng(1).standard_normal(theta.shape)
    moved = oracle.at(other)
    scores = np.hstack([f.dense() for rows in moved.scores(train) for f in rows.factors])
    for j in (0, len(theta) // 2, len(theta) - 1):
        step = np.zeros_like(theta)
        step[j] = 1e-5
        up, down = (oracle.at(other + s).log_likelihood(train) for s in (step, -step))
        np.testing.assert_allclose(scores[:, j], (up - down) / 2e-5, atol=1e-6, rtol=1e-5)
    np.testing.assert_array_equal(oracle.theta, theta)
    with pytest.raises(ExemplaError, match="theta has shape"):
        oracle.at(theta[:-1])
