"""Wrong test labels are found before errors are explained, and leave the question."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from exempla import Explainer
from exempla.tasks.question import check_test_labels

FLIPS = np.arange(0, 800, 25)


@pytest.fixture(scope="module")
def digits() -> tuple:
    """Digits whose test labels are wrong in every 25th row."""
    X, y = load_digits(return_X_y=True)
    X, y = X / 16, np.array(y)
    train, clean = (X[800:], y[800:]), y[:800].copy()
    noisy = clean.copy()
    noisy[FLIPS] = (noisy[FLIPS] + 3) % 10
    return LogisticRegression(max_iter=500).fit(*train), train, (X[:800], clean), (X[:800], noisy)


def test_flipped_test_labels_are_found_and_right_ones_are_not(digits: tuple) -> None:
    model, train, clean, noisy = digits
    explainer = Explainer(model, progress=False).fit(train)
    for test, most in ((noisy, len(FLIPS)), (clean, 0)):
        wrong = np.flatnonzero(model.predict(test[0]) != test[1])
        check, p_wrong = check_test_labels(explainer, test, wrong)
        assert check is not None
        found = np.isin(check.rows, FLIPS)
        assert found.sum() >= 0.85 * most
        assert (~found).sum() <= 0.1 * len(wrong)
        assert p_wrong.sum() == pytest.approx(most, abs=0.15 * len(wrong) + 1)


def test_they_are_said_first_and_left_out(digits: tuple) -> None:
    model, train, _, noisy = digits
    answer = exempla.explain_errors(model, train, noisy, k=5, progress=False)
    n = answer.test_labels["n_suspect"]
    assert answer.finding.startswith(f"{n:,} of the {answer.test_labels['n_errors']:,} errors look")
    assert "`fix-labels`" in answer.finding
    assert str(answer).splitlines()[0] == answer.finding
    assert not np.isin(answer.question.rows, answer.test_labels["rows"]).any()
    assert answer.n_test + n == answer.test_labels["n_errors"]
    cleaned = exempla.clean(model, train, noisy, 5, progress=False)
    assert cleaned.test_labels["rows"] == answer.test_labels["rows"]
    assert cleaned.finding.startswith(answer.test_labels["sentence"])


def test_the_others_count_by_the_probability_that_their_label_is_right(digits: tuple) -> None:
    model, train, _, noisy = digits
    answer = exempla.explain_errors(model, train, noisy, k=5, progress=False)
    wrong = np.flatnonzero(model.predict(noisy[0]) != noisy[1])
    explainer = Explainer(model, progress=False).fit(train)
    _, p_wrong = check_test_labels(explainer, noisy, wrong)
    kept = 1 - p_wrong[np.isin(wrong, answer.question.rows)]
    np.testing.assert_allclose(answer.question.shares, kept / kept.sum())


def test_rows_named_by_the_user_are_not_second_guessed(digits: tuple) -> None:
    model, train, _, noisy = digits
    answer = exempla.explain_errors(model, train, noisy, k=3, ask=FLIPS, progress=False)
    np.testing.assert_array_equal(answer.question.rows, FLIPS)
    assert answer.test_labels == {}


def test_few_test_rows_are_not_judged(digits: tuple) -> None:
    model, train, _, (X, y) = digits
    answer = exempla.explain_errors(model, train, (X[:60], y[:60]), k=3, progress=False)
    assert answer.test_labels == {}
