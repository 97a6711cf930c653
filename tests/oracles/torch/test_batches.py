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
from exempla.oracles.torch.sources import are_joinable, joined
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
    assert sizes == [N]


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
    assert sizes == [N]
    assert set(SEEN[2:]) <= {7, 5, 1, 64 % 7}  # after the two sizes that were tried
    assert SEEN[-6:] == [7, 7, 7, 7, 7, 5]


def lengths_beside(items: list[Any]) -> dict[str, Any]:
    return {**own(items), "count": len(items)}


def test_batches_that_cannot_be_joined_stay_as_they_are() -> None:
    rows, sizes = scored(DataLoader(Items(X, Y), 16, collate_fn=lengths_beside))
    assert sizes == [16, 16, 8]
    torch.testing.assert_close(rows, scored((X, Y))[0])


def test_padded_batches_are_joined_where_their_lengths_agree() -> None:
    def piece(start: int, count: int, length: int) -> Any:
        tokens = torch.arange(start, start + count)[:, None].expand(-1, length)
        return np.arange(start, start + count), {"input_ids": tokens}

    found = list(joined([piece(0, 2, 5), piece(2, 2, 5), piece(4, 2, 3), piece(6, 1, 3)]))
    assert [positions.tolist() for positions, _ in found] == [[0, 1, 2, 3], [4, 5, 6]]
    for positions, batch in found:
        assert batch["input_ids"][:, 0].tolist() == positions.tolist()


@pytest.mark.parametrize(
    ("collate", "wanted"),
    [
        (lambda items: (torch.stack(items), torch.zeros(len(items))), True),
        (lambda items: {"x": torch.stack(items), "table": torch.zeros(2, 4)}, False),
        (lambda items: (torch.stack(items), torch.zeros(len(items), len(items))), False),
        (lambda items: (torch.stack(items), [str(i) for i in items]), False),
        (lambda items: torch.stack(items).sum(), False),
        (lambda items: 1 / 0, False),
    ],
)
def test_what_can_be_joined(collate: Any, wanted: bool) -> None:
    assert are_joinable(collate, list(torch.randn(3, 4))) is wanted


def test_random_items_are_told_and_made_still() -> None:
    found = []
    for size in (3, 256):
        with pytest.warns(ExemplaWarning, match="random augmentation"):
            found.append(scored(DataLoader(Noisy(X, Y), size))[0])
    torch.testing.assert_close(*found)


def test_a_pass_stays_beside_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = TorchOracle(model())
    oracle.read((X, Y), role="train")
    seen = oracle.network
    monkeypatch.setattr(network, "SPARED", {"cpu": 0})
    for row_bytes in (10**3, 10**5):
        seen.found = replace(seen.found, row_bytes=row_bytes)
        gradients = sum(p.nbytes for p in seen.parameters.values())
        for loader in (8, 64):
            size = seen.batch_size(loader)
            step = gradients + loader * row_bytes
            assert size * seen.row_bytes <= network.STEPS * step < (size + 1) * seen.row_bytes
            assert seen.batch_size(loader, fixed=True) == loader
    seen.found = replace(seen.found, row_bytes=network.CPU_BUDGET)
    assert seen.batch_size(64, fixed=True) == 1  # never more than memory allows
