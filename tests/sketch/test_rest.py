"""What the strongest directions leave, seen at random: against matrices written out."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import nn

from exempla import Explainer
from exempla.arrays import to_numpy
from exempla.fisher.full import FullMetric
from exempla.fisher.split import SplitMetric
from exempla.oracles import make_oracle
from exempla.oracles.base import in_float64
from exempla.sketch import choose
from exempla.sketch.kronecker import KroneckerSketch, strongest
from exempla.sketch.moments import Moments, Spectrum
from exempla.sketch.rest import agreement
from exempla.tasks.clean.harm import kernel_with
from tests.reference import dense_rows

WIDTH = 60


class Small(nn.Module):
    """A table, a convolution and linear layers with several positions."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.conv = nn.Conv1d(6, 5, 3, padding=1)
        self.mix = nn.Linear(5, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x):
        h = torch.tanh(self.conv(self.table(x).transpose(1, 2))).transpose(1, 2)
        return self.head(torch.tanh(self.mix(h)).mean(1))


@pytest.fixture(scope="module")
def job():
    torch.manual_seed(0)
    model = Small().double().eval()
    data = (torch.randint(0, 11, (40, 8)), torch.randint(0, 4, (40,)))
    oracle = make_oracle(model)
    return model, data, oracle, oracle.read(data, role="train")


def sketch_of(oracle, train, width=WIDTH, rest=0.5):
    moments = Moments.of(oracle.layers, oracle.fisher_rows(train))
    return KroneckerSketch.of(oracle.layers, moments, width, rest)


def written_out(sketch, oracle):
    """V (P, lead) and the random directions (P, random) as explicit matrices."""
    lead, rest, start = [], [], 0
    blocks = zip(oracle.layers, sketch.bases, sketch.rests, strict=True)
    for layer, basis, random in blocks:
        place = slice(start, start + layer.size)
        start += layer.size
        if basis is not None:
            i, j = (to_numpy(p) for p in basis.pairs[:2])
            u, v = in_float64(basis.inputs)[:, i], in_float64(basis.outputs)[:, j]
            lead.append((place, np.einsum("ap,bp->abp", u, v).reshape(layer.size, -1)))
        if random is not None:
            u, v = in_float64(random.inputs), in_float64(random.outputs)
            rest.append((place, np.einsum("ap,bp->abp", u, v).reshape(layer.size, -1)))

    def assembled(parts):
        out = np.zeros((start, sum(m.shape[1] for _, m in parts)))
        column = 0
        for place, matrix in parts:
            out[place, column : column + matrix.shape[1]] = matrix
            column += matrix.shape[1]
        return out

    return assembled(lead), assembled(rest)


def test_rows_are_those_of_explicit_matrices(job):
    _, _, oracle, train = job
    sketch = sketch_of(oracle, train)
    S = dense_rows(oracle.scores(train))
    V, R = written_out(sketch, oracle)
    expected = np.hstack([S @ V, (S - S @ V @ V.T) @ R])
    rows = np.vstack([to_numpy(sketch.project(b)) for b in oracle.scores(train)])
    assert sketch.lead < sketch.width == WIDTH
    np.testing.assert_allclose(rows, expected, rtol=1e-8, atol=1e-10 * np.abs(expected).max())


def test_products_of_the_rest_are_kept_in_expectation(job):
    _, _, oracle, train = job
    some = train.take(np.arange(6))
    S, found = dense_rows(oracle.scores(some)), []
    first = sketch_of(oracle, train)
    for seed in range(150):
        sketch = reseeded(first, oracle, seed)
        (batch,) = oracle.scores(some)
        rest = to_numpy(sketch.project(batch))[:, sketch.lead :]
        found.append(rest @ rest.T)
    V, _ = written_out(sketch, oracle)
    left = S - S @ V @ V.T
    error = np.mean(found, 0) - left @ left.T
    noise = np.std(found, 0) / len(found) ** 0.5
    assert (np.abs(error) < 4.5 * noise + 1e-12).all()
    # and the noise is that of m random pairs: no larger than a few norms over √m
    size = np.sqrt(np.outer((left**2).sum(1), (left**2).sum(1)))
    assert (np.std(found, 0) < 4 * size / (WIDTH - sketch.lead) ** 0.5).all()


def reseeded(sketch, oracle, seed):
    """The same strongest directions with other random ones."""
    from copy import copy

    from exempla.sketch.rest import layer_rest

    other = copy(sketch)
    other.rests = tuple(
        None
        if rest is None
        else layer_rest(
            (x.d_in, x.d_out), rest.width, basis, rest.spectrum, rest.inputs, (seed, place)
        )
        for place, (x, basis, rest) in enumerate(
            zip(oracle.layers, sketch.bases, sketch.rests, strict=True)
        )
    )
    return other


def test_agreement_is_the_best_weight(job):
    _, _, oracle, train = job
    few = agreement(sketch_of(oracle, train, 30, 0.2), oracle, train)
    many = agreement(sketch_of(oracle, train, 200, 0.9), oracle, train)
    assert 0.0 <= few[0] < many[0] <= 1.0
    assert many[1] < few[1] <= 1.0
    # by hand, from written-out scores
    sketch = sketch_of(oracle, train, 30, 0.2)
    S = dense_rows(oracle.scores(train))
    V, R = written_out(sketch, oracle)
    scales = np.array([s.scale for s in sketch.left])
    layer_weights = np.where(scales > 0, 1 / (scales + scales[scales > 0].mean()), 0.0)
    root = np.sqrt(np.repeat(layer_weights, [x.size for x in oracle.layers]))
    left = (S - S @ V @ V.T) * root
    pairs = np.triu_indices(len(S), 1)
    exact, seen = (left @ left.T)[pairs], (left @ R @ R.T @ left.T)[pairs]
    assert few[0] == pytest.approx(np.clip(exact @ seen / (seen @ seen), 0, 1), rel=1e-6)


def test_pairs_looked_at_hold_the_strongest():
    rng = np.random.default_rng(0)
    a, g = (np.sort(rng.random(n) ** 3)[::-1] for n in (40, 25))
    for width in (1, 7, 100, 1000):
        found = strongest(Spectrum(a, np.eye(40)), Spectrum(g, np.eye(25)), width, 2.0)
        every = np.sort(2.0 * np.multiply.outer(a, g).ravel())[::-1][:width]
        np.testing.assert_allclose(np.sort(found.strengths)[::-1][: len(every)], every)


def test_split_metric_is_a_block_matrix():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 5))
    lead, scales = A @ A.T + np.eye(5), np.array([0.5, 2.0])
    metric = SplitMetric(FullMetric(lead.copy()), 5, scales, 0.7)
    rows = rng.normal(size=(4, 7))
    inverse = np.zeros((7, 7))
    inverse[:5, :5] = np.linalg.inv(lead + 0.3 * np.eye(5))
    inverse[5:, 5:] = np.diag(0.7 / (scales + 0.3))
    np.testing.assert_allclose(metric.solve(rows, 0.3), rows @ inverse, rtol=1e-10)
    white = metric.whiten(rows, 0.3)
    np.testing.assert_allclose(white @ white.T, rows @ inverse @ rows.T, rtol=1e-10)


def test_an_explainer_with_a_rest(monkeypatch):
    X, y = load_digits(return_X_y=True)
    X, y = X[:150] / 16, y[:150]
    model = MLPClassifier((16,), alpha=0.1, max_iter=40, random_state=0).fit(X, y)
    answers = {}
    for rest in (0.0, 0.5):
        monkeypatch.setattr(choose, "REST", rest)
        monkeypatch.setattr(choose, "TRUSTED", 0.0)
        explainer = Explainer(model, sketch=80, progress=False).fit((X, y))
        (embedding,) = explainer.embeddings
        answers[rest] = explainer.influence((X[:5], y[:5]))
        assert embedding.rows.shape == (150, 80)
        asked = embedding.oracle.read((X[:5], y[:5]), role="test")
        whole = kernel_with(embedding, asked, 0.1)
        assert np.isfinite(whole).all()
    assert embedding.sketch.lead == 40
    assert embedding.evidence.share < 1
    assert 0 < embedding.evidence.rest_weight <= 1
    assert np.corrcoef(answers[0.0].ravel(), answers[0.5].ravel())[0, 1] > 0.8


@pytest.mark.parametrize(("trusted", "lead"), [(0.0, 15), (1.1, 60)])
def test_a_rest_that_is_noise_is_not_taken(monkeypatch, job, trusted, lead):
    model, data, *_ = job
    monkeypatch.setattr(choose, "REST", 0.75)
    monkeypatch.setattr(choose, "TRUSTED", trusted)
    explainer = Explainer(model, sketch=60, progress=False).fit(data)
    (embedding,) = explainer.embeddings
    assert embedding.sketch.lead == lead
    assert embedding.rows.shape == (40, 60)


def test_conjugate_gradients_start_from_the_strongest(monkeypatch, job):
    model, data, *_ = job
    monkeypatch.setattr(choose, "REST", 0.5)
    monkeypatch.setattr(choose, "TRUSTED", 0.0)
    explainer = Explainer(model, sketch=40, damping=0.05, progress=False).fit(data)
    asked = (data[0][:4], data[1][:4])
    found = explainer.set_influence(asked).values
    exact = Explainer(model, sketch="exact", damping=0.05, progress=False).fit(data)
    expected = exact.influence(asked).mean(1)
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())
