"""Rules of damping that look at a network's weights."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.kernel.embed import typical_square

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def network(scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(scale)
    return made


def digits(n: int):
    X, y = load_digits(return_X_y=True)
    return torch.from_numpy(X[:n] / 16).float(), torch.from_numpy(y[:n])


def chosen(explainer: exempla.Explainer, rule: str = "auto"):
    return explainer.set_damping(rule).kernel("influence").dampings[0]


def test_trust_is_what_its_formula_says():
    X, y = digits(150)
    model = network()
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    scores, expected = [], 0.0
    for x, label in zip(X, y, strict=True):
        log_p = torch.log_softmax(model(x), 0)
        for c in range(10):
            own = torch.autograd.grad(log_p[c], list(model.parameters()), retain_graph=True)
            square = float(sum((g**2).sum() for g in own))
            expected += float(log_p[c].detach().exp()) * square / len(X)
            if c == label:
                scores.append(square)
    layers = [model[0], model[2]]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    squares = [sum((p.detach() ** 2).sum().item() for p in layer.parameters()) for layer in layers]
    inverse = sum(n * n / s for n, s in zip(sizes, squares, strict=True)) / sum(sizes)
    by_hand = np.mean(scores) / expected * inverse / (0.5 * len(X))
    assert chosen(explainer).value == pytest.approx(by_hand, rel=1e-3)
    assert chosen(explainer).rule.startswith("trust")


def test_more_examples_are_trusted_further():
    few, many = (
        chosen(exempla.Explainer(network(), progress=False).fit(digits(n))).value
        for n in (100, 1000)
    )
    assert 5 < few / many < 20


def test_a_model_linear_in_its_parameters_has_no_limit():
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=2000, tol=1e-8).fit(X / 16, y)
    explainer = exempla.Explainer(model, progress=False).fit((X / 16, y))
    assert chosen(explainer).rule.startswith("implicit")
    assert chosen(explainer, "trust") == chosen(explainer, "implicit")
    assert chosen(explainer).value < 1e-3


def test_the_typical_weight_leaves_layers_of_zeros_out():
    assert typical_square([(10, 10.0), (30, 0.3)]) == pytest.approx(40 / (10 + 30 * 100))
    assert typical_square([(10, 10.0), (30, 0.3), (5, 0.0)]) == pytest.approx(40 / 3010)
    assert typical_square([(10, 10.0)]) is None
    assert typical_square(None) is None


def test_moments_of_a_run_are_held_back_by_the_weights_at_its_end():
    train = digits(200)
    model, earlier = network(), {k: 0.5 * v for k, v in network().state_dict().items()}
    alone = exempla.Explainer(model, progress=False).fit(train)
    run = exempla.Explainer([model, earlier], progress=False).fit(train)
    first, second = (e.evidence for e in run.embeddings)
    assert first.weight_square == second.weight_square
    assert chosen(run).value == pytest.approx(chosen(alone).value / 2)
    at_half = run.kernel("influence").dampings[1].value
    expected = second.misfit / (200 * first.weight_square)
    assert at_half == pytest.approx(expected)
    other = exempla.Explainer([model, network(0.5)], progress=False).fit(train)
    assert chosen(other).value == pytest.approx(chosen(alone).value), "a model of its own"
