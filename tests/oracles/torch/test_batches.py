"""How many examples are read and scored at a time: the machine's affair, the same rows whatever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import exempla
from exempla.errors import ExemplaWarning
from exempla.oracles.torch import network
from exempla.oracles.torch.oracle import TorchOracle
from tests.oracles.torch.items import Items, Noisy

N = 40
torch.manual_seed(0)
X, Y = torch.randn(N, 6), torch.arange(N) % 3


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def own(items: list[Any]) -> dict[str, Tensor]:
    """A collate function of the user's own, which counts what it is given."""
    SEEN.append(len(items))
    return {"input": torch.stack([x for x, _ in items]), "y": torch.tensor([y for _, y in items])}


SEEN: list[int] = []


def scored(loader: Any, oracle: TorchOracle | None = None) -> tuple[Tensor, list[int]]:
    oracle = oracle or TorchOracle(model())
    batches = list(oracle.scores(oracle.read(loader, role="train")))
    assert np.concatenate([b.sample for b in batches]).tolist() == list(range(N))
    rows = [torch.cat([f.dense() for f in b.factors], 1) for b in batches]
    return torch.cat(rows), [len(b) for b in batches]


@pytest.mark.parametrize("collate", [None, own])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}])
def test_rows_do_not_depend_on_the_loaders_batches(collate: Any, options: dict[str, Any]) -> None:
    small, sizes = scored(DataLoader(Items(X, Y), 3, collate_fn=collate, **options))
    large, _ = scored(DataLoader(Items(X, Y), 256, collate_fn=collate, **options))
    torch.testing.assert_close(small, large)
    torch.testing.assert_close(small, scored((X, Y))[0])
    assert sizes == ([N] if collate is None else [3] * 13 + [1])


def test_a_whole_fit_does_not_depend_on_the_loaders_batches() -> None:
    fits = [
        exempla.Explainer(model(), sketch=20, progress=False).fit(DataLoader(Items(X, Y), size))
        for size in (8, 256)
    ]
    one, other = (fit.influence((X[:5], Y[:5])) for fit in fits)
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_collate_function_sees_what_its_loader_gives_it() -> None:
    loader = DataLoader(Items(X, Y), 7, collate_fn=own)
    oracle = TorchOracle(model())
    oracle.read(loader, role="train")
    SEEN.clear()
    _, sizes = scored(loader, oracle)
    assert sizes == [7, 7, 7, 7, 7, 5]
    assert set(SEEN) <= {7, 5, 1}  # examples alone are read for their labels
    assert SEEN[-6:] == sizes


def lengths_beside(items: list[Any]) -> dict[str, Any]:
    return {**own(items), "count": len(items)}


def test_batches_with_parts_that_are_not_rows() -> None:
    rows, sizes = scored(DataLoader(Items(X, Y), 16, collate_fn=lengths_beside))
    assert sizes == [16, 16, 8]
    torch.testing.assert_close(rows, scored((X, Y))[0])


def test_random_items_are_told_and_made_still() -> None:
    found = []
    for size in (3, 256):
        with pytest.warns(ExemplaWarning, match="random augmentation"):
            found.append(scored(DataLoader(Noisy(X, Y), size))[0])
    torch.testing.assert_close(*found)


def test_a_batch_takes_a_quarter_of_the_free_memory_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = TorchOracle(model())
    oracle.read((X, Y), role="train")
    seen = oracle.network
    assert seen.batch_size() == 2048
    for row_bytes, size in ((2**20, 64), (2**24, 4), (2**26, 2), (2**30, 1)):
        monkeypatch.setattr(network, "available_memory", lambda: 2**29)
        seen.found = replace(seen.found, row_bytes=row_bytes)
        assert seen.batch_size() == size
