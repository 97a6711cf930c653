"""Sums of squares of rows that come in batches of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from exempla.kernel import fisher as squares
from exempla.kernel.fisher import SumOfSquares


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
