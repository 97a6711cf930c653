"""Each selector against what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from exempla.errors import ExemplaWarning
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


def made(t=200, p=12, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((t, p)) * rng.uniform(0.2, 5, (t, 1))
    return rows, rows[:30].mean(axis=0) + 0.1 * rng.standard_normal(p)


def test_matching_pursuit_follows_its_criterion():
    rows, target = made()
    result = select(rows, target, 6, MatchingPursuit())
    for step in range(6):
        S = result.indices[:step]
        w = np.linalg.lstsq(rows[S].T, target, rcond=None)[0] if step else np.zeros(0)
        r = target - w @ rows[S]
        score = (rows @ r) ** 2 / (rows**2).sum(axis=1)
        score[S] = -1
        assert result.indices[step] == np.argmax(score)
    w = np.linalg.lstsq(rows[result.indices].T, target, rcond=None)[0]
    np.testing.assert_allclose(result.weights, w)


def test_top_influence_is_the_sorted_alignment():
    rows, target = made()
    z = rows @ target
    result = select(rows, target, 9, TopInfluence())
    assert result.indices.tolist() == np.argsort(-np.abs(z), kind="stable")[:9].tolist()
    against = select(rows, target, 9, TopInfluence(), "opponents")
    assert against.indices.tolist() == np.argsort(z, kind="stable")[:9].tolist()


def test_top_influence_takes_copies_and_gives_them_no_weight():
    rows = np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    result = select(rows, np.array([1.0, 0.5]), 4, TopInfluence())
    assert result.indices.tolist() == [1, 2, 0, 3]
    np.testing.assert_allclose(result.weights, [1 / 3, 0, 0, 0.5])
    assert result.gains[1] == result.gains[2] == 0.0
    assert result.rank == 2


def test_sbq_with_large_noise_is_top_influence_and_without_noise_divides_by_the_norm():
    rows, target = made(seed=4)
    ranked = select(rows, target, 10, TopInfluence()).indices
    assert np.array_equal(select(rows, target, 10, SBQ(1e9)).indices, ranked)
    first = select(rows, target, 1).indices[0]
    assert first == np.argmax(np.abs(rows @ target) / np.linalg.norm(rows, axis=1))


def test_random_is_a_prefix_of_one_order_and_differs_by_seed():
    rows, target = made()
    long, short = (select(rows, target, k, Random(3)).indices for k in (20, 5))
    assert np.array_equal(long[:5], short)
    assert not np.array_equal(short, select(rows, target, 5, Random(4)).indices)
    counts = np.zeros(200)
    for seed in range(300):
        counts[select(rows, target, 20, Random(seed)).indices] += 1
    assert counts.min() > 5  # 30 expected of each row
    assert counts.max() < 60


def test_herding_equals_its_definition():
    rows, target = made()
    for side, sign in (("both", 1.0), ("opponents", -1.0)):
        allowed = (rows @ target < 0) if side == "opponents" else np.ones(len(rows), bool)
        chosen, w = [], sign * target
        for _ in range(8):
            score = np.where(allowed, rows @ w, -np.inf)
            score[chosen] = -np.inf
            chosen.append(int(np.argmax(score)))
            w = w + sign * target - rows[chosen[-1]]
        result = select(rows, target, 8, Herding(), side)
        assert result.indices.tolist() == chosen
        np.testing.assert_allclose(result.weights, sign / 8)
        error = target - sign * rows[chosen].mean(axis=0)
        assert result.mmd2 == pytest.approx(error @ error)
        assert result.variance <= result.mmd2


def test_stochastic_with_a_full_sample_is_sbq():
    rows, target = made()
    full = select(rows, target, 8, StochasticGreedy(delta=1e-9))
    assert np.array_equal(full.indices, select(rows, target, 8).indices)


def test_stochastic_looks_at_samples_and_lands_between_random_and_sbq():
    rows, target = made(t=2000, p=40)
    exact = select(rows, target, 20)
    chance = np.mean([select(rows, target, 20, Random(s)).variance for s in range(5)])
    sampled = [select(rows, target, 20, StochasticGreedy(0.1, seed=s)) for s in range(5)]
    assert len({tuple(result.indices) for result in sampled}) == 5
    mean = np.mean([result.variance for result in sampled])
    assert exact.variance < mean < chance / 2


def test_stochastic_reaches_the_rank_through_dead_rows():
    rows = np.repeat(np.eye(4), 30, axis=0)
    with pytest.warns(ExemplaWarning):
        result = select(rows, np.array([4.0, 3.0, 2.0, 1.0]), 40, StochasticGreedy())
    assert len(result) == 4


@pytest.mark.parametrize("side", ["both", "proponents"])
def test_nonnegative_follows_its_definition(side):
    rows, target = made(seed=2)
    result = select(rows, target, 10, NonNegative(), side)
    allowed = rows @ target > 0 if side == "proponents" else np.ones(len(rows), bool)
    chosen: list[int] = []
    r = target
    for _ in range(10):
        score = np.where(allowed, rows @ r / np.linalg.norm(rows, axis=1), -np.inf)
        score[chosen] = -np.inf
        chosen.append(int(np.argmax(score)))
        w, _ = nnls(rows[chosen].T, target)
        r = target - w @ rows[chosen]
    assert result.indices.tolist() == chosen
    np.testing.assert_allclose(result.weights, w, atol=1e-9)
    assert result.variance == pytest.approx(r @ r)
    assert result.variance == result.mmd2


def test_nonnegative_beats_sbq_followed_by_nnls():
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((1500, 30))
    target = rows[rng.choice(1500, 300)].mean(axis=0)
    k = 25
    chosen = select(rows, target, k).indices
    _, after = nnls(rows[chosen].T, target)
    assert select(rows, target, k, NonNegative()).mmd2 < after**2 / 4


def test_nonnegative_stops_at_the_cone():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    with pytest.warns(ExemplaWarning, match="no further row can bring"):
        result = select(rows, np.array([2.0, -1.0]), 3, NonNegative())
    assert result.indices.tolist() == [0]
    assert result.mmd2 == pytest.approx(1.0)
    with pytest.warns(ExemplaWarning, match="0 of 2"):
        nothing = select(rows, np.array([-2.0, -1.0]), 2, NonNegative(), "opponents")
    assert len(nothing) == 0


@pytest.mark.parametrize("selector", [NonNegative(), Herding(), TopInfluence(), Random(1)])
def test_continuing_equals_one_run(selector):
    rows, target = made(seed=3)
    whole = select(rows, target, 9, selector)
    longer = select(rows, target, 9, selector, start=select(rows, target, 4, selector))
    assert np.array_equal(whole.indices, longer.indices)
    np.testing.assert_allclose(whole.weights, longer.weights)


def test_stochastic_keeps_the_picks_it_started_from():
    rows, target = made()
    first = select(rows, target, 4, StochasticGreedy())
    longer = select(rows, target, 9, StochasticGreedy(), start=first)
    assert np.array_equal(longer.indices[:4], first.indices)
    assert len(set(longer.indices.tolist())) == 9
