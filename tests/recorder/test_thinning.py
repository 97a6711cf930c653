"""Which steps stay: an even spread at every length."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from exempla.recorder.recorder import Thinning


def trained(thinning: Thinning, length: int) -> tuple[list[int], int]:
    """The steps kept while training goes on, and the snapshots taken."""
    kept: list[int] = []
    taken = 0
    due = thinning.next_after(kept)
    while due is not None and due <= length:
        kept = thinning.with_step(kept, due)
        taken += 1
        assert len(kept) <= thinning.keep
        due = thinning.next_after(kept, due)
    return kept, taken


@settings(max_examples=300, deadline=None)
@given(keep=st.integers(1, 12), length=st.integers(1, 200_000))
def test_the_spread_is_even_whatever_the_length(keep, length):
    thinning = Thinning(keep)
    before, taken = trained(thinning, length)
    kept = thinning.with_last(before, length)
    assert kept[-1] == length
    assert kept == sorted(set(kept))
    assert set(kept) - {length} <= set(before)
    assert len(kept) <= keep
    assert len(kept) >= min(length, keep // 2 + 1)
    gaps = np.diff([0, *kept])
    assert gaps.max() <= 4 * gaps.min()
    assert np.ptp(gaps[:-1]) == 0 if len(gaps) > 1 else True  # all but the last are one stride
    assert taken <= keep + (keep / 2 + 1) * math.ceil(math.log2(max(2, length / keep)))


@given(keep=st.integers(2, 12), length=st.integers(1, 5_000))
def test_a_known_length_takes_no_snapshot_in_vain(keep, length):
    thinning = Thinning(keep, stride=math.ceil(length / keep))
    before, taken = trained(thinning, length)
    assert taken == len(before) <= keep
    assert set(thinning.with_last(before, length)) <= {*before, length}


@settings(max_examples=100, deadline=None)
@given(keep=st.integers(2, 10), first=st.integers(1, 500), more=st.integers(1, 500))
def test_a_training_that_goes_on_after_its_end_stays_within_the_number(keep, first, more):
    thinning = Thinning(keep)
    kept = thinning.with_last(trained(thinning, first)[0], first)
    for step in range(first + 1, first + more + 1):
        if step == thinning.next_after(kept, step - 1):
            kept = thinning.with_step(kept, step)
            assert len(kept) <= keep
    kept = thinning.with_last(kept, first + more)
    assert kept[-1] == first + more
    assert len(kept) <= keep


@given(kept=st.integers(1, 12), fit=st.integers(1, 12))
def test_fewer_stay_where_fewer_fit(kept, fit):
    thinning = Thinning(12)
    left = thinning.reduce(list(range(1, kept + 1)), fit)
    assert len(left) <= fit
    assert thinning.keep == fit
