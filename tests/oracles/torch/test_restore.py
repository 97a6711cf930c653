"""A model is only borrowed: nothing about it differs afterwards, however a pass ends."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import exempla
from exempla.oracles.torch.model import ModelRestorer, with_checkpoints
from exempla.oracles.torch.oracle import TorchOracle

N = 6


class Restless(nn.Module):
    """Counts its calls in a buffer, draws random numbers, and may be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, max_norm=0.5)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))
        self.fail: BaseException | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        self.last = torch.rand(())
        random.random()
        np.random.rand()  # noqa: NPY002
        if self.fail is not None:
            raise self.fail
        return self.head(self.frozen(self.body(self.table(tokens).mean(1))))


def prepared() -> Restless:
    torch.manual_seed(0)
    model = Restless().train()
    model.body[2].eval()  # a mixed state must come back mixed
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.body[0].register_forward_hook(lambda *args: None)
    return model


def portrait(model: Restless) -> dict[str, Any]:
    return {
        "values": copy.deepcopy(model.state_dict()),
        "objects": {name: id(t) for name, t in [*model.named_parameters(), *model.named_buffers()]},
        "modes": [m.training for m in model.modules()],
        "flags": [p.requires_grad for p in model.parameters()],
        "grads": [(id(p.grad), copy.deepcopy(p.grad)) for p in model.parameters()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
                  for m in model.modules()],
        "dtypes": [(p.dtype, p.device) for p in model.parameters()],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()),  # noqa: NPY002
        "fast attention": torch.backends.mha.get_fastpath_enabled(),
        "mode": torch.is_grad_enabled(),
    }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


DATA = (torch.arange(N * 2).reshape(N, 2) % 9, torch.arange(N) % 3)


def differences(model: Restless, before: dict[str, Any]) -> list[str]:
    after = portrait(model)
    return [key for key in before if not same(before[key], after[key])]


@pytest.mark.parametrize("grad", [True, False])
def test_every_kind_of_pass_leaves_the_model_as_it_was(grad: bool) -> None:
    model = prepared()
    with torch.set_grad_enabled(grad):
        before = portrait(model)
        oracle = TorchOracle(model, parameters=["head", "body"])
        train = oracle.read(DATA, role="train")
        for work in (oracle.scores, oracle.fisher_rows):
            rows = list(work(train))
            assert sum(len(r) for r in rows) >= N
        oracle.predict(train)
        oracle.log_likelihood(train)
        assert differences(model, before) == []


def test_a_row_that_is_held_between_steps_holds_nothing_open() -> None:
    model = prepared()
    oracle = TorchOracle(model)
    train = oracle.read(DATA, role="train")
    before = portrait(model)
    oracle.batch_size = 2
    walks = [oracle.scores(train), oracle.fisher_rows(train)]
    for walk in walks:
        next(walk)
        assert differences(model, before) == []  # at the pause, before the walk is finished
    del walks
    assert differences(model, before) == []


@pytest.mark.parametrize("failure", [ValueError("inside the model"), KeyboardInterrupt()])
def test_an_interrupted_pass_leaves_the_model_as_it_was(failure: BaseException) -> None:
    model = prepared()
    oracle = TorchOracle(model)
    train = oracle.read(DATA, role="train")
    before = portrait(model)
    model.fail = failure
    passes: list[Callable[[], Any]] = [
        lambda: list(oracle.scores(train)),
        lambda: list(oracle.fisher_rows(train)),
        lambda: oracle.predict(train),
        lambda: oracle.read(DATA, role="test"),
    ]
    for work in passes:
        with pytest.raises(type(failure)):
            work()
        assert differences(model, before) == []


def test_inside_inference_mode() -> None:
    model = prepared()
    oracle = TorchOracle(model)
    with torch.inference_mode():
        train = oracle.read(DATA, role="train")
        inside = torch.cat([r.factors[-1].dense() for r in oracle.scores(train)])
    outside = torch.cat([r.factors[-1].dense() for r in oracle.scores(train)])
    assert torch.equal(inside, outside)


class InPlace(nn.Module):
    """Normalises its inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 0.5
        x /= 0.25
        return self.body(x)


@pytest.mark.parametrize("kind", ["tensors", "arrays", "TensorDataset", "named"])
def test_a_forward_that_works_in_place_changes_no_data(kind: str) -> None:
    x, y = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3
    mine = x.clone()
    data: Any = {
        "tensors": (mine, y),
        "arrays": (mine.numpy(), y.numpy()),
        "TensorDataset": torch.utils.data.TensorDataset(mine, y),
        "named": {"x": mine, "labels": y},
    }[kind]
    model = InPlace()
    explainer = exempla.Explainer(model, progress=False).fit(data)
    test = x[:2].clone(), y[:2]
    found = explainer.influence(test)
    assert torch.equal(mine, x)
    assert torch.equal(test[0], x[:2])
    plain = exempla.Explainer(model.body, progress=False).fit(((x - 0.5) / 0.25, y))
    np.testing.assert_allclose(found, plain.influence(((x[:2] - 0.5) / 0.25, y[:2])), rtol=1e-4)


def hooked(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    if kind == "backward":
        model[2].register_full_backward_hook(lambda *given: (2 * given[1][0],))
    elif kind == "before":
        model[2].register_full_backward_pre_hook(lambda *given: (2 * given[1][0],))
    elif kind == "parameter":
        model[2].weight.register_hook(lambda g: 3 * g)
    return model


@pytest.mark.parametrize("kind", ["backward", "before", "parameter"])
def test_hooks_that_change_gradients_are_not_run(kind: str) -> None:
    data = torch.randn(9, 4), torch.arange(9) % 3
    model = hooked(kind)
    oracle, plain = TorchOracle(model), TorchOracle(hooked("none"))
    train = oracle.read(data, role="train")
    found, wanted = (
        torch.cat([torch.cat([f.dense() for f in r.factors], 1) for r in one.scores(part)])
        for one, part in ((oracle, train), (plain, plain.read(data, role="train")))
    )
    torch.testing.assert_close(found, wanted)
    left = model[2].weight._backward_hooks or model[2]._backward_hooks
    assert left or model[2]._backward_pre_hooks, "they are put back"


def test_a_whole_fit_in_inference_mode() -> None:
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    with torch.inference_mode():
        torch.manual_seed(0)
        inside = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        found = exempla.Explainer(inside, progress=False).fit((x, y)).influence((x[:2], y[:2]))
    outside = exempla.Explainer(hooked("none"), progress=False).fit((x, y))
    np.testing.assert_allclose(found, outside.influence((x[:2], y[:2])), rtol=1e-5)


def test_only_the_selected_parameters_have_gradients_on() -> None:
    model = prepared()
    with ModelRestorer(model, {id(model.head.weight)}).borrowed():
        assert [name for name, p in model.named_parameters() if p.requires_grad] == ["head.weight"]
        assert not any(m.training for m in model.modules())
        assert torch.is_grad_enabled()


def test_dropout_inside_a_recurrent_layer_is_off_and_put_back() -> None:
    torch.manual_seed(0)
    cell = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell, nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(x)[0][:, -1])

    model = Last().train()
    oracle = TorchOracle(model, parameters="head*")
    train = oracle.read((torch.randn(6, 5, 3), torch.tensor([0, 1, 2] * 2)), role="train")
    first, second = (next(iter(oracle.scores(train))).factors[0].dense() for _ in range(2))
    assert torch.equal(first, second)
    assert first.abs().sum() > 0
    assert cell.dropout == 0.5
    assert cell.training
    model.eval()
    list(oracle.scores(train))
    assert cell.dropout == 0.5
    assert not cell.training


def test_a_model_is_looked_at_as_its_user_left_it() -> None:
    model, seen = prepared(), []
    expected = list(TorchOracle(model).network.parameters)
    borrower = TorchOracle(model, parameters="head")

    def look() -> None:
        seen.append(list(TorchOracle(model).network.parameters))
        (copied,) = with_checkpoints([model, model.state_dict()])[1:]
        seen.append([m.training for m in copied.modules()])

    thread = threading.Thread(target=look)
    with borrower.restorer.borrowed():
        assert not model.body[0].weight.requires_grad
        thread.start()
        thread.join(0.2)  # waits, as long as the model is not as it was
    thread.join(10)
    assert seen == [expected, [m.training for m in model.modules()]]
