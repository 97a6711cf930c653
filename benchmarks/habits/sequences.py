"""Networks of sequences: recurrent, bags of words, attention, and labels of tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.habits.base import ASKED, Job, epoch_of, kind, plant
from benchmarks.habits.vectors import N, trained

WORDS = 30


def sentences(length: int = 6) -> tuple[Tensor, Tensor]:
    """Random words (0 is padding); one of them says the class."""
    Y = torch.arange(N) % 2
    X = torch.randint(4, WORDS, (N, length))
    X[torch.arange(N), torch.randint(0, length, (N,))] = Y + 1
    return X, Y


def wrong(Y: Tensor) -> Tensor:
    return 1 - Y[-ASKED:]


class Recurrent(nn.Module):
    def __init__(self, cell: Any, packed: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8, padding_idx=0)
        self.cell, self.head = cell(8, 8, batch_first=True), nn.Linear(8, 2)
        self.packed = packed

    def forward(self, tokens: Tensor) -> Tensor:
        x: Any = self.table(tokens)
        if self.packed:
            lengths = (tokens != 0).sum(1).cpu()
            x = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            states = self.cell(x)[1]
            return self.head((states[0] if isinstance(states, tuple) else states)[-1])
        return self.head(self.cell(x)[0].mean(1))


@kind("sequence", "LSTM")
def lstm() -> Job:
    X, Y = sentences()
    return trained(Recurrent(nn.LSTM), plant(X, Y, wrong(Y)), F.cross_entropy)


@kind("sequence", "GRU, packed sequences of several lengths")
def gru() -> Job:
    X, Y = sentences()
    ends = torch.randint(3, 7, (N,))
    X = X.masked_fill(torch.arange(6) >= ends[:, None], 0)
    X[:, 1] = Y + 1
    return trained(Recurrent(nn.GRU, packed=True), plant(X, Y, wrong(Y)), F.cross_entropy)


@kind("sequence", "bag of embeddings")
def bag() -> Job:
    X, Y = sentences()
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 2))
    return trained(model, plant(X, Y, wrong(Y)), F.cross_entropy)


@kind("sequence", "transformer encoder of torch")
def encoder() -> Job:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 2)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.layer(self.table(tokens)).mean(1))

    X, Y = sentences()
    return trained(Encoder(), plant(X, Y, wrong(Y)), F.cross_entropy)


@kind("sequence", "labels of tokens, −100 ignored")
def tagger() -> Job:
    """The tag of a token is its word modulo 2; sentences are padded."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(16, 2)
            self.cell = nn.LSTM(8, 8, batch_first=True, bidirectional=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.cell(self.table(tokens))[0])

    X = torch.randint(1, WORDS, (N, 6))
    Y = X % 2
    Y[:, 5] = -100
    other = torch.where(Y < 0, Y, 1 - Y)
    model, data = Tagger(), plant(X, Y, other[-ASKED:])
    learn = epoch_of(
        model, lambda rows: F.cross_entropy(model(data.X[rows]).transpose(1, 2), data.Y[rows])
    )
    return Job(model, data.train, data.asked, data.where, learn)
