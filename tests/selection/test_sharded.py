"""Parts that answer as one, and two rounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from exempla.errors import ExemplaError
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
from exempla.selection.rows import ArrayRows
from exempla.selection.sharded import Local
from tests.selection.test_engine import inputs

SELECTORS = [
    SBQ(),
    SBQ(3.0),
    MatchingPursuit(),
    StochasticGreedy(),
    NonNegative(),
    Herding(),
    TopInfluence(),
    Random(2),
]


def made(t=101, p=9, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((t, p)).astype(dtype)
    rows[50:60] = rows[10:20]  # copies that stand in different parts
    return rows, rows[:25].astype(np.float64).mean(axis=0)


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@pytest.mark.parametrize("shards", range(1, 8))
def test_exact_sharding_changes_nothing(selector, shards):
    rows, target = made()
    whole = select(rows, target, 6, selector)
    parts = select(rows, target, 6, Sharded(selector, shards))
    assert np.array_equal(whole.indices, parts.indices)
    np.testing.assert_allclose(whole.weights, parts.weights, rtol=1e-9)
    assert parts.selector == whole.selector


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_exact_sharding_of_float32_rows(noise, monkeypatch):
    monkeypatch.setattr(inputs, "wrap", lambda rows, _=None: ArrayRows(rows))
    rows, target = made(t=900, dtype=np.float32)
    whole = select(rows, target, 8, SBQ(noise))
    for shards in (2, 3, 7):
        parts = select(rows, target, 8, Sharded(SBQ(noise), shards))
        assert np.array_equal(whole.indices, parts.indices)
    several = select(rows, np.stack([target, -target]), 8, Sharded(SBQ(noise), 3))
    assert np.array_equal(several[1].indices, whole.indices)


def test_more_shards_than_rows():
    rows, target = made()
    result = select(rows[:4], target, 3, Sharded(SBQ(), 9))
    assert np.array_equal(result.indices, select(rows[:4], target, 3).indices)


@pytest.mark.parametrize("seed", range(10))
def test_two_rounds_return_the_better_of_merged_and_best_part(seed):
    rows, target = made(seed=seed)
    result = select(rows, target, 5, Sharded(SBQ(), 3, "two-round"))
    bounds = [int(b) for b in np.linspace(0, len(rows), 4)]
    parts = [(select(rows[a:b], target, 5), np.arange(a, b)) for a, b in pairwise(bounds)]
    union = np.sort(np.concatenate([where[part.indices] for part, where in parts]))
    options = [(select(rows[union], target, 5), union), *parts]
    best, where = min(options, key=lambda option: option[0].variance)
    assert result.variance == pytest.approx(best.variance, rel=1e-9)
    assert set(result.indices.tolist()) == set(where[best.indices].tolist())
    assert result.selector == "Sharded(SBQ, two-round)"
    picked = rows[result.indices]
    assert result.mmd2 == pytest.approx(np.sum((target - result.weights @ picked) ** 2))


def test_the_merged_set_can_lose_to_a_part():
    """Why the better of both is returned: it does happen that merging loses."""
    lost = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows, target = rng.standard_normal((40, 8)), rng.standard_normal(8)
        parts = [select(rows[a : a + 10], target, 4) for a in range(0, 40, 10)]
        union = np.concatenate([10 * i + part.indices for i, part in enumerate(parts)])
        merged = select(rows[np.sort(union)], target, 4)
        best = min(part.variance for part in parts)
        lost += merged.variance > best
        both = select(rows, target, 4, Sharded(SBQ(), 4, "two-round"))
        assert both.variance <= min(best, merged.variance) * (1 + 1e-9)
    assert lost > 0


def test_two_rounds_with_sides_and_several_targets():
    rows, target = made()
    results = select(
        rows,
        np.stack([target, target]),
        4,
        Sharded(SBQ(1.0), 3, "two-round"),
        ["opponents", "proponents"],
    )
    assert (rows[results[0].indices] @ target < 0).all()
    assert (rows[results[1].indices] @ target > 0).all()


@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_two_rounds_without_candidates():
    result = select(np.eye(4), np.ones(4), 2, Sharded(SBQ(), 2, "two-round"), "opponents")
    assert len(result) == 0


def test_a_backend_only_has_to_open_the_rows():
    opened = []

    class Elsewhere(Local):
        def opened(self, features, shards):
            opened.append((features.shape, shards))
            return super().opened(features, shards)

    rows, target = made()
    result = select(rows, target, 3, Sharded(SBQ(), 5, backend=Elsewhere()))
    assert opened == [((101, 9), 5)]
    assert np.array_equal(result.indices, select(rows, target, 3).indices)


def test_nesting_is_refused():
    rows, target = made()
    with pytest.raises(ExemplaError, match="another Sharded"):
        select(rows, target, 3, Sharded(Sharded(SBQ(), 2), 2))
