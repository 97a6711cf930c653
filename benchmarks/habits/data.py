"""Data as people hold it: dictionaries, loaders, random augmentation, streams, ragged rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.habits.base import ASKED, Job, Planted, epoch_of, kind, plant
from benchmarks.habits.sequences import Recurrent, sentences
from benchmarks.habits.vectors import N, blobs, mlp, trained


def planted() -> Planted:
    X, Y = blobs()
    return plant(X, Y, 1 - Y[-ASKED:])


class Items(Dataset):
    """A map-style dataset; `noise` is a random augmentation."""

    def __init__(self, data: Planted, noise: float = 0.0) -> None:
        self.data, self.noise = data, noise

    def __len__(self) -> int:
        return len(self.data.X)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.data.X[i] + self.noise * torch.randn(6), int(self.data.Y[i])


@kind("data", "shuffled DataLoader of a Dataset")
def loader() -> Job:
    data = planted()
    job = trained(mlp(), data, F.cross_entropy)
    job.train = DataLoader(Items(data), batch_size=16, shuffle=True)
    return job


@kind("data", "DataLoader with random augmentation")
def augmented() -> Job:
    data = planted()
    job = trained(mlp(), data, F.cross_entropy)
    job.train = DataLoader(Items(data, 0.05), batch_size=16, shuffle=True)
    return job


class Stream(IterableDataset):
    def __init__(self, data: Planted, named: bool) -> None:
        self.data, self.named = data, named

    def __iter__(self) -> Iterator[Any]:
        for i, (x, y) in enumerate(zip(*self.data.train)):
            yield {"__key__": f"{i:06}", "input": x, "cls": int(y)} if self.named else (x, y)


@kind("data", "IterableDataset")
def stream() -> Job:
    data = planted()
    job = trained(mlp(), data, F.cross_entropy)
    job.train = DataLoader(Stream(data, named=False), batch_size=16)
    return job


@kind("data", "stream of dictionaries (webdataset)")
def named_stream() -> Job:
    data = planted()
    job = trained(mlp(), data, F.cross_entropy)
    job.train = Stream(data, named=True)
    return job


@kind("data", "two inputs")
def two_inputs() -> Job:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(16, 2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.head(torch.cat([self.left(left), self.right(right)], 1).tanh())

    data, model = planted(), Two()

    def parts(X: Tensor, Y: Tensor) -> tuple[Tensor, ...]:
        return X[:, :3], X[:, 3:], Y

    def loss(rows: list[int]) -> Tensor:
        *inputs, y = parts(data.X[rows], data.Y[rows])
        return F.cross_entropy(model(*inputs), y)

    learn = epoch_of(model, loss)
    return Job(model, parts(*data.train), parts(*data.asked), data.where, learn)


@kind("data", "ragged rows and a collate_fn")
def ragged() -> Job:
    X, Y = sentences()
    ends = torch.randint(3, 7, (N,))
    X = X.masked_fill(torch.arange(6) >= ends[:, None], 0)
    X[:, 1] = Y + 1
    data, model = plant(X, Y, 1 - Y[-ASKED:]), Recurrent(nn.LSTM, packed=True)

    def rows(X: Tensor, Y: Tensor) -> list[tuple[Tensor, int]]:
        return [(x[x != 0], int(y)) for x, y in zip(X, Y)]

    def collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        tokens = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
        return tokens, torch.tensor([y for _, y in items])

    learn = epoch_of(model, lambda some: F.cross_entropy(model(data.X[some]), data.Y[some]))
    train, asked = (
        DataLoader(rows(*part), batch_size=8, collate_fn=collate)  # type: ignore[arg-type]
        for part in (data.train, data.asked)
    )
    return Job(model, train, asked, data.where, learn)


@kind("data", "datasets.Dataset, tokens of several lengths")
def hugging_face() -> Job:
    from datasets import Dataset as Table

    from benchmarks.habits.language import bert, taught

    X, Y = sentences()
    ends = torch.randint(3, 7, (N,))
    X = X.masked_fill(torch.arange(6) >= ends[:, None], 0)
    X[:, 1] = Y + 1
    data = plant(X, Y, 1 - Y[-ASKED:])
    job = taught(bert(), data)
    job.train, job.asked = (
        Table.from_dict({"input_ids": [x[x != 0].tolist() for x in X], "label": Y.tolist()})
        for X, Y in (data.train, data.asked)
    )
    return job
