"""Laws that every selector keeps. A new selector is added to SELECTORS and must pass."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import importlib
import pkgutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exempla.selection
from exempla.selection import (
    SBQ,
    Herding,
    MatchingPursuit,
    NonNegative,
    Random,
    Sharded,
    StochasticGreedy,
    TopInfluence,
    select,
)

SELECTORS = [
    SBQ(),
    SBQ(2.0),
    MatchingPursuit(),
    MatchingPursuit(2.0),
    NonNegative(),
    Herding(),
    TopInfluence(),
    Random(1),
    StochasticGreedy(0.1, 1),
    Sharded(SBQ(), 3),
    Sharded(SBQ(2.0), 3, "two-round"),
]
CHANCE = (Random, StochasticGreedy)  # depend on the order of the rows
BY_PART = [s for s in SELECTORS if isinstance(s, Sharded) and s.mode == "two-round"]
ORDERLESS = [s for s in SELECTORS if not isinstance(s, CHANCE) and s not in BY_PART]
SCALE_FREE = [SBQ(), MatchingPursuit(), NonNegative(), Sharded(SBQ(), 3)]  # per row, at noise 0

pytestmark = pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
SIDES = ["both", "opponents", "proponents"]


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    t, p = draw(st.integers(5, 40)), draw(st.integers(2, 10))
    rows = rng.standard_normal((t, p))
    # One below the full rank: the last row to complete a basis is any of them, a true tie.
    return rows, rng.standard_normal(p), draw(st.integers(1, max(1, min(t, p) - 1))), rng


def law(test):
    return settings(max_examples=25, deadline=None, derandomize=True)(given(problems())(test))


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@pytest.mark.parametrize("side", SIDES)
def test_a_selection_is_well_formed(selector, side):
    @law
    def check(problem):
        rows, target, k, _ = problem
        before = rows.copy()
        result = select(rows, target, k, selector, side)
        assert np.array_equal(rows, before), "the input was changed"
        assert result.indices.dtype == np.int64
        assert len(result) <= k
        assert len(set(result.indices.tolist())) == len(result), "a row was picked twice"
        assert ((result.indices >= 0) & (result.indices < len(rows))).all()
        z = rows[result.indices] @ target
        assert {"both": True, "opponents": (z < 0).all(), "proponents": (z > 0).all()}[side]
        for values in (result.weights, result.gains):
            assert values.dtype == np.float64
            assert values.shape == (len(result),)
            assert np.isfinite(values).all()
        assert (result.gains >= 0).all()
        assert 0 <= result.explained <= 1 + 1e-9
        assert result.variance == pytest.approx(
            target @ target - result.gains.sum(), abs=1e-9 * (target @ target)
        )
        residual = target - result.weights @ rows[result.indices]
        assert result.mmd2 == pytest.approx(residual @ residual, abs=1e-9 * (target @ target))
        assert result.stopped in ("k", "rank", "candidates", "residual")
        assert (result.stopped == "k") == (len(result) == k)
        assert result.rank <= len(result)

    check()


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_the_same_question_has_the_same_answer(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        one, two = select(rows, target, k, selector), select(rows, target, k, selector)
        assert np.array_equal(one.indices, two.indices)
        assert np.array_equal(one.weights, two.weights)

    check()


@pytest.mark.parametrize("selector", ORDERLESS, ids=repr)
def test_permuting_the_rows_permutes_the_answer(selector):
    @law
    def check(problem):
        rows, target, k, rng = problem
        order = rng.permutation(len(rows))
        one, two = select(rows, target, k, selector), select(rows[order], target, k, selector)
        assert np.array_equal(one.indices, order[two.indices])
        np.testing.assert_allclose(one.weights, two.weights, rtol=1e-6, atol=1e-9)

    check()


@pytest.mark.parametrize("selector", ORDERLESS, ids=repr)
def test_copies_behind_the_rows_are_not_preferred(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        one = select(rows, target, 1, selector)
        two = select(np.concatenate([rows, rows]), target, 1, selector)
        assert np.array_equal(one.indices, two.indices)
        if selector in SCALE_FREE:  # these never take a copy of what they have
            many = select(np.concatenate([rows, rows]), target, k, selector)
            assert np.array_equal(many.indices, select(rows, target, k, selector).indices)

    check()


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_scaling_everything_changes_only_the_units(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        scaled = selector
        if getattr(selector, "noise", 0.0):  # noise is in units of squared rows
            inner = selector.selector if isinstance(selector, Sharded) else selector
            inner = dataclasses.replace(inner, noise=inner.noise * 16)
            scaled = (
                dataclasses.replace(selector, selector=inner)
                if isinstance(selector, Sharded)
                else inner
            )
        one = select(rows, target, k, selector)
        two = select(4 * rows, 4 * target, k, scaled)
        assert np.array_equal(one.indices, two.indices)
        np.testing.assert_allclose(one.weights, two.weights, rtol=1e-9)
        np.testing.assert_allclose(16 * one.gains, two.gains, rtol=1e-9)

    check()


@pytest.mark.parametrize("selector", SCALE_FREE, ids=repr)
def test_row_lengths_do_not_matter_without_noise(selector):
    @law
    def check(problem):
        rows, target, k, rng = problem
        lengths = 2.0 ** rng.integers(-6, 6, size=len(rows))
        one = select(rows, target, k, selector)
        two = select(rows * lengths[:, None], target, k, selector)
        assert np.array_equal(one.indices, two.indices)
        np.testing.assert_allclose(one.gains, two.gains, rtol=1e-7)
        np.testing.assert_allclose(
            one.weights, two.weights * lengths[one.indices], rtol=1e-6, atol=1e-9
        )

    check()


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_more_picks_never_explain_less(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        shares = [select(rows, target, i, selector).explained for i in range(1, k + 1)]
        if isinstance(selector, StochasticGreedy) or selector in BY_PART:
            return  # other samples, other parts: no prefix
        assert (np.diff(shares) >= -1e-9).all()

    check()


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_several_targets_are_as_many_single_ones(selector):
    @law
    def check(problem):
        rows, target, k, rng = problem
        targets = np.stack([target, rng.standard_normal(len(target)), -target])
        together = select(rows, targets, k, selector, SIDES)
        for result, one, side in zip(together, targets, SIDES):
            alone = select(rows, one, k, selector, side)
            assert np.array_equal(alone.indices, result.indices)
            np.testing.assert_allclose(alone.weights, result.weights, rtol=1e-6, atol=1e-9)

    check()


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_a_selector_is_a_frozen_value(selector):
    assert dataclasses.is_dataclass(selector)
    assert selector == copy.deepcopy(selector)
    assert hash(selector) == hash(copy.deepcopy(selector))
    field = dataclasses.fields(selector)
    if field:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(selector, field[0].name, 1)


def test_every_public_name_has_a_running_example():
    for name in exempla.selection.__all__:
        assert ">>>" in (getattr(exempla.selection, name).__doc__ or ""), name
    for module in pkgutil.iter_modules(exempla.selection.__path__):
        loaded = importlib.import_module(f"exempla.selection.{module.name}")
        assert doctest.testmod(loaded).failed == 0, module.name
