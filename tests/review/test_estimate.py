"""The estimate of wrong labels left: against the exact law and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.review.estimate import remaining_wrong

NONE = np.array([])


def test_without_decisions_it_is_the_sum_of_probabilities():
    p = np.array([0.9, 0.5, 0.1, 0.02])
    found = remaining_wrong(p, NONE, NONE)
    assert found.mean == pytest.approx(p.sum())
    assert found.shift == 0.0
    assert 0.0 <= found.low < found.mean < found.high <= 4.0


def test_the_interval_is_at_least_the_poisson_binomials():
    # The exact distribution by convolution; the doubt about calibration may only widen it.
    p = np.random.default_rng(1).beta(1, 3, 150)
    law = np.array([1.0])
    for q in p:
        law = np.convolve(law, [1 - q, q])
    below = np.cumsum(law)
    low, high = np.searchsorted(below, [0.05, 0.95])
    found = remaining_wrong(p, NONE, NONE)
    assert found.low <= low
    assert found.high >= high


def test_nothing_left_means_nothing_wrong():
    found = remaining_wrong(NONE, np.array([0.5]), np.array([True]))
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


def test_certain_probabilities_do_not_break_it():
    found = remaining_wrong(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([True, False]))
    assert np.isfinite([found.mean, found.low, found.high]).all()


@pytest.mark.parametrize("bias", [-1.5, 1.5])
def test_decisions_correct_probabilities_that_are_off(bias):
    rng = np.random.default_rng(2)
    odds = rng.normal(0, 1, 400)
    claimed = 1 / (1 + np.exp(-odds))
    true = 1 / (1 + np.exp(-odds - bias))
    wrong = rng.random(400) < true
    raw = remaining_wrong(claimed[200:], NONE, NONE).mean
    informed = remaining_wrong(claimed[200:], claimed[:200], wrong[:200])
    truth = wrong[200:].sum()
    assert abs(informed.mean - truth) < 0.35 * abs(raw - truth)


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        odds = rng.normal(-0.5, 1.2, 120)
        true = 1 / (1 + np.exp(-odds - rng.normal(0, 0.5)))  # the stated prior of the shift
        wrong = rng.random(120) < true
        claimed = 1 / (1 + np.exp(-odds))
        found = remaining_wrong(claimed[40:], claimed[:40], wrong[:40])
        hits += found.low <= wrong[40:].sum() <= found.high
    assert 0.86 <= hits / 400 <= 0.96
