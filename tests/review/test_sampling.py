"""The number left, from spot checks: against exact laws, and in simulated reviews of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom

from benchmarks.review_cases import KINDS, synthetic_case
from benchmarks.reviews import covered, false_stops, until_found
from exempla.errors import ExemplaError
from exempla.review.sampling import SpotCheck, Strata, _law, draw, remaining_errors, sample_rest


def plain(n, m, x):
    """m spot checks in a row from n rows, x of them wrong."""
    return [SpotCheck(n - t, 0, t < x) for t in range(m)]


def test_without_decisions_in_between_the_law_is_hypergeometric():
    n, m, total = 300, 25, 40
    steps = np.arange(m)
    found = _law(n - steps.astype(float), np.zeros(m), total)
    np.testing.assert_allclose(found, hypergeom(n, total, m).pmf(np.arange(m + 1)), atol=1e-12)


@pytest.mark.parametrize(("m", "x"), [(20, 0), (20, 3), (20, 20), (2, 0), (60, 7)])
def test_the_interval_is_clopper_pearsons_for_a_finite_population(m, x):
    n = 500
    laws = [hypergeom(n, total, m) for total in range(n + 1)]
    totals = [T for T, law in enumerate(laws) if law.sf(x - 1) > 0.05 and law.cdf(x) > 0.05]
    left = remaining_errors(plain(n, m, x), rows=n - m, found=x, expected=10.0)
    assert (left.low, left.high) == (max(totals[0], x) - x, totals[-1] - x)
    assert left.low <= left.mean <= left.high


def test_all_checked_means_all_known():
    n = 30
    left = remaining_errors(plain(n, n - 1, 4), rows=1, found=4, expected=0.5)
    assert (left.low, left.high) == (0, 1)
    assert remaining_errors(plain(n, n, 4), rows=0, found=4, expected=0.0).high == 0


def test_wrong_rows_found_in_order_count_exactly():
    # 50 wrong ones were found by order before the checks: they are no part of what is left.
    checks = [SpotCheck(450 - t, 50, False) for t in range(20)]
    other = [SpotCheck(450 - t, 0, False) for t in range(20)]
    one = remaining_errors(checks, rows=430, found=50, expected=0.0)
    two = remaining_errors(other, rows=430, found=0, expected=0.0)
    assert (one.low, one.high) == (two.low, two.high)


def test_a_check_left_open_widens_the_interval_on_both_sides():
    known = remaining_errors(plain(400, 20, 4), rows=380, found=4, expected=0.0)
    open_ = [*plain(400, 20, 4)[:19], SpotCheck(381, 0, None)]
    wide = remaining_errors(open_, rows=381, found=4, expected=0.0)
    assert wide.low <= known.low
    assert wide.high > known.high
    assert wide.checks == 19


def test_before_any_check_there_is_no_interval():
    left = remaining_errors([], rows=100, found=3, expected=7.5)
    assert (left.mean, left.low, left.high, left.checks) == (7.5, None, None, 0)


def test_the_bound_to_stop_by_holds_however_often_one_looks():
    # A little more than the named share is left: at most one review in ten may stop, ever. The
    # 95 % bound of the moment, looked at after each check, stops in 18 of 100.
    assert false_stops(0.05, 400, rows=4000, most=400) <= 0.1
    assert false_stops(0.02, 400, rows=4000, most=400) <= 0.1


def test_the_bound_to_stop_by_comes_down_with_right_ones_and_up_with_wrong_ones():
    sure = [
        remaining_errors(plain(2000, m, x), rows=2000 - m, found=x, expected=0.0).sure
        for m, x in ((50, 0), (200, 0), (400, 0), (400, 2), (400, 40))
    ]
    assert sure[0] > sure[1] > sure[2] < sure[3] < sure[4]
    assert sure[2] <= 0.01 * 2000, "400 of 2000 without one wrong are enough for one in a hundred"
    everything = remaining_errors(plain(60, 60, 3)[:59], rows=1, found=3, expected=0.0)
    assert everything.sure <= 1


def test_every_undecided_row_is_as_likely_to_be_drawn_as_any_other():
    # 10 listed rows of which 4 are decided, and a rest of 30: 36 rows, each 1/36.
    sizes, gone = (5, 5, 15, 15), [3, 1, 0, 0]
    items = np.array([0, 1, 5, 6, 7, 8, *range(10, 40)])
    strata = np.repeat(np.arange(4), [2, 4, 15, 15])
    for number in (0, 5):
        drawn = [draw(Strata(sizes, seed), number, gone, items, strata) for seed in range(6_000)]
        counts = np.bincount(drawn, minlength=40)[items]
        assert counts.sum() == 6_000
        assert np.abs(counts - 6_000 / 36).max() < 4.5 * np.sqrt(6_000 / 36)


def test_draws_are_spread_over_the_strata_and_come_again_with_the_seed():
    sizes = (50, 50, 450, 450)
    items = np.concatenate([np.arange(size) + 1000 * h for h, size in enumerate(sizes)])
    given = Strata(sizes, seed=9), items // 1000
    drawn = [draw(given[0], t, [0] * 4, items, given[1]) for t in range(40)]
    assert drawn == [draw(given[0], t, [0] * 4, items, given[1]) for t in range(40)]
    strata = np.bincount([row // 1000 for row in drawn], minlength=4)
    assert np.abs(strata - 40 * np.array(sizes) / 1000).max() <= 2


def test_the_sample_of_the_rest_takes_the_same_share_of_each_stratum():
    p = np.random.default_rng(0).random(5000)
    frame, chosen, strata = sample_rest(p, listed=300, seed=3)
    assert frame.rows == 5300
    assert len(chosen) == len(set(chosen.tolist())) == 400
    assert np.bincount(strata)[2:].tolist() == [100] * 4
    assert p[chosen][strata == 2].min() > p[chosen][strata == 5].max()
    small, few, _ = sample_rest(p[:7], listed=0)
    assert (small.rows, sorted(few.tolist())) == (7, list(range(7)))
    with pytest.raises(ExemplaError, match="sizes"):
        Strata((3, -1))


@pytest.mark.parametrize("kind", [*KINDS, "turned round", "blind"])
def test_the_interval_covers_the_truth_under_every_kind_of_mistake(kind):
    # A small version of benchmarks/reviews.py; 90 % intervals, so 20 reviews may miss 3 times.
    def case(seed):
        if kind in KINDS:
            return synthetic_case(kind, 0.1, seed, rows=800)
        made = synthetic_case("uniform", 0.1, seed, rows=800)
        return made.blind() if kind == "blind" else made.turned()

    hits = [covered(case(seed), seed)[0] for seed in range(20)]
    assert np.mean(hits) >= 0.85


def test_learning_finds_one_kind_of_mistake_sooner_and_costs_next_to_nothing_elsewhere():
    one = synthetic_case("one direction", 0.1, 0, rows=800)
    fixed = until_found(one, 0.9, 0, spots=False, learning=False)
    assert until_found(one, 0.9, 0, spots=False) < 0.75 * fixed
    even = synthetic_case("uniform", 0.1, 0, rows=800)
    fixed = until_found(even, 0.9, 0, spots=False, learning=False)
    assert until_found(even, 0.9, 0, spots=False) < 1.1 * fixed
