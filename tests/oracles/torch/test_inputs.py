"""Data in every shape users have it: the same rows, in dataset order."""

from __future__ import annotations

import warnings
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.torch import examples as streams
from exempla.oracles.torch.examples import TorchExamples
from exempla.oracles.torch.oracle import TorchOracle
from tests.oracles.torch.items import Items, Noisy

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
    "Dataset": Items(X, Y),
    "Subset": Subset(TensorDataset(X, Y), range(N)),
    "shuffled loader": DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
    "shuffled loader of items": DataLoader(Items(X, Y), batch_size=4, shuffle=True, drop_last=True),
    "loader with its own collate": DataLoader(Items(X, Y), batch_size=4, collate_fn=stacked),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_data_gives_the_same_scores(shape: str) -> None:
    model = mlp()
    oracle = TorchOracle(model)
    got = scores(oracle, SHAPES[shape])
    torch.testing.assert_close(got, scores(TorchOracle(model), (X, Y)), rtol=1e-5, atol=1e-6)
    labels = oracle.read(SHAPES[shape], role="test").labels
    assert labels is not None
    np.testing.assert_array_equal(labels, Y.numpy())


@pytest.mark.parametrize("items", [Items(X, Y), TensorDataset(X, Y)])
@pytest.mark.parametrize("size", [1, 3, 256])
def test_a_loader_is_read_in_batches_that_suit_the_machine(items: Any, size: int) -> None:
    oracle = TorchOracle(mlp())
    train = oracle.read(DataLoader(items, batch_size=size, shuffle=True), role="train")
    assert [len(r) for r in oracle.scores(train)] == [N]


def test_part_of_the_examples() -> None:
    oracle = TorchOracle(mlp())
    everything = scores(oracle, Items(X, Y))
    part = oracle.read(Items(X, Y), role="test").take(np.array([7, 2])).take(np.array([1, 0, 1]))
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
    want = scores(TorchOracle(model), (X, b, Y))
    for given in ({"a": X, "b": b, "labels": Y}, ((X, b), Y), ({"a": X, "b": b}, Y)):
        torch.testing.assert_close(scores(TorchOracle(model), given), want)
    w = torch.rand(N) + 1
    torch.testing.assert_close(scores(TorchOracle(model), (X, b, Y, w)), w[:, None] * want)
    assert TorchOracle(model, "categorical").read((X, b), role="test").labels is None


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
    oracle = TorchOracle(model)
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
    oracle = TorchOracle(model)
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


class Drawing(Noisy):
    """Random by a generator of its own, which nobody else can set."""

    def __init__(self) -> None:
        super().__init__(X, Y)
        self.generator = np.random.default_rng()

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[i] + 0.01 * torch.tensor(self.generator.random(4)).float(), int(Y[i])


def test_random_augmentation_is_said_once_and_made_still() -> None:
    oracle = TorchOracle(mlp())
    state = torch.get_rng_state()
    with pytest.warns(ExemplaWarning, match="one version, drawn by its position"):
        train = oracle.read(DataLoader(Noisy(X, Y), batch_size=4, shuffle=True), role="train")
    one, other = (dense(oracle, train) for _ in range(2))
    assert torch.equal(one, other)
    torch.testing.assert_close(dense(oracle, train.take(np.array([7, 2]))), one[[7, 2]])
    assert not torch.allclose(one, dense(oracle, oracle.read((X, Y), role="train")), rtol=1e-4)
    assert torch.equal(torch.get_rng_state(), state)
    assert train.labels is not None
    with pytest.warns(ExemplaWarning, match="give the dataset without augmentation"):
        oracle.read(Drawing(), role="train")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oracle.read(Items(X, Y), role="train")


def dense(oracle: TorchOracle, examples: TorchExamples) -> Tensor:
    rows = list(oracle.scores(examples))
    return torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in rows])


class Stream(IterableDataset):
    """Examples one after the other, as tuples, dictionaries or batches; read how often?"""

    def __init__(self, count: int = N, form: str = "tuples") -> None:
        self.count, self.form, self.read = count, form, 0

    def __iter__(self) -> Any:
        self.read += 1
        for i in range(self.count):
            if self.form == "dictionaries":
                yield {"__key__": f"row{i}", "input": X[i], "cls": int(Y[i])}
            elif self.form == "tuples":
                yield X[i], int(Y[i])
            elif i % 4 == 0:
                yield X[i : i + 4], Y[i : i + 4]


@pytest.mark.parametrize("form", ["tuples", "dictionaries", "batches"])
def test_a_stream_is_read_once_and_kept(form: str) -> None:
    stream, oracle = Stream(form=form), TorchOracle(mlp())
    given = DataLoader(stream, batch_size=None) if form == "batches" else stream
    with pytest.warns(ExemplaWarning, match=r"read once, its 10 examples are kept"):
        got = scores(oracle, given)
    torch.testing.assert_close(got, scores(TorchOracle(mlp()), (X, Y)))
    scores(TorchOracle(mlp()), given)
    assert stream.read == 1


def test_a_loader_of_a_stream_collates_in_its_own_way() -> None:
    loader = DataLoader(Stream(), batch_size=3, collate_fn=stacked)
    with pytest.warns(ExemplaWarning, match="read once"):
        got = scores(TorchOracle(mlp()), loader)
    torch.testing.assert_close(got, scores(TorchOracle(mlp()), (X, Y)))


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return ((X[i % N], int(Y[i % N])) for i in count())


@pytest.mark.parametrize("limit", ["memory", "examples"])
@pytest.mark.parametrize("loader", [False, True])
def test_a_stream_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, loader: bool
) -> None:
    if limit == "memory":
        monkeypatch.setattr(streams, "available_memory", lambda: 20_000)
    else:
        monkeypatch.setattr(streams, "_MAX_STREAM_EXAMPLES", 1000)
    data = DataLoader(Endless(), batch_size=4) if loader else Endless()
    with pytest.raises(ExemplaError, match="without an end"):
        TorchOracle(mlp()).read(data, role="train")


class Faulty(Items):
    """Fails in one of many ways at one example."""

    def __init__(self, fault: str) -> None:
        super().__init__(X, Y)
        self.fault = fault

    def __len__(self) -> int:
        if self.fault == "length":
            raise RuntimeError("no length")
        return {"overstated": 2 * N, "negative": -3}.get(self.fault, N)

    def __getitem__(self, i: int) -> Any:
        x, y = X[i], int(Y[i])
        if i != 7 and self.fault not in ("sparse", "meta"):
            return x, y
        if self.fault in ("file", "key"):
            raise {"file": OSError("no such file"), "key": KeyError("k")}[self.fault]
        values = {
            "none": None, "parts": (x,), "text": ("seven", y),
            "sparse": (x.to_sparse(), y), "meta": (x.to("meta"), y),
        }  # fmt: skip
        return values.get(self.fault, (x, y))


FAULTS = {
    "file": "example 7 of this Faulty cannot be read .OSError: no such file",
    "key": "example 7 of this Faulty cannot be read .KeyError",
    "none": "example 7 of this Faulty is None",
    "overstated": "states a length of 20 and has no example 1",
    "negative": "length of this Faulty cannot be read",
    "length": "length of this Faulty cannot be read .RuntimeError: no length",
    "parts": "these examples have no labels",
    "text": "cannot be collated to a batch",
    "sparse": "give a dense one",
    "meta": "meta device",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("loader", [False, True])
def test_a_data_set_that_fails_is_named(fault: str, loader: bool) -> None:
    data: Any = DataLoader(Faulty(fault), batch_size=4) if loader else Faulty(fault)
    oracle = TorchOracle(mlp())
    with pytest.raises(ExemplaError, match=FAULTS[fault]) as caught:
        list(oracle.scores(oracle.read(data, role="train")))
    assert "\n" not in str(caught.value)


class Backwards(Items):
    def __getitem__(self, i: int) -> Any:
        return X.numpy()[i, ::-1], int(Y[i])


def test_arrays_with_negative_strides_are_read() -> None:
    wanted = scores(TorchOracle(mlp()), (X.flip(1), Y))
    for given in ((X.numpy()[:, ::-1], Y), Backwards(X, Y), DataLoader(Backwards(X, Y), 3)):
        torch.testing.assert_close(scores(TorchOracle(mlp()), given), wanted)
    turned = scores(TorchOracle(mlp()), (X.numpy()[::-1], Y.numpy()[::-1]))
    torch.testing.assert_close(turned, scores(TorchOracle(mlp()), (X.flip(0), Y.flip(0))))


MISTAKES: dict[str, tuple[Any, str]] = {
    "generator": (((X[i], Y[i]) for i in range(N)), "read only once"),
    "iterator": (iter(DataLoader(Items(X, Y))), "read only once"),
    "empty stream": (Stream(0), "empty"),
    "column of objects": ([{"input": object(), "y": 0}] * 3, "holds object, which is not an array"),
    "empty arrays": ((X[:0], Y[:0]), "empty"),
    "empty loader": (DataLoader(TensorDataset(X[:0], Y[:0])), "empty"),
    "empty list": ([], "empty"),
    "lengths that differ": ((X, Y[:5]), "different lengths"),
    "text labels": ((X, np.array(["a", "b"] * 5)), "encode it as numbers"),
    "too many parts": ((X, Y, X, X), "4 parts"),
    "unknown columns": ({"u": X, "v": X, "labels": Y}, "name the columns"),
    "part of a loader": (
        DataLoader(Items(X, Y), sampler=SubsetRandomSampler([1, 2])),
        "reads only part",
    ),
    "no data": (None, "empty"),
    "ragged lists": (([[1.0], [1.0, 2.0]], [0, 1]), "pad them"),
    "no labels": (X, "labels"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_clear_sentence(mistake: str) -> None:
    given, message = MISTAKES[mistake]
    oracle = TorchOracle(mlp())
    with pytest.raises(ExemplaError, match=message) as caught:
        oracle.read(given, role="train")
    assert "\n" not in str(caught.value)


# ---- what cannot be given to a network, and what only looks so


def masked(values: np.ndarray) -> np.ma.MaskedArray:
    hidden = np.zeros(values.shape, dtype=bool)
    hidden.flat[0] = True
    return np.ma.masked_array(values, mask=hidden)


def with_nan(values: Tensor) -> Tensor:
    values = values.clone()
    values.view(-1)[0] = float("nan")
    return values


UNUSABLE = {
    "whole numbers": ((X.long(), Y), r"X holds whole numbers .* give X\.float\(\)"),
    "bytes": ((X.to(torch.uint8), Y), r"give X\.float\(\)"),
    "another width": ((X[:, :2], Y), r"takes examples of shape \(2,\)"),
    "another width, named": ({"input": X[:, :2], "y": Y}, r"of shape (input )?\(2,\)"),
    "nested tensor": ((torch.nested.nested_tensor([X[0], X[1]]), Y[:2]), "give a dense one"),
    "hidden entries": ((masked(X.numpy()), Y), "masked array"),
    "hidden labels": ((X, masked(Y.numpy())), "masked array"),
    "complex": ((X.to(torch.complex64), Y), "give real numbers"),
    "complex array": ((X.numpy() + 1j, Y), "complex64 cannot be given"),
    "complex labels": ((X, Y.to(torch.complex64)), "give real numbers"),
    "objects": ((X.numpy().astype(object), Y), "type object cannot be given"),
    "no values": ((X.to("meta"), Y), "meta device"),
    "labels without values": ((X, Y.to("meta")), "meta device"),
    "sparse tensor": ((X.to_sparse(), Y), "give a dense one"),
    "sparse matrix": ((csr_matrix(X.numpy()), Y), "toarray"),
    "quantized": ((torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), Y), "give real numbers"),
    "huge numbers": ((X, np.full(N, 2**63 + 1, dtype=np.uint64)), r"above 2\*\*63"),
    "NaN": ((with_nan(X), Y), r"return NaN or infinity \(rows 0\)"),
    "two labels each": ((X, torch.stack([Y, Y], 1)), "cannot be inferred|one class number"),
    "one label for all": ((X, torch.tensor(1)), "one label for every example"),
    "a number as labels": ((X, 1), "one label for every example"),
    "weights of NaN": ((X, Y, with_nan(torch.ones(N))), "negative, NaN, infinite"),
    "negative weights": ((X, Y, -torch.ones(N)), "negative, NaN, infinite"),
    "no weight": ((X, Y, torch.zeros(N)), "every weight is zero"),
    "weights by column": ((X, Y, torch.ones(N, 2)), "one number for each"),
    "complex weights": ((X, Y, torch.ones(N, dtype=torch.complex64)), "give real numbers"),
}


@pytest.mark.parametrize("mistake", UNUSABLE)
def test_what_cannot_be_used_is_said(mistake: str) -> None:
    given, message = UNUSABLE[mistake]
    with pytest.raises(ExemplaError, match=message) as caught:
        TorchOracle(mlp()).read(given, role="train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [torch.stack([Y, Y], 1), Y.float() + 0.5])
def test_questioned_labels_must_be_class_numbers(labels: Tensor) -> None:
    oracle = TorchOracle(mlp())
    oracle.read((X, Y), role="train")
    with pytest.raises(ExemplaError, match=r"one class number|fractions"):
        oracle.read((X, labels), role="test")


class Weighted(Items):
    """Items with a weight each, one of which is none."""

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i], torch.tensor(float("nan") if i == 7 else 1.0)


def test_weights_of_a_dataset_are_checked_as_they_are_read() -> None:
    oracle = TorchOracle(mlp())
    with pytest.raises(ExemplaError, match=r"negative, NaN, infinite .*\(rows 7\)"):
        list(oracle.scores(oracle.read(Weighted(X, Y), role="train")))


def same_scores(given: Any, expected: Any = (X, Y)) -> None:
    oracle = TorchOracle(mlp())
    first, other = (list(oracle.scores(oracle.read(d, role="train"))) for d in (expected, given))
    for one, two in zip(first[0].factors, other[0].factors, strict=True):
        torch.testing.assert_close(one.dense(), two.dense())


def test_other_types_of_the_same_numbers() -> None:
    with torch.inference_mode():
        made_in_inference = X.clone()
    same_scores((X.numpy().astype(">f4"), Y.numpy().astype(">i8")))
    same_scores((X.numpy().astype(np.longdouble), Y))
    same_scores((X, Y.to(torch.uint16)))
    same_scores((X, Y[:, None]))
    same_scores((made_in_inference, Y))
    same_scores((X.clone().requires_grad_(), Y))
    same_scores((X.half(), Y), expected=(X.half().float(), Y))


def test_weights_of_questioned_examples_do_not_count() -> None:
    oracle = TorchOracle(mlp())
    oracle.read((X, Y), role="train")
    plain, weighted = (
        next(oracle.scores(oracle.read(d, role="test"))).factors[0].dense()
        for d in ((X, Y), (X, Y, torch.full((N,), 3.0)))
    )
    torch.testing.assert_close(plain, weighted)


def test_a_model_of_nan_and_one_without_values() -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")  # type: ignore[index]
    with pytest.raises(ExemplaError, match=r"the model holds NaN or infinity in 0\.weight"):
        TorchOracle(model).read((X, Y), role="train")
    with pytest.raises(ExemplaError, match="meta device"):
        TorchOracle(mlp().to("meta"))


@pytest.mark.parametrize(
    "parameters", ["nowhere", ["0.weight", "nowhere"], [], 3, [None], {"a": 1}]
)
def test_parameters_that_name_nothing(parameters: Any) -> None:
    with pytest.raises(ExemplaError, match="parameters="):
        TorchOracle(mlp(), parameters=parameters)


@pytest.mark.parametrize("device", ["nonsense", 1.5, "cuda:x"])
def test_a_device_that_is_none(device: Any) -> None:
    with pytest.raises(ExemplaError, match="is not a device"):
        TorchOracle(mlp(), device=device)
