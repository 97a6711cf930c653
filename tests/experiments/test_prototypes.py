"""Prototypes and criticisms against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from experiments.baselines.prototypes import RBF, FisherKernel, mmd_critic, rbf_sbq

X = np.random.default_rng(0).standard_normal((14, 2))


def dense(kernel) -> np.ndarray:
    return np.stack([kernel.row(i) for i in range(len(kernel))])


@pytest.mark.parametrize("kernel", [RBF(X, gamma=0.7), FisherKernel(X)])
def test_rows_diagonal_and_mean_agree(kernel):
    K = dense(kernel)
    np.testing.assert_allclose(K, K.T, atol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(), np.diag(K))
    np.testing.assert_allclose(kernel.mean(), K.mean(0))


@pytest.mark.parametrize("kernel", [RBF(X, gamma=0.7), FisherKernel(X)])
def test_each_prototype_is_the_best_next_one(kernel):
    K = dense(kernel)

    def distance2(chosen):
        S = list(chosen)
        return K.mean() - 2 * K[:, S].mean() + K[np.ix_(S, S)].mean()

    found = mmd_critic(kernel, 4)
    for step in range(4):
        before = list(found.indices[:step])
        options = {j: distance2([*before, j]) for j in range(len(K)) if j not in before}
        assert options[found.indices[step]] == pytest.approx(min(options.values()))
    assert found.mmd2 == pytest.approx(distance2(found.indices))
    np.testing.assert_allclose(found.witness, K.mean(0) - K[found.indices].mean(0))


def test_greedy_prototypes_come_near_the_best_set():
    kernel = RBF(X, gamma=0.7)
    K = dense(kernel)
    found = mmd_critic(kernel, 3)
    best = min(
        K.mean() - 2 * K[:, list(S)].mean() + K[np.ix_(S, S)].mean()
        for S in itertools.combinations(range(len(X)), 3)
    )
    assert best <= found.mmd2 <= 3 * best


def test_criticisms_are_greedy_on_witness_and_log_determinant():
    kernel = RBF(X, gamma=0.7)
    K = dense(kernel)
    found = mmd_critic(kernel, 3, criticisms=3)
    taken = list(found.indices)
    chosen: list[int] = []
    for pick in found.criticisms:
        values = {
            j: np.abs(found.witness[[*chosen, j]]).sum()
            + np.linalg.slogdet(K[np.ix_([*chosen, j], [*chosen, j])])[1]
            for j in range(len(X))
            if j not in taken + chosen
        }
        assert values[pick] == pytest.approx(max(values.values()))
        chosen.append(int(pick))
    assert not set(chosen) & set(taken)


def test_a_group_without_a_prototype_is_criticised():
    rng = np.random.default_rng(1)
    centres = np.repeat([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]], [30, 30, 12], axis=0)
    points = centres + 0.2 * rng.standard_normal(centres.shape)
    found = mmd_critic(RBF(points, gamma=0.5), 2, criticisms=1)
    assert sorted(found.indices // 30) == [0, 1]
    assert found.criticisms[0] >= 60


def test_criticisms_in_fisher_space_are_hard_examples():
    A, y = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=500).fit(A, y)
    rows = Explainer(model, progress=False).fit((A, y)).features.rows
    found = mmd_critic(FisherKernel(rows), 5, criticisms=10)
    sure = model.predict_proba(A)[np.arange(150), y]
    assert len(set(found.indices) | set(found.criticisms)) == 15
    assert sure[found.criticisms].mean() < sure.mean()


def test_rbf_sbq_equals_the_textbook_formula():
    target = np.random.default_rng(2).standard_normal((5, 2))
    found = rbf_sbq(X, target, 4, gamma=0.7, noise=0.1)
    K = dense(RBF(X, gamma=0.7))
    z = np.exp(-0.7 * ((X[:, None] - target[None]) ** 2).sum(-1)).mean(1)
    chosen: list[int] = []
    for pick in found.indices:
        gain = {}
        for j in set(range(len(X))) - set(chosen):
            S = [*chosen, j]
            gain[j] = z[S] @ np.linalg.solve(K[np.ix_(S, S)] + 0.1 * np.eye(len(S)), z[S])
        assert gain[pick] == pytest.approx(max(gain.values()))
        chosen.append(int(pick))
    S = found.indices
    expected = np.linalg.solve(K[np.ix_(S, S)] + 0.1 * np.eye(4), z[S])
    np.testing.assert_allclose(found.weights, expected)


def test_impossible_requests_are_refused():
    with pytest.raises(ExemplaError, match="criticisms is 12"):
        mmd_critic(FisherKernel(X), 3, criticisms=12)
    with pytest.raises(ExemplaError, match="k is 15"):
        mmd_critic(FisherKernel(X), 15)
    with pytest.raises(ExemplaError, match="finite matrix"):
        RBF(np.array([[np.nan]]))
