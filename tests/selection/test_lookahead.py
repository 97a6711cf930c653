"""Running ahead: what a sweep finds, that only steps that are kept leave anything behind, that
guesses never change a pick."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from exempla.selection import SBQ, MatchingPursuit, Sharded, select
from exempla.selection.candidate_scores import Steps
from exempla.selection.engine import Basis
from exempla.selection.rows import ArrayCandidates, ArrayRows, Rule
from exempla.selection.sharded import ShardedCandidates
from tests.selection.test_engine import using

SIZES = [(3, 5), (97, 16), (200, 37), (1000, 300)]


def random_steps(rng, p, b):
    q = np.linalg.qr(rng.standard_normal((p, min(b, p))))[0].T
    b = len(q)
    return Steps(
        q, rng.standard_normal(b), rng.uniform(0.5, 3, b), np.full(b, 1e-6), np.full(b, 1e-6)
    )


def begun_scores(rows, rule, noise=0.5):
    candidates = np.ones((1, rows.t), bool)
    candidates[0, 1::7] = False
    scores = rows.scores(candidates, np.ones(1), noise, rule)
    scores.refresh([0], np.ones((1, rows.p)))
    return scores


def slow_sweep(rows, scores, steps, keep, share):
    """The twin: one matrix of products, written out."""
    c, n = scores.c[0].copy(), scores.n[0].copy()
    lengths, near, promising, kept = np.sqrt(rows.norms2), [], np.zeros(rows.t, bool), None
    V = rows.array.astype(np.float64) @ steps.directions.T
    for s in range(len(steps.coefs)):
        c = c - steps.coefs[s] * V[:, s]
        n = n - V[:, s] ** 2
        most, error = abs(c) + steps.slack_c[s] * lengths, steps.slack_n[s] * rows.norms2
        below = n - error if scores.rule is Rule.GAIN else rows.norms2 + scores.noise
        alive = n + error > rows.tolerance * rows.norms2
        near.append(np.flatnonzero((most**2 >= steps.thresholds[s] * below) & alive))
        promising |= (most**2 >= share * steps.thresholds[s] * below) & alive
        kept = (c, n) if s + 1 == keep else kept
    return near, np.flatnonzero(promising), kept


@pytest.mark.parametrize("p", [24, 300])
def test_a_row_that_just_reaches_a_threshold_is_found(p):
    """Steps are followed in float32; the bound on its rounding must cover every row."""
    rng = np.random.default_rng(p)
    rows = ArrayRows(rng.standard_normal((600, p)).astype(np.float32))
    scores, part = begun_scores(rows, Rule.GAIN), slice(0, 600)
    scores._norm = np.sqrt(p)  # of the residual that c was computed from
    steps = random_steps(rng, p, 24)
    steps = steps._replace(slack_c=np.zeros(24), slack_n=np.zeros(24), coefs=0.2 * steps.coefs)
    Q = rows.directions(steps.directions, exact=False)
    V = rows.multiply(rows.array, Q).astype(np.float64)
    c, n = scores.c[0] - steps.coefs @ V, scores.n[0] - np.sum(V * V, axis=0)
    assert scores._narrow
    scores.sweep(steps, 600, 1)
    for j in np.flatnonzero(n > 0):
        thresholds = np.full(24, np.inf)
        thresholds[-1] = c[j] ** 2 / n[j]
        _, _, found, _ = scores._check(
            part, rows.array, Q, steps._replace(thresholds=thresholds), 1
        )
        assert j in found


@pytest.mark.parametrize(("t", "p"), SIZES)
@pytest.mark.parametrize("rule", [Rule.GAIN, Rule.PURSUIT])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("b", [1, 16, 21, 25])
def test_a_sweep_is_its_slow_twin(t, p, rule, dtype, b):
    rng = np.random.default_rng(t + b)
    rows = ArrayRows(rng.standard_normal((t, p)).astype(dtype))
    steps = random_steps(rng, p, b)
    keep = max(1, len(steps.coefs) // 2)
    scores, twin = begun_scores(rows, rule), begun_scores(rows, rule)
    near, promising, (c, n) = slow_sweep(rows, twin, steps, keep, 0.3)
    found = scores.sweep(steps, t, 0.3)
    scores.commit(keep)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(scores.c[0], c, atol=tolerance * p)
    np.testing.assert_allclose(scores.n[0], n, atol=tolerance * p)
    for mine, wanted in zip(found.near, near, strict=True):
        assert len(np.setxor1d(mine, wanted)) <= (t > 500)  # one may lie within rounding of a bar
    assert len(np.setxor1d(found.promising, promising)) <= (t > 500)


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e9])
@pytest.mark.parametrize("size", [1e-16, 1.0, 1e12])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_rows_of_any_length_are_found(noise, size, share):
    """They are followed in float32, whose range is small."""
    rng = np.random.default_rng(6)
    array = size * 10.0 ** rng.uniform(-6, 6, (900, 1)) * rng.standard_normal((900, 24))
    rows = ArrayRows(array.astype(np.float32))
    noise = noise * size**2
    scores, twin = (begun_scores(rows, Rule.GAIN, noise) for _ in range(2))
    steps = random_steps(rng, 24, 12)
    best = np.max(twin.c[0] ** 2 / np.where(twin.n[0] > 0, twin.n[0], np.inf))
    steps = steps._replace(thresholds=best * rng.uniform(0.05, 0.5, 12), coefs=0.1 * steps.coefs)
    near, promising, _ = slow_sweep(rows, twin, steps, 1, share)
    found = scores.sweep(steps, 900, share)
    assert sum(map(len, near)) > 20
    for mine, wanted in zip(found.near, near, strict=True):
        assert len(np.setxor1d(mine, wanted)) <= 1
    assert len(np.setxor1d(found.promising, promising)) <= 1


def test_a_pool_follows_the_scores():
    rng = np.random.default_rng(7)
    array = rng.standard_normal((500, 30)).astype(np.float32)
    for rule in (Rule.GAIN, Rule.PURSUIT):
        some = np.arange(0, 500, 3)
        pool, every = (
            begun_scores(ArrayRows(array), rule).pool(some),
            begun_scores(ArrayRows(array), rule),
        )
        out = np.setdiff1d(np.arange(500), some).tolist()
        every.drop([0] * len(out), out)
        j = -1
        for q in np.linalg.qr(rng.standard_normal((30, 30)))[0][:9]:
            if j >= 0:
                every.drop([0], [j])
            j = pool.step(j, q, 0.4)
            assert every.update(q[None], np.array([0.4])).rows[0] == j >= 0
            np.testing.assert_allclose(pool.c, every.values(some)[0], atol=1e-5)
            np.testing.assert_allclose(pool.n, every.values(some)[1], atol=1e-5)
        pool.n[:] = -np.inf
        assert pool.step(j, q, 0.4) == -1


def test_a_sweep_hands_out_nothing_where_there_is_too_much():
    rows = ArrayRows(np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32))
    steps = random_steps(np.random.default_rng(1), 8, 2)
    low = steps._replace(thresholds=np.array([1e-9, 1e9]))
    found = begun_scores(rows, Rule.GAIN).sweep(low, 10, 0.5)
    assert found.near[0] is None
    assert found.near[1] is not None


@pytest.mark.parametrize("threads", ["1", "3"])
def test_steps_that_are_not_kept_leave_nothing_behind(threads, monkeypatch):
    monkeypatch.setenv("EXEMPLA_THREADS", threads)
    monkeypatch.setattr("exempla.arrays._MIN_ENTRIES_PER_THREAD", 100)
    rng = np.random.default_rng(2)
    rows = ArrayRows(rng.standard_normal((700, 40)).astype(np.float32))
    scores = begun_scores(rows, Rule.GAIN)
    c, n = scores.c.copy(), scores.n.copy()
    steps = random_steps(rng, 40, 20)
    scores.sweep(steps, 1, 0.5)
    scores.commit(0)
    np.testing.assert_array_equal(scores.c, c)
    np.testing.assert_array_equal(scores.n, n)
    scores.sweep(random_steps(rng, 40, 3), 1, 0.5)
    scores.commit(3)
    assert not np.allclose(scores.c, c)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr("exempla.arrays._MIN_ENTRIES_PER_THREAD", 100)
    rng = np.random.default_rng(3)
    array, steps = rng.standard_normal((9001, 133)).astype(np.float32), random_steps(rng, 133, 17)
    seen = []
    for count in ("1", "2", "5"):
        monkeypatch.setenv("EXEMPLA_THREADS", count)
        scores = begun_scores(ArrayRows(array), Rule.GAIN)
        found = scores.sweep(steps, 50, 0.4)
        scores.commit(9)
        near = [-1 if rows is None else rows.tolist() for rows in found.near]
        seen.append((scores.c.tobytes(), scores.n.tobytes(), near, found.promising.tolist()))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("p", [8, 256, 1000, 4096])
@pytest.mark.parametrize("positive", [False, True])
def test_the_error_of_a_product_is_below_its_bound(p, positive):
    rng = np.random.default_rng(p)
    F = rng.standard_normal((300, p)).astype(np.float32)
    q = rng.standard_normal(p)
    F, q = (abs(F), abs(q)) if positive else (F, q)
    q = q / np.linalg.norm(q)
    rows = ArrayRows(F)
    scores = begun_scores(rows, Rule.GAIN, 1e9)
    before, one = scores.c[0].copy(), np.ones(1)
    scores.sweep(Steps(q[None], one, one * np.inf, one, one), 1, 0.5)
    scores.commit(1)
    error = np.abs(before - scores.c[0] - F.astype(np.float64) @ q) / np.sqrt(rows.norms2)
    assert error.max() < rows.error


def hard_problems():
    """Ties, copies, rows that nearly depend on others; noise 0 and 10."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        t, p = int(rng.integers(30, 400)), int(rng.integers(4, 24))
        rows = rng.standard_normal((t, p))
        if seed % 4 == 1:
            rows = np.round(2 * rows) / 2
            rows[t // 2 :] = 2 * rows[: t - t // 2]
        if seed % 4 == 2:
            rows[rng.integers(t, size=t // 2)] = rows[rng.integers(t, size=t // 2)]
        if seed % 4 == 3:
            rows = rng.standard_normal((6, p))[rng.integers(6, size=t)] + 1e-4 * rows
        yield rows.astype(np.float32), rng.standard_normal(p), min(t, p + 8), 10.0 * (seed // 4 % 2)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("pool", [4, 64])
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_poor_guesses_change_no_pick(backend, pool, monkeypatch):
    monkeypatch.setattr(ArrayCandidates, "pool_sizes", (pool, pool))
    if backend == "torch":
        single = pytest.importorskip("exempla.selection.device.lookahead")
        monkeypatch.setattr(single, "POOL", (pool, pool))
    for rows, target, k, noise in hard_problems():
        for selector in (SBQ(noise), MatchingPursuit(noise)):
            with monkeypatch.context() as plain:  # one pass a pick, in float64
                plain.setattr("exempla.selection.engine.Lookahead", lambda *_: None)
                exact = select(rows, target, k, selector)
            with using(backend):
                found = select(rows, target, k, selector)
            assert np.array_equal(found.indices, exact.indices)
            np.testing.assert_allclose(found.gains, exact.gains, rtol=1e-6, atol=1e-9)
            assert (found.stopped, found.rank) == (exact.stopped, exact.rank)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_poor_guesses_of_parts_change_no_pick(backend, monkeypatch):
    monkeypatch.setattr(ShardedCandidates, "pool_sizes", (16, 16))
    for rows, target, k, noise in hard_problems():
        for selector in (SBQ(noise), MatchingPursuit(noise)):
            exact = select(rows, target, k, selector)
            with using(backend):
                found = select(rows, target, k, Sharded(selector, 3))
            assert np.array_equal(found.indices, exact.indices)
            assert (found.stopped, found.rank) == (exact.stopped, exact.rank)


def test_guesses_save_passes():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 64)).astype(np.float32)
    passes_made = []
    sweep = ArrayCandidates.sweep

    def counted(self, *arguments):
        passes_made.append(1)
        return sweep(self, *arguments)

    with using("numpy"), mock.patch.object(ArrayCandidates, "sweep", counted):
        select(rows, rows[:30].mean(0).astype(float), 40, SBQ(10.0))
    assert len(passes_made) < 20


def test_a_basis_goes_back_to_where_it_was():
    rng = np.random.default_rng(4)
    for noise in (0.0, 0.3):
        basis = Basis(rng.standard_normal(7), noise, 1e-11)
        rows = rng.standard_normal((14, 7))
        for row in rows[:3]:
            basis.add(row)
        mark = basis.mark()
        expected = basis.weights(), basis.residual.copy(), basis.measure(rows[5:7])
        for row in rows[3:6] if not noise else rows[3:]:
            basis.add(row)
        before = basis.before(mark)
        np.testing.assert_array_equal(before.measure(rows[5:7]), expected[2])
        basis.rewind(mark)
        np.testing.assert_array_equal(basis.weights(), expected[0])
        np.testing.assert_array_equal(basis.residual, expected[1])
        again = basis.add(rows[3])
        fresh = Basis(basis.target, noise, 1e-11)
        for row in rows[:4]:
            wanted = fresh.add(row)
        np.testing.assert_array_equal(again[0], wanted[0])
        assert again[1] == wanted[1]


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_a_basis_from_its_factor_is_the_one_that_grew(noise):
    rng = np.random.default_rng(5)
    rows, target = rng.standard_normal((6, 9)), rng.standard_normal(9)
    grown = Basis(target, noise, 1e-11)
    for row in rows:
        grown.add(row)
    made = Basis(target, noise, 1e-11).refactored(rows, grown.lower.copy(), grown.coefs.copy())
    for name in ("gains", "residual", "directions", "rows"):
        np.testing.assert_allclose(getattr(made, name), getattr(grown, name), atol=1e-12)
    np.testing.assert_allclose(made.weights(), grown.weights(), atol=1e-12)
    extra = rng.standard_normal(9)
    np.testing.assert_allclose(made.add(extra)[0], grown.add(extra)[0], atol=1e-11)
    assert made.rank() == grown.rank()
