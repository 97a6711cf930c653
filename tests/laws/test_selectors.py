"""Laws that every selector keeps. A new selector is added to SELECTORS and must pass."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import importlib
import pkgutil
from itertools import pairwise
from pathlib import Path

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
# the first picks of a longer run are the shorter run: not so with other samples or other parts
PREFIX = [s for s in SELECTORS if not isinstance(s, StochasticGreedy) and s not in BY_PART]
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


@pytest.mark.parametrize("selector", PREFIX, ids=repr)
def test_more_picks_never_explain_less(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        shares = [select(rows, target, i, selector).explained for i in range(1, k + 1)]
        assert (np.diff(shares) >= -1e-9).all()

    check()


@pytest.mark.parametrize("selector", [s for s in SELECTORS if s.continues], ids=repr)
def test_continuing_keeps_the_picks_and_never_explains_less(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        shorter = select(rows, target, max(1, k // 2), selector)
        longer = select(rows, target, k, selector, start=shorter)
        assert np.array_equal(longer.indices[: len(shorter)], shorter.indices)
        assert longer.explained >= shorter.explained - 1e-9
        if selector in PREFIX:
            assert np.array_equal(longer.indices, select(rows, target, k, selector).indices)

    check()


@pytest.mark.parametrize("selector", BY_PART, ids=repr)
def test_two_rounds_explain_no_less_than_the_best_part(selector):
    @law
    def check(problem):
        rows, target, k, _ = problem
        together = select(rows, target, k, selector)
        bounds = [int(b) for b in np.linspace(0, len(rows), selector.shards + 1)]
        for start, stop in pairwise(bounds):
            part = rows[start:stop]
            alone = select(part, target, min(k, len(part)), selector.selector)
            assert together.variance <= alone.variance * (1 + 1e-9)

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
    for name in ("any", *(field.name for field in dataclasses.fields(selector))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(selector, name, 1)


def modules_of(package) -> list[str]:
    return [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]


def test_every_public_name_has_an_example():
    for name in exempla.selection.__all__:
        assert ">>>" in (getattr(exempla.selection, name).__doc__ or ""), name


def test_the_examples_of_every_module_run():
    walked = modules_of(exempla.selection)
    folder = Path(exempla.selection.__path__[0])
    files = [path for path in folder.rglob("*.py") if path != folder / "__init__.py"]
    assert len(walked) == len(files)  # none is left out, however deep it lies
    tried = {}
    for name in walked:
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        tried[name] = result.attempted
    assert tried["exempla.selection.selectors"] > 7
    assert tried["exempla.selection.sharded"] > 0
