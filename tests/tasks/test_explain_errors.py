"""Explaining errors: which predictions are asked about, and which side answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import scale
from torch.utils.data import TensorDataset

import exempla
from exempla import ExemplaError, Explainer
from exempla.tasks.question import check_test_labels


@pytest.fixture(scope="module")
def problem() -> tuple:
    X, y = load_breast_cancer(return_X_y=True)
    X = np.asarray(scale(X))
    names = np.array(["malignant", "benign"])[y]
    train, test = (X[:200], names[:200]), (X[200:], names[200:])
    return LogisticRegression(C=10.0, max_iter=2000).fit(*train), train, test


def test_questions_the_wrong_predictions_and_no_others(problem: tuple) -> None:
    model, train, (X, y) = problem
    wrong = np.flatnonzero(model.predict(X) != y)
    assert 2 <= len(wrong) < len(y) // 4
    answer = exempla.explain_errors(model, train, (X, y), k=7, progress=False)
    by_hand = Explainer(model, progress=False).fit(train)
    _, p_wrong = check_test_labels(by_hand, (X, y), wrong)
    by_hand = by_hand.explain((X[wrong], y[wrong]), k=7, weights=1 - p_wrong)
    np.testing.assert_array_equal(answer.indices, by_hand.indices)
    np.testing.assert_array_equal(answer.question.rows, wrong)
    assert answer.n_test == len(wrong)
    assert answer.side == "opponents"
    assert (answer.alignment < 0).all()


def test_proponents_are_there_for_the_asking(problem: tuple) -> None:
    model, train, test = problem
    answer = exempla.explain_errors(model, train, test, k=5, side="proponents", progress=False)
    assert (answer.alignment > 0).all()


def test_the_caller_may_name_the_rows(problem: tuple) -> None:
    model, train, test = problem
    mask = np.zeros(len(test[1]), dtype=bool)
    mask[[3, 8]] = True
    by_mask = exempla.explain_errors(model, train, test, k=4, ask=mask, progress=False)
    by_rows = exempla.explain_errors(model, train, test, k=4, ask=[3, 8], progress=False)
    np.testing.assert_array_equal(by_mask.indices, by_rows.indices)
    assert by_rows.n_test == 2


def test_an_error_is_what_most_models_get_wrong(problem: tuple) -> None:
    model, train, (X, y) = problem
    other = LogisticRegression(C=1e-4).fit(*train)
    third = LogisticRegression(C=1e-3).fit(*train)
    answer = exempla.explain_errors([model, other, third], train, (X, y), k=3, progress=False)
    wrong = np.sum([m.predict(X) != y for m in (model, other, third)], axis=0)
    np.testing.assert_array_equal(answer.question.rows, np.flatnonzero(wrong >= 2))


def test_a_torch_data_set_is_asked_by_position() -> None:
    X, y = load_iris(return_X_y=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y))
    with torch.no_grad():
        wrong = np.flatnonzero(model(data.tensors[0]).argmax(1).numpy() != y)
    answer = exempla.explain_errors(model, data, data, k=3, progress=False)
    np.testing.assert_array_equal(answer.question.rows, wrong)
    assert len(answer) == 3


def test_nothing_wrong_is_said(problem: tuple) -> None:
    model, train, (X, y) = problem
    right = np.flatnonzero(model.predict(X) == y)
    with pytest.raises(ExemplaError, match="no error on these"):
        exempla.explain_errors(model, train, (X[right], y[right]), progress=False)


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ([], "at least one"),
        ([10_000], "row 10000"),
        ([0.5], "positions or a mask"),
        ([[1]], "mask"),
    ],
)
def test_rows_that_make_no_sense_are_refused(problem: tuple, errors: list, words: str) -> None:
    model, train, test = problem
    with pytest.raises(ExemplaError, match=words):
        exempla.explain_errors(model, train, test, ask=errors, progress=False)


def test_labels_and_classes_are_needed(problem: tuple) -> None:
    model, train, (X, _) = problem
    with pytest.raises(ExemplaError, match="no labels"):
        exempla.explain_errors(model, train, X, progress=False)
    numbers = np.random.default_rng(0).standard_normal(len(train[0]))
    ridge = Ridge().fit(train[0], numbers)
    with pytest.raises(ExemplaError, match="class labels only"):
        exempla.explain_errors(ridge, (train[0], numbers), (train[0], numbers), progress=False)
