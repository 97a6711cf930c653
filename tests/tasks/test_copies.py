"""Copies of a training row count once, and leave together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale

import exempla
from exempla.data import row_hashes
from exempla.tasks.question import MIN_COSINE, Copies

X, Y = load_breast_cancer(return_X_y=True)
X, Y = np.asarray(scale(X)), np.array(Y)
Y[:200:7] = 1 - Y[:200:7]  # so that there are rows to blame


def doubled() -> tuple:
    """The 200 training rows with the five most blamed ones four more times, at the end."""
    model = LogisticRegression().fit(X[:200], Y[:200])
    test = (X[300:], Y[300:])
    first = exempla.explain(model, (X[:200], Y[:200]), test, k=5, progress=False).indices
    rows = np.concatenate([np.arange(200), np.repeat(first, 4)])
    train = (X[rows], Y[rows])
    return LogisticRegression().fit(*train), train, test, rows


@pytest.mark.parametrize("job", ["explain", "clean"])
def test_a_row_is_named_once_with_all_its_copies(job: str) -> None:
    model, train, test, rows = doubled()
    ask = {"ask": "all", "progress": False}
    found = getattr(exempla, job)(model, train, test, k=12, **ask)
    assert len(found) == 12 == len(np.unique(rows[found.indices]))
    for index, group in zip(found.indices, found.copies, strict=True):
        np.testing.assert_array_equal(group, np.flatnonzero(rows == rows[index]))
    assert found.to_frame()["copies"].max() == 5
    assert len(found.removed) == sum(map(len, found.copies)) > 12
    assert found.verify(seeds=1).removed == len(found.removed)
    assert "× 5" in str(found)


def test_without_copies_the_picks_are_those_of_the_explainer() -> None:
    model = LogisticRegression().fit(X[:200], Y[:200])
    train, test = (X[:200], Y[:200]), (X[300:], Y[300:])
    found = exempla.explain(model, train, test, k=9, progress=False)
    plain = exempla.Explainer(model, progress=False).fit(train).explain(test, k=9)
    np.testing.assert_array_equal(found.indices, plain.indices)
    np.testing.assert_array_equal(found.weights, plain.weights)
    assert all(len(group) == 1 for group in found.copies)


def test_near_copies_are_found_by_the_kernel() -> None:
    images, y = load_digits(return_X_y=True)
    images = images[:300] / 16
    rng = np.random.default_rng(0)
    near = np.concatenate([images, images[:3] + 1e-4 * rng.random((3, 64))])
    train = (near, np.concatenate([y[:300], y[:3]]))
    model = LogisticRegression(max_iter=500).fit(*train)
    explainer = exempla.Explainer(model, progress=False).fit(train)
    rows = explainer.kernel("selection").features.rows
    copies = Copies(lambda positions: rows[positions], 303, train)
    assert [group.tolist() for group in copies.members(np.array([0, 2]))] == [[0, 300], [2, 302]]
    np.testing.assert_array_equal(copies.group(np.array([5, 301, 1])), [0, 1, 1])


def test_in_few_dimensions_a_cosine_says_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 2))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.sum(rows @ rows[0] >= MIN_COSINE) > 10
    copies = Copies(lambda positions: rows[positions], 400, None)
    assert [group.tolist() for group in copies.members(np.array([0, 7]))] == [[0], [7]]


def test_equal_rows_have_equal_hashes_in_every_container() -> None:
    table = np.array([[1.0, 0.0], [2.0, 3.0], [1.0, -0.0]])
    for rows in (
        table,
        table.astype(np.float32),
        sp.csr_matrix(table),
        [[1.0, 0.0], [2.0, 3.0], [1.0, 0.0]],
    ):
        a, b, c = row_hashes(rows)
        assert a == c != b
    frame = row_hashes(pd.DataFrame({"x": ["a", "b", "a"], "y": [1, 2, 1]}))
    assert frame[0] == frame[2] != frame[1]


def test_copies_on_both_sides_of_the_split_are_reported() -> None:
    texts = ["call me later", "win a prize now", "see you soon", "free money now"] * 10
    labels = np.array(["ham", "spam"] * 20)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts[:30], labels[:30])
    test = (texts[30:], labels[30:])
    found = exempla.explain(model, (texts[:30], labels[:30]), test, k=2, progress=False)
    assert "10 of the 10 test rows in question are also training rows" in found.warnings[-1]
