"""What has no score per example, or is not there: refused, with what to do instead."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.habits.base import Job, kind
from benchmarks.habits.data import planted
from benchmarks.habits.vectors import mlp


def asked_only(model: Any, train: Any = None, asked: Any = None) -> Job:
    """Not trained: it is refused before that would matter."""
    data = planted()
    given = (data.train if train is None else train, data.asked if asked is None else asked)
    return Job(model, *given, data.where, lambda: None, epochs=0)


@kind("refused", "detector, boxes for outputs", "gives? boxes|returns boxes")
def detector() -> Job:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
            return [{"boxes": box, "scores": box[:1]} for box in self.net(x)]

    return asked_only(Detector())


@kind("refused", "weights of NaN", "holds NaN or infinity in 0.weight")
def nan() -> Job:
    model = mlp()
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    return asked_only(model)


@kind("refused", "meta tensors", "on the meta device")
def meta() -> Job:
    return asked_only(mlp().to("meta"))


@kind("refused", "every parameter frozen", "set requires_grad")
def frozen() -> Job:
    return asked_only(mlp().requires_grad_(False))


@kind("refused", "quantised as a whole", "before quantisation")
def quantised() -> Job:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return asked_only(torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, torch.qint8))


@kind("refused", "samples mixed by the batch", "which other examples are in the batch")
def mixing() -> Job:
    norm = nn.BatchNorm1d(12, track_running_stats=False)
    return asked_only(nn.Sequential(nn.Linear(6, 12), norm, nn.Linear(12, 2)))


@kind("refused", "Lightning module without forward", "has no forward")
def headless() -> Job:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

    return asked_only(Module())


@kind("refused", "segmentation smaller than its labels", "labels' size")
def small_masks() -> Job:
    data = (torch.randn(20, 1, 9, 9), torch.zeros(20, 9, 9, dtype=torch.long))
    return asked_only(nn.Conv2d(1, 3, 3, stride=2), data, data)


@kind("refused", "raw texts without a tokenizer", "give a pipeline")
def texts() -> Job:
    return asked_only(mlp(), (["good film", "bad film"] * 10, [0, 1] * 10))


@kind("refused", "a generator", "read only once")
def generator() -> Job:
    data = planted()
    return asked_only(mlp(), ((x, y) for x, y in zip(*data.train)))


@kind("refused", "labels by name, without a pipeline", "class labels as 0, 1, 2")
def names() -> Job:
    data = planted()
    return asked_only(mlp(), (data.X, ["abc"[y] for y in data.Y.tolist()]))
