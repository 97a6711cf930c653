"""Rows gathered by index find their samples, whatever the routing of a batch is."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.oracles.torch import network
from exempla.oracles.torch.layers import SampleRows
from exempla.oracles.torch.oracle import TorchOracle
from exempla.oracles.torch.tape import Tape
from tests.oracles.torch import zoo

N = 40
"""More than one digit to the base 16."""


def scores(oracle: TorchOracle, data: tuple[Tensor, Tensor]) -> Tensor:
    rows = list(oracle.scores(oracle.read(data, role="train")))
    return torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows])


def by_autograd(oracle: TorchOracle, model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    parameters, out = oracle.network.parameters, []
    for x, y in zip(*data):
        value = -F.cross_entropy(model(x[None]), y[None])
        found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        each = {
            name: (torch.zeros_like(p) if g is None else g)[None].to(oracle.network.like.dtype)
            for (name, p), g in zip(parameters.items(), found)
        }
        out.append(torch.cat([b.pack(each).flatten() for b in oracle.network.blocks]))
    return torch.stack(out)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("size", [1, 3, 16, N])
def test_batches_of_any_size_and_routing(stacked: bool, size: int) -> None:
    """One row each, so that some batches send every sample to one expert and others none."""
    torch.manual_seed(size)
    model = zoo.Experts(stacked)
    data = (torch.randn(N, 1, 5), torch.randint(0, 3, (N,)))
    oracle = TorchOracle(model, batch_size=size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = scores(oracle, data)
    want = by_autograd(oracle, model, data)
    assert float((got - want).norm()) <= 1e-5 * float(want.norm())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 5e-2), (torch.float64, 1e-12)])
def test_other_precisions(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    model = zoo.Experts(True).to(dtype)
    data = (torch.randn(N, 4, 5).to(dtype), torch.randint(0, 3, (N,)))
    oracle = TorchOracle(model)
    got, want = scores(oracle, data), by_autograd(oracle, model, data)
    assert not oracle.network.found.fallback
    assert float((got - want).norm()) <= tolerance * float(want.norm())


class Mixing(zoo.Experts):
    """A model whose rows have several samples' gradients: nobody can say whose they are."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out - out.mean(0)


def test_a_model_that_mixes_its_samples_is_still_refused() -> None:
    data = (torch.randn(N, 4, 5), torch.randint(0, 3, (N,)))
    with pytest.raises(ExemplaError, match="which other examples are in the batch"):
        scores(TorchOracle(Mixing(False)), data)


def test_rows_without_a_sample_are_left_out() -> None:
    placed = SampleRows.of(torch.tensor([2, -1, 0, 2]), 3).split(torch.arange(4.0)[:, None], 3)
    assert placed[:, :, 0].tolist() == [[2, 0], [0, 0], [0, 3]]


def test_picking_one_position_of_every_sample_costs_no_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("samples are where they were")

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            return self.head(h[torch.arange(len(h)), torch.full((len(h),), 1)])

    monkeypatch.setattr(network, "RowProbe", never)
    data = (torch.randn(N, 4, 5), torch.randint(0, 3, (N,)))
    model = Last()
    oracle = TorchOracle(model)
    torch.testing.assert_close(scores(oracle, data), by_autograd(oracle, model, data))


def test_the_tape_tells_gathered_rows_from_sliced_ones() -> None:
    x = torch.randn(4, 3)
    for index, gathered in (
        (slice(2), False),
        ((slice(None), torch.tensor([1, 0])), False),
        (torch.tensor([1, 0]), True),
        (x[:, 0] > 0, True),
    ):
        with Tape({}, 4, {}) as tape:
            _ = x[index]
        assert tape.gathered == gathered
