"""The survey compares two ways to one gradient: in full precision, whatever the user has set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.torch import network as survey_module
from exempla.oracles.torch.layers import ConvUse
from exempla.oracles.torch.network import Survey, full_precision
from exempla.oracles.torch.oracle import TorchOracle

TF32 = 2.0**-11
"""Relative rounding of what enters a TF32 product."""


def settings() -> dict[str, Any]:
    backends = torch.backends
    return {
        "cudnn": backends.cudnn.allow_tf32,
        "matmul": torch.get_float32_matmul_precision(),
        "conv": backends.cudnn.conv.fp32_precision,
        "rnn": backends.cudnn.rnn.fp32_precision,
        "cuda": backends.cuda.matmul.fp32_precision,
        "cpu": backends.mkldnn.conv.fp32_precision,
    }


FULL = {
    "cudnn": False,
    "matmul": "highest",
    "conv": "ieee",
    "rnn": "ieee",
    "cuda": "ieee",
    "cpu": "ieee",
}


@pytest.fixture
def low() -> Iterator[dict[str, Any]]:
    """Every switch at its lowest during the test."""
    cudnn, matmul = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    yield settings()
    torch.backends.mkldnn.conv.fp32_precision = "none"
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


class Noting(nn.Module):
    """Notes what torch is set to whenever it runs, and may be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(3, 2)
        self.noted: list[dict[str, Any]] = []
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        self.noted.append(settings())
        if self.fail and self.noted[-1] == FULL:
            raise KeyError("told to fail")
        return self.head(self.conv(x).mean((2, 3)))


def images(n: int = 6) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(n, 1, 5, 5), torch.arange(n) % 2


def read(model: nn.Module) -> tuple[TorchOracle, list[str]]:
    oracle = TorchOracle(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        oracle.read(images(), role="train")
    return oracle, [str(w.message) for w in caught if w.category is ExemplaWarning]


def test_the_survey_runs_in_full_precision_and_restores_every_switch(low: dict[str, Any]) -> None:
    assert low["conv"] == "tf32"
    assert low["matmul"] == "medium"
    model = Noting()
    oracle, _ = read(model)
    assert FULL in model.noted
    assert settings() == low
    model.noted.clear()
    list(oracle.scores(oracle.read(images(), role="test")))
    assert model.noted
    assert all(noted == low for noted in model.noted)  # scoring itself is left as the user set it


def test_the_switches_come_back_when_the_survey_fails(low: dict[str, Any]) -> None:
    model = Noting()
    model.fail = True
    with pytest.raises(KeyError, match="told to fail"):
        TorchOracle(model).read(images(), role="train")
    assert settings() == low


@pytest.mark.usefixtures("low")
def test_switches_that_contradict_each_other_are_left_as_found() -> None:
    conv = torch.backends.cudnn.conv
    conv.fp32_precision = "ieee"  # and its sibling, rnn, still at "tf32"
    try:
        with pytest.raises(RuntimeError):
            _ = torch.backends.cudnn.allow_tf32
        with full_precision():
            assert torch.backends.cudnn.rnn.fp32_precision == "ieee"
        assert (conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision) == ("ieee", "tf32")
    finally:
        conv.fp32_precision = "tf32"
    assert torch.backends.cudnn.allow_tf32


@pytest.fixture
def tf32_device(monkeypatch: pytest.MonkeyPatch, low: dict[str, Any]) -> None:
    """Gradients of kernels as a device with TF32 gives them: rounded beside terms that are
    thirty times what their sum leaves, unless full precision is asked for."""
    plain = survey_module.pull_back
    generator = torch.Generator().manual_seed(0)

    def rounded(g: Tensor | None) -> Tensor | None:
        low = torch.backends.cudnn.conv.fp32_precision == "tf32"
        if g is None or g.ndim != 4 or g.shape[1:] != (1, 3, 3) or not low:
            return g
        return g + 30 * TF32 * g.abs().max() * torch.randn(g.shape, generator=generator)

    monkeypatch.setattr(
        survey_module, "pull_back", lambda *args, **kw: tuple(map(rounded, plain(*args, **kw)))
    )


@pytest.mark.usefixtures("tf32_device")
def test_a_convolution_on_a_device_with_tf32_stays_factored() -> None:
    oracle, said = read(Noting())
    assert not said
    assert [block.kind for block in oracle.network.blocks] == ["matrix", "matrix"]


@pytest.mark.usefixtures("tf32_device")
def test_a_layer_whose_gradient_is_another_still_goes_to_the_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = ConvUse.factors
    monkeypatch.setattr(ConvUse, "factors", lambda self, g, *rest: plain(self, 1.01 * g, *rest))
    oracle, said = read(Noting())
    assert oracle.network.found.fallback == {"conv.weight", "conv.bias"}
    assert "conv.weight" in said[0]


def test_noise_of_tf32_in_the_outputs_of_a_convolution_is_no_difference() -> None:
    class Noisy(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            out = super().forward(input)
            noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
            return out * (1 + TF32 * noise)

    model = Noting()
    model.conv = Noisy(1, 3, 3)
    _, said = read(model)
    assert not said


class Centred(nn.Module):
    """Subtracts the mean of the batch, from its inputs or inside."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside, self.body, self.head = inside, nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x if self.inside else x - x.mean(0))
        return self.head((h - h.mean(0) if self.inside else h).tanh())


@pytest.mark.parametrize("inside", [False, True])
def test_outputs_that_depend_on_the_batch_are_refused(inside: bool) -> None:
    data = torch.randn(9, 4), torch.arange(9) % 3
    with pytest.raises(ExemplaError, match="which other examples are in the batch"):
        TorchOracle(Centred(inside)).read(data, role="train")


def test_a_model_that_draws_does_not_depend_on_the_batch() -> None:
    class Drawing(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(input, 0.5, training=True))

    TorchOracle(Drawing(4, 3)).read((torch.randn(9, 4), torch.arange(9) % 3), role="train")


@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "detach"])
def test_a_forward_without_gradients_is_refused(how: str) -> None:
    class Silent(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if how == "detach":
                return super().forward(input).detach()
            with getattr(torch, how)():
                return super().forward(input)

    data = torch.randn(9, 4), torch.arange(9) % 3
    with pytest.raises(ExemplaError, match="outputs carry no gradient"):
        TorchOracle(Silent(4, 3)).read(data, role="train")


def test_rounding_is_told_from_difference() -> None:
    reference = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    found = Survey(scale=float(reference.abs().max()))
    allowed = found.allowed(float(reference.abs().max()))
    assert float((TF32 * reference).abs().max()) <= allowed < float((0.01 * reference).abs().max())
