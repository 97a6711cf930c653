"""The loop on a device gives the picks of float64 on the host, and every Triton kernel agrees with
its torch reference. Without a GPU the kernels run in Triton's interpreter, on smaller problems."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from exempla.selection import SBQ, MatchingPursuit, select
from exempla.selection.engine import Basis, Run
from exempla.selection.rows import ArrayRows, Rule
from tests.selection.test_engine import inputs, using

torch = pytest.importorskip("torch")
from exempla.selection.device import kernels, lookahead  # noqa: E402
from tests.selection.device_reference import (  # noqa: E402
    plain_guess,
    plain_mark,
    plain_sweep,
)

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
pytestmark = [
    pytest.mark.skipif(
        kernels.triton is None or not (GPU or kernels.interpreted()), reason="needs Triton"
    ),
    pytest.mark.filterwarnings(
        "ignore::exempla.errors.ExemplaWarning",
        "ignore::RuntimeWarning",  # the interpreter divides by zero where a kernel masks the result
    ),
]


def problem(seed, most_rows, most_width):
    """Plain rows, ties, copies, rows that nearly depend on others; noise 0 and 10."""
    rng = np.random.default_rng(seed)
    t, p = int(rng.integers(most_rows // 10, most_rows)), int(rng.integers(8, most_width))
    k = int(min(60, rng.integers(5, p + 20)))
    rows = rng.standard_normal((t, p))
    if seed % 4 == 1:
        rows = np.round(2 * rows) / 2
        rows[t // 2 :] = 2 * rows[: t - t // 2]
    if seed % 4 == 2:
        rows[rng.integers(t, size=t // 2)] = rows[rng.integers(t, size=t // 2)]
    if seed % 4 == 3:
        rows = rng.standard_normal((12, p))[rng.integers(12, size=t)] + 1e-4 * rows
    rows = rows.astype(np.float32)
    target = rows[rng.integers(t, size=9)].astype(float).mean(0) + 0.1 * rng.standard_normal(p)
    return rows, target, k, (0.0, 10.0)[(seed // 4) % 2]


def on_device(rows, target, k, selector):
    """Select from a tensor, on the GPU or, as if it were one, on the CPU."""
    if GPU:
        small = {"MAX_FLOAT64_ENTRIES": 0, "MAX_HOST_WORK": 0}  # stay on the device, too
        with mock.patch.multiple(inputs, **small):
            return select(torch.from_numpy(rows).cuda(), target, k, selector)
    with using("torch"):
        return select(rows, target, k, selector)


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    """Without a GPU the kernels are interpreted."""
    monkeypatch.setattr(kernels, "INTERPRET_ON_CPU", True)


@pytest.mark.parametrize("seed", range(200 if GPU else 8))
def test_picks_on_a_device_are_those_of_float64(seed):
    rows, target, k, noise = problem(seed, *((3000, 96) if GPU else (120, 16)))
    k = k if GPU else min(k, 6)
    exact = select(rows, target, k, SBQ(noise))
    found = on_device(rows, target, k, SBQ(noise))
    np.testing.assert_array_equal(found.indices, exact.indices)
    scale = np.abs(exact.weights).max()
    np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-6, atol=1e-9 * scale)


@pytest.mark.parametrize("seed", range(40 if GPU else 8))
def test_picks_for_several_targets_are_those_of_float64(seed):
    rows, target, k, noise = problem(seed, *((3000, 96) if GPU else (120, 16)))
    targets = np.stack([target, -target, target + rows[3], rows[5] + 0.1])
    k = k if GPU else min(k, 6)
    for exact, found in zip(
        select(rows, targets, k, SBQ(noise)), on_device(rows, targets, k, SBQ(noise)), strict=True
    ):
        np.testing.assert_array_equal(found.indices, exact.indices)
        scale = np.abs(exact.weights).max()
        np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-6, atol=1e-9 * scale)


@needs_gpu
@pytest.mark.parametrize("p", [200, 700])
@pytest.mark.parametrize("noise", [0.0, 10.0])
def test_recorded_passes_pick_what_the_host_picks(p, noise):
    """Long enough for graphs, in both widths; the residual falls far enough for fresh products."""
    rng = np.random.default_rng(p)
    rows = (rng.standard_normal((6000, p)) * np.geomspace(1, 0.05, p)).astype(np.float32)
    target = rows[rng.integers(6000, size=40)].astype(float).mean(0)
    exact = select(rows, target, 180, SBQ(noise))
    found = on_device(rows, target, 180, SBQ(noise))
    np.testing.assert_array_equal(found.indices, exact.indices)


def test_where_little_of_the_rows_is_left_the_precision_is_raised(monkeypatch):
    """Rows of few directions and a little else: soon all n are small beside the errors."""
    raised = []
    real = lookahead.State.raise_precision
    monkeypatch.setattr(
        lookahead.State, "raise_precision", lambda self: (raised.append(1), real(self))[1]
    )
    rng = np.random.default_rng(0)
    t, rank, p, k = (4000, 20, 200, 90) if GPU else (600, 5, 24, 12)
    rows = rng.standard_normal((t, rank)) @ rng.standard_normal((rank, p))
    rows = (rows + 3e-2 * rng.standard_normal((t, p))).astype(np.float32)
    if not GPU:
        monkeypatch.setattr(lookahead, "MAX_NEAR", 0)
    target = rng.standard_normal(p)
    exact = select(rows, target, k, SBQ())
    found = on_device(rows, target, k, SBQ())
    np.testing.assert_array_equal(found.indices, exact.indices)
    assert raised


def begun(rows, ahead, parts=2, rule=Rule.GAIN):
    """The state of a run that has picked nothing yet."""
    t, p = rows.shape
    run = Run(Basis(np.ones(p), 0.0, 1e-5), t)
    state = lookahead.State(ArrayRows(rows), np.ones(t, bool), run, 30, 0.0, rule, ahead)
    state.set_precision(parts)
    return state


def looking(directions, coef, threshold, slack):
    """Checks with the same marks for every step; the first rows are known of."""
    b, device = len(directions), directions.device
    marks = torch.tensor([coef, threshold, slack, slack, 1.0], dtype=torch.float64, device=device)
    picks = torch.arange(b + 1, device=device)
    return directions, picks, marks[:, None].repeat(1, b + 1)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("rule", [Rule.GAIN, Rule.PURSUIT])
def test_the_sweep_kernel_is_its_reference(rule, parts):
    b, t, p = 16, *((5000, 300) if GPU else (300, 40))
    threshold = 3.0 if rule is Rule.GAIN else 0.05
    torch.manual_seed(0)
    rows = torch.randn(t, p, device=DEVICE)
    q = torch.linalg.qr(torch.randn(p, 2 * b, device=DEVICE).double())[0].T.contiguous()
    states = [begun(rows, b, parts, rule) for _ in range(2)]
    states[0].products = states[0].products.double()
    error = kernels.error_bound(parts, p) * float(states[0].lengths.max())
    for directions in (q[:b], q[b:]):  # the second pass applies some steps of the first
        checks = looking(directions, coef=0.1, threshold=threshold, slack=1e-6)
        plain, near = plain_sweep(states[0], *checks)
        quick, also_near = kernels.sweep(states[1], *checks)
        assert not np.intersect1d(near[5].tolist(), checks[1][:7].tolist()).size
        torch.testing.assert_close(states[0].c, states[1].c, rtol=0, atol=b * error)
        torch.testing.assert_close(states[0].n, states[1].n, rtol=0, atol=1e3 * error)
        torch.testing.assert_close(
            states[0].products, states[1].products.double(), rtol=0, atol=error
        )
        torch.testing.assert_close(
            states[0].upper_bounds, states[1].upper_bounds, rtol=1e-3, atol=1e-3
        )
        assert plain.sum() > b  # the thresholds are such that there is something to find
        assert (plain - quick).abs().max() <= 1
        for s in range(b):
            mine, wanted = (set(x[s][x[s] >= 0].tolist()) for x in (also_near, near))
            assert max(plain[s], quick[s]) > kernels.MAX_NEAR or len(mine ^ wanted) <= 1
        for state in states:
            state.pending[0, :7], state.pending[1, :7] = 0.1, 1.0


@pytest.mark.parametrize("same_sign", [False, True])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("p", [256, 1000, 4096] if GPU else [2, 3, 5, 37, 256])
def test_products_of_a_pass_are_as_near_as_promised(p, parts, same_sign):
    b = 16
    torch.manual_seed(p)
    rows = torch.randn(4000 if GPU else 200, p, device=DEVICE)
    q = torch.randn(b, p, device=DEVICE).double()
    if same_sign:
        rows, q = rows.abs(), q.abs()
    q /= torch.linalg.vector_norm(q, dim=1, keepdim=True)
    state = begun(rows, b, parts)
    kernels.sweep(state, *looking(q, coef=0.0, threshold=torch.inf, slack=0.0))
    error = (state.products - rows.double() @ q.T).abs() / state.lengths[:, None]
    share = 0.5 if GPU else 1.0  # the interpreter truncates to bfloat16 instead of rounding
    assert error.max() <= share * kernels.error_bound(parts, p)
    expected = rows.double() @ torch.ones(p, device=DEVICE, dtype=torch.float64)
    torch.testing.assert_close(state.c, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("rule", [Rule.GAIN, Rule.PURSUIT])
def test_the_mark_kernel_is_its_reference(rule):
    b = 32
    torch.manual_seed(2)
    state = begun(torch.randn(400, 60, device=DEVICE), b, 2, rule)
    taken = torch.rand(b + 1, 3, device=DEVICE, dtype=torch.float64)
    taken[:, 0] -= 0.5  # products of either sign
    taken[:, 2], taken[20, 2] = 1.0, 0.0  # the twenty-first has nothing new
    V = torch.randn(b, b, device=DEVICE, dtype=torch.float64)
    picks = torch.randperm(400, device=DEVICE)[: b + 1]
    numbers = torch.tensor([3.0, 5.0, 7.0, 0.25], device=DEVICE, dtype=torch.float64)
    marks, block = kernels.mark(state, taken, V, picks, numbers)
    plain, wanted = plain_mark(state, taken, V, picks, numbers)
    torch.testing.assert_close(marks, plain, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(block, wanted, rtol=1e-12, atol=0)
    assert plain[4].sum() == 20
    assert (plain[1, 19:32] == torch.inf).all()


@pytest.mark.parametrize("rule", [Rule.GAIN, Rule.PURSUIT])
def test_the_guess_kernel_is_its_reference(rule):
    torch.manual_seed(3)
    rows = torch.randn(50, 20, device=DEVICE, dtype=torch.float64)
    norms2 = (rows * rows).sum(1)
    n, c = norms2.clone(), rows @ torch.ones(20, device=DEVICE, dtype=torch.float64)
    n[7] = -torch.inf
    pool = (rows @ rows.T, c, n, 1e-5 * norms2, 1 / norms2)
    at, taken, V = kernels.guess(rule, pool, 24)
    wanted_at, wanted_taken, wanted_V = plain_guess(rule, pool, 24)
    assert 0 < int(wanted_taken[:, 2].sum()) < 25  # more guesses than directions
    right = int(wanted_taken[:, 2].cumprod(0).sum())
    assert torch.equal(at[:right], wanted_at[:right])
    torch.testing.assert_close(taken[:right], wanted_taken[:right], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(V[:right], wanted_V[:right], rtol=1e-9, atol=1e-9)


def test_correct_steps_reach_c_and_n_by_either_way():
    """One pass later, or at once by `catch_up`."""
    b = 16
    torch.manual_seed(1)
    rows = torch.randn(300, 40, device=DEVICE)
    q = torch.linalg.qr(torch.randn(40, 2 * b, device=DEVICE).double())[0].T.contiguous()
    states = [begun(rows, b, 3) for _ in range(2)]
    close = {"rtol": 1e-4, "atol": 1e-4}
    for state in states:
        kernels.sweep(state, *looking(q[:b], coef=1.0, threshold=1.0, slack=0.0))
        before = state.c.clone(), state.n.clone()
        guess = lookahead.GuessedSteps(b, 40, state.room, state.kwargs)
        guess.picks.copy_(torch.arange(b + 1))
        guess.directions.copy_(q[:b])
        guess.residuals[1:] = state.residual - torch.cumsum(q[:b], 0)
        numbers = torch.tensor([5, 0], device=DEVICE)
        state.take(guess, numbers[:1], numbers[1:])
        torch.testing.assert_close(state.residual, guess.residuals[5])
        torch.testing.assert_close(state.Q[:5], q[:5])
        assert torch.count_nonzero(state.lines[5:]) == 0
    kernels.catch_up(states[0])
    for state in states:
        kernels.sweep(state, *looking(q[b:], coef=1.0, threshold=1.0, slack=0.0))
    V = rows.double() @ q[:5].T
    torch.testing.assert_close(states[0].c, before[0] - V.sum(1), **close)
    torch.testing.assert_close(states[0].n[b:], (before[1] - (V * V).sum(1))[b:], **close)
    assert (states[0].n[:5] == -torch.inf).all()
    assert (states[0].n[5:] > -torch.inf).all()
    for name in ("c", "n", "products", "upper_bounds"):
        torch.testing.assert_close(getattr(states[0], name), getattr(states[1], name))


def test_copies_are_left_out_for_good():
    """Copies of a picked row have no new direction; within float32's error they might."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 16)).astype(np.float32)
    rows[30:] = 2 * rows[:30]
    aims = rng.standard_normal((3, 16))
    exact = [select(rows, aim, 10, SBQ()) for aim in aims]
    with using("torch"):
        found = select(rows, aims, 10, SBQ())
    for one, other in zip(exact, found, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)


def test_a_target_that_is_matched_stops_the_others_in_no_way():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((80, 12)).astype(np.float32)
    aims = np.stack([rows[3].astype(float), rng.standard_normal(12)])
    with using("torch"):
        first, second = select(rows, aims, 6, SBQ())
    assert first.indices.tolist() == [3]
    assert first.stopped == "residual"
    np.testing.assert_array_equal(second.indices, select(rows, aims[1], 6, SBQ()).indices)


@pytest.mark.parametrize("noise", [0.0, 5.0])
@pytest.mark.parametrize("selector", [SBQ, MatchingPursuit])
def test_many_targets_are_as_many_single_ones(noise, selector):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((150, 8)).astype(np.float32)
    rows[70:90] = rows[:20]
    aims = rng.standard_normal((4, 8))
    with using("torch"):
        together = select(rows, aims, 8, selector(noise), "proponents")
    for target, found in zip(aims, together, strict=True):
        alone = select(rows, target, 8, selector(noise), "proponents")
        np.testing.assert_array_equal(found.indices, alone.indices)
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-6, atol=1e-9)
        assert found.stopped == alone.stopped


@pytest.mark.parametrize("last_first", [False, True])
def test_no_row_is_guessed_twice_where_the_pool_holds_them_all(last_first, monkeypatch):
    """Of equals topk may return any: among removed rows it may return the certain pick."""

    class Found:
        def __init__(self, indices):
            self.indices = indices

    def any_of_equals(values, count, sorted=True):
        order = torch.argsort(
            values.flip(0) if last_first else values, descending=True, stable=True
        )
        return Found((len(values) - 1 - order if last_first else order)[:count])

    monkeypatch.setattr(lookahead.torch, "topk", any_of_equals)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((36, 12)).astype(np.float32)
    target = rng.standard_normal(12)
    with using("torch"):
        found = select(rows, target, 24, SBQ(10.0))
    assert len(set(found.indices.tolist())) == len(found.indices)
    np.testing.assert_array_equal(found.indices, select(rows, target, 24, SBQ(10.0)).indices)
