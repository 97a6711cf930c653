"""A model that disagrees with the labels it is explained with says so first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import exempla
from exempla.explainer import Explainer
from exempla.quality import disagreement

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3)) + 3 * np.eye(3)[np.arange(240) % 3]
Y = np.arange(240) % 3


def fitted(labels: np.ndarray) -> LogisticRegression:
    return LogisticRegression(max_iter=500).fit(X, labels)


def first_warning(model: object, labels: np.ndarray) -> str:
    asked = (X[:4] + 0.01, labels[:4])  # near training rows, but not copies of them
    answer = exempla.explain(model, (X, labels), asked, k=3, progress=False)
    return answer.warnings[0] if answer.warnings else ""


def test_a_good_model_says_nothing() -> None:
    assert first_warning(fitted(Y), Y) == ""


def test_classes_in_another_order_are_told() -> None:
    said = first_warning(fitted(Y), (Y + 1) % 3)
    assert "numbered otherwise (what it calls 0 is 1, 1 is 2, 2 is 0)" in said


def test_two_classes_exchanged_among_several() -> None:
    swapped = np.array([0, 2, 1])[Y]
    assert "what it calls 1 is 2, 2 is 1" in first_warning(fitted(Y), swapped)


def test_labels_of_chance() -> None:
    labels = RNG.integers(0, 3, 240)
    assert "hardly better than the majority-class baseline" in first_warning(fitted(Y), labels)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool])
def test_a_class_is_the_same_however_it_is_written(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.tensor(X[Y < 2]).float()
    y = torch.tensor(Y[Y < 2])
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-2.0, 2.0, 0.0]]))
        model.bias.zero_()
    asked = (x[:3] + 0.01, y[:3].to(kind))
    answer = exempla.explain(model, (x, y.to(kind)), asked, 2, side="proponents", progress=False)
    assert not answer.warnings


def test_labels_of_pixels_are_compared_where_they_count() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 1, 4, 4)
    y = (x[:, 0] > 0).long()
    y[:, 0] = 255
    model = nn.Conv2d(1, 2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([-3.0, 3.0]).reshape(2, 1, 1, 1))
    good = exempla.explain(model, (x, y), (x[:2], y[:2]), k=2, progress=False)
    assert not any("classes" in said or "baseline" in said for said in good.warnings)
    turned = torch.where(y == 255, 255, 1 - y)
    bad = exempla.explain(model, (x, turned), (x[:2], turned[:2]), k=2, progress=False)
    assert "what it calls 0 is 1, 1 is 0" in bad.warnings[0]


def test_it_is_looked_at_once_for_each_training_set(monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = Explainer(fitted(Y), progress=False).fit((X, Y))
    embedding = explainer.embeddings[0]
    assert disagreement(embedding) == ""
    monkeypatch.setattr(type(embedding.oracle), "predict", None)
    assert disagreement(embedding) == ""
