"""Certificates: a certified bound that can be violated is a bug."""

from __future__ import annotations

import doctest
import json
from itertools import combinations

import numpy as np
import pytest

from exempla.errors import ExemplaError
from exempla.selection import (
    SBQ,
    Herding,
    MatchingPursuit,
    NonNegative,
    Random,
    StochasticGreedy,
    TopInfluence,
    select,
)
from exempla.selection import certificate as theory
from exempla.selection.certificate import certificate
from tests.selection.reference import best_set

SMALL = [
    (seed, t, p, noise)
    for seed in range(12)
    for t, p in [(7, 3), (9, 5)]
    for noise in [0.0, 0.05, 1.0, 20.0]
]


def made(seed, t, p):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((t, p))
    if seed % 3 == 1:
        rows *= 10.0 ** rng.uniform(-1, 1, (t, 1))
    if seed % 3 == 2:
        rows[1], rows[3] = rows[0], 2 * rows[2]
    if seed % 4 == 3:
        rows[:, -1] = rows[:, 0]  # a direction nobody has
    return rows, rng.standard_normal(p)


def allowed(rows, target, side):
    z = rows @ target
    return {"both": z == z, "opponents": z < 0, "proponents": z > 0}[side]


@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
@pytest.mark.parametrize(("seed", "t", "p", "noise"), SMALL)
def test_no_set_beats_a_certified_bound(seed, t, p, noise):
    rows, target = made(seed, t, p)
    side = ["both", "opponents", "proponents"][seed % 3]
    candidates = allowed(rows, target, side)
    norm2 = float(target @ target)
    best = [best_set(rows, target, s, noise, candidates) for s in range(candidates.sum() + 1)]
    for selector in (SBQ(noise), MatchingPursuit(noise)):
        result = select(rows, target, 4, selector, side)
        reached = result.gains.sum()
        for level in ("cheap", "full"):
            for r in (1, 2, 3, 4):
                proof = certificate(rows, result, target, r=r, level=level)
                g = max(best[: r + 1])
                slack = 1e-9 * norm2
                assert proof["share_of_span"].value * max(best) <= reached + slack
                assert proof["best_set"].value * norm2 >= g - slack
                assert proof["share_of_best_set"].value * g <= reached + slack
                assert proof["greedy_guarantee"].value * g <= reached + slack
            curve = proof.curve
            for i, (measured, floor, ceiling) in enumerate(
                zip(curve.measured, curve.floor, curve.ceiling)
            ):
                lowest = norm2 - max(best[: i + 1])
                assert floor <= lowest + slack
                assert floor <= measured + slack
                assert measured <= ceiling + slack


@pytest.mark.parametrize("seed", range(6))
def test_weak_submodularity_holds_for_every_pair_of_sets(seed):
    rows, target = made(seed, 6, 3)
    noise = [0.1, 2.0][seed % 2]
    K, z = rows @ rows.T, rows @ target

    def g(S):
        S = list(S)
        return z[S] @ np.linalg.solve(K[np.ix_(S, S)] + noise * np.eye(len(S)), z[S]) if S else 0.0

    proof = certificate(rows, select(rows, target, 2, SBQ(noise)), target)
    γ = proof["weak_submodularity"].value
    assert 0 < γ < 1
    for a in range(4):
        for L in combinations(range(6), a):
            rest = [j for j in range(6) if j not in L]
            for b in range(1, len(rest) + 1):
                for S in combinations(rest, b):
                    joint = g(L + S) - g(L)
                    single = sum(g((*L, j)) - g(L) for j in S)
                    assert single >= γ * joint - 1e-9


def test_the_bounds_say_something():
    """Not only valid: with enough noise they are close to the truth."""
    rows, target = made(0, 9, 5)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    result = select(rows, target, 3, SBQ(20.0))
    proof = certificate(rows, result, target, level="full")
    best = best_set(rows, target, 3, 20.0, np.ones(9, bool))
    assert proof["best_set"].value * (target @ target) <= 1.15 * best
    assert proof["share_of_best_set"].value > 0.9
    assert proof["greedy_guarantee"].value > 0.6
    cheap = certificate(rows, result, target)
    assert cheap["best_set"].value >= proof["best_set"].value


def test_the_span_bound_sees_a_direction_nobody_has():
    rng = np.random.default_rng(0)
    rows = np.zeros((3000, 6))
    rows[:, :4] = rng.standard_normal((3000, 4)) * 10.0 ** rng.uniform(-5, 5, (3000, 1))
    target = np.array([1.0, 1, 1, 1, 3, 0])
    result = select(rows, target, 4)
    proof = certificate(rows, result, target, level="full")
    assert proof["share_of_span"].value == pytest.approx(1.0, abs=1e-6)
    assert proof["best_set"].value == pytest.approx(4 / 13, rel=1e-6)
    assert result.explained == pytest.approx(4 / 13)


def test_a_spent_budget_falls_back_to_a_valid_bound(monkeypatch):
    monkeypatch.setattr(theory, "MAX_SPAN_WORK", 1.0)
    rows = np.zeros((3000, 3))
    rows[:, 0] = np.arange(1, 3001)
    target = np.array([1.0, 1.0, 0.0])
    proof = certificate(rows, select(rows, target, 1), target)
    assert proof["share_of_span"].value == pytest.approx(0.5)


def test_replay_in_blocks_equals_one_block():
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((2500, 40)).astype(np.float32)
    target = rng.standard_normal(40)
    result = select(rows, target, 7, SBQ(30.0), "opponents")
    proof = certificate(rows, result, target, level="full", r=5)
    F, candidates = rows.astype(float), allowed(rows.astype(float), target, "opponents")
    γ = proof["weak_submodularity"].value
    bounds = []
    for i in range(8):
        S = [int(j) for j in result.indices[:i]]
        left = np.array([j for j in np.flatnonzero(candidates) if j not in S])
        M = np.linalg.inv(F[S] @ F[S].T + 30.0 * np.eye(i))
        B = F[left] @ F[S].T
        c = F[left] @ target - B @ M @ (F[S] @ target)
        n = (F[left] ** 2).sum(1) + 30.0 - np.einsum("ij,jk,ik->i", B, M, B)
        g = (F[S] @ target) @ M @ (F[S] @ target)
        bounds.append(g + np.sort(c * c / n)[-5:].sum() / γ)
    expected = min(*bounds, target @ target) / (target @ target)
    assert proof["best_set"].value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "selector", [Random(), TopInfluence(), Herding(), NonNegative(), StochasticGreedy(), SBQ()]
)
def test_any_selection_is_certified_and_json(selector):
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((50, 6))
    target = rows[:9].mean(axis=0)
    proof = certificate(rows, select(rows, target, 4, selector), target, level="full")
    plain = json.loads(json.dumps(proof.to_dict(), allow_nan=False))
    assert {s["status"] for s in plain["statements"]} == {"certified", "estimated"}
    assert [s["name"] for s in plain["statements"] if s["status"] == "estimated"] == ["theorem_1"]
    assert all(len(s["meaning"]) > 40 for s in plain["statements"])
    assert len(plain["curve"]["measured"]) == 5
    assert proof["greedy_guarantee"].value == 0.0
    with pytest.raises(KeyError):
        proof["nothing"]


def test_tiny_noise_in_float32_is_not_called_exact():
    """Rows below the alive tolerance are skipped, so greedy is not exact there."""
    rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    target = np.ones(4)
    proof = certificate(rows, select(rows, target, 3, SBQ(1e-7)), target)
    assert proof["greedy_guarantee"].value == 0.0
    assert proof["weak_submodularity"].value > 0.0


@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_an_empty_selection_is_certified_too():
    rows, target = np.eye(3), np.ones(3)
    proof = certificate(rows, select(rows, target, 2, side="opponents"), target)
    assert proof["share_of_span"].value == 1.0
    assert proof.curve.measured == [3.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": np.ones(3)}, "another target"),
        ({"target": np.ones((1, 3))}, "is for one target"),
        ({"features": np.eye(3)[:1]}, "other features"),
        ({"level": "deep"}, "cheap"),
        ({"r": 0}, "whole number"),
        ({"r": True}, "whole number"),
        ({"r": 9}, "1 to 3"),
    ],
)
def test_mistakes_are_named(change, words):
    rows, target = np.eye(3), np.array([1.0, 2.0, 3.0])
    given = {"features": rows, "selection": select(rows, target, 2), "target": target, **change}
    with pytest.raises(ExemplaError, match=words):
        certificate(**given)


def test_examples():
    assert doctest.testmod(theory).failed == 0


def test_the_guarantee_of_greedy_depends_on_gamma():
    """1 − exp(−γk/r) with γ = σ²/(σ² + max‖f‖²), by hand."""
    rows, noise, k, r = np.diag([3.0, 2.0, 1.0]), 3.0, 2, 3
    target = np.ones(3)
    proof = certificate(rows, select(rows, target, k, SBQ(noise)), target, r=r)
    gamma = noise / (noise + 9.0)
    assert proof["weak_submodularity"].value == pytest.approx(gamma)
    expected = 1 - np.exp(-gamma * k / r)
    assert proof["greedy_guarantee"].value == pytest.approx(expected)
