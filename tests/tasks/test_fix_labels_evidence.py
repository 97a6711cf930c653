"""The parts of `fix_labels`: folds and Fisher evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from exempla.data import stack_rows, take_rows
from exempla.errors import ExemplaError
from exempla.tasks.labels.crossfit import stratified_folds
from exempla.tasks.labels.fix_labels import gather


def scattered(n: int, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows that say nothing about their labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)), rng.integers(0, classes, n)


# ---- folds


def test_folds_hold_each_label_evenly() -> None:
    codes = np.repeat([0, 1, 2], [50, 20, 5])
    fold = stratified_folds(codes, 5, np.random.default_rng(0))
    counts = np.array([[np.sum((codes == c) & (fold == f)) for f in range(5)] for c in range(3)])
    assert (counts.max(1) - counts.min(1) <= 1).all()


def test_no_row_is_predicted_by_a_model_that_saw_it() -> None:
    X, y = scattered(300)
    model = KNeighborsClassifier(1)
    evidence = gather(model, (X[:250], y[:250]), (X[250:], y[250:]))
    own = np.arange(300)
    assert model.fit(X, y).score(X, y) == 1.0  # the nearest neighbour of a row is itself
    right = evidence.cross_fitted[own, evidence.problem.codes] > -1.0
    assert right.mean() == pytest.approx(0.5, abs=0.12)


# ---- Fisher evidence


def test_similarities_stay_usable_where_scores_vanish() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    X = rng.normal(size=(80, 3)) + 40.0 * (2 * y[:, None] - 1)  # log-odds in the thousands
    model = LogisticRegression(C=1e6, fit_intercept=False)
    evidence = gather(model, (X[:60], y[:60]), (X[60:], y[60:]))
    view = evidence.view
    assert view is not None
    similarity = view.similarity(np.arange(60, 100), evidence.reference, view.damping())
    assert np.isfinite(similarity).all()
    assert (similarity[~evidence.wrong] > 0).all()
    assert (similarity[evidence.wrong] < 0).all()


def test_a_row_is_never_compared_with_itself() -> None:
    rng = np.random.default_rng(0)
    X = np.eye(30) * 3.0  # no row resembles another
    y = rng.integers(0, 2, 30)
    model = LogisticRegression(fit_intercept=False)
    evidence = gather(model, (X[:20], y[:20]), (X[20:], y[20:]))
    view = evidence.view
    assert view is not None
    similarity = view.similarity(np.arange(40), evidence.reference, view.damping())
    assert np.abs(similarity).max() < 1e-6


# ---- rows of any kind


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.arange(6).reshape(3, 2), [[8, 9]]),
        (sp.csr_matrix(np.arange(6).reshape(3, 2)), np.array([[8, 9]])),
        (pd.DataFrame(np.arange(6).reshape(3, 2)), np.array([[8, 9]])),
        ([[0, 1], [2, 3], [4, 5]], [[8, 9]]),
        ([[0, 1], [2, 3], [4, 5]], pd.DataFrame([[8, 9]], columns=["a", "b"])),
        (["a", "b", "c"], pd.Series(["d"])),
        (sp.csr_array(np.arange(6).reshape(3, 2)), pd.DataFrame([[8, 9]]).convert_dtypes()),
    ],
)
def test_rows_are_stacked_and_taken(first: Any, second: Any) -> None:
    both = take_rows(stack_rows(first, second), np.array([3, 0]))
    values = both.toarray() if sp.issparse(both) else np.asarray(both)
    assert values.tolist() in ([[8, 9], [0, 1]], ["d", "a"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (sp.csr_array(np.eye(2)), np.full((1, 2), np.datetime64("2024-01-01"))),
        (sp.csr_array(np.eye(2)), np.ones((1, 3))),
        (pd.DataFrame(np.eye(2)), np.ones((1, 3))),
        (np.eye(2), np.ones((1, 3))),
    ],
)
def test_rows_that_do_not_fit_are_refused(first: Any, second: Any) -> None:
    with pytest.raises(ExemplaError, match="cannot be combined"):
        stack_rows(first, second)
