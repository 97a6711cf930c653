"""P(label is wrong): what trusted rows say of a model's own mistakes, and how sure it may be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from exempla.tasks.labels.regression import KINDS, Case
from exempla.tasks.labels.regression import assess as assess_numbers
from exempla.tasks.labels.wrong import (
    Stack,
    _model_error,
    _probabilities,
    assess,
    fit_stack,
)
from tests.reference import all_columns


def predictions(given: np.ndarray, contradicted: np.ndarray, p: float) -> np.ndarray:
    """log p of two classes: 1 − p for the given label of contradicted rows, p for others."""
    own = np.where(contradicted, 1.0 - p, p)
    view = np.log(np.column_stack([own, own]))
    view[np.arange(len(given)), 1 - given] = np.log(1.0 - own)
    return view


def test_the_models_own_error_is_counted_with_two_successes_and_two_failures():
    given = np.arange(40) % 2
    log_q = predictions(given, np.arange(40) < 6, 0.9)
    error, sd = _model_error(log_q, given)
    assert np.isclose(error, 8 / 44)
    assert np.isclose(sd, np.sqrt(8 / 44 * 36 / 44 / 40) / (1 - 16 / 44))


def test_labels_that_a_poor_model_contradicts_are_not_all_wrong():
    n, m = 400, 200
    rng = np.random.default_rng(0)
    given = rng.integers(0, 2, n + m)
    contradicted = rng.random(n + m) < 0.3  # as often where the labels are known to be right
    views = {"model": predictions(given, contradicted, 0.95)}
    found = assess(views, all_columns(given, 2), n)
    assert found.has_signal
    assert found.expected_errors < 0.6 * contradicted[:n].sum()


def test_a_flip_is_as_likely_as_its_rate_and_falls_on_every_other_class_alike():
    q = np.array([[0.98, 0.01, 0.005, 0.005], [0.5, 0.3, 0.1, 0.1], [0.01, 0.9, 0.05, 0.04]])
    columns = all_columns(np.zeros(3, dtype=int), 4)
    stack = Stack(np.ones(1), np.zeros(4), np.full(4, 0.1))
    odds, given = stack.odds(np.log(q), columns)
    np.testing.assert_allclose(odds + stack.prior, logit(1 - q[:, 0]) + logit(0.1) - np.log(3))
    np.testing.assert_allclose(given, 0.9 * q[:, 0] + 0.1 * (1 - q[:, 0]) / 3)
    flipped = expit(odds + stack.prior)
    assert (_probabilities(flipped, odds, q[:, 0]) >= flipped).all()


@pytest.mark.parametrize("trusted", [0, 300])
def test_flips_of_one_class_are_recognised_and_uniform_ones_are_not_taken_for_them(trusted: int):
    rng = np.random.default_rng(0)
    odds = rng.normal(scale=8.0, size=3000)
    truth = (odds > 0).astype(int)
    log_q = np.log(expit(np.column_stack([-odds, odds])))
    for rates in ([0.1, 0.1], [0.0, 0.2]):
        flip = rng.random(3000) < np.array(rates)[truth]
        given = np.where(flip & (np.arange(3000) < 3000 - trusted), 1 - truth, truth)
        columns = all_columns(given, 2)
        found = fit_stack({"models": log_q}, columns, 3000 - trusted).flip_rates
        np.testing.assert_allclose(found, rates, atol=0.03)


def test_no_label_is_surer_than_the_number_of_rows_allows():
    given = np.arange(40) % 2
    views = {"model": predictions(given, np.arange(40) < 2, 1 - 1e-9)}
    found = assess(views, all_columns(given, 2), 40)
    assert 0.5 < found.probabilities.max() <= 40 / 43


def test_a_slip_is_judged_by_the_density_of_the_number_it_was_made_of():
    """Of numbers ten times too large, T(y) = y/10 has a tenth of the density in y."""
    rng = np.random.default_rng(0)
    expected = rng.uniform(50, 100, 400)
    y = expected + rng.normal(size=400)
    y[:20] *= 10
    found = assess_numbers(Case(y, expected, np.ones(400), np.zeros(400, bool)), seed=0)
    assert all(KINDS[kind] == "×10" for kind in found.kinds[:20])
    assert found.probabilities[:20].min() > 0.9
    assert found.probabilities[20:].max() < 0.1


def test_a_number_that_no_slip_explains_is_of_another_row_or_out_of_range():
    rng = np.random.default_rng(0)
    expected = rng.uniform(0, 100, 400)
    y = expected + 0.1 * rng.normal(size=400)
    y[:20] = rng.permutation(expected[:20]) + 7.3
    found = assess_numbers(Case(y, expected, np.full(400, 0.1), np.zeros(400, bool)), seed=0)
    far = np.abs(y - expected) > 5
    assert found.probabilities[far].min() > 0.9
    assert found.probabilities[20:].max() < 0.5
    others = [KINDS[kind] in ("another row's value", "out of range") for kind in found.kinds[far]]
    assert np.mean(others) > 0.8
