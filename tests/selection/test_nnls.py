"""Both ways to nonnegative least squares, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from exempla.selection.nnls import GrowingNNLS, nonnegative_minimum


@pytest.mark.parametrize("seed", range(8))
def test_growing_nnls_equals_scipy_at_every_step(seed):
    rng = np.random.default_rng(seed)
    p = int(rng.integers(3, 20))
    target = rng.standard_normal(p)
    rows = rng.standard_normal((40, p)) * rng.uniform(0.1, 10, (40, 1))
    rows[7], rows[9] = rows[3], 2 * rows[4]  # dependent columns
    fit = GrowingNNLS(target)
    for i, row in enumerate(rows):
        fit.add(row)
        _, error = nnls(rows[: i + 1].T, target)
        assert (fit.weights >= 0).all()
        assert np.linalg.norm(fit.residual) == pytest.approx(error, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_block_pivoting_is_nnls(seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((40, 25))
    b = rng.standard_normal(40)
    ours = nonnegative_minimum(A.T @ A, A.T @ b)
    np.testing.assert_allclose(ours, nnls(A, b)[0], atol=1e-9)


def test_both_ways_agree_where_weights_are_zero_and_rows_nearly_dependent():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((30, 12))
    rows[20:] = rows[:10] + 1e-4 * rng.standard_normal((10, 12))
    rows = np.hstack([rows, 0.1 * np.eye(30)])  # a ridge, as a summary's weights have
    target = rng.standard_normal(42)
    fit = GrowingNNLS(target)
    for row in rows:
        fit.add(row)
    at_once = nonnegative_minimum(rows @ rows.T, rows @ target)
    assert 0 < (at_once > 0).sum() < 30
    np.testing.assert_allclose(fit.weights, at_once, atol=1e-9)
