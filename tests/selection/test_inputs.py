"""What `select` accepts, and what it says about what it does not."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.results import Selection
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

RNG = np.random.default_rng(0)
ROWS = np.round(RNG.standard_normal((30, 5)) * 4)
TARGET = np.array([1.0, -2.0, 0.5, 0.0, 3.0])


def torch_of(array, **options):
    return pytest.importorskip("torch").tensor(array, **options)


@pytest.mark.parametrize(
    "given",
    [
        ROWS.astype(np.float32),
        ROWS.astype(int),
        ROWS.astype(np.int8),
        ROWS.astype(np.float16),
        ROWS.astype(">f8"),
        ROWS.astype(object),
        np.asfortranarray(ROWS),
        np.repeat(ROWS, 2, axis=0)[::2],
        ROWS[::-1][::-1],
        ROWS.tolist(),
        pd.DataFrame(ROWS, columns=list("abcde")),
    ],
    ids=[
        "f4",
        "int",
        "int8",
        "f2",
        "big-endian",
        "object",
        "F",
        "strided",
        "flip",
        "list",
        "frame",
    ],
)
def test_every_kind_of_array_gives_the_same_picks(given):
    expected = select(ROWS, TARGET, 4)
    result = select(given, TARGET, 4)
    assert np.array_equal(result.indices, expected.indices)
    np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-9)


def test_torch_tensors_of_every_kind():
    torch = pytest.importorskip("torch")
    expected = select(ROWS, TARGET, 4)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32):
        rows = torch_of(ROWS, dtype=dtype)
        assert np.array_equal(select(rows, torch_of(TARGET), 4).indices, expected.indices)
    tracked = torch_of(ROWS).requires_grad_()
    assert np.array_equal(select(tracked, TARGET, 4).indices, expected.indices)
    assert np.array_equal(select(torch_of(ROWS.T.copy()).T, TARGET, 4).indices, expected.indices)
    with pytest.raises(ExemplaError, match="complex"):
        select(torch_of(ROWS).to(torch.complex64), TARGET, 4)


def test_read_only_rows_are_left_alone():
    rows, target = ROWS.copy(), TARGET.copy()
    rows.setflags(write=False)
    target.setflags(write=False)
    select(rows, target, 4, SBQ(1.0))
    assert np.array_equal(rows, ROWS)
    assert np.array_equal(target, TARGET)


def broken(value, *positions):
    rows = ROWS.copy()
    for position in positions:
        rows[position, 1] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "target", "k", "words"),
    [
        (broken(np.nan, 3), TARGET, 2, r"1 row \(row 3\)"),
        (broken(np.inf, 3, 7), TARGET, 2, r"2 rows \(rows 3, 7\)"),
        (broken(-np.inf, *range(9)), TARGET, 2, r"9 rows \(rows 0, 1, 2, 3, 4, …\)"),
        (broken(1e200, 2), TARGET, 2, "overflowing"),
        (ROWS[0], TARGET, 1, "two-dimensional"),
        (ROWS[None], TARGET, 1, "two-dimensional"),
        (ROWS[:0], TARGET, 1, "at least one"),
        (ROWS[:, :0], TARGET, 1, "at least one"),
        ([[1.0, 2.0], [3.0]], [1.0, 2.0], 1, "rectangular"),
        ([["a", "b"]], [1.0, 2.0], 1, "real numbers"),
        (np.array([["a", 1]], dtype=object), [1.0, 2.0], 1, "rectangular"),
        (ROWS.astype(complex), TARGET, 1, "real numbers"),
        (np.ma.masked_array(ROWS, ROWS > 2), TARGET, 1, "features is a masked array"),
        (list(np.ma.masked_array(ROWS, ROWS > 2)), TARGET, 1, "features is a masked array"),
        (ROWS, np.ma.masked_array(TARGET, [1, 0, 0, 0, 0]), 1, "target is a masked array"),
        (1e-160 * ROWS, TARGET, 1, "longest row of the features is shorter"),
        (1e-200 * ROWS, TARGET, 1, "longest row of the features is shorter"),
        (1e100 * ROWS, TARGET, 1, "longest row of the features is shorter than 1e-60 or longer"),
        (ROWS, 1e-160 * TARGET, 1, "the target is shorter"),
        (ROWS, 1e200 * TARGET, 1, "the target is shorter than 1e-60 or longer"),
        (ROWS, TARGET[:3], 1, "3 dimensions, but the features have 5"),
        (ROWS, np.zeros(5), 1, "zero"),
        (ROWS, np.zeros((2, 5)), 1, r"target \[0\] is zero"),
        (ROWS, np.array([]), 1, "empty"),
        (ROWS, np.zeros((0, 5)), 1, "empty"),
        (ROWS, 3.0, 1, "must be"),
        (ROWS, TARGET * np.nan, 1, "NaN"),
        (ROWS, np.stack([TARGET, np.full(5, np.inf)]), 1, r"target \[1\] has NaN"),
        (ROWS, TARGET, 0, "at least one"),
        (ROWS, TARGET, -4, "at least one"),
        (ROWS, TARGET, 31, "only 30 rows"),
        (ROWS, TARGET, 2.0, "whole number"),
        (ROWS, TARGET, True, "whole number"),
        (ROWS, TARGET, "3", "whole number"),
        (ROWS, TARGET, None, "whole number"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_bad_input_is_named(rows, target, k, words):
    with pytest.raises(ExemplaError, match=words):
        select(rows, target, k)


def test_a_mask_that_hides_nothing_changes_nothing():
    open_rows = np.ma.masked_array(ROWS, np.zeros(ROWS.shape, bool))
    assert np.array_equal(select(open_rows, TARGET, 3).indices, select(ROWS, TARGET, 3).indices)


@pytest.mark.parametrize("scale", [1e-50, 1e50])
@pytest.mark.parametrize("selector", [SBQ(), TopInfluence(), NonNegative(), Herding()], ids=repr)
def test_very_small_and_large_rows_lose_nothing(scale, selector):
    one = select(ROWS, TARGET, 4, selector)
    two = select(scale * ROWS, scale * TARGET, 4, selector)
    assert np.array_equal(one.indices, two.indices)
    np.testing.assert_allclose(two.weights, one.weights, rtol=1e-9)
    assert two.variance == pytest.approx(scale**2 * one.variance)


def test_tiny_rows_among_others_count_as_zero():
    rows = np.vstack([ROWS, 1e-160 * ROWS])
    result = select(rows, TARGET, 5)
    assert (result.indices < len(ROWS)).all()
    assert np.isfinite([result.variance, result.mmd2, *result.weights]).all()
    with pytest.warns(ExemplaWarning, match="only 30 nonzero rows"):
        every = select(rows, TARGET, 40, SBQ(1.0))
    assert np.isfinite([every.variance, *every.weights]).all()


def test_the_return_type_follows_the_dimensions_of_the_target():
    assert isinstance(select(ROWS, TARGET, 2), Selection)
    assert isinstance(select(ROWS, TARGET[None], 2), list)


def test_sparse_features_are_refused_by_name():
    from scipy.sparse import csr_matrix

    with pytest.raises(ExemplaError, match="sparse"):
        select(csr_matrix(ROWS), TARGET, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": "left"}, "use one of both, opponents, proponents"),
        ({"side": 3}, "single value or"),
        ({"side": ["both", "both"]}, "a single value"),
        ({"selector": "SBQ"}, "give a selector"),
        ({"selector": SBQ}, "give a selector"),
        ({"start": "earlier"}, "not a result of select"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ExemplaError, match=words):
        select(ROWS, TARGET, 2, **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SBQ(-1.0), "variance"),
        (lambda: SBQ(np.nan), "variance"),
        (lambda: SBQ("1"), "number"),
        (lambda: SBQ(True), "number"),
        (lambda: MatchingPursuit(np.inf), "finite"),
        (lambda: StochasticGreedy(delta=0.0), "between 0 and 1"),
        (lambda: StochasticGreedy(delta=1), "between 0 and 1"),
        (lambda: StochasticGreedy(seed=-1), "seed"),
        (lambda: Random(seed=0.5), "seed"),
        (lambda: Random(seed="a"), "seed"),
        (lambda: StochasticGreedy(seed="a"), "seed"),
        (lambda: StochasticGreedy(delta="a"), "between 0 and 1"),
        (lambda: SBQ(np.complex128(1.0)), "number"),
        (lambda: Sharded(3), "wraps a selector"),
        (lambda: Sharded(SBQ(), shards=0), "at least 1"),
        (lambda: Sharded(SBQ(), shards=True), "at least 1"),
        (lambda: Sharded(SBQ(), mode="fast"), "two-round"),
        (lambda: Sharded(SBQ(), backend="spark"), "is not known"),
    ],
)
def test_bad_selectors_are_named(make, words):
    with pytest.raises(ExemplaError, match=words):
        make()


def test_each_target_has_its_own_side():
    targets = np.stack([TARGET, -TARGET, TARGET])
    sides = ["opponents", "opponents", "both"]
    results = select(ROWS, targets, 3, side=sides)
    for result, target, side in zip(results, targets, sides):
        alone = select(ROWS, target, 3, side=side)
        assert np.array_equal(result.indices, alone.indices)
        assert result.side == side
    assert (ROWS[results[0].indices] @ TARGET < 0).all()
    assert (ROWS[results[1].indices] @ TARGET > 0).all()
    assert isinstance(select(ROWS, targets[:1], 3), list)
    with pytest.raises(ExemplaError, match="3 values, one for each target"):
        select(ROWS, targets, 3, side=["both"])


def test_zero_rows_are_never_picked():
    rows = ROWS.copy()
    rows[[0, 5, 9]] = 0.0
    for selector in (SBQ(), SBQ(5.0), MatchingPursuit(), TopInfluence(), Random(), Herding()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExemplaWarning)
            result = select(rows, TARGET, 30, selector)
        assert not set(result.indices.tolist()) & {0, 5, 9}
        assert np.isfinite(result.weights).all()


def test_all_rows_zero_selects_nothing_and_says_so():
    with pytest.warns(ExemplaWarning, match="0 of 2 rows .* only 0 nonzero rows"):
        result = select(np.zeros((4, 2)), np.ones(2), 2)
    assert len(result) == 0
    assert result.explained == 0.0
    assert result.variance == 2.0


def test_beyond_the_rank_fewer_come_back_with_a_warning():
    rows = np.zeros((20, 5))
    rows[:, :3] = RNG.standard_normal((20, 3))
    with pytest.warns(ExemplaWarning, match="3 of 9 rows .* rank 3"):
        result = select(rows, np.ones(5), 9)
    assert (len(result), result.rank, result.stopped) == (3, 3, "rank")
    noisy = select(rows, np.ones(5), 9, SBQ(0.1))
    assert (len(noisy), noisy.rank, noisy.stopped) == (9, 3, "k")


def test_beyond_the_side_fewer_come_back_with_a_warning():
    against = int((ROWS @ TARGET < 0).sum())
    with pytest.warns(ExemplaWarning, match=f"only {against} opponents"):
        result = select(ROWS, TARGET, 30, SBQ(1.0), "opponents")
    assert (len(result), result.stopped, result.candidates) == (against, "candidates", against)
    with pytest.warns(ExemplaWarning, match="for target 1"):
        select(ROWS, np.stack([TARGET, TARGET]), 30, SBQ(1.0), ["both", "opponents"])


def test_a_matched_target_ends_the_search():
    with pytest.warns(ExemplaWarning, match="no further row can bring"):
        result = select(np.eye(4), np.array([1.0, 0.0, 2.0, 0.0]), 3)
    assert result.indices.tolist() == [2, 0]
    assert result.stopped == "residual"


def test_one_row_one_dimension():
    result = select([[2.0]], [3.0], 1)
    assert result.indices.tolist() == [0]
    assert result.weights.tolist() == [1.5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": ROWS + 1}, "other features"),
        ({"features": ROWS[:3]}, "other features"),
        ({"target": TARGET + 1}, "another target"),
        ({"side": "opponents"}, "side 'both'"),
        ({"k": 2}, "more than k"),
        ({"selector": SBQ(1.0)}, "same selector"),
        ({"selector": MatchingPursuit()}, "same selector"),
        ({"selector": Sharded(SBQ(), mode="two-round")}, "cannot continue"),
    ],
)
def test_a_start_must_belong_to_the_problem(change, words):
    start = select(ROWS, TARGET, 3)
    given = {"features": ROWS, "target": TARGET, "k": 3, "start": start, **change}
    with pytest.raises(ExemplaError, match=words):
        select(**given)


def test_starts_for_several_targets():
    targets = np.stack([TARGET, -2 * TARGET[::-1]])
    first = select(ROWS, targets, 2)
    longer = select(ROWS, targets, 4, start=[first[0], None])
    for result, whole in zip(longer, select(ROWS, targets, 4)):
        assert np.array_equal(result.indices, whole.indices)
    with pytest.raises(ExemplaError, match="one for each target"):
        select(ROWS, targets, 4, start=first[0])


def test_estimate_averages_with_the_weights():
    result = select(ROWS, TARGET, 5)
    # The rows span the space and are matched exactly, so linear functions are averaged exactly.
    np.testing.assert_allclose(result.estimate(ROWS), TARGET, atol=1e-9)
    assert result.estimate(ROWS[:, 0]) == pytest.approx(TARGET[0])


COLD = """
import sys
import numpy as np
import exempla

rows = np.random.default_rng(0).standard_normal({shape}, dtype=np.float32)
exempla.select(rows, rows[:9].mean(0), {k})
print(*sorted(name for name in sys.modules if name.split(".")[0] == "exempla"))
"""


def cold_imports(shape, k):
    """The modules of exempla that a first `select` loads."""
    command = [sys.executable, "-c", COLD.format(shape=shape, k=k)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_first_job_loads_few_files():
    found = cold_imports((50, 5), 4)
    assert len(found) <= 15, found
    assert cold_imports((40_000, 128), 50) == found
