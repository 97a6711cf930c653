"""Decisions move the probabilities of what is not decided: as far as they must, and no further."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.tasks.labels.decisions import Stated, learn

NONE = np.array([], dtype=int)


def stated(p, given=None, suggested=None, evidence=None):
    p = np.asarray(p, dtype=float)
    more = {} if evidence is None else {"evidence": evidence}
    return Stated(p, given or ["a"] * p.size, suggested or ["b"] * p.size, **more)


def test_without_decisions_they_are_as_stated():
    p = np.array([0.999, 0.5, 0.1, 0.02, 0.0])
    found = learn(stated(p), NONE, NONE).probabilities
    np.testing.assert_allclose(found, np.clip(p, 1e-7, 1), rtol=1e-6)


@pytest.mark.parametrize("bias", [-3.0, 3.0])
def test_decisions_correct_probabilities_that_are_off_by_any_amount(bias):
    # An sd of 0.5 in log-odds, as the prior once had, could not follow a bias of 3.
    rng = np.random.default_rng(2)
    odds = rng.normal(0, 1, 400)
    wrong = rng.random(400) < 1 / (1 + np.exp(-odds - bias))
    claimed = 1 / (1 + np.exp(-odds))
    after = learn(stated(claimed), np.arange(60), wrong[:60]).probabilities[60:]
    truth = wrong[60:].sum()
    assert abs(after.sum() - truth) < 0.2 * abs(claimed[60:].sum() - truth)


def test_one_pair_of_classes_is_told_from_the_others():
    rng = np.random.default_rng(3)
    given = ["abc"[i % 3] for i in range(600)]
    suggested = ["abc"[(i + 1 + i // 3 % 2) % 3] for i in range(600)]
    pair = np.array([g + s == "ab" for g, s in zip(given, suggested, strict=True)])
    wrong = pair & (rng.random(600) < 0.9)
    after = learn(stated(np.full(600, 0.2), given, suggested), np.arange(80), wrong[:80])
    assert after.probabilities[80:][pair[80:]].mean() > 0.7
    assert after.probabilities[80:][~pair[80:]].mean() < 0.1


def test_a_few_decisions_about_a_pair_are_shrunk():
    given, suggested = ["a"] * 100 + ["b"] * 100, ["b"] * 100 + ["a"] * 100
    after = learn(stated(np.full(200, 0.5), given, suggested), np.array([0, 100]), np.array([1, 0]))
    assert 0.25 < after.probabilities[150] < after.probabilities[50] < 0.75


def test_that_the_surest_were_right_does_not_turn_the_order_round():
    # The wrong rows are those of the middle: the linear part alone would send us to the end.
    p = np.linspace(0.95, 0.001, 1000)
    after = learn(stated(p), np.arange(60), np.zeros(60)).probabilities
    assert after[200:400].mean() > 3 * after[-400:].mean()


def test_extreme_and_equal_probabilities_do_not_break_it():
    for p in ([0.0, 1.0, 0.0, 1.0], [0.3, 0.3, 0.3, 0.3], [0.5]):
        y = np.array([True, False, True, False][: len(p)])
        found = learn(stated(p), np.arange(len(p)), y).probabilities
        assert np.isfinite(found).all()
        assert ((found >= 0) & (found <= 1)).all()


def test_it_does_not_depend_on_the_order_of_decisions_or_on_names():
    rng = np.random.default_rng(4)
    p, wrong = rng.random(120), rng.random(120) < 0.3
    given, other = ["x", "y"] * 60, ["y", "x"] * 60
    decided = rng.permutation(120)[:50]
    one = learn(stated(p, given, other), decided, wrong[decided]).probabilities
    back = decided[::-1]
    names = {"x": "q", "y": "p"}
    two = learn(
        stated(p, [names[g] for g in given], [names[s] for s in other]), back, wrong[back]
    ).probabilities
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_many_decisions_follow_what_no_logistic_curve_can():
    rng = np.random.default_rng(6)
    p = rng.random(3000)
    true = np.where(p > 0.5, 0.8, 0.1)  # a step
    wrong = rng.random(3000) < true
    after = learn(stated(p), np.arange(1000), wrong[:1000]).probabilities[1000:]
    assert np.abs(after - true[1000:]).mean() < 0.07
