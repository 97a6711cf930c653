"""The greedy loop against the literal Algorithm 1."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from decimal import Decimal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController

import exempla
from exempla import arrays
from exempla.selection import SBQ, MatchingPursuit, NonNegative, Sharded, select
from exempla.selection import engine as engine_module
from exempla.selection.rows import ArrayRows
from tests.selection.reference import (
    candidates_of,
    grow_inverse,
    inverse_of,
    kernel_and_z,
    objective,
    step_gains,
    weights,
)

inputs = importlib.import_module("exempla.selection.select")  # `select` is a function there


def tensor_rows(array, picks=None, tolerance=None):
    torch = pytest.importorskip("torch")
    return ArrayRows(torch.from_numpy(np.array(array)), tolerance)


# The small-problem path, NumPy's, and torch's.
BACKENDS = {"small": None, "numpy": ArrayRows, "torch": tensor_rows}


def using(backend):
    """Force one way of holding rows, whatever the size of the problem."""
    kind = BACKENDS[backend]
    return mock.patch.object(
        inputs, "wrap", (lambda rows, _=None: kind(rows)) if kind else inputs.wrap
    )


def make_rows(rng, t, p, dtype, duplicates, scaled):
    rows = rng.standard_normal((t, p))
    if scaled:
        rows *= 10.0 ** rng.uniform(-3, 3, size=(t, 1))
    for _ in range(duplicates):
        a, b = rng.integers(t, size=2)
        rows[a] = rows[b]
    return rows.astype(dtype)


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    t, p = draw(st.integers(4, 18)), draw(st.integers(2, 8))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    rows = make_rows(rng, t, p, dtype, draw(st.integers(0, 4)), draw(st.booleans()))
    scale = float(np.median(np.linalg.norm(rows, axis=1)) ** 2)
    noise = draw(st.sampled_from([0.0, 0.0, 1e-3, 1.0, 30.0])) * scale
    count = draw(st.integers(1, 3))
    targets = rng.standard_normal((count, p))
    sides = [draw(st.sampled_from(["both", "opponents", "proponents"])) for _ in range(count)]
    return rows, targets, draw(st.integers(1, t)), noise, sides


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    problem=problems(),
    backend=st.sampled_from(sorted(BACKENDS)),
    shards=st.sampled_from([None, 1, 2, 3, 4, 5, 6, 7]),
)
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_every_pick_is_the_literal_algorithms_best(problem, backend, shards):
    rows, targets, k, noise, sides = problem
    single = rows.dtype == np.float32
    close, tolerance = (1e-5, 1e-5) if single else (1e-9, 1e-11)
    selector = SBQ(noise) if shards is None else Sharded(SBQ(noise), shards=shards)
    with using(backend):
        results = select(rows, targets, k, selector, sides)
        if len(targets) == 1:
            alone = select(rows, targets[0], k, selector, sides[0])
            assert np.array_equal(alone.indices, results[0].indices)
    for result, target, side in zip(results, targets, sides):
        K, z = kernel_and_z(rows, target)
        allowed = candidates_of(z, side)
        picks = [int(j) for j in result.indices]
        A = inverse_of(K, [], noise)
        for step, j in enumerate(picks):
            gains = step_gains(K, z, picks[:step], noise, allowed, tolerance, A)
            best = gains.max()
            A = grow_inverse(A, K[picks[:step], j], K[j, j] + Decimal(noise))
            assert gains[j] >= best * (1 - close)
            assert result.gains[step] == pytest.approx(gains[j], rel=close)
            others = np.delete(gains, j)
            if len(others) and others.max() < best * (1 - close):
                assert j == int(np.argmax(gains))
        exact = weights(K, z, picks, noise)
        scale = max(1e-300, np.abs(exact).max(initial=0.0))
        np.testing.assert_allclose(result.weights / scale, exact / scale, atol=1e-6)
        if len(picks) < k and result.stopped != "residual":
            left = step_gains(K, z, picks, noise, allowed, 2 * tolerance)
            assert left.max() == -np.inf


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("side", ["both", "opponents", "proponents"])
def test_picks_maximise_the_papers_objective_itself(noise, side):
    rng = np.random.default_rng(11)
    rows, target = rng.standard_normal((14, 6)), rng.standard_normal(6)
    result = select(rows, target, 4, SBQ(noise), side)
    K, z = kernel_and_z(rows, target)
    chosen: list[int] = []
    for _ in range(4):
        left = [j for j in np.flatnonzero(candidates_of(z, side)) if j not in chosen]
        chosen.append(max(left, key=lambda j: objective(K, z, [*chosen, j], noise)))
    assert chosen == result.indices.tolist()
    assert result.gains.sum() == pytest.approx(float(objective(K, z, chosen, noise)))


def big(t=3000, p=24, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((t, p)).astype(dtype)
    return rows, rows[:40].astype(np.float64).mean(axis=0)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("rule", [SBQ(0.0), SBQ(2.0), MatchingPursuit(0.0)])
def test_float32_rows_give_the_picks_of_float64_rows(backend, rule):
    rows, target = big()
    exact = select(rows.astype(np.float64), target, 20, rule)
    with using(backend):
        single = select(rows, target, 20, rule)
        double = select(rows.astype(np.float64), target, 20, rule)
        several = select(rows, np.stack([target, -target]), 20, rule)
    assert np.array_equal(exact.indices, single.indices)
    assert np.array_equal(exact.indices, double.indices)
    assert np.array_equal(exact.indices, several[0].indices)
    np.testing.assert_allclose(single.weights, exact.weights, rtol=1e-9)


def test_500_picks_in_512_dimensions_are_those_of_float64():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((1000, 512)).astype(np.float32)
    target = rng.standard_normal(512)
    with using("numpy"):
        single = select(rows, target, 500)
    double = select(rows.astype(np.float64), target, 500)
    assert len(single) == 500
    assert np.array_equal(single.indices, double.indices)


def test_a_row_that_adds_barely_more_than_the_tolerance_is_picked():
    """Sums in float32 cannot tell that, so float64 decides before a run stops at the rank."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        span = rng.standard_normal((6, 256))
        rows = rng.standard_normal((200, 6)) @ span
        new = rng.standard_normal(256)
        new -= new @ np.linalg.pinv(span) @ span
        new /= np.linalg.norm(new)
        share = 1e-5 * (1 + 10.0 ** rng.uniform(-5, -1.5))
        rows[77] *= 0.01  # it comes last
        rows[77] += new * np.linalg.norm(rows[77]) * np.sqrt(share)
        rows, target = rows.astype(np.float32), rows.mean(axis=0) + 1e-4 * new
        with using("numpy"), pytest.warns(exempla.ExemplaWarning):
            single = select(rows, target, 9)
        with pytest.warns(exempla.ExemplaWarning):
            double = select(ArrayRows(rows.astype(np.float64), 1e-5), target, 9)
        assert len(single) == len(double)
        assert 77 in single.indices


@pytest.mark.parametrize("scale", [1e-24, 1e-22, 1.0, 1e19])
@pytest.mark.parametrize("rule", [SBQ(0.0), NonNegative()])
def test_the_scale_of_float32_rows_and_targets_changes_no_pick(rule, scale):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 64), dtype=np.float32)
    target = rows[:20].mean(axis=0, dtype=np.float64)
    with using("numpy"):
        found = select(rows * np.float32(scale), target * scale, 6, rule)
        small = select(rows, target * 1e-44, 6, rule)
    expected = select(rows.astype(np.float64), target, 6, rule).indices
    assert found.indices.tolist() == small.indices.tolist() == expected.tolist()


def test_denormal_rows_beside_normal_ones_are_scored_exactly():
    """Their products underflow in float32, but without noise a tiny row explains as much."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((300, 40))
        rows[150:] *= 10.0 ** rng.uniform(-44, -41, (150, 1))
        rows, target = rows.astype(np.float32), rng.standard_normal(40)
        with using("numpy"):
            single = select(rows, target, 15)
        double = select(ArrayRows(rows.astype(np.float64), 1e-5), target, 15)
        assert np.array_equal(single.indices, double.indices)


def the_passes_own_leaders(self, active):
    return {i: int(self.leaders.rows[i]) for i in active}


def test_without_float32_slack_the_pass_alone_would_go_wrong():
    """The check above can fail: a coarse pass without re-scoring picks other rows."""
    rng = np.random.default_rng(5)
    strong, base = np.linalg.qr(rng.standard_normal((16, 2)))[0].T
    alike = base + 0.3 * strong + 1e-7 * rng.standard_normal((400, 16))
    rows = np.concatenate([strong[None], alike]).astype(np.float32)
    target = 3 * strong + base
    exact = select(rows.astype(np.float64), target, 2)
    with using("numpy"):
        checked = select(rows, target, 2)
        with mock.patch.object(engine_module._Loop, "_winners", the_passes_own_leaders):
            unchecked = select(rows, target, 2)
    assert np.array_equal(checked.indices, exact.indices)
    assert not np.array_equal(unchecked.indices, exact.indices)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_many_near_ties_switch_to_float64(backend):
    rows, target = big(t=300)
    rows = np.concatenate([rows[:5]] * 40 + [rows])
    exact = select(rows.astype(np.float64), target, 12, SBQ(1.0))
    with using(backend), mock.patch.object(engine_module, "_MAX_RESCORED", 3):
        crowded = select(rows, target, 12, SBQ(1.0))
    assert np.array_equal(crowded.indices, exact.indices)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_equal_rows_are_decided_by_the_lowest_index(backend):
    rows, target = big(t=60)
    doubled = np.concatenate([rows, rows])
    with using(backend):
        result = select(doubled, target, 10)
        with_noise = select(doubled, target, 10, SBQ(1e-6))
        several = select(doubled, np.stack([target] * 3), 10)
    assert (result.indices < 60).all()
    assert (several[2].indices < 60).all()
    assert with_noise.indices[0] < 60


def test_powers_of_two_tie_exactly_and_other_multiples_tie_to_rounding():
    """At noise 0 a scaled copy has the same gain. Multiplying by 2 or 3 leaves a relative
    difference of rounding only, far below the tie tolerance, so the lowest index still wins."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((40, 6))
    for factor in (2.0, -0.5, 3.0, 1e3 / 7):
        both = np.concatenate([rows * factor, rows])
        result = select(both, rng.standard_normal(6), 5)
        assert (result.indices < 40).all()


def test_where_rounding_does_not_allow_ties_to_be_seen():
    """Scaled copies in float32 are not exact multiples: their gains differ by about 1e-8, and the
    larger one wins wherever it stands. Likewise, when r has fallen to 1e-6 of μ, scores carry
    relative errors above the tie tolerance. Only the gains can be compared then."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((40, 6)).astype(np.float32)
    copies = rows * np.float32(1.1)
    both, target = np.concatenate([copies, rows]), rng.standard_normal(6)
    result, alone = select(both, target, 5), select(rows, target, 5)
    assert (result.indices >= 40).any()
    np.testing.assert_allclose(result.gains, alone.gains, rtol=1e-5)


@pytest.mark.parametrize(("value", "count"), [("", 1), ("many", 1), ("0", 1), ("1", 1)])
def test_odd_thread_counts_mean_one(monkeypatch, value, count):
    monkeypatch.setenv("EXEMPLA_THREADS", value)
    assert arrays.n_threads() == count


def test_blas_gets_its_threads_back():
    """However contexts overlap, and after an error."""
    blas = ThreadpoolController().select(user_api="blas")

    def counts():
        return {one["num_threads"] for one in blas.info()}

    with blas.limit(limits=2):
        first, second = arrays.SerialBLAS(), arrays.SerialBLAS()
        first.__enter__()
        second.__enter__()
        first.__exit__()
        assert counts() == {1}
        second.__exit__()
        assert counts() == {2}
        with pytest.raises(exempla.ExemplaError, match="at least one"):
            select(np.eye(3), np.ones(3), 0)
        assert counts() == {2}
        seen, align = [], ArrayRows.align
        watched = mock.patch.object(
            ArrayRows, "align", lambda *a: seen.append(counts()) or align(*a)
        )
        with watched:
            select(np.eye(3), np.ones(3), 2)
        assert seen == [{1}]
        assert counts() == {2}


def test_threads_change_nothing(monkeypatch):
    rows, target = big(t=40_000, p=8)
    with using("numpy"):
        one = select(rows, target, 5, SBQ(0.1))
        monkeypatch.setenv("EXEMPLA_THREADS", "2")
        two = select(rows, target, 5, SBQ(0.1))
    assert np.array_equal(one.indices, two.indices)
    assert np.array_equal(one.weights, two.weights)


FORKED = """
import os, sys
import numpy as np
from exempla import SBQ, select

rng = np.random.default_rng(0)
rows, target = rng.normal(size=(80_000, 16)).astype(np.float32), rng.normal(size=16)
expected = select(rows, target, 5, SBQ(0.1)).indices.tolist()
for _ in range(2):
    child = os.fork()
    if child == 0:
        same = select(rows, target, 5, SBQ(0.1)).indices.tolist() == expected
        os._exit(0 if same else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, code
assert select(rows, target, 5, SBQ(0.1)).indices.tolist() == expected
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_after_several_threads_lives():
    several = {"EXEMPLA_THREADS": "2"}
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, env=os.environ | several, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_a_selection_accounts_for_itself(noise):
    rows, target = big(dtype=np.float64)
    result = select(rows, target, 9, SBQ(noise))
    picked = rows[result.indices]
    residual = target - result.weights @ picked
    assert result.mmd2 == pytest.approx(residual @ residual)
    assert result.variance == pytest.approx(target @ target - result.gains.sum())
    assert result.variance == pytest.approx(result.mmd2 + noise * (result.weights @ result.weights))
    assert result.explained == pytest.approx(result.gains.sum() / (target @ target))
    assert result.indices.dtype == np.int64
    assert result.rank == 9


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("rule", [SBQ(0.0), SBQ(3.0), MatchingPursuit(1.0), Sharded(SBQ(), 3)])
def test_raising_k_continues(backend, rule):
    rows, target = big()
    with using(backend):
        whole = select(rows, target, 18, rule, "opponents")
        part = select(rows, target, 7, rule, "opponents")
        before = part.gains.copy()
        longer = select(rows, target, 18, rule, "opponents", start=part)
    assert np.array_equal(whole.indices, longer.indices)
    np.testing.assert_allclose(whole.weights, longer.weights, rtol=1e-8)
    assert len(part) == 7
    assert np.array_equal(part.gains, before)


def test_small_noise_beyond_the_rank_stays_accurate():
    """Without re-orthogonalising in the extended space the weights would be off here."""
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((60, 5))
    target, noise = rng.standard_normal(5), 1e-7
    result = select(rows, target, 30, SBQ(noise))
    assert result.rank == 5
    assert len(result) == 30
    K, z = kernel_and_z(rows, target)
    exact = weights(K, z, result.indices, noise)
    np.testing.assert_allclose(result.weights, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())
