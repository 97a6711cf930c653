"""Users' own scores, gradients and log-likelihoods."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from exempla.errors import ExemplaError
from exempla.oracles import make_oracle
from exempla.oracles.scores import ArrayScores, ScoreModel

X, Y = load_breast_cancer(return_X_y=True)
X = (X - X.mean(axis=0))[:, :4] / X.std(axis=0)[:4]
FITTED = LogisticRegression(fit_intercept=False).fit(X, Y)
THETA = FITTED.coef_[0]


def log_prob(theta, x, y):
    return -np.logaddexp(0, -(2 * y - 1) * (x @ theta))


def score(x, y):
    return (y - 1 / (1 + np.exp(-x @ THETA)))[:, None] * x


def sample(x, rng):
    return (rng.random(len(x)) < 1 / (1 + np.exp(-x @ THETA))).astype(int)


def dense(rows):
    return np.concatenate([batch.factors[0].g * batch.factors[0].a for batch in rows])


def read(model, data, role="train"):
    oracle = make_oracle(model)
    return oracle, oracle.read(data, role=role)


# ---- a matrix of scores


def test_given_scores_come_back_and_are_the_empirical_fisher():
    scores = np.random.default_rng(0).normal(size=(3000, 5))
    oracle, examples = read(ArrayScores(penalty=0.1), scores)
    np.testing.assert_array_equal(dense(oracle.scores(examples)), scores)
    np.testing.assert_array_equal(dense(oracle.fisher_rows(examples)), scores)
    assert (oracle.layers[0].d_in, oracle.layers[0].d_out) == (1, 5)
    assert oracle.layers[0].penalty.tolist() == [0.1]
    assert not examples.needs_labels
    batches = list(oracle.scores(examples))
    assert len(batches) > 1
    assert np.concatenate([rows.sample for rows in batches]).tolist() == list(range(3000))
    np.testing.assert_array_equal(
        dense(oracle.scores(examples.take(np.array([7, 1])))), scores[[7, 1]]
    )


@pytest.mark.parametrize("each", [1, 3])
def test_given_fisher_rows_are_used(each):
    rng = np.random.default_rng(0)
    scores, fisher = rng.normal(size=(6, 4)), rng.normal(size=(6, each, 4))
    given = fisher[:, 0] if each == 1 else fisher
    oracle, examples = read(ArrayScores(), (scores, given))
    (rows,) = oracle.fisher_rows(examples)
    assert rows.sample.tolist() == np.repeat(np.arange(6), each).tolist()
    np.testing.assert_array_equal(rows.factors[0].g, fisher.reshape(-1, 4))
    assert oracle.fisher_note == "as given"
    (some,) = oracle.fisher_rows(examples.take(np.array([4])))
    np.testing.assert_array_equal(some.factors[0].g, fisher[4])


def test_a_frame_of_scores_keeps_its_index_and_lists_work():
    frame = pd.DataFrame(np.eye(2), index=["a", "b"])
    _, examples = read(ArrayScores(), frame)
    assert examples.ids.tolist() == ["a", "b"]
    oracle, examples = read(ArrayScores(), [[1, 2], [3, 4]])
    assert dense(oracle.scores(examples)).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ones(3), r"\(rows, parameters\) matrix"),
        (np.ones((0, 3)), "at least one row"),
        (np.array([[1.0, np.nan], [1.0, 2.0]]), "NaN or infinite in row 0"),
        (np.ones((2, 2), dtype=complex), "real numbers"),
        ([["a", "b"]], "real numbers"),
        ((np.ones((2, 3)), np.ones((4, 3))), "Fisher rows have shape"),
        (
            (np.ones((2, 3)), np.full((2, 3), np.inf)),
            "Fisher rows are NaN or infinite in rows 0, 1",
        ),
    ],
)
def test_bad_scores(data, message):
    with pytest.raises(ExemplaError, match=message):
        read(ArrayScores(), data)


def test_test_scores_must_have_the_same_parameters():
    oracle, _ = read(ArrayScores(), np.ones((3, 4)))
    with pytest.raises(ExemplaError, match="3 columns but the training scores 4"):
        oracle.read(np.ones((2, 3)), role="test")
    examples = oracle.read(np.ones((2, 4)), role="test")
    with pytest.raises(ExemplaError, match="already fix the labels"):
        list(oracle.scores(examples, "predicted"))
    with pytest.raises(ExemplaError, match="the model cannot predict any"):
        oracle.predict(examples)
    with pytest.raises(ExemplaError, match="no log-likelihood"):
        oracle.log_likelihood(examples)


# ---- gradients and functions


def test_a_gradient_gives_the_sklearn_oracles_scores():
    model = ScoreModel(score, batch_size=100, predict=FITTED.predict)
    oracle, examples = read(model, (X, Y))
    ours = dense(oracle.scores(examples))
    reference, same = read(FITTED, (X, Y))
    np.testing.assert_allclose(ours, dense(reference.scores(same)), atol=1e-12)
    assert len(list(oracle.scores(examples))) == 6
    questioned = oracle.read(X, role="test")
    assert questioned.labels is None
    assert questioned.needs_labels
    np.testing.assert_allclose(
        dense(oracle.scores(questioned, "predicted")),
        dense(reference.scores(reference.read(X, role="test"), "predicted")),
        atol=1e-12,
    )


def test_a_log_likelihood_alone_is_enough():
    oracle, examples = read(ScoreModel.from_log_prob(log_prob, THETA, penalty=0.2), (X, Y))
    np.testing.assert_allclose(dense(oracle.scores(examples)), score(X, Y), atol=1e-8)
    np.testing.assert_allclose(oracle.log_likelihood(examples), log_prob(THETA, X, Y))
    assert oracle.layers[0].penalty.tolist() == [0.2]


def test_sampled_labels_estimate_the_true_fisher():
    reference, same = read(FITTED, (X, Y))
    exact = sum(
        (r.factors[0].a * r.factors[0].g).T @ (r.factors[0].a * r.factors[0].g)
        for r in reference.fisher_rows(same)
    )
    oracle, examples = read(ScoreModel(score, sample=sample, draws=200), (X, Y))
    rows = dense(oracle.fisher_rows(examples))
    assert len(rows) == 200 * len(X)
    np.testing.assert_allclose(rows.T @ rows, exact, atol=0.03 * np.abs(exact).max())
    assert oracle.fisher_note == "sampled: 200 label(s) per example, seed 0"
    np.testing.assert_array_equal(rows, dense(oracle.fisher_rows(examples)))
    empirical, examples = read(ScoreModel(score), (X, Y))
    assert "empirical" in empirical.fisher_note
    np.testing.assert_array_equal(dense(empirical.fisher_rows(examples)), score(X, Y))


def test_weights_scale_scores_and_fisher_once():
    weights = np.linspace(0.5, 2, len(X))
    oracle, examples = read(ScoreModel(score), (X, Y, weights))
    np.testing.assert_allclose(dense(oracle.scores(examples)), weights[:, None] * score(X, Y))
    found = dense(oracle.fisher_rows(examples))
    np.testing.assert_allclose(found, np.sqrt(weights)[:, None] * score(X, Y))


def test_a_density_needs_no_labels_and_samples_fresh_points():
    model = ScoreModel(  # x ~ Normal(θ, 1) at θ = 1: Fisher 1
        score=lambda x, y: x - 1.0,
        sample=lambda x, rng: rng.normal(1.0, 1.0, x.shape),
        draws=50,
    )
    oracle, examples = read(model, np.full((200, 1), 9.0))
    assert not examples.needs_labels
    assert np.mean(dense(oracle.fisher_rows(examples)) ** 2) * 50 == pytest.approx(1.0, abs=0.05)
    assert dense(oracle.scores(examples)).tolist() == [[8.0]] * 200


def test_unlabelled_questions_need_predictions():
    oracle, _ = read(ScoreModel(score), (X, Y))
    with pytest.raises(ExemplaError, match=r"give \(X, y\), or ScoreModel\(predict"):
        oracle.read(X, role="test")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (ScoreModel(lambda x, y: np.ones(len(x))), (X, Y), "one gradient per row"),
        (ScoreModel(lambda x, y: np.ones((3, 2))), (X, Y), "one gradient per row"),
        (ScoreModel(lambda x, y: np.log(-np.ones((len(x), 2)))), (X, Y), "NaN or infinite in rows"),
        (ScoreModel(score), (X, Y[:3]), "X has 569 rows but y has 3"),
        (ScoreModel(score, sample=sample, draws=0), (X, Y), "draws must be at least 1"),
    ],
)
def test_bad_gradients(model, data, message):
    with np.errstate(invalid="ignore"), pytest.raises(ExemplaError, match=message):
        read(model, data)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ArrayScores(penalty=float("nan")), "penalty is nan"),
        (ArrayScores(penalty=-1.0), "penalty is -1.0"),
        (ArrayScores(penalty="a"), "penalty is 'a'"),
        (ScoreModel(score=3), "score is 3: give a function"),
        (ScoreModel(score=abs, predict=3), "predict is 3: give a function"),
        (ScoreModel(score=abs, draws="a"), "draws must be at least 1"),
        (ScoreModel(score=abs, batch_size=0), "batch_size must be at least 1"),
        (ScoreModel(score=abs, seed="a"), "seed is 'a'"),
    ],
)
def test_options_that_mean_nothing(model, message):
    with pytest.raises(ExemplaError, match=message):
        make_oracle(model)


@pytest.mark.parametrize(
    ("score", "message"), [(lambda x, y: x + 1j, "is complex"), (lambda x, y: "a", "not an array")]
)
def test_gradients_that_are_no_numbers(score, message):
    data = (np.ones((4, 2)), np.zeros(4))
    with pytest.raises(ExemplaError, match=message):
        make_oracle(ScoreModel(score=score)).read(data, role="train")


def test_a_gradient_without_columns_is_refused_with_a_sentence() -> None:
    model = ScoreModel(score=lambda x, y: np.zeros((len(x), 0)))
    with pytest.raises(ExemplaError, match="the model has no parameters"):
        make_oracle(model).read((np.ones(4), np.ones(4)), role="train")
