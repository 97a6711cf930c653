"""The Fisher as an operator, against rows that are written out, and influence that uses it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import exempla  # noqa: E402
from exempla.errors import ExemplaError  # noqa: E402
from exempla.kernel.basis import IdentitySketch  # noqa: E402
from exempla.oracles import make_oracle  # noqa: E402


class Mixed(nn.Module):
    """Convolution, batch norm, an embedding-like table and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.hidden, self.out = nn.Linear(3 * 16, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.conv(x)))
        return self.out(torch.tanh(self.hidden(x.flatten(1))))


def job(n: int = 40):
    torch.manual_seed(0)
    model = Mixed().double().eval()
    X, y = torch.randn(n, 1, 4, 4, dtype=torch.float64), torch.randint(0, 3, (n,))
    return model, X, y


@pytest.mark.parametrize("weighted", [False, True])
def test_products_are_those_of_the_rows(weighted):
    model, X, y = job()
    oracle = make_oracle(model)
    weights = np.linspace(0.5, 2.0, len(X))
    train = oracle.read((X, y, weights) if weighted else (X, y), role="train")
    operator = oracle.gauss_newton(train)
    write = IdentitySketch(oracle.layers).project
    rows = torch.cat([write(batch) for batch in oracle.fisher_rows(train)])
    scores = torch.cat([write(batch) for batch in oracle.scores(train)])
    v = torch.randn(rows.shape[1], 3, dtype=torch.float64)
    torch.testing.assert_close(operator.product(v), rows.T @ (rows @ v) / len(X))
    np.testing.assert_allclose(operator.along_scores(v), (scores @ v).numpy(), rtol=1e-8)
    asked = oracle.read((X[:7], y[:7]), role="test")
    plain = torch.cat([write(batch) for batch in oracle.scores(asked)])
    mix = np.column_stack([np.arange(1.0, 8.0), np.zeros(7), np.eye(7)[3]])
    expected = plain.T @ torch.from_numpy(mix)
    torch.testing.assert_close(operator.score_sums(asked, "true", mix), expected)


class Attention(nn.Module):
    """One causal attention layer of torch's fused function, as transformers use it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = (t.unsqueeze(1) for t in self.mix(x).chunk(3, -1))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h.squeeze(1)[:, -1])


def test_fused_attention_has_second_derivatives():
    torch.manual_seed(0)
    model, X, y = Attention(), torch.randn(9, 5, 4), torch.arange(9) % 3
    oracle = make_oracle(model)
    train = oracle.read((X, y), role="train")
    rows = torch.cat([IdentitySketch(oracle.layers).project(b) for b in oracle.fisher_rows(train)])
    v = torch.randn(rows.shape[1], 2)
    found = oracle.gauss_newton(train).product(v)
    torch.testing.assert_close(found, rows.T @ (rows @ v) / len(X), rtol=1e-3, atol=1e-5)


def test_a_narrow_sketch_ends_at_the_exact_answer():
    model, X, y = job(120)
    train, test = (X[:100], y[:100]), (X[100:], y[100:])
    exact = exempla.Explainer(model, damping=0.05, progress=False).fit(train)
    narrow = exempla.Explainer(model, damping=0.05, sketch=20, progress=False).fit(train)
    wanted = exact.influence(test).mean(1)
    found = narrow.set_influence(test)
    assert 1 < found.steps <= 25
    assert found.residual <= 1e-2
    error = np.linalg.norm(found.values - wanted) / np.linalg.norm(wanted)
    alone = narrow.influence(test).mean(1)
    assert error < 0.03 < 0.3 < np.linalg.norm(alone - wanted) / np.linalg.norm(wanted)
    np.testing.assert_allclose(exact.set_influence(test).values, wanted, rtol=1e-9)
    assert exact.set_influence(test).solver == "exact"


def test_every_questioned_example_ends_at_the_exact_answer(monkeypatch):
    model, X, y = job(120)
    train, test = (X[:100], y[:100]), (X[100:], y[100:])
    exact = exempla.Explainer(model, damping=0.05, progress=False).fit(train)
    narrow = exempla.Explainer(model, damping=0.05, sketch=20, progress=False).fit(train)
    wanted = exact.influence(test)
    found = narrow.influence(test, solve="exact")
    error = np.linalg.norm(found - wanted, axis=0) / np.linalg.norm(wanted, axis=0)
    assert error.max() < 0.05
    np.testing.assert_allclose(exact.influence(test, solve="exact"), wanted, rtol=1e-9)
    # in blocks of three, the last one smaller: the same columns
    parameters = narrow.embeddings[0].evidence.parameters
    monkeypatch.setattr("exempla.kernel.solve.MAX_SOLVE_BYTES", 3 * 40 * parameters)
    np.testing.assert_allclose(narrow.influence(test, solve="exact"), found, rtol=0.05, atol=1e-3)


def test_several_models_and_weights_of_the_set():
    model, X, y = job(60)
    other, *_ = job(60)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
    weights = np.arange(1.0, 11.0)
    both = exempla.Explainer([model, other], damping=0.1, sketch=15, progress=False).fit((X, y))
    each = [
        exempla.Explainer(m, damping=0.1, sketch=15, progress=False).fit((X, y))
        for m in (model, other)
    ]
    asked = (X[:10], y[:10])
    found = both.set_influence(asked, weights=weights).values
    parts = [e.set_influence(asked, weights=weights).values for e in each]
    np.testing.assert_allclose(found, np.mean(parts, axis=0), rtol=1e-9)
    for wrong in (np.ones((2, 10)), np.ones(3), np.zeros(10)):
        with pytest.raises(ExemplaError):
            both.set_influence(asked, weights=wrong)


def test_the_model_is_left_as_it_was():
    model, X, y = job()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explainer = exempla.Explainer(model, damping=0.1, sketch=10, progress=False).fit((X, y))
    explainer.set_influence((X[:5], y[:5]))
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
