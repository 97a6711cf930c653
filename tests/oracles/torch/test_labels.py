"""Labels as people have them: one-hot, smoothed, at every position; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.torch.oracle import TorchOracle

torch.manual_seed(0)
X, Y = torch.randn(80, 4), torch.arange(80) % 3
ONE_HOT = torch.eye(3)[Y]


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def scores(model: nn.Module, data: Any, likelihood: Any = "auto") -> Tensor:
    oracle = TorchOracle(model, likelihood)
    rows = list(oracle.scores(oracle.read(data, role="train")))
    return torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows])


class Items(Dataset):
    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i], self.labels[i]


@pytest.mark.parametrize("labels", [ONE_HOT, ONE_HOT.long(), ONE_HOT.double(), ONE_HOT.bool()])
def test_one_hot_labels_are_the_classes_they_stand_for(labels: Tensor) -> None:
    want = scores(mlp(), (X, Y))
    torch.testing.assert_close(scores(mlp(), (X, labels)), want)
    torch.testing.assert_close(scores(mlp(), Items(labels)), want)
    torch.testing.assert_close(scores(mlp(), (X, labels), "categorical"), want)


def test_an_answer_says_how_one_hot_labels_were_taken() -> None:
    asked = (X[:3], ONE_HOT[:3])
    answer = exempla.explain(mlp(), (X, ONE_HOT), asked, k=3, progress=False)
    assert any("adding up to one" in said for said in answer.warnings)
    plain = exempla.explain(mlp(), (X, Y), asked, k=3, progress=False)
    assert plain.indices.tolist() == answer.indices.tolist()
    assert not any("adding up to one" in said for said in plain.warnings)


def test_several_labels_further_down_are_seen_in_arrays_and_refused_in_datasets() -> None:
    several = ONE_HOT.clone()
    several[70, :2] = 1.0
    oracle = TorchOracle(mlp())
    oracle.read((X, several), role="train")
    assert oracle.likelihood == "multilabel"
    with pytest.raises(ExemplaError, match=r"do not add up to one,.*rows 70"):
        scores(mlp(), Items(several))


def test_a_label_that_is_a_share_of_each_class() -> None:
    """The score of a mixture of labels is the mixture of their scores."""
    each = [scores(mlp(), (X, torch.full((80,), c))) for c in range(3)]
    shares = torch.randn(80, 3).softmax(1)
    want = sum(s[:, None] * one for s, one in zip(shares.T, each))
    torch.testing.assert_close(scores(mlp(), (X, shares)), want, rtol=1e-4, atol=1e-5)


def test_segmentation_of_another_size_than_its_labels_is_refused() -> None:
    model = nn.Conv2d(1, 3, 3, stride=2)
    with pytest.raises(ExemplaError, match="outputs of the labels' size"):
        scores(model, (torch.randn(8, 1, 9, 9), torch.zeros(8, 9, 9, dtype=torch.long)))


def test_a_pixel_of_no_class_names_its_image() -> None:
    pixels = torch.zeros(8, 4, 4, dtype=torch.long)
    pixels[5, 0, 0] = 7
    with pytest.raises(ExemplaError, match=r"outside 0 … 2.*rows 5"):
        scores(nn.Conv2d(1, 3, 3, padding=1), (torch.randn(8, 1, 4, 4), pixels))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        return [{"boxes": box, "scores": box[:1]} for box in self.conv(x).mean((2, 3))]


def test_a_detector_is_refused_with_what_to_do() -> None:
    rows = [(torch.randn(1, 5, 5), {"boxes": torch.rand(1 + i % 2, 4)}) for i in range(6)]
    with pytest.raises(ExemplaError, match=r"boxes.*Custom\(log_prob\)"):
        scores(Detector(), rows)


def test_frozen_absent_and_quantised_models_are_told_apart() -> None:
    frozen = mlp().requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="set requires_grad"):
        TorchOracle(frozen)
    with pytest.raises(UnsupportedModelError, match="meta device"):
        TorchOracle(frozen.to("meta"))
    adapters = nn.ModuleDict({"lora_A": nn.Linear(3, 2)}).requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="is_trainable=True"):
        TorchOracle(adapters)
    whole = nn.Module()
    whole.weight = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModelError, match="before quantisation"):
        TorchOracle(whole)
