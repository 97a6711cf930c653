"""What is seen of the Fisher while it is summed: norms of whole rows from a sample of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from torch import nn

import exempla
from exempla.kernel import fisher as estimate
from exempla.kernel.embed import Embedding, EmbeddingOptions, embed_training_set
from exempla.oracles import make_oracle
from exempla.oracles.base import Factors, ScoreRows


@pytest.fixture(scope="module")
def digits() -> tuple[MLPClassifier, np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    order = np.argsort(y[:1200], kind="stable")  # sorted by class: a sample must not see one only
    X, y = X[order] / 16, y[order]
    return MLPClassifier((24,), max_iter=12, random_state=0).fit(X, y), X, y


def embedded(digits: tuple[MLPClassifier, np.ndarray, np.ndarray]) -> Embedding:
    model, X, y = digits
    return embed_training_set(make_oracle(model), (X, y), EmbeddingOptions(sketch=40))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_measured_on_every_row_it_is_the_plain_sum(digits, monkeypatch):
    monkeypatch.setattr(estimate, "MEASURED", 10**6)
    seen = embedded(digits)
    sample = seen.oracle.read(digits[1:], role="train").take(
        np.sort(np.random.default_rng(0).choice(1200, 160, replace=False))
    )
    norms = np.concatenate([batch.norm2() for batch in seen.oracle.fisher_rows(sample)])
    assert seen.evidence.examples == 160
    assert seen.evidence.trace == pytest.approx(norms.sum() / 160)
    assert seen.evidence.energy2 == pytest.approx((norms**2).sum())
    assert 0.3 < seen.evidence.share < 0.999


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_sample_of_norms_comes_close(digits, monkeypatch):
    monkeypatch.setattr(estimate, "MEASURED", 10**6)
    whole = embedded(digits).evidence
    monkeypatch.setattr(estimate, "MEASURED", 20)
    part = embedded(digits).evidence
    assert part.trace != whole.trace
    assert part.trace == pytest.approx(whole.trace, rel=0.1)
    assert part.share == pytest.approx(whole.share, abs=0.08)
    assert part.rows == whole.rows


def test_rows_that_the_basis_was_computed_from_say_nothing_about_the_others():
    """It fits them better, and of most examples only a sample is measured."""
    torch.manual_seed(0)
    X = torch.randn(2000, 300) + torch.randn(2000, 10) @ torch.randn(10, 300)
    y = X[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(300, 16), nn.ReLU(), nn.Linear(16, 4))
    seen = exempla.Explainer(model, sketch=500, progress=False).fit((X, y)).embeddings[0]
    assert seen.sketch.seen is not None  # rows were kept
    assert 0 < len(seen.sketch.seen) < 0.5 * len(X)
    train = seen.oracle.read((X, y), role="train")
    whole = sum(batch.norm2().sum() for batch in seen.oracle.fisher_rows(train))
    assert seen.evidence.trace * seen.evidence.examples == pytest.approx(whole, rel=0.02)
    inside = sum(
        (seen.sketch.project(batch) ** 2).sum() for batch in seen.oracle.fisher_rows(train)
    )
    assert 1 - seen.evidence.share == pytest.approx(1 - float(inside) / whole, rel=0.1)


def test_examples_without_fisher_rows_are_passed_over():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12_000, 10))
    y = (X[:, 0] > 0).astype(int)
    X[6000:] += 100 * (2 * y[6000:, None] - 1)  # far outside the margin
    model = LinearSVC(C=100.0).fit(X[:6000], y[:6000])
    fitted = exempla.Explainer(model, progress=False).fit((X, y))
    assert 0 < fitted.embeddings[0].evidence.rows < 6000


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("measured", [20, 10**6])
def test_pieces_change_nothing(digits, monkeypatch, measured):
    monkeypatch.setattr(estimate, "MEASURED", measured)
    whole = embedded(digits).evidence
    monkeypatch.setattr(estimate, "PIECE_BYTES", 8 * 40 * 50)  # fifty rows
    parts = embedded(digits).evidence
    assert (parts.rows, parts.examples) == (whole.rows, whole.examples)
    for name in ("trace", "energy2", "squared_norm", "share", "gradient_gap"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_what_is_counted_of_a_batch_is_counted_once(monkeypatch):
    monkeypatch.setattr(estimate, "PIECE_BYTES", 8 * 3)
    rows = ScoreRows(np.arange(10), (Factors(np.ones((10, 1)), np.eye(10)),), counted=4)
    parts = list(estimate.pieces(rows, 8))
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    assert sum(part.counted for part in parts) == 4
    assert list(estimate.pieces(rows, 1)) == [rows]
