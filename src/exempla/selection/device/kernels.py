"""The operations of the greedy loop on a device, as Triton kernels.

Rows that Triton cannot handle are left to the host loop. With TRITON_INTERPRET=1 the kernels run on
CPU tensors, so that tests compare them with references in torch without a GPU.

`sweep` multiplies a tile of rows by all guessed directions in registers, follows c and n through
the steps in float64 and returns the few rows that reach a threshold. It also keeps the products (at
most an eighth of the memory of the rows), so that correct guesses need not be computed again. Each
float32 factor is split into two or three bfloat16 parts, and products of small parts are omitted:
on a Hopper GPU three such products of a tile take no longer than reading it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from exempla.selection.rows import Rule

if TYPE_CHECKING:
    from exempla.selection.device.lookahead import State

# Triton comes with CUDA builds of torch, and its kernels are not ordinary functions.
# pyright: reportMissingImports=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels are then plain functions that are never called
    triton, tl = None, None

MAX_NEAR = 128
"""Rows that may reach a threshold and are returned, after each step."""
BLOCK_ROUNDING = 1e-10
"""Upper bound on the rounding error of blockwise float64 arithmetic for a product of unit vectors:
picked rows have at least 1e-5 of their length outside the span."""
_ROWS, _DEPTH, _WARPS, _STAGES = 128, 32, 4, 4
_UNROLL, _GUESS_WARPS = 8, 8
INTERPRET_ON_CPU = False
"""Run the kernels on CPU tensors if Triton interprets them; tests set this."""


def interpreted() -> bool:
    """Return True if Triton kernels run in the interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def use_triton(array: Any) -> bool:
    """Return True if the Triton kernels can be used for these rows."""
    on_device = array.device.type == "cuda" or (INTERPRET_ON_CPU and interpreted())
    return triton is not None and on_device and array.is_contiguous()


def error_bound(parts: int, p: int) -> float:
    """Return a bound on the error of a product of rows of p entries, in units of ‖f‖.

    A bfloat16 number has 8 significant bits. With two parts, each factor lacks up to 2⁻¹⁷ of
    itself, and the omitted product of both second parts is up to 2⁻¹⁶: together 512 · 2⁻²⁴, and
    four times that in the interpreter, which truncates. The rest is rounding: of sums of `_DEPTH`
    products within the matrix unit, and of one more sum for each of those.
    """
    omitted = (2048.0 if interpreted() else 512.0) if parts == 2 else 0.0
    return (omitted + 16.0 + p / _DEPTH) * 2.0**-24


def jit(kernel: Any) -> Any:
    return triton.jit(kernel) if triton is not None else kernel


def scores(rule: Rule, c: Any, n: Any, scale: Any) -> Any:
    """Return the scores that the kernels compute."""
    return c * c / n if rule is Rule.GAIN else c * c * scale


def within_reach(state: Any, c: Any, n: Any, slack_c: Any, slack_n: Any, bar: float) -> Any:
    """Return the rows whose score may reach the bar, given bounds on the errors of c and n.

    `state` has the rule, and norms2, lengths, floor and scale of the rows.
    """
    most, error = c.abs() + slack_c * state.lengths, slack_n * state.norms2
    score = scores(state.rule, most, torch.clamp(n - error, min=1e-300), state.scale)
    return torch.nonzero((score >= bar) & (n + error > state.floor))[:, 0]


@jit
def row_products(
    F, Q, rows, inside, p,
    PARTS: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return the products of a tile of rows with directions split by `split_bfloat16`."""
    columns = tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    lines = F + rows[:, None].to(tl.int64) * p
    for i in range(0, p, DEPTH):
        at = i + tl.arange(0, DEPTH)
        f = tl.load(lines + at[None, :], mask=inside[:, None] & (at < p)[None, :], other=0.0)
        places = Q + at[:, None] * COLUMNS + columns[None, :]
        there = (at < p)[:, None]
        q0 = tl.load(places, mask=there, other=0.0)
        q1 = tl.load(places + p * COLUMNS, mask=there, other=0.0)
        f0 = f.to(tl.bfloat16)
        rest = f - f0.to(tl.float32)
        f1 = rest.to(tl.bfloat16)
        rest = rest - f1.to(tl.float32)
        if WIDEN:  # the interpreter multiplies bfloat16 numbers as integers
            f0, f1 = f0.to(tl.float32), f1.to(tl.float32)
            q0, q1 = q0.to(tl.float32), q1.to(tl.float32)
        # The matrix unit truncates sums, so that long ones drift: they are added up outside of it.
        if PARTS == 3:
            q2 = tl.load(places + 2 * p * COLUMNS, mask=there, other=0.0)
            f2 = rest.to(tl.bfloat16)
            if WIDEN:
                f2, q2 = f2.to(tl.float32), q2.to(tl.float32)
            little = tl.dot(f0, q2, tl.dot(f1, q1, tl.dot(f2, q0)))
            little = tl.dot(f0, q1, tl.dot(f1, q0, little))
        else:
            little = tl.dot(f0, q1, tl.dot(f1, q0))
        sums += tl.dot(f0, q0, little)
    return sums


@jit
def _sweep_kernel(
    F, Q, marks, picks, tried, c, n, lengths, floor, scale, counts, near, upper, t, p,
    RULE: tl.constexpr, LIMIT: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    columns = tl.arange(0, COLUMNS)
    sums = row_products(F, Q, rows, inside, p, PARTS, WIDEN, ROWS, DEPTH, COLUMNS)
    there = tried + rows[:, None].to(tl.int64) * COLUMNS + columns[None, :]
    tl.store(there, sums, mask=inside[:, None])
    cs = tl.load(c + rows, mask=inside, other=0.0)
    ns = tl.load(n + rows, mask=inside, other=-float("inf"))
    length = tl.load(lengths + rows, mask=inside, other=0.0)
    lowest = tl.load(floor + rows, mask=inside, other=0.0)
    factor = tl.load(scale + rows, mask=inside, other=0.0)
    best = tl.full((ROWS,), -float("inf"), tl.float64)
    known = rows < 0
    for s in range(COLUMNS):
        v = tl.sum(tl.where((columns == s)[None, :], sums, 0.0), 1).to(tl.float64)
        coef, threshold = tl.load(marks + s), tl.load(marks + (COLUMNS + 1) + s)
        more = tl.load(marks + 2 * (COLUMNS + 1) + s)
        less = tl.load(marks + 3 * (COLUMNS + 1) + s)
        known = known | (rows == tl.load(picks + s))
        cs = cs - coef * v
        ns = ns - v * v
        most = tl.abs(cs) + more * length
        error = less * length * length
        wanted = tl.where(inside, threshold, float("inf"))
        asked = (ns + error > lowest) & (wanted < float("inf"))
        if RULE == 0:
            least = ns - error
            reach = (most * most >= threshold * least) & asked
            share = most * most / (tl.maximum(least, 1e-300) * threshold)
        else:
            reach = (most * most * factor >= threshold) & asked
            share = most * most * factor / threshold
        best = tl.where(asked, tl.maximum(best, share), best)
        reach = reach & (known == 0) & (rows != tl.load(picks + s + 1))
        ones = tl.full((ROWS,), 1, tl.int64)
        place = tl.atomic_add(counts + s + tl.zeros((ROWS,), tl.int64), ones, mask=reach)
        tl.store(near + s * LIMIT + place, rows.to(tl.int64), mask=reach & (place < LIMIT))
    tl.store(upper + rows, best.to(tl.float32), mask=inside)


def sweep(state: State, directions: Any, picks: Any, marks: Any) -> tuple[Any, Any]:
    """Update c and n with the pending steps, then check the guessed steps in one pass.

    `picks` (b + 1,) are the guesses: rows other than the next one are looked for. `marks` are those
    of `mark`. Returns how many rows may reach each threshold (b,) and the first of them
    (b, MAX_NEAR), in any order. `state.upper_bounds` becomes each row's largest upper bound
    relative to a threshold, `state.products` the products.
    """
    b, (t, p) = len(directions), state.F.shape
    catch_up(state)
    counts = torch.zeros(b, dtype=torch.int64, device=state.F.device)
    near = torch.full((b, MAX_NEAR), -1, dtype=torch.int64, device=state.F.device)
    _sweep_kernel[(triton.cdiv(t, _ROWS),)](
        state.F, split_bfloat16(directions.T, state.n_parts), marks, picks,
        state.products, state.c, state.n, state.lengths, state.floor, state.scale, counts, near,
        state.upper_bounds, t, p,
        RULE=int(state.rule), LIMIT=MAX_NEAR, PARTS=state.n_parts, WIDEN=interpreted(),
        ROWS=_ROWS, DEPTH=_DEPTH, COLUMNS=b, num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return counts, near


def split_bfloat16(values: Any, count: int) -> Any:
    """Return (count, …) bfloat16 numbers whose sum approximates the values."""
    parts = torch.empty((count, *values.shape), dtype=torch.bfloat16, device=values.device)
    for part in parts:
        part.copy_(values)
        values = values - part
    return parts


@jit
def _catch_up_kernel(products, pending, c, n, t, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    columns = tl.arange(0, COLUMNS)
    coefs, ones = tl.load(pending + columns), tl.load(pending + COLUMNS + columns)
    there = products + rows[:, None].to(tl.int64) * COLUMNS + columns[None, :]
    v = tl.load(there, mask=inside[:, None] & (ones > 0)[None, :], other=0.0).to(tl.float64)
    cs, ns = tl.load(c + rows, mask=inside), tl.load(n + rows, mask=inside)
    tl.store(c + rows, cs - tl.sum(v * coefs[None, :], 1), mask=inside)
    tl.store(n + rows, ns - tl.sum(v * v, 1), mask=inside)


def catch_up(state: State) -> None:
    """Apply the pending steps to c and n; none is pending afterwards."""
    t, b = state.products.shape
    _catch_up_kernel[(triton.cdiv(t, _ROWS),)](
        state.products, state.pending, state.c, state.n, t, ROWS=_ROWS, COLUMNS=b, num_warps=4
    )
    state.pending.zero_()


@jit
def _guess_kernel(
    G, c, n, floor, scale, V, at, taken, size, b,
    RULE: tl.constexpr, LANES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    lanes = tl.arange(0, LANES)
    inside = lanes < size
    cs = tl.load(c + lanes, mask=inside, other=0.0)
    ns = tl.load(n + lanes, mask=inside, other=-float("inf"))
    lowest = tl.load(floor + lanes, mask=inside, other=0.0)
    factor = tl.load(scale + lanes, mask=inside, other=0.0)
    for s in range(b + 1):
        if RULE == 0:
            score = cs * cs / ns
        else:
            score = cs * cs * factor
        score = tl.where(ns > lowest, score, -float("inf"))
        j = tl.where(s == 0, 0, tl.argmax(score, 0))
        here = lanes == j
        cj = tl.sum(tl.where(here, cs, 0.0), 0)
        nj = tl.sum(tl.where(here, ns, 0.0), 0)
        bottom = tl.sum(tl.where(here, lowest, 0.0), 0)
        fresh = nj > bottom
        tl.store(at + s, j.to(tl.int64))
        tl.store(taken + 3 * s, cj)
        tl.store(taken + 3 * s + 1, nj)
        tl.store(taken + 3 * s + 2, tl.where(fresh, 1.0, 0.0).to(tl.float64))
        if s < b:
            root = tl.sqrt(tl.where(fresh, nj, 1.0))
            v = tl.load(G + j * size + lanes, mask=inside, other=0.0)
            for start in range(0, s, UNROLL):
                for turn in tl.static_range(UNROLL):  # UNROLL loads in flight
                    before = j * 0 + start + turn  # a tensor, in the interpreter, too
                    here_too = inside & (lanes * 0 + before < s)  # equal shapes, likewise
                    other = tl.load(V + before * size + lanes, mask=here_too, other=0.0)
                    v -= tl.load(V + before * size + j, mask=before < s, other=0.0) * other
            v = tl.where(fresh, v / root, 0.0)
            tl.store(V + s * size + lanes, v, mask=inside)
            cs = cs - tl.where(fresh, cj / root, 0.0) * v
            ns = tl.where(here, -float("inf"), ns - v * v)
            tl.debug_barrier()  # the next turn reads what other threads wrote


def guess(rule: Rule, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """Make b picks in a pool (G, c, n, floor, scale), starting with its first row, and one more.

    Returns the positions (b + 1,), the values there (b + 1, 3: c, n, whether it adds anything),
    and the products of each new direction with all pool rows (b, size). G is FFᵀ − (FQᵀ)(FQᵀ)ᵀ.
    """
    G, c, n, floor, scale = (part.contiguous() for part in pool)
    size, device = len(c), c.device
    V = torch.empty((b, size), dtype=torch.float64, device=device)
    at = torch.empty(b + 1, dtype=torch.int64, device=device)
    taken = torch.empty((b + 1, 3), dtype=torch.float64, device=device)
    lanes = triton.next_power_of_2(size)
    _guess_kernel[(1,)](
        G, c, n, floor, scale, V, at, taken, size, b,
        RULE=int(rule), LANES=lanes, UNROLL=_UNROLL, num_warps=_GUESS_WARPS, num_stages=1,
    )  # fmt: skip
    return at, taken, V


@jit
def _mark_kernel(
    taken, V, picks, norms2, scale, numbers, marks, block, constants,
    RULE: tl.constexpr, B: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    # Numbers passed to a kernel would be float32.
    norm, error = tl.load(constants), tl.load(constants + 1)
    rounding, tie = tl.load(constants + 2), tl.load(constants + 3)
    i = tl.arange(0, LANES)
    inside = i <= B
    c = tl.load(taken + 3 * i, mask=inside, other=0.0)
    n = tl.load(taken + 3 * i + 1, mask=inside, other=1.0)
    fresh = tl.load(taken + 3 * i + 2, mask=inside, other=0.0)
    valid = tl.cumsum((fresh == 0.0).to(tl.int32), 0) == 0
    root = tl.sqrt(tl.where(valid, n, 1.0))
    coef = tl.where(valid, c / root, 0.0)
    pick = tl.load(picks + i, mask=inside, other=0)
    squared = tl.load(norms2 + pick, mask=inside, other=0.0)
    size = tl.maximum(tl.abs(c) - rounding * norm * tl.sqrt(squared), 0.0)
    if RULE == 0:
        least = size * size / (n + rounding * squared)
    else:
        least = size * size * tl.load(scale + pick, mask=inside, other=0.0)
    threshold = tl.where(valid, least * (1.0 - tie), float("inf"))
    drift = tl.load(numbers + 3) + tl.cumsum(tl.abs(coef), 0)
    count = tl.load(numbers + 1) + tl.load(numbers + 2) + (i + 1).to(tl.float64)
    tl.store(marks + i, coef, mask=inside)
    tl.store(marks + (B + 1) + i - 1, threshold, mask=inside & (i > 0))
    tl.store(marks + (B + 1) + B + i, threshold, mask=i == 0)  # the first pick is certain
    tl.store(marks + 2 * (B + 1) + i, error * drift + rounding * norm, mask=inside)
    tl.store(marks + 3 * (B + 1) + i, 2.0 * error * tl.sqrt(count) + rounding, mask=inside)
    tl.store(marks + 4 * (B + 1) + i, tl.where(valid, 1.0, 0.0).to(tl.float64), mask=inside)
    j = tl.arange(0, B)
    below = tl.load(V + j[None, :] * B + i[:, None], mask=(i < B)[:, None], other=0.0)
    below = tl.where((j[None, :] < i[:, None]) & valid[:, None], below, 0.0)
    whole = tl.where(j[None, :] == i[:, None], root[:, None], below)
    tl.store(block + i[:, None] * B + j[None, :], whole, mask=(i < B)[:, None])


def mark(state: State, taken: Any, V: Any, picks: Any, numbers: Any) -> tuple[Any, Any]:
    """Return what the guessed steps are and which scores other rows would have to reach.

    `taken` as returned by `guess`, V (b, b) the products of its directions with the picks,
    `numbers` as in `DeviceLookahead`. Returns marks (5, b + 1): coefficients; thresholds for the
    pick after each step; slacks of c and of n; whether this step and all before it add anything
    new. And the block (b, b) of L.
    """
    b = len(V)
    marks, block = torch.empty((5, b + 1), **state.kwargs), torch.empty((b, b), **state.kwargs)
    _mark_kernel[(1,)](
        taken, V.contiguous(), picks, state.norms2, state.scale, numbers, marks, block,
        state.constants,
        RULE=int(state.rule), B=b, LANES=triton.next_power_of_2(b + 1), num_warps=1,
    )  # fmt: skip
    return marks, block
