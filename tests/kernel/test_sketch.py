"""The sketches against scores written out."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from exempla import ExemplaError, Explainer
from exempla.kernel.basis import IdentitySketch, KroneckerSketch, SpanSketch, strongest
from exempla.kernel.embed import EmbeddingOptions, embed_training_set
from exempla.kernel.moments import Spectrum
from exempla.oracles import make_oracle
from tests.reference import dense_kernel, dense_rows


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:120] / 16, y[:120], X[200:230] / 16, y[200:230]


@pytest.fixture(scope="module")
def mlp(digits):
    X, y, *_ = digits
    return MLPClassifier((12, 9), alpha=0.5, max_iter=60, random_state=0).fit(X, y)


def wide_logistic(rng, sparse):
    """More parameters than examples, so that the dual form is taken."""
    X = rng.normal(size=(40, 300)) * (rng.random((40, 300)) < 0.2)
    y = (X @ rng.normal(size=300) > 0).astype(int)
    X = csr_array(X) if sparse else X
    return X, y, LogisticRegression(C=0.3, max_iter=500).fit(X, y)


def whitened_kernel(model, train, test, damping, sketch):
    explainer = Explainer(model, sketch=sketch, damping=damping, progress=False).fit(train)
    return explainer.influence(test) * explainer.n_train, explainer.embeddings[0]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_dual_form_is_the_exact_kernel(sparse, damping):
    rng = np.random.default_rng(0)
    X, y, model = wide_logistic(rng, sparse)
    test = (rng.normal(size=(5, 300)), np.array([0, 1, 1, 0, 1]))
    kernel, embedding = whitened_kernel(model, (X, y), test, damping, "auto")
    oracle = make_oracle(model)
    train_examples = oracle.read((X, y), role="train")
    expected, _ = dense_kernel(oracle, train_examples, oracle.read(test, role="test"), damping)
    assert isinstance(embedding.sketch, SpanSketch)
    assert embedding.sketch.width <= 41
    np.testing.assert_allclose(kernel, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_dual_form_knows_what_a_questioned_score_has_outside_the_span():
    rng = np.random.default_rng(1)
    X, y, model = wide_logistic(rng, sparse=True)
    test = (rng.normal(size=(6, 300)), np.array([0, 1, 1, 0, 1, 0]))
    damping = 0.05
    embedding = Explainer(model, progress=False).fit((X, y)).embeddings[0]
    oracle = embedding.oracle
    rows, outside = embedding.embed(oracle.read(test, role="test"), "true")
    whitened = embedding.metric.whiten(rows, damping)
    norms = (whitened**2).sum(1) + outside * embedding.metric.residual_inverse(
        embedding.sketch.residual_penalty, damping
    )
    _, expected = dense_kernel(oracle, embedding.train, oracle.read(test, role="test"), damping)
    np.testing.assert_allclose(norms, expected, rtol=1e-6)
    assert (outside > 0).all()


def test_mlp_span_equals_written_out(digits, mlp):
    X, y, X_test, y_test = digits
    kernel, embedding = whitened_kernel(mlp, (X, y), (X_test, y_test), 0.01, "auto")
    oracle = make_oracle(mlp)
    train = oracle.read((X, y), role="train")
    expected, _ = dense_kernel(oracle, train, oracle.read((X_test, y_test), role="test"), 0.01)
    assert embedding.evidence.share > 1 - 1e-8
    np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_kronecker_with_every_direction_equals_written_out(digits, mlp):
    X, y, X_test, y_test = digits
    size = make_oracle(mlp)
    size.read((X, y), role="train")
    kernel, embedding = whitened_kernel(
        mlp, (X, y), (X_test, y_test), 0.01, sketch=size.n_parameters
    )
    oracle = make_oracle(mlp)
    train = oracle.read((X, y), role="train")
    expected, _ = dense_kernel(oracle, train, oracle.read((X_test, y_test), role="test"), 0.01)
    assert isinstance(embedding.sketch, KroneckerSketch)
    assert embedding.evidence.share == pytest.approx(1.0)
    np.testing.assert_allclose(kernel, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_kronecker_keeps_the_strongest_directions(digits, mlp):
    X, y, *_ = digits
    oracle = make_oracle(mlp)
    shares = []
    for width in (5, 20, 80):
        embedding = embed_training_set(oracle, (X, y), EmbeddingOptions(sketch=width))
        train = embedding.train
        fisher = dense_rows(oracle.fisher_rows(train))
        kept = np.vstack([embedding.sketch.project(b) for b in oracle.fisher_rows(train)])
        shares.append((kept**2).sum() / (fisher**2).sum())
        assert embedding.rows.shape == (len(X), width)
        # the projection is orthonormal: it never adds energy
        assert (kept**2).sum() <= (fisher**2).sum() * (1 + 1e-9)
    assert shares[0] < shares[1] < shares[2]
    random_share = 80 / oracle.n_parameters
    assert shares[2] > 10 * random_share


def test_identity_is_taken_for_few_parameters(digits):
    X, y, *_ = digits
    model = LogisticRegression(max_iter=300).fit(X[:, :20], y)
    embedding = Explainer(model, progress=False).fit((X[:, :20], y)).embeddings[0]
    assert isinstance(embedding.sketch, IdentitySketch)
    assert embedding.evidence.share == pytest.approx(1.0)
    assert embedding.rows.shape == (120, 21 * 10)


@pytest.mark.parametrize("sketch", ["full", 0, -3, True, 2.5])
def test_unknown_sketch_is_refused(digits, sketch):
    X, y, *_ = digits
    model = LogisticRegression(max_iter=300).fit(X, y)
    with pytest.raises(ExemplaError, match="sketch="):
        Explainer(model, sketch=sketch, progress=False).fit((X, y))


def test_exact_is_refused_where_it_does_not_fit(monkeypatch, digits, mlp):
    from exempla.kernel import sketch as choose

    monkeypatch.setattr(choose, "PRIMAL_LIMIT", 100)
    monkeypatch.setattr(choose, "DUAL_LIMIT", 50)
    X, y, *_ = digits
    with pytest.raises(ExemplaError, match="does not fit"):
        Explainer(mlp, sketch="exact", progress=False).fit((X, y))


def test_pairs_looked_at_hold_the_strongest():
    rng = np.random.default_rng(0)
    a, g = (np.sort(rng.random(n) ** 3)[::-1] for n in (40, 25))
    for width in (1, 7, 100, 1000):
        *_, found = strongest(Spectrum(a, np.eye(40)), Spectrum(g, np.eye(25)), width, 2.0)
        every = np.sort(2.0 * np.multiply.outer(a, g).ravel())[::-1][:width]
        np.testing.assert_allclose(np.sort(found)[::-1][: len(every)], every)
