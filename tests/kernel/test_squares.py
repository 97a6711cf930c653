"""Sums of squares of rows that come in batches of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.kernel import fisher as squares
from exempla.kernel.fisher import SumOfSquares
from exempla.oracles.base import Factors, ScoreRows


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [[1] * 9, [40], [3, 20, 1], [8, 8], [7, 0, 30]])
def test_it_is_the_plain_sum(kind: Any, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squares, "ENOUGH", 8)
    whole = np.random.default_rng(0).standard_normal((sum(sizes), 5))
    total, diagonal = SumOfSquares(), SumOfSquares(diagonal=True)
    for part in np.split(whole, np.cumsum(sizes)[:-1]):
        given = (
            torch.tensor(part, dtype=kind) if isinstance(kind, torch.dtype) else part.astype(kind)
        )
        total.add(given)
        diagonal.add(given)
    exact = kind in (np.float64, torch.float64)
    close: dict[str, Any] = {"rtol": 1e-12 if exact else 1e-5, "atol": 1e-12 if exact else 1e-5}
    found = total.done()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, whole.T @ whole, **close)
    np.testing.assert_allclose(diagonal.done(), (whole**2).sum(0), **close)


@pytest.mark.parametrize("outputs", [1, 4])
def test_rows_that_share_their_inputs_are_summed_output_by_output(outputs: int) -> None:
    rng = np.random.default_rng(0)
    inputs, total, plain = rng.standard_normal((30, 5)), SumOfSquares(), SumOfSquares()
    for start in (0, 12):
        sample = rng.permutation(np.repeat(np.arange(start, start + 12), rng.integers(1, 5, 12)))
        a, g = inputs[sample], rng.standard_normal((len(sample), outputs))
        batch = ScoreRows(sample, (Factors(a, g),))
        total.add_products(batch)
        plain.add(batch.factors[0].dense())
    np.testing.assert_allclose(total.done(), plain.done(), rtol=1e-12, atol=1e-12)


def test_a_linear_model_sums_its_fisher_output_by_output(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=500).fit(X, y, np.linspace(0.5, 2, len(y)))
    train = (X, y, np.linspace(0.5, 2, len(y)))
    quick = exempla.Explainer(model, progress=False).fit(train).embeddings[0]
    monkeypatch.setattr(squares, "_shares_inputs", lambda batch: False)
    plain = exempla.Explainer(model, progress=False).fit(train).embeddings[0]
    np.testing.assert_allclose(quick.metric.matrix, plain.metric.matrix, rtol=1e-10, atol=1e-12)
    for name in ("trace", "energy2", "rows"):
        assert getattr(quick.evidence, name) == pytest.approx(getattr(plain.evidence, name))
