"""The loop on a GPU: the same picks as float64 on the host. Needs a GPU; the torch fallback of the
same code is tested everywhere, as the backend "torch" of `test_engine` and `test_ahead`."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.selection import SBQ, select
from exempla.selection.rows import Rule

torch = pytest.importorskip("torch")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def problem(seed):
    """Plain rows, ties, copies, rows that nearly depend on others; noise 0 and 10."""
    rng = np.random.default_rng(seed)
    t, p = int(rng.integers(200, 3000)), int(rng.integers(8, 96))
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


@gpu
@pytest.mark.parametrize("seed", range(200))
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_picks_on_a_gpu_are_those_of_float64(seed):
    rows, target, k, noise = problem(seed)
    exact = select(rows, target, k, SBQ(noise))
    found = select(torch.from_numpy(rows).cuda(), target, k, SBQ(noise))
    np.testing.assert_array_equal(found.indices, exact.indices)
    scale = np.abs(exact.weights).max()
    np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-6, atol=1e-9 * scale)


@gpu
@pytest.mark.parametrize("p", [200, 700])
@pytest.mark.parametrize("noise", [0.0, 10.0])
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_recorded_passes_pick_what_the_host_picks(p, noise):
    """Long enough for graphs, in both widths; the residual falls far enough for fresh products."""
    rng = np.random.default_rng(p)
    rows = (rng.standard_normal((6000, p)) * np.geomspace(1, 0.05, p)).astype(np.float32)
    target = rows[rng.integers(6000, size=40)].astype(float).mean(0)
    exact = select(rows, target, 180, SBQ(noise))
    found = select(torch.from_numpy(rows).cuda(), target, 180, SBQ(noise))
    np.testing.assert_array_equal(found.indices, exact.indices)


@gpu
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_where_little_of_the_rows_is_left_products_are_sharpened(monkeypatch):
    """Rows of few directions and a little else: soon all n are small beside the errors."""
    from exempla.selection.device.several import State

    sharpened = []
    real = State.sharpen
    monkeypatch.setattr(State, "sharpen", lambda self: (sharpened.append(1), real(self))[1])
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 20)) @ rng.standard_normal((20, 200))
    rows = (rows + 3e-2 * rng.standard_normal((4000, 200))).astype(np.float32)
    target = rng.standard_normal(200)
    exact = select(rows, target, 90, SBQ())
    found = select(torch.from_numpy(rows).cuda(), target, 90, SBQ())
    np.testing.assert_array_equal(found.indices, exact.indices)
    assert sharpened


@gpu
def test_the_fused_sweep_is_the_plain_one():
    pytest.importorskip("triton")
    from exempla.selection.device import several as sweep
    from exempla.selection.device import single as fused

    b = 16
    torch.manual_seed(0)
    rows = torch.randn(5000, 300, device="cuda")
    q = torch.linalg.qr(torch.randn(300, 2 * b, device="cuda").double())[0].T.contiguous()
    states = [begun(rows, b, parts) for parts in (0, 3)]
    for directions in (q[:b], q[b:]):  # the second pass takes in some of the first
        checks = looking(directions, coef=0.1, bar=3.0, slack=1e-6)
        plain, near = sweep.plain_sweep(states[0], checks)
        quick, _ = fused.fused_sweep(states[1], checks)
        assert not np.intersect1d(near[5].tolist(), checks.picks[:7].tolist()).size
        torch.testing.assert_close(states[0].c, states[1].c, rtol=0, atol=1e-4)
        torch.testing.assert_close(states[0].n, states[1].n, rtol=0, atol=1e-3)
        torch.testing.assert_close(states[0].tried.float(), states[1].tried, rtol=0, atol=1e-4)
        assert (plain - quick).abs().max() <= 1
        for state in states:
            state.right[0, :7], state.right[1, :7] = 0.1, 1.0


def begun(rows, ahead, parts):
    """The state of a run that has picked nothing yet."""
    from exempla.selection.basis import Basis
    from exempla.selection.device.several import State
    from exempla.selection.engine import Run
    from exempla.selection.rows import ArrayRows

    t, p = rows.shape
    run = Run(Basis(np.ones(p), 0.0, 1e-5), t)
    return State(ArrayRows(rows), np.ones(t, bool), run, 30, 0.0, Rule.GAIN, ahead, parts)


def looking(directions, coef, bar, slack):
    """Checks with the same marks for every step; the first rows are known of."""
    from exempla.selection.device.several import Checks

    b, device = len(directions), directions.device
    marks = torch.tensor([coef, bar, slack, slack, 1.0], dtype=torch.float64, device=device)
    return Checks(directions, torch.arange(b + 1, device=device), marks[:, None].repeat(1, b + 1))


@gpu
@pytest.mark.parametrize("same_sign", [False, True])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("p", [256, 1000, 4096])
def test_products_of_a_pass_are_as_near_as_promised(p, parts, same_sign):
    pytest.importorskip("triton")
    from exempla.selection.device import single as fused

    b = 16
    torch.manual_seed(p)
    rows = torch.randn(4000, p, device="cuda")
    q = torch.randn(b, p, device="cuda").double()
    if same_sign:
        rows, q = rows.abs(), q.abs()
    q /= torch.linalg.vector_norm(q, dim=1, keepdim=True)
    state = begun(rows, b, parts)
    fused.fused_sweep(state, looking(q, coef=0.0, bar=torch.inf, slack=0.0))
    error = (state.tried - rows.double() @ q.T).abs() / state.lengths[:, None]
    assert error.max() <= 0.5 * fused.error_bound(parts, p)
    expected = rows.double() @ torch.ones(p, device="cuda", dtype=torch.float64)
    torch.testing.assert_close(state.c, expected, rtol=1e-12, atol=1e-9)


@gpu
@pytest.mark.parametrize("rule", [Rule.GAIN, Rule.PURSUIT])
def test_fused_marks_are_the_plain_ones(rule):
    pytest.importorskip("triton")
    from exempla.selection.device import several as guess
    from exempla.selection.device import single as fused

    b = 32
    torch.manual_seed(2)
    state = begun(torch.randn(400, 60, device="cuda"), b, 2)
    state.rule = rule
    taken = torch.rand(b + 1, 3, device="cuda", dtype=torch.float64)
    taken[:, 2], taken[20, 2] = 1.0, 0.0  # the twenty-first has nothing new
    V = torch.randn(b, b, device="cuda", dtype=torch.float64)
    picks = torch.randperm(400, device="cuda")[: b + 1]
    said = torch.tensor([3.0, 5.0, 7.0, 0.25], device="cuda", dtype=torch.float64)
    marks, block = fused.fused_mark(state, taken, V, picks, said)
    plain, wanted = guess.plain_mark(state, taken, V, picks, said)
    torch.testing.assert_close(marks, plain, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(block, wanted, rtol=1e-12, atol=0)
    assert plain[4].sum() == 20
    assert (plain[1, 19:32] == torch.inf).all()


def test_steps_that_were_right_reach_c_and_n_by_either_way():
    """One pass later, or at once by `catch_up`."""
    from exempla.selection.device import several as sweep
    from exempla.selection.device.several import Guess

    b = 16
    torch.manual_seed(1)
    rows = torch.randn(300, 40)
    q = torch.linalg.qr(torch.randn(40, 2 * b).double())[0].T.contiguous()
    states = [begun(rows, b, 0) for _ in range(2)]
    for state in states:
        sweep.plain_sweep(state, looking(q[:b], coef=1.0, bar=1.0, slack=0.0))
        before = state.c.clone(), state.n.clone()
        guess = Guess(b, 40, state.room, state.kwargs)
        guess.picks.copy_(torch.arange(b + 1))
        guess.directions.copy_(q[:b])
        guess.residuals[1:] = state.residual - torch.cumsum(q[:b], 0)
        state.take(guess, torch.tensor([5]), torch.tensor([0]))
        torch.testing.assert_close(state.residual, guess.residuals[5])
        torch.testing.assert_close(state.Q[:5], q[:5])
        assert torch.count_nonzero(state.lines[5:]) == 0
    states[0].catch_up()
    for state in states:
        sweep.plain_sweep(state, looking(q[b:], coef=1.0, bar=1.0, slack=0.0))
    V = rows.double() @ q[:5].T
    torch.testing.assert_close(states[0].c, before[0] - V.sum(1))
    torch.testing.assert_close(states[0].n[b:], (before[1] - (V * V).sum(1))[b:])
    assert (states[0].n[:5] == -torch.inf).all()
    assert (states[0].n[5:] > -torch.inf).all()
    for name in ("c", "n", "tried", "hope"):
        torch.testing.assert_close(getattr(states[0], name), getattr(states[1], name))


@pytest.mark.parametrize("noise", [0.0, 5.0])
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_many_targets_in_small_groups_are_as_many_single_ones(noise, monkeypatch):
    from exempla.selection.device import several
    from tests.selection.test_engine import using

    monkeypatch.setitem(several.ENTRIES, "cpu", 3000)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 12)).astype(np.float32)
    rows[150:170] = rows[:20]
    targets = rng.standard_normal((7, 12))
    with using("torch"):
        together = select(rows, targets, 15, SBQ(noise), "proponents")
    for target, found in zip(targets, together, strict=True):
        alone = select(rows, target, 15, SBQ(noise), "proponents")
        np.testing.assert_array_equal(found.indices, alone.indices)
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-6, atol=1e-9)
        assert found.stopped == alone.stopped


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
def test_no_row_is_guessed_twice_where_the_pool_holds_them_all(last_first, monkeypatch):
    """Of equals topk may return any: among rows that are out it may return the certain pick."""
    from exempla.selection.device import single
    from tests.selection.test_engine import using

    class Found:
        def __init__(self, indices):
            self.indices = indices

    def any_of_equals(values, count, sorted=True):
        order = torch.argsort(
            values.flip(0) if last_first else values, descending=True, stable=True
        )
        return Found((len(values) - 1 - order if last_first else order)[:count])

    monkeypatch.setattr(single.torch, "topk", any_of_equals)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((90, 30)).astype(np.float32)
        target = rng.standard_normal(30)
        with using("torch"):
            found = select(rows, target, 60, SBQ(10.0))
        assert len(set(found.indices.tolist())) == len(found.indices)
        np.testing.assert_array_equal(found.indices, select(rows, target, 60, SBQ(10.0)).indices)
