"""`acquire` against dense design formulas, and what it promises of copies, costs and labels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import exempla
from exempla import SBQ, ExemplaError
from exempla.tasks import acquire as module
from exempla.tasks.candidates import CandidatePool, _contrast


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order][:700] / 16, y[order][:700]
    model = LogisticRegression(max_iter=500).fit(X[:50], y[:50])
    return model, (X[:50], y[:50]), (X[50:350], y[50:350]), (X[350:], y[350:])


def flat_scores(model, X, codes):
    """∇ log p of each row for the class codes given, one flat vector each (intercepts last)."""
    P = model.predict_proba(X)
    X1 = np.column_stack([X, np.ones(len(X))])
    if P.shape[1] == 2:
        return (codes - P[:, 1])[:, None] * X1
    return ((np.eye(P.shape[1])[codes] - P)[:, :, None] * X1[:, None]).reshape(len(X), -1)


def fisher_blocks(model, X):
    P = model.predict_proba(X)
    blocks = [
        np.sqrt(P[:, [c]]) * flat_scores(model, X, np.full(len(X), c)) for c in range(P.shape[1])
    ]
    return np.stack(blocks, axis=1)


def dense_problem(model, train, pool, test, damping):
    """(nM)⁻¹, the candidates' square-root Fisher rows and the mean score of the errors."""
    X = train[0]
    n, outputs = len(X), 1 if len(model.classes_) == 2 else len(model.classes_)
    B = fisher_blocks(model, X).reshape(-1, outputs * (X.shape[1] + 1))
    penalty = np.tile(np.append(np.full(X.shape[1], 1.0 / n), 0.0), outputs)
    metric = B.T @ B / n + np.diag(penalty + damping)
    wrong = np.flatnonzero(model.predict(test[0]) != test[1])
    codes = np.searchsorted(model.classes_, test[1][wrong])
    goal = flat_scores(model, test[0][wrong], codes).mean(0)
    return np.linalg.inv(n * metric), fisher_blocks(model, pool), goal


def dense_greedy(A, B, goal, k):
    """c-optimal design, every gain by its definition, the covariance updated after each pick."""
    picks = []
    for _ in range(k):
        inner = np.eye(B.shape[1]) + B @ A @ B.transpose(0, 2, 1)
        lever = B @ A @ goal
        gains = np.einsum("nc,nc->n", lever, np.linalg.solve(inner, lever[..., None])[..., 0])
        gains[picks] = -1
        picks.append(int(gains.argmax()))
        BA = B[picks[-1]] @ A
        A = A - BA.T @ np.linalg.solve(inner[picks[-1]], BA)
    return picks


def test_two_classes_are_exact_c_optimal_design(digits):
    _, (X, y), (P, _), (T, t) = digits
    model = LogisticRegression().fit(X, y > 4)
    picked = exempla.acquire(
        model, (X, y > 4), P, (T, t > 4), 12, selector=SBQ(noise=50), progress=False
    )
    A, B, goal = dense_problem(model, (X, y > 4), P, (T, t > 4), picked.damping)
    assert picked.indices.tolist() == dense_greedy(A, B, goal, 12)


def test_the_first_pick_of_many_classes_is_the_best_block(digits):
    model, train, (P, _), test = digits
    picked = exempla.acquire(model, train, P, test, 1, selector=SBQ(noise=50), progress=False)
    A, B, goal = dense_problem(model, train, P, test, picked.damping)
    assert picked.indices.tolist() == dense_greedy(A, B, goal, 1)


def test_a_block_is_reduced_to_the_combination_that_gains_most():
    rng, n = np.random.default_rng(0), 25.0
    block, private, goal = rng.normal(size=(6, 3, 5)), rng.random((6, 3)) * n, rng.normal(size=5)
    rows, left = _contrast(block, private, goal, n)
    for B, d, row, own in zip(block, private, rows, left, strict=True):
        inner = np.eye(3) + (B @ B.T + np.diag(d)) / n
        best = (B @ goal) @ np.linalg.solve(inner, B @ goal)
        # the row is a unit combination: its gain is (row·goal)² / (1 + (‖row‖² + own) / n)
        assert (row @ goal) ** 2 / (1 + (row @ row + own) / n) == pytest.approx(best)


def test_rows_are_weighed_by_private_variance_and_cost(digits):
    model, train, (P, _), test = digits
    explainer = exempla.Explainer(model, progress=False).fit(train)
    pool = CandidatePool(explainer, P, test, root_costs=np.full(3, 2.0))
    private = np.array([0.0, 1.0, 8.0]) * len(train[0])
    weighed = pool._weighed(np.ones((3, 4)), private)
    np.testing.assert_allclose(weighed[:, 0], [1 / 2, 1 / 8**0.5, 1 / 6])


def test_directions_outside_the_training_span_count():
    words = ["alpha beta", "gamma delta", "alpha gamma", "beta delta"] * 3
    y = np.array([0, 1, 0, 1] * 3)
    vocabulary = ["alpha", "beta", "gamma", "delta", "zeta", *(f"unused{i}" for i in range(300))]
    model = make_pipeline(CountVectorizer(vocabulary=vocabulary), LogisticRegression())
    model.fit(words, y)
    # no training row holds the word that the query needs
    pool, test = (
        ["alpha", "gamma gamma", "zeta", "delta"],
        (["zeta", "zeta zeta"], np.array([0, 0])),
    )
    found = exempla.acquire(model, (words, y), pool, test, 2, ask="all", progress=False)
    assert found.indices[0] == 2


def test_it_corrects_more_errors_than_random_rows(digits):
    model, train, (P, p), test = digits
    found = exempla.acquire(model, train, P, test, 30, progress=False)
    check = found.verify(labels=p, seeds=2)
    assert check.queried[0] == 0.0
    assert check.queried[1] > check.queried[2] + 0.1
    assert found.predicted["gain"] > found.predicted["random"] + 2 * found.predicted["random_sd"]
    assert "random rows" in str(check)


def test_known_labels_are_used_and_verified_without_being_given_again(digits):
    model, train, pool, test = digits
    found = exempla.acquire(model, train, pool, test, 30, breadth=0.0, progress=False)
    assert found.labelled
    assert (found.gains > 0).all()
    check = found.verify(seeds=1)
    assert check.queried[1] > check.queried[2] + 0.1


def test_copies_count_once(digits):
    model, train, (P, _), test = digits
    once = exempla.acquire(model, train, P, test, 5, progress=False)
    copies = np.vstack([P, P[once.indices], P[once.indices]])
    again = exempla.acquire(model, train, copies, test, 5, progress=False)
    assert again.indices.tolist() == once.indices.tolist()
    with pytest.warns(exempla.ExemplaWarning, match="copies"):
        few = exempla.acquire(model, train, P[[3, 3, 3, 4]], test, 3, progress=False)
    assert sorted(few.indices.tolist()) == [0, 3]


def test_a_row_that_costs_too_much_is_not_taken(digits):
    model, train, (P, _), test = digits
    free = exempla.acquire(model, train, P, test, 3, progress=False)
    costs = np.ones(len(P))
    costs[free.indices[0]] = 1e6
    dear = exempla.acquire(model, train, P, test, 3, costs=costs, progress=False)
    assert free.indices[0] not in dear.indices


def test_rows_already_trained_on_gain_less(digits):
    model, (X, y), (P, _), test = digits
    best = exempla.acquire(model, (X, y), P, test, 1, progress=False).indices[0]
    more = np.vstack([X, *[P[[best]]] * 40]), np.append(y, [model.predict(P[[best]])[0]] * 40)
    known = LogisticRegression(max_iter=500).fit(*more)
    rows = np.flatnonzero(model.predict(test[0]) != test[1])
    found = exempla.acquire(known, more, P, test, 1, ask=rows, progress=False)
    assert found.indices[0] != best


def test_breadth_keeps_the_number_and_spreads_the_picks(digits):
    model, train, (P, _), test = digits
    found = exempla.acquire(model, train, P, test, 10, breadth=0.4, progress=False)
    assert len(set(found.indices.tolist())) == 10
    assert int((found.gains == 0).sum()) == 4
    assert found.gains[0] > 0


def test_several_models_and_names(digits):
    model, train, (P, _), test = digits
    other = LogisticRegression(C=0.1, max_iter=500).fit(*train)
    names = [f"row {i}" for i in range(len(P))]
    found = exempla.acquire([model, other], train, P, test, 4, ids=names, progress=False)
    assert found.ids.tolist() == [names[i] for i in found.indices]
    assert set(found.to_dict()) >= {"indices", "weights", "predicted", "helps", "seed"}
    assert np.isclose(found.weights.sum(), 1.0)


def test_a_network_chooses_too(digits):
    torch = pytest.importorskip("torch")
    _, (X, y), (P, _), (T, t) = digits
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))
    data = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    step = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(60):
        step.zero_grad()
        torch.nn.functional.cross_entropy(net(data[0]), data[1]).backward()
        step.step()
    pool, test = (
        torch.tensor(P[:100], dtype=torch.float32),
        (torch.tensor(T[:100], dtype=torch.float32), torch.tensor(t[:100])),
    )
    found = exempla.acquire(net, data, pool, test, 5, likelihood="categorical", progress=False)
    assert len(set(found.indices.tolist())) == 5
    assert found.predicted["gain"] > found.predicted["random"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k"),
        ({"k": 10**6}, "pool"),
        ({"costs": [1.0]}, "costs"),
        ({"costs": -np.ones(300)}, "costs"),
        ({"breadth": 2}, "breadth"),
        ({"ask": "mistakes"}, "ask"),
        ({"ids": ["a"]}, "ids"),
    ],
)
def test_arguments_are_checked_before_anything_is_fitted(digits, monkeypatch, change, message):
    model, train, (P, _), test = digits
    monkeypatch.setattr(module, "Explainer", None)
    with pytest.raises(ExemplaError, match=message):
        exempla.acquire(model, train, P, test, **{"k": 3, **change})


def test_labels_that_do_not_fit_are_refused(digits):
    model, train, (P, _), test = digits
    found = exempla.acquire(model, train, P, test, 3, progress=False)
    with pytest.raises(ExemplaError, match="no labels"):
        found.verify()
    with pytest.raises(ExemplaError, match="entries"):
        found.verify(labels=[1, 2])


def test_random_rows_are_taken_where_they_predict_held_out_queries_better():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 6))
    y = (X @ rng.normal(size=6) + 2.0 * rng.normal(size=900) > 0).astype(int)
    data = [(X[a:b], y[a:b]) for a, b in ((0, 30), (30, 500), (500, 700), (700, 900))]
    train, pool, test, judge = data
    model = LogisticRegression().fit(*train)
    found = exempla.acquire(
        model, train, pool, test, 100, ask="all", breadth="auto", progress=False
    )
    assert found.random_share > 0
    assert len(set(found.indices.tolist())) == 100
    plain = exempla.acquire(model, train, pool, test, 100, ask="all", progress=False)
    assert plain.random_share == 0

    def loss(picks):
        more = [np.concatenate(both) for both in zip(train, (p[picks] for p in pool), strict=True)]
        P = LogisticRegression().fit(*more).predict_proba(judge[0])
        return -np.log(P[np.arange(len(judge[1])), judge[1]]).mean()

    assert loss(found.indices) < loss(plain.indices)
