"""Data in every shape users have it: the same rows, in dataset order."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.torch.oracle import TorchOracle, torch_oracle

N = 10
torch.manual_seed(0)
X, Y = torch.randn(N, 4), torch.arange(N) % 3


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def scores(oracle: TorchOracle, given: Any) -> Tensor:
    rows = list(oracle.scores(oracle.read(given, role="train")))
    samples = np.concatenate([r.sample for r in rows])
    assert samples.tolist() == list(range(len(samples)))
    return torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows])


class Items(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[i], int(Y[i])


class Noisy(Items):
    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[i] + 0.01 * torch.randn(4), int(Y[i])


def stacked(items: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


SHAPES: dict[str, Any] = {
    "tensors": (X, Y),
    "NumPy in double precision": (X.double().numpy(), Y.numpy()),
    "lists": (X.tolist(), Y.tolist()),
    "frame and series": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy())),
    "dictionary": {"input": X, "label": Y},
    "nested tuple": ((X,), Y),
    "list of rows": [(X[i], int(Y[i])) for i in range(N)],
    "list of dictionaries": [{"input": X[i].tolist(), "y": int(Y[i])} for i in range(N)],
    "TensorDataset": TensorDataset(X, Y),
    "Dataset": Items(),
    "Subset": Subset(TensorDataset(X, Y), range(N)),
    "shuffled loader": DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
    "shuffled loader of items": DataLoader(Items(), batch_size=4, shuffle=True, drop_last=True),
    "loader with its own collate": DataLoader(Items(), batch_size=4, collate_fn=stacked),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_data_gives_the_same_scores(shape: str) -> None:
    model = mlp()
    oracle = torch_oracle(model)
    got = scores(oracle, SHAPES[shape])
    torch.testing.assert_close(got, scores(torch_oracle(model), (X, Y)), rtol=1e-5, atol=1e-6)
    labels = oracle.read(SHAPES[shape], role="test").labels
    assert labels is not None
    np.testing.assert_array_equal(labels, Y.numpy())


def test_a_loader_keeps_its_batch_size() -> None:
    oracle = torch_oracle(mlp())
    train = oracle.read(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True), role="train")
    assert [len(r) for r in oracle.scores(train)] == [3, 3, 3, 1]


def test_part_of_the_examples() -> None:
    oracle = torch_oracle(mlp())
    everything = scores(oracle, Items())
    part = oracle.read(Items(), role="test").take(np.array([7, 2])).take(np.array([1, 0, 1]))
    rows = torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in oracle.scores(part)])
    torch.testing.assert_close(rows, everything[[2, 7, 2]], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(part.labels, Y.numpy()[[2, 7, 2]])
    np.testing.assert_array_equal(oracle.predict(part), oracle.predict(part.take(np.arange(3))))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
        return scale * (self.left(a) * self.right(b))


def test_several_inputs() -> None:
    model, b = Two(), torch.randn(N, 2)
    want = scores(torch_oracle(model), (X, b, Y))
    for given in ({"a": X, "b": b, "labels": Y}, ((X, b), Y), ({"a": X, "b": b}, Y)):
        torch.testing.assert_close(scores(torch_oracle(model), given), want)
    w = torch.rand(N) + 1
    torch.testing.assert_close(scores(torch_oracle(model), (X, b, Y, w)), w[:, None] * want)
    assert torch_oracle(model, "categorical").read((X, b), role="test").labels is None


class Pooled(nn.Module):
    """Takes sequences of any length, without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).tanh().mean(1))


def test_sequences_of_different_length_stay_in_order() -> None:
    model, lengths = Pooled(), [2, 2, 5, 2, 5, 5, 1]
    items = [(torch.randn(n, 4), n % 3) for n in lengths]
    oracle = torch_oracle(model)
    train = oracle.read(items, role="train")
    rows = list(oracle.scores(train))
    assert [len(r) for r in rows] == [2, 1, 1, 2, 1]
    got = torch.cat([r.factors[0].dense() for r in rows])
    for i, (x, y) in enumerate(items):
        value = model(x[None]).log_softmax(1)[0, y]
        w, b = torch.autograd.grad(value, [model.inner.weight, model.inner.bias])
        want = torch.cat([w.T, b[None]]).flatten()
        torch.testing.assert_close(got[i], want, rtol=1e-4, atol=1e-6)
    joined = rows[0].join(rows)
    torch.testing.assert_close(joined.factors[0].dense(), got)


def test_hugging_face_rows_are_padded() -> None:
    datasets = pytest.importorskip("datasets")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, pad_token_id=0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    texts = [[3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]
    rows = datasets.Dataset.from_dict({"input_ids": texts, "text": ["a", "b", "c"]})
    oracle = torch_oracle(model)
    train = oracle.read(rows, role="train")
    assert oracle.likelihood == "causal_lm"
    got = oracle.log_likelihood(train)
    model.eval()
    for i, ids in enumerate(texts):
        log_p = model(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0]
        want = sum(float(log_p[t, ids[t + 1]].detach()) for t in range(len(ids) - 1))
        assert got[i] == pytest.approx(want, rel=1e-4)
    # a row alone and the same row padded have the same score
    alone, among = (
        torch.cat([f.dense() for f in next(oracle.scores(part)).factors], 1)[-1]
        for part in (train.take(np.array([2])), train)
    )
    torch.testing.assert_close(alone, among, rtol=1e-3, atol=1e-5)


def test_random_augmentation_is_said_once() -> None:
    oracle = torch_oracle(mlp())
    with pytest.warns(ExemplaWarning, match="random augmentation"):
        oracle.read(DataLoader(Noisy(), batch_size=4, shuffle=True), role="train")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oracle.read(Items(), role="train")


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([(X[0], 0)])


MISTAKES: dict[str, tuple[Any, str]] = {
    "generator": (((X[i], Y[i]) for i in range(N)), "read only once"),
    "iterator": (iter(DataLoader(Items())), "read only once"),
    "stream": (Stream(), "IterableDataset"),
    "loader of a stream": (DataLoader(Stream()), "IterableDataset"),
    "empty arrays": ((X[:0], Y[:0]), "empty"),
    "empty loader": (DataLoader(TensorDataset(X[:0], Y[:0])), "empty"),
    "empty list": ([], "empty"),
    "lengths that differ": ((X, Y[:5]), "different lengths"),
    "text labels": ((X, np.array(["a", "b"] * 5)), "encode it as numbers"),
    "too many parts": ((X, Y, X, X), "4 parts"),
    "unknown columns": ({"u": X, "v": X, "labels": Y}, "name the columns"),
    "part of a loader": (
        DataLoader(Items(), sampler=SubsetRandomSampler([1, 2])),
        "reads only part",
    ),
    "no data": (None, "empty"),
    "ragged lists": (([[1.0], [1.0, 2.0]], [0, 1]), "pad them"),
    "no labels": (X, "labels"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_clear_sentence(mistake: str) -> None:
    given, message = MISTAKES[mistake]
    oracle = torch_oracle(mlp())
    with pytest.raises(ExemplaError, match=message) as caught:
        oracle.read(given, role="train")
    assert "\n" not in str(caught.value)
