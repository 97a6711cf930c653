"""Attacks: gradients against finite differences, the paper's identity, and what retraining says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

import exempla
from exempla import ExemplaError, Explainer
from exempla.tasks.attack import input_scores, weak_points
from exempla.tasks.attack.ascent import Box, conjugate_gradient, training_objective


def cancer() -> tuple[tuple, tuple]:
    X, y = load_breast_cancer(return_X_y=True)
    X = np.asarray(scale(X))
    return (X[:150], y[:150]), (X[300:], y[300:])


def digits() -> tuple[tuple, tuple]:
    X, y = load_digits(return_X_y=True)
    X = X / 16.0
    return (X[:120], y[:120]), (X[300:306], y[300:306])


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, 10)
    ).double()


def problem(kind: str) -> tuple:
    if kind == "binary":
        train, test = cancer()
        return LogisticRegression(C=0.5).fit(*train), train, (test[0][:6], test[1][:6])
    train, test = digits()
    if kind == "softmax":
        return LogisticRegression(max_iter=500).fit(*train), train, test
    as_tensors = [tuple(torch.as_tensor(a) for a in part) for part in (train, test)]
    return network(), *as_tensors


KINDS = ("binary", "softmax", "network")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distance", [False, True])
def test_gradients_are_those_of_the_objective(kind: str, distance: bool) -> None:
    model, train, target = problem(kind)
    scores = input_scores(model, train, 0.1)
    (X, y), (tx, ty) = scores.encode(*train), scores.encode(*target)
    v = scores.solve(scores.mean_score(tx, ty))
    goal = training_objective(scores, y[:2], v, distance)
    _, gradient = goal(X[:2])
    direction = np.random.default_rng(0).standard_normal(X[:2].shape)
    up, down = goal(X[:2] + 1e-5 * direction)[0], goal(X[:2] - 1e-5 * direction)[0]
    slope = (gradient * direction).reshape(2, -1).sum(1)
    np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_is_the_engines(kind: str) -> None:
    model, train, target = problem(kind)
    explainer = Explainer(model, damping=0.1, sketch="exact", progress=False).fit(train)
    expected = explainer.influence(target).mean(1)
    scores = input_scores(model, train, 0.1)
    (X, y), (tx, ty) = scores.encode(*train), scores.encode(*target)
    values, _ = scores.pull(X, y, scores.solve(scores.mean_score(tx, ty)))
    np.testing.assert_allclose(
        values / len(X), expected, rtol=2e-3, atol=1e-3 * abs(expected).max()
    )


def test_distance_is_koh_and_liang_once_the_self_term_is_dropped() -> None:
    model, train, target = problem("softmax")
    scores = input_scores(model, train, 0.1)
    (X, y), (tx, ty) = scores.encode(*train), scores.encode(*target)
    v = scores.solve(scores.mean_score(tx, ty))
    row, label = X[:1], y[:1]
    far, slope = training_objective(scores, label, v, distance=True)(row)
    near, koh = training_objective(scores, label, v)(row)
    w = scores.solve(scores.mean_score(row, label))
    own, own_slope = scores.pull(row, label, w)
    np.testing.assert_allclose(far - own, 2 * near, rtol=1e-9)
    np.testing.assert_allclose(slope - 2 * own_slope, 2 * koh, rtol=1e-7, atol=1e-12)
    assert np.abs(own_slope).max() > 0.01 * np.abs(koh).max()  # and it does make a difference


@pytest.mark.parametrize("kind", KINDS)
def test_perturbation_stays_in_ball_and_range_and_the_data_are_untouched(kind: str) -> None:
    model, train, target = problem(kind)
    X = np.asarray(train[0]).copy()
    found = exempla.attack(model, train, target, k=3, budget=0.3, bounds=(-0.2, 1.1), steps=5)
    # points that lay outside the range are brought into it, the others stay in the ball
    inside = np.clip(found.original, -0.2, 1.1)
    assert np.abs(found.X - inside).max() <= 0.3 + 1e-6
    assert found.X.min() >= -0.2 - 1e-9
    assert found.X.max() <= 1.1 + 1e-9
    assert found.expected < 0
    np.testing.assert_array_equal(np.asarray(train[0]).copy(), X)
    changed = np.flatnonzero((np.asarray(found.apply(train[0])) != X).any(1))
    assert set(changed) == set(found.indices)


def test_retraining_confirms_the_attack_and_not_the_random_direction() -> None:
    train, (X, y) = cancer()
    model = LogisticRegression(C=1.0, max_iter=1000).fit(*train)
    right = np.flatnonzero(model.predict(X) == y)
    weakest = right[np.argsort(np.abs(model.decision_function(X[right])))[:5]]
    target = (X[weakest], y[weakest])
    found = exempla.attack(model, train, target, k=2, budget=1.0, steps=3, rounds=4)
    check = found.verify(seeds=3)
    assert check.mean("untouched") == 0.0
    assert check.mean("attacked") >= 0.4
    assert check.mean("random direction") <= check.mean("attacked") - 0.2
    assert check.table.shape[0] == 3


def test_set_attack_harms_the_set_more_than_attacks_on_its_members() -> None:
    train, (X, y) = cancer()
    model = LogisticRegression(C=1.0, max_iter=1000).fit(*train)
    rows = np.flatnonzero((model.predict(X) == y) & (y == 1))[:6]

    def loss_after(target: np.ndarray) -> float:
        found = exempla.attack(model, train, (X[target], y[target]), k=2, budget=0.5, rounds=3)
        refitted = LogisticRegression(C=1.0, max_iter=1000).fit(found.apply(train[0]), train[1])
        return -float(np.log(refitted.predict_proba(X[rows])[:, 1]).mean())

    together = loss_after(rows)
    assert together > np.mean([loss_after(rows[i : i + 1]) for i in range(len(rows))])


def test_test_side_pgd_is_at_least_fgsm() -> None:
    model, train, target = problem("network")
    fgsm = exempla.attack(model, train, target, perturb="test", budget=0.2, steps=1)
    pgd = exempla.attack(model, train, target, perturb="test", budget=0.2, steps=20)
    assert (fgsm.objective, pgd.objective) == ("fgsm", "pgd")
    assert fgsm.after.mean() < fgsm.before.mean()
    assert pgd.after.mean() <= fgsm.after.mean() + 1e-6
    with pytest.raises(ExemplaError, match="test-side"):
        pgd.verify()


def test_weak_points_name_what_is_cheapest_to_attack() -> None:
    model, train, target = problem("binary")
    table = weak_points(model, train, target, budget=0.2)
    assert (np.diff(table.reach) <= 1e-12).all()

    def drop(points: np.ndarray) -> float:
        return exempla.attack(model, train, target, k=points, budget=0.2).expected

    assert drop(table["index"].to_numpy()[:3]) < 3 * drop(table["index"].to_numpy()[-3:])


def test_box_reach_is_the_best_corner() -> None:
    box = Box(np.array([[0.9, 0.5]]), 0.2, 0.0, 1.0)
    assert box.reach(np.array([[2.0, -3.0]]))[0] == pytest.approx(2.0 * 0.1 + 3.0 * 0.2)


def test_conjugate_gradient_solves_and_refuses() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((8, 8))
    A = A @ A.T + np.eye(8)
    b = rng.standard_normal(8)
    found = conjugate_gradient(lambda v: A @ v, b, 1e-6, 500)
    np.testing.assert_allclose(found, np.linalg.solve(A, b), 1e-4)
    with pytest.raises(ExemplaError, match="positive definite"):
        conjugate_gradient(lambda v: -v, b, 1e-6, 500)


def test_many_parameters_are_solved_without_writing_the_metric_out(monkeypatch) -> None:
    model, train, target = problem("softmax")
    scores = input_scores(model, train, 0.1)
    mu = scores.mean_score(*scores.encode(*target))
    direct = scores.solve(mu)
    monkeypatch.setattr("exempla.tasks.attack.ascent._DENSE_LIMIT", 0)
    np.testing.assert_allclose(scores.solve(mu), direct, rtol=1e-5, atol=1e-8)


def test_predicted_labels_serve_when_none_are_given() -> None:
    model, train, target = problem("binary")
    found = exempla.attack(model, train, target[0], k=[3, 4])
    labelled = exempla.attack(model, train, (target[0], model.predict(target[0])), k=[3, 4])
    np.testing.assert_array_equal(found.X, labelled.X)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"perturb": "both"}, "perturb="),
        ({"objective": "hinge"}, "objective="),
        ({"budget": 0.0}, "budget="),
        ({"steps": 0}, "at least 1"),
        ({"k": 0}, "k is 0"),
        ({"k": [999]}, "row 999"),
        ({"k": [0.5]}, "k must name"),
        ({"bounds": (1.0, 0.0)}, "bounds"),
        ({"bounds": "none"}, "bounds="),
    ],
)
def test_mistakes_are_named(options: dict, words: str) -> None:
    model, train, target = problem("binary")
    with pytest.raises(ExemplaError, match=words):
        exempla.attack(model, train, target, **options)


def test_models_without_gradients_are_refused() -> None:
    _, train, target = problem("binary")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(*train)
    with pytest.raises(ExemplaError, match="Pipeline"):
        exempla.attack(model, train, target)
    model, train, target = problem("network")
    with pytest.raises(ExemplaError, match="give fit="):
        exempla.attack(model, train, target, rounds=2)
