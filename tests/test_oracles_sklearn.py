"""Scores of scikit-learn models against scikit-learn itself: finite differences of its own
probabilities, its own optimum, and expectations over its own labels."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import expit, log_expit
from scipy.stats import norm, poisson
from sklearn.datasets import load_iris
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
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.likelihoods import Gaussian
from exempla.oracles import make_oracle
from exempla.oracles.sklearn import supports
from exempla.oracles.sklearn_weights import mlp_classifier_from_weights

X, CODES = load_iris(return_X_y=True)
X = (X - X.mean(axis=0)) / X.std(axis=0)
SPECIES = np.array(["setosa", "versicolor", "virginica"])[CODES]
HARD = np.where(CODES == 2, "yes", "no")
RNG = np.random.default_rng(0)
WEIGHTS = RNG.uniform(0.2, 2.0, len(X))
NUMBERS = X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(size=len(X))
PAIRS = np.c_[NUMBERS, np.sin(NUMBERS)]
COUNTS = RNG.poisson(np.exp(0.5 * X[:, 0])).astype(float)
EXACT = {"tol": 1e-12, "max_iter": 10_000}


def dense(rows) -> list[np.ndarray]:
    """Multiplied-out scores of each layer, (n, d_out, d_in)."""
    per_layer = []
    for factors in zip(*(batch.factors for batch in rows)):
        full = [f.g[:, :, None] * _array(f.a)[:, None, :] for f in factors]
        per_layer.append(np.concatenate(full))
    return per_layer


def _array(a):
    return a.toarray() if sp.issparse(a) else a


def read_train(model, *data):
    oracle = make_oracle(model)
    return oracle, oracle.read(data, role="train")


# ---- log p by scikit-learn's own predictions


def proba(model, X, y):
    p = model.predict_proba(X)
    return np.log(p[np.arange(len(y)), np.searchsorted(model.classes_, y)])


def one_vs_rest(model, X, y):
    answers = 2 * (model.classes_ == np.asarray(y)[:, None]) - 1
    return log_expit(answers * model.decision_function(X)).sum(axis=1)


def gaussian(variance):
    def log_prob(model, X, y):
        each = norm.logpdf(y, model.predict(X), np.sqrt(variance))
        return each.reshape(len(X), -1).sum(axis=1)

    return log_prob


def counts(model, X, y):
    return poisson.logpmf(y, model.predict(X))


def finite_differences(model, log_prob, X, y, h=1e-5):
    """Central differences over the model's public arrays, in the layout of `dense`."""
    mlp = hasattr(model, "coefs_")
    weights = model.coefs_ if mlp else [np.atleast_2d(model.coef_).T]
    layers = []
    for depth, W in enumerate(weights):
        d_in, d_out = W.shape
        bias = 1 if mlp or model.fit_intercept else 0
        slopes = np.empty((len(X), d_out, d_in + bias))
        for i, j in np.ndindex(d_out, d_in + bias):
            up, down = (log_prob(nudged(model, depth, i, j, step), X, y).copy() for step in (h, -h))
            slopes[:, i, j] = (up - down) / (2 * h)
        layers.append(slopes)
    return layers


def nudged(model, depth, i, j, step):
    """A copy of the model with one weight (or, beyond the last input, one bias) moved."""
    other = copy.deepcopy(model)
    mlp = hasattr(model, "coefs_")
    W = other.coefs_[depth].T if mlp else np.atleast_2d(other.coef_)
    if j < W.shape[1]:
        W[i, j] += step  # a view: the copy itself changes
    elif mlp:
        other.intercepts_[depth][i] += step
    else:
        unit = (np.arange(np.size(other.intercept_)) == i).reshape(np.shape(other.intercept_))
        other.intercept_ = other.intercept_ + step * unit
    return other


def perceptron(kind, activation, y, layers=(5, 3), **options):
    model = kind(
        hidden_layer_sizes=layers, activation=activation, max_iter=15, random_state=0, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def _name(value):
    """Ids of parametrised models; arrays and functions are told by the model before them."""
    return type(value).__name__ if hasattr(value, "fit") else ""


LINEAR = [
    (LogisticRegression(), HARD, proba),
    (LogisticRegression(fit_intercept=False), HARD, proba),
    (LogisticRegression(), SPECIES, proba),
    (LogisticRegression(fit_intercept=False, solver="newton-cg"), SPECIES, proba),
    (
        LogisticRegressionCV(
            Cs=3, cv=2, l1_ratios=(0,), use_legacy_attributes=False, scoring="neg_log_loss"
        ),
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


@pytest.mark.parametrize(("model", "y", "log_prob"), LINEAR, ids=_name)
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
        (MLPRegressor, COUNTS, counts, {"loss": "poisson"}),
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


def summed(oracle, examples):
    """Σ r rᵀ over all Fisher rows of all examples, all layers side by side."""
    flat = [s.reshape(len(s), -1) for s in dense(oracle.fisher_rows(examples))]
    rows = np.concatenate(flat, axis=1)
    return rows.T @ rows


def flat_scores(oracle, examples, labels="true"):
    flat = [s.reshape(len(s), -1) for s in dense(oracle.scores(examples, labels))]
    return np.concatenate(flat, axis=1)


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


# ---- the optimum: Σ w_i s_i = n·λ·θ proves weights and penalties at once


def residual_at_optimum(model, y, sample_weight=None):
    model.fit(X, y, sample_weight=sample_weight)
    data = (X, y) if sample_weight is None else (X, y, sample_weight)
    oracle, examples = read_train(model, *data)
    (layer,) = oracle.layers
    total = dense(oracle.scores(examples))[0].sum(axis=0)
    theta = np.atleast_2d(model.coef_)
    if model.fit_intercept:
        theta = np.c_[theta, np.broadcast_to(model.intercept_, len(theta))]
    pull = len(X) * layer.penalty * theta
    assert np.abs(flat_scores(oracle, examples)).max() > 0.1  # the sum is not zero trivially
    return np.abs(total - pull).max(), np.abs(pull).max()


@pytest.mark.parametrize("sample_weight", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LogisticRegression(solver="newton-cholesky", C=0.3, **EXACT), HARD),
        (LogisticRegression(solver="newton-cg", fit_intercept=False, **EXACT), SPECIES),
        (LogisticRegression(solver="newton-cg", class_weight="balanced", **EXACT), HARD),
        (
            LogisticRegression(
                solver="newton-cg",
                class_weight={"setosa": 3.0, "versicolor": 0.5, "virginica": 1.0},
                **EXACT,
            ),
            SPECIES,
        ),
        (LogisticRegression(solver="liblinear", intercept_scaling=3.0, **EXACT), HARD),
        (Ridge(alpha=7.0), NUMBERS),
        (Ridge(alpha=7.0, fit_intercept=False), PAIRS),
        (RidgeCV(alphas=[5.0]), NUMBERS),
        (PoissonRegressor(alpha=0.4, solver="newton-cholesky", **EXACT), COUNTS),
    ],
    ids=_name,
)
def test_scores_balance_the_penalty_at_the_optimum(model, y, sample_weight):
    gap, size = residual_at_optimum(copy.deepcopy(model), y, sample_weight)
    assert size > 0.1
    assert gap < 1e-5


def test_no_penalty_means_a_zero_sum_of_scores():
    for model, y in [
        (LinearRegression(), NUMBERS),
        (LogisticRegression(C=np.inf, solver="newton-cg", **EXACT), (X[:, 1] > 0) ^ (CODES == 1)),
    ]:
        gap, size = residual_at_optimum(model, y)
        assert size == 0.0
        assert gap < 1e-5


def test_logistic_cv_uses_the_chosen_c():
    model = LogisticRegressionCV(
        Cs=[0.02],
        cv=2,
        l1_ratios=(0,),
        solver="newton-cg",
        scoring="neg_log_loss",
        use_legacy_attributes=False,
        **EXACT,
    )
    gap, size = residual_at_optimum(model, SPECIES)
    assert size > 0.1
    assert gap < 1e-5


def test_sgd_penalty_is_alpha_and_the_optimum_is_near():
    model = SGDClassifier(
        loss="log_loss", alpha=0.05, max_iter=3000, tol=None, random_state=0, average=True
    )
    gap, size = residual_at_optimum(model, HARD)
    assert size > 5
    assert gap < 0.02 * size  # SGD stops near its optimum, not at it


def test_perceptron_penalty_follows_the_rows_its_gradient_saw():
    options = {"alpha": 3.0, "max_iter": 2000, "random_state": 0, "activation": "tanh"}
    model = MLPClassifier((4,), solver="lbfgs", tol=1e-12, max_fun=50_000, **options)
    model.fit(X, SPECIES)
    oracle, examples = read_train(model, X, SPECIES)
    for layer, scores, W in zip(oracle.layers, dense(oracle.scores(examples)), model.coefs_):
        total = scores.sum(axis=0)
        np.testing.assert_allclose(total[:, :-1], len(X) * layer.penalty[:-1] * W.T, atol=0.02)
        assert np.abs(total[:, :-1]).max() > 1.0
        assert layer.penalty[-1] == 0.0
    batched = MLPClassifier((4,), alpha=3.0, batch_size=30, max_iter=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle, _ = read_train(batched.fit(X, SPECIES), X, SPECIES)
    assert oracle.layers[0].penalty[0] == pytest.approx(3.0 / 30)


def test_l1_penalties_are_told():
    model = LogisticRegression(solver="saga", l1_ratio=0.25, C=0.5, max_iter=5000).fit(X, HARD)
    with pytest.warns(ExemplaWarning, match="only the L2 part"):
        oracle, _ = read_train(model, X, HARD)
    assert oracle.layers[0].penalty[0] == pytest.approx(0.75 / (0.5 * len(X)))


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
        (LinearSVC(), "known likelihood"),
        (SVC(), "known likelihood"),
        (DecisionTreeClassifier(), "known likelihood"),
        (KNeighborsClassifier(), "known likelihood"),
        (SGDClassifier(), "loss='hinge'"),
        (object(), "not a model exempla can score"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_unsupported_models_are_refused_in_the_constructor(model, reason):
    with pytest.raises(UnsupportedModelError, match=reason) as told:
        make_oracle(model)
    assert "LogisticRegression" in str(told.value)
    assert not supports(model)


def test_multilabel_and_unequal_alphas_are_refused():
    model = perceptron(MLPClassifier, "relu", np.c_[CODES == 0, CODES == 1])
    with pytest.raises(UnsupportedModelError, match="multilabel"):
        make_oracle(model)
    with pytest.raises(UnsupportedModelError, match="different alpha"):
        make_oracle(Ridge(alpha=[1.0, 2.0]).fit(X, PAIRS))


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
