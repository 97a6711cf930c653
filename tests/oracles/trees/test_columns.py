"""Leaf indicators as inputs, and what is summed in single precision."""

from __future__ import annotations

import numpy as np
import pytest

import exempla
from exempla.arrays import solve_lower
from exempla.kernel.embed import unit_rows
from exempla.oracles.base import Factors, Pairs
from exempla.oracles.trees.oracle import _LeafColumns, _LeafFactors
from tests.oracles.trees.cases import fitted


@pytest.mark.parametrize(("outputs", "trees"), [(1, 4), (3, 4), (1, 100)])
def test_projections_are_those_of_plain_factors(outputs: int, trees: int) -> None:
    rng = np.random.default_rng(0)
    columns = _LeafColumns(np.arange(trees), rng.integers(2, 6, trees), np.arange(outputs))
    leaves = np.stack([rng.integers(0, size, 50) for size in columns.sizes], axis=1)
    a, g = columns.inputs(leaves), rng.normal(size=(50, outputs))
    assert a.nnz == leaves.size
    basis_in, basis_out = rng.normal(size=(columns.width, 5)), rng.normal(size=(outputs, outputs))
    kept = np.array([0, 3, 4]), np.array([0, outputs - 1, 0])
    pairs = Pairs(*kept, kept[0] * outputs + kept[1])
    found = _LeafFactors(a, g).project_pairs(basis_in, basis_out, pairs)
    assert found.dtype == np.float32
    expected = Factors(a, g).project_pairs(basis_in, basis_out, pairs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_sketch_of_leaf_scores_keeps_most_of_the_kernel() -> None:
    model, X, y = fitted("hist", "binary")
    exact = exempla.Explainer(model, progress=False).fit((X, y))
    few = exempla.Explainer(model, sketch=60, progress=False).fit((X, y))
    assert few.features.rows.dtype == np.float32
    test = (X[:20], y[:20])
    one, other = exact.influence(test), few.influence(test)
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.9


def test_single_precision_rows_are_solved_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    lower = np.linalg.cholesky(np.cov(rng.normal(size=(6, 40))) + np.eye(6))
    rows = rng.normal(size=(25, 6)).astype(np.float32)
    whole = solve_lower(lower, rows)
    monkeypatch.setattr("exempla.arrays._SOLVE_ROWS", 7)
    np.testing.assert_allclose(solve_lower(lower, rows), whole, rtol=1e-6)
    np.testing.assert_allclose(whole, np.linalg.solve(lower, rows.T).T, rtol=1e-4)


def test_rows_may_be_made_unit_rows_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(9, 3))
    rows[4] = 0.0
    expected = unit_rows(rows)
    monkeypatch.setattr("exempla.arrays._SQUARE_BYTES", 30)
    copy = rows.copy()
    assert unit_rows(copy, overwrite=True) is copy
    np.testing.assert_array_equal(copy, expected)


def test_selection_leaves_the_embeddings_rows_alone() -> None:
    """The identity metric hands its rows out as they are: they may not be made unit rows."""
    model, X, y = fitted("hist", "binary")
    explainer = exempla.Explainer(model, fisher="identity", progress=False).fit((X, y))
    before = explainer.embeddings[0].rows.copy()
    explainer.explain((X[:9], y[:9]), k=3)
    np.testing.assert_array_equal(explainer.embeddings[0].rows, before)
