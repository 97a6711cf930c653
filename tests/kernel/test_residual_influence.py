"""What a sketch leaves out counts by one mean eigenvalue: against kernels written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from exempla import Explainer
from exempla.kernel import embed, solve
from exempla.kernel.damping import resolve_damping
from exempla.kernel.embed import Embedding, raw_products
from exempla.kernel.fisher import FullMetric
from exempla.kernel.kernel import Query
from exempla.kernel.solve import query_influence, query_kernel
from tests.reference import dense_rows

DAMPING = 0.01


def images() -> tuple[torch.Tensor, torch.Tensor]:
    X, y = load_digits(return_X_y=True)
    return torch.tensor(X[:130] / 16.0), torch.tensor(y[:130])


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))
    return torch.nn.Sequential(*layers).double()


X, Y = images()
TRAIN, ASKED = (X[:100], Y[:100]), (X[100:], Y[100:])


def fitted(sketch: str | int, model: Any = None, train: Any = TRAIN, **more: Any) -> Explainer:
    model = network() if model is None else model
    return Explainer(model, sketch=sketch, progress=False, **more).fit(train)


@pytest.fixture(scope="module")
def rough() -> Embedding:
    return fitted(20).embeddings[0]


def asked_of(embedding: Embedding):
    return embedding.oracle.read(ASKED, role="test")


def by_hand(embedding: Embedding, damping: float = DAMPING) -> np.ndarray:
    """The kernel from scores written out, of a sketch and of what it leaves."""
    oracle = embedding.oracle
    S, T = (dense_rows(oracle.scores(x)) for x in (embedding.train, asked_of(embedding)))
    asked = np.asarray(embedding.embed(asked_of(embedding), "true")[0])
    rows = np.asarray(embedding.rows)
    assert isinstance(embedding.metric, FullMetric)
    metric = embedding.metric.matrix + damping * np.eye(rows.shape[1])
    inside = rows @ np.linalg.solve(metric, asked.T)
    return inside + (S @ T.T - rows @ asked.T) / (embedding.residual_eigenvalue + damping)


def test_the_kernel_is_the_sketch_and_one_number_for_the_rest(rough: Embedding) -> None:
    found = query_kernel(rough, asked_of(rough), DAMPING)
    assert 0.0 < rough.evidence.share < embed.MAX_SKETCH_SHARE
    np.testing.assert_allclose(found.values, by_hand(rough), rtol=1e-8)
    assert "20 of 610 directions" in found.solver
    assert "mean eigenvalue" in found.solver


def test_raw_products_lose_nothing(rough: Embedding) -> None:
    asked = asked_of(rough)
    S, T = (dense_rows(rough.oracle.scores(x)) for x in (rough.train, asked))
    np.testing.assert_allclose(
        raw_products(rough.oracle, rough.train, asked), S @ T.T, rtol=1e-8, atol=1e-12
    )
    # with damping far above the Fisher the kernel is the raw product
    huge = 1e6 * rough.evidence.trace
    whole = query_kernel(rough, asked, huge).values * huge
    np.testing.assert_allclose(whole, S @ T.T, atol=1e-5 * np.abs(S @ T.T).max())


def test_the_mean_eigenvalue_is_that_of_the_fisher_left_out(rough: Embedding) -> None:
    oracle = rough.oracle
    F = dense_rows(oracle.fisher_rows(rough.train))
    batches = oracle.fisher_rows(rough.train)
    inside = np.vstack([np.asarray(rough.sketch.project(batch)) for batch in batches])
    gram = (F @ F.T - inside @ inside.T) / len(rough.train)
    assert rough.residual_eigenvalue == pytest.approx((gram**2).sum() / np.trace(gram), rel=0.25)
    assert fitted("exact").embeddings[0].residual_eigenvalue == 0.0


def test_it_is_nearer_to_the_exact_kernel_than_the_sketch_alone_or_damping_alone() -> None:
    exact, rough = fitted("exact").embeddings[0], fitted(20).embeddings[0]
    damping = resolve_damping("per-row", rough.evidence, rough.metric.name).value
    truth = query_kernel(exact, asked_of(exact), damping)
    assert truth.solver == "exact"
    found = query_kernel(rough, asked_of(rough), damping).values
    asked, _ = rough.embed(asked_of(rough), "true")
    inside = np.asarray(rough.rows @ rough.metric.solve(asked, damping).T)
    naive = (
        inside
        + (
            raw_products(rough.oracle, rough.train, asked_of(rough))
            - np.asarray(rough.rows @ asked.T)
        )
        / damping
    )
    error = np.linalg.norm(found - truth.values)
    assert error < 0.7 * np.linalg.norm(inside - truth.values)
    assert error < 0.7 * np.linalg.norm(naive - truth.values)


def test_columns_may_be_sums_of_questions_and_are_never_a_whole_matrix(rough: Embedding) -> None:
    mix = np.random.default_rng(0).random((30, 2))
    whole = query_kernel(rough, asked_of(rough), DAMPING).values @ mix
    found = query_kernel(rough, asked_of(rough), DAMPING, mix=mix).values
    np.testing.assert_allclose(found, whole, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("along", [0.0, solve.MAX_SELECTION_PASSES])
def test_little_room_and_a_high_price_change_nothing_but_the_way(
    rough: Embedding, monkeypatch: pytest.MonkeyPatch, along: float
) -> None:
    mix = np.random.default_rng(0).random((30, 1))
    plain = query_kernel(rough, asked_of(rough), DAMPING).values
    monkeypatch.setattr(embed, "MAX_FACTOR_BYTES", 1)  # a pass for every batch of questions
    raw = raw_products(rough.oracle, rough.train, asked_of(rough)) @ mix
    np.testing.assert_allclose(
        raw_products(rough.oracle, rough.train, asked_of(rough), mix), raw, atol=1e-10
    )
    monkeypatch.setattr(embed, "FREE_FLOPS", 0.0)
    monkeypatch.setattr(solve, "MAX_SELECTION_PASSES", along)
    monkeypatch.setattr(solve, "MAX_RESIDUAL_PASSES", np.inf)
    found = query_kernel(rough, asked_of(rough), DAMPING, mix=mix)
    np.testing.assert_allclose(found.values, plain @ mix, rtol=1e-6, atol=1e-8)


def test_where_it_costs_too_much_the_sketch_answers_and_says_so(
    rough: Embedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "FREE_FLOPS", 0.0)
    monkeypatch.setattr(solve, "MAX_RESIDUAL_PASSES", 0.01)
    found = query_kernel(rough, asked_of(rough), DAMPING)
    asked, _ = rough.embed(asked_of(rough), "true")
    np.testing.assert_allclose(found.values, rough.rows @ rough.metric.solve(asked, DAMPING).T)
    assert "passes over the data" in found.solver


def test_a_sketch_that_keeps_nearly_all_is_left_alone(rough: Embedding) -> None:
    full = replace(rough, evidence=replace(rough.evidence, share=0.995))
    assert rough.has_residual
    assert not full.has_residual
    assert "sketch alone" in query_kernel(full, asked_of(full), DAMPING).solver
    assert not fitted("exact").embeddings[0].has_residual


# ---- through the Explainer


def test_influence_counts_the_rest() -> None:
    explainer = fitted(20, damping=DAMPING)
    found = explainer.influence(ASKED)
    np.testing.assert_allclose(found * 100, by_hand(explainer.embeddings[0]), rtol=1e-8)
    (embedding,) = explainer.embeddings
    asked, _ = embedding.embed(asked_of(embedding), "true")
    alone = np.asarray(embedding.rows @ embedding.metric.solve(asked, DAMPING).T)
    solved = explainer.influence(ASKED, solve="exact").ravel()
    near, far = (np.corrcoef(x.ravel(), solved)[0, 1] for x in (found, alone))
    assert near > max(0.95, far)


def test_stored_rows_weights_and_predicted_labels_go_through(tmp_path) -> None:
    weights = np.linspace(0.5, 1.5, 100)
    train = (*TRAIN, weights)
    memory = fitted(20, train=train, damping=DAMPING)
    disk = fitted(20, train=train, damping=DAMPING, store=tmp_path / "rows")
    for labels in ("true", "predicted"):
        expected = memory.influence(ASKED, labels)
        np.testing.assert_allclose(disk.influence(ASKED, labels), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(disk.self_influence(), memory.self_influence(), rtol=1e-6)
    assert not np.allclose(memory.influence(ASKED), memory.influence(ASKED, "predicted"))


def test_several_models_are_averaged() -> None:
    models = [network(0), network(1)]
    both = fitted(20, models, damping=DAMPING)
    alone = [fitted(20, model, damping=DAMPING) for model in models]
    expected = np.mean([one.influence(ASKED) for one in alone], axis=0)
    np.testing.assert_allclose(both.influence(ASKED), expected, rtol=1e-8)
    expected = np.mean([one.self_influence() for one in alone], axis=0)
    np.testing.assert_allclose(both.self_influence(), expected, rtol=1e-8)


def test_self_influence_is_the_diagonal_of_influence() -> None:
    explainer = fitted(20, damping=DAMPING)
    diagonal = np.diag(explainer.influence(TRAIN))
    np.testing.assert_allclose(explainer.self_influence(), diagonal, rtol=1e-8)
    embedding = explainer.embeddings[0]
    norms = (dense_rows(embedding.oracle.scores(embedding.train)) ** 2).sum(1)
    inside = (np.asarray(embedding.rows) ** 2).sum(1)
    np.testing.assert_allclose(embedding.residual_norms2, norms - inside, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("fisher", ["empirical", "diagonal", "identity"])
def test_every_metric_goes_through(fisher: str) -> None:
    explainer = fitted(20, fisher=fisher, damping=DAMPING)
    embedding = explainer.embeddings[0]
    found = explainer.influence(ASKED)
    assert np.isfinite(found).all()
    if fisher == "identity":  # plain products of whole scores, whatever the sketch keeps
        np.testing.assert_allclose(
            found * 100, raw_products(embedding.oracle, embedding.train, asked_of(embedding))
        )


def test_a_model_without_an_operator_has_its_rest_counted_in_a_set() -> None:
    x, y = X.numpy(), Y.numpy()
    model = MLPClassifier((16,), alpha=0.1, max_iter=40, random_state=0).fit(x[:100], y[:100])
    explainer = fitted(60, model, (x[:100], y[:100]), damping=DAMPING)
    found = explainer.set_influence((x[100:], y[100:]))
    assert "mean eigenvalue" in found.solver
    each = explainer.influence((x[100:], y[100:]))
    np.testing.assert_allclose(found.values, each.mean(1), rtol=1e-6, atol=1e-12)
    embedding = explainer.embeddings[0]
    query = Query([embedding], (x[100:], y[100:]))
    many = query_influence(query, [DAMPING], solve="exact")
    np.testing.assert_allclose(many.values, each, rtol=1e-6, atol=1e-12)
