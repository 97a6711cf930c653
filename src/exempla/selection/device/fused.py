"""`sweep` in Triton: a tile of rows times all directions in registers.

Each factor is cut into two or three bfloat16 parts, and products of small parts are left out: on a
Hopper chip three such products of a tile take no longer than reading it. c and n are float64.
"""

# Triton comes with torch where there is a GPU, and its kernels are no ordinary functions.
# pyright: reportMissingImports=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportInvalidTypeForm=false
from __future__ import annotations

from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels are then plain functions that nobody calls
    triton, tl = None, None

from exempla.selection.device.state import State
from exempla.selection.device.sweep import LIMIT, Checks

__all__ = [
    "error_bound",
    "fused_catch_up",
    "fused_guess",
    "fused_mark",
    "fused_products",
    "fused_sweep",
    "installed",
]

ROWS, DEPTH, WARPS, STAGES = 128, 32, 4, 4
AT_ONCE, GUESS_WARPS = 8, 8


def error_bound(parts: int, p: int) -> float:
    """Bound on the error of a product of rows of p entries, in units of ‖f‖.

    With two parts, each factor lacks 2⁻¹⁸ of itself, and the product of both second parts is left
    out, as much again: 192 · 2⁻²⁴. The rest is rounding: of sums of `DEPTH` products, which stay
    in the matrix unit, and of one more sum for each of those.
    """
    return ((192.0 if parts == 2 else 0.0) + 16.0 + p / DEPTH) * 2.0**-24


def installed() -> bool:
    """Whether there is a Triton to run the kernels."""
    return triton is not None


def _jit(kernel: Any) -> Any:
    return triton.jit(kernel) if triton is not None else kernel


@_jit
def _kernel(
    F, Q, marks, picks, tried, c, n, lengths, floor, scale, counts, near, hope, t, p,
    RULE: tl.constexpr, LIMIT: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
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
        # The matrix unit cuts sums off, so that long ones drift: they are made outside of it.
        if PARTS == 3:
            q2 = tl.load(places + 2 * p * COLUMNS, mask=there, other=0.0)
            f2 = (rest - f1.to(tl.float32)).to(tl.bfloat16)
            little = tl.dot(f0, q2, tl.dot(f1, q1, tl.dot(f2, q0)))
            little = tl.dot(f0, q1, tl.dot(f1, q0, little))
        else:
            little = tl.dot(f0, q1, tl.dot(f1, q0))
        sums += tl.dot(f0, q0, little)
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
        coef, bar = tl.load(marks + s), tl.load(marks + (COLUMNS + 1) + s)
        more = tl.load(marks + 2 * (COLUMNS + 1) + s)
        less = tl.load(marks + 3 * (COLUMNS + 1) + s)
        known = known | (rows == tl.load(picks + s))
        cs = cs - coef * v
        ns = ns - v * v
        most = tl.abs(cs) + more * length
        error = less * length * length
        wanted = tl.where(inside, bar, float("inf"))
        asked = (ns + error > lowest) & (wanted < float("inf"))
        if RULE == 0:
            least = ns - error
            reach = (most * most >= bar * least) & asked
            share = most * most / (tl.maximum(least, 1e-300) * bar)
        else:
            reach = (most * most * factor >= bar) & asked
            share = most * most * factor / bar
        best = tl.where(asked, tl.maximum(best, share), best)
        reach = reach & (known == 0) & (rows != tl.load(picks + s + 1))
        ones = tl.full((ROWS,), 1, tl.int64)
        place = tl.atomic_add(counts + s + tl.zeros((ROWS,), tl.int64), ones, mask=reach)
        tl.store(near + s * LIMIT + place, rows.to(tl.int64), mask=reach & (place < LIMIT))
    tl.store(hope + rows, best.to(tl.float32), mask=inside)


def fused_sweep(state: State, checks: Checks) -> tuple[Any, Any]:
    """`sweep.sweep` as one launch."""
    b, (t, p) = len(checks.directions), state.F.shape
    state.catch_up()
    counts = torch.zeros(b, dtype=torch.int64, device=state.F.device)
    near = torch.full((b, LIMIT), -1, dtype=torch.int64, device=state.F.device)
    _kernel[(triton.cdiv(t, ROWS),)](
        state.F, parts_of(checks.directions.T, state.parts), checks.marks, checks.picks,
        state.tried, state.c, state.n, state.lengths, state.floor, state.scale, counts, near,
        state.hope, t, p,
        RULE=int(state.rule), LIMIT=LIMIT, PARTS=state.parts, ROWS=ROWS, DEPTH=DEPTH,
        COLUMNS=b, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return counts, near


def parts_of(values: Any, count: int) -> Any:
    """(count, …) bfloat16 numbers that sum to the values, nearly."""
    parts = torch.empty((count, *values.shape), dtype=torch.bfloat16, device=values.device)
    for part in parts:
        part.copy_(values)
        values = values - part
    return parts


@_jit
def _catch_up(tried, right, c, n, t, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    columns = tl.arange(0, COLUMNS)
    coefs, ones = tl.load(right + columns), tl.load(right + COLUMNS + columns)
    there = tried + rows[:, None].to(tl.int64) * COLUMNS + columns[None, :]
    v = tl.load(there, mask=inside[:, None] & (ones > 0)[None, :], other=0.0).to(tl.float64)
    cs, ns = tl.load(c + rows, mask=inside), tl.load(n + rows, mask=inside)
    tl.store(c + rows, cs - tl.sum(v * coefs[None, :], 1), mask=inside)
    tl.store(n + rows, ns - tl.sum(v * v, 1), mask=inside)


def fused_catch_up(state: State) -> None:
    """c and n with the steps that were right, in one launch."""
    t, b = state.tried.shape
    _catch_up[(triton.cdiv(t, ROWS),)](
        state.tried, state.right, state.c, state.n, t, ROWS=ROWS, COLUMNS=b, num_warps=4
    )


@_jit
def _product(F, r, out, t, p, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    lines = F + rows[:, None].to(tl.int64) * p
    sums = tl.zeros((ROWS, DEPTH), tl.float64)
    for i in range(0, p, DEPTH):
        at = i + tl.arange(0, DEPTH)
        f = tl.load(lines + at[None, :], mask=inside[:, None] & (at < p)[None, :], other=0.0)
        sums += f.to(tl.float64) * tl.load(r + at, mask=at < p, other=0.0)[None, :]
    tl.store(out + rows, tl.sum(sums, 1), mask=inside)


def fused_products(F: Any, vector: Any, out: Any) -> None:
    """F · vector in float64, in one reading of the rows."""
    t, p = F.shape
    _product[(triton.cdiv(t, 32),)](F, vector, out, t, p, ROWS=32, DEPTH=128, num_warps=4)


@_jit
def _guess(
    G, c, n, floor, scale, V, at, taken, size, b,
    RULE: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr,
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
            for start in range(0, s, AT_ONCE):
                for turn in tl.static_range(AT_ONCE):  # so many loads on their way at a time
                    before = start + turn
                    here_too = inside & (before < s)
                    other = tl.load(V + before * size + lanes, mask=here_too, other=0.0)
                    v -= tl.load(V + before * size + j, mask=before < s, other=0.0) * other
            v = tl.where(fresh, v / root, 0.0)
            tl.store(V + s * size + lanes, v, mask=inside)
            cs = cs - tl.where(fresh, cj / root, 0.0) * v
            ns = tl.where(here, -float("inf"), ns - v * v)
            tl.debug_barrier()  # the next turn reads what other threads wrote


def fused_guess(rule: Any, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """`guess.guess_in` as one launch of one program."""
    G, c, n, floor, scale = (part.contiguous() for part in pool)
    size, device = len(c), c.device
    V = torch.empty((b, size), dtype=torch.float64, device=device)
    at = torch.empty(b + 1, dtype=torch.int64, device=device)
    taken = torch.empty((b + 1, 3), dtype=torch.float64, device=device)
    lanes = triton.next_power_of_2(size)
    _guess[(1,)](
        G, c, n, floor, scale, V, at, taken, size, b,
        RULE=int(rule), LANES=lanes, AT_ONCE=AT_ONCE, num_warps=GUESS_WARPS, num_stages=1,
    )  # fmt: skip
    return at, taken, V


@_jit
def _mark(
    taken, V, picks, norms2, scale, said, marks, block, constants,
    RULE: tl.constexpr, B: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    # Numbers given to a kernel would be float32.
    norm, error = tl.load(constants), tl.load(constants + 1)
    spare, tie = tl.load(constants + 2), tl.load(constants + 3)
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
    size = tl.maximum(tl.abs(c) - spare * norm * tl.sqrt(squared), 0.0)
    if RULE == 0:
        least = size * size / (n + spare * squared)
    else:
        least = size * size * tl.load(scale + pick, mask=inside, other=0.0)
    bar = tl.where(valid, least * (1.0 - tie), float("inf"))
    drift = tl.load(said + 3) + tl.cumsum(tl.abs(coef), 0)
    count = tl.load(said + 1) + tl.load(said + 2) + (i + 1).to(tl.float64)
    tl.store(marks + i, coef, mask=inside)
    tl.store(marks + (B + 1) + i - 1, bar, mask=inside & (i > 0))
    tl.store(marks + (B + 1) + B + i, bar, mask=i == 0)  # the first bar is nobody's
    tl.store(marks + 2 * (B + 1) + i, error * drift + spare * norm, mask=inside)
    tl.store(marks + 3 * (B + 1) + i, 2.0 * error * tl.sqrt(count) + spare, mask=inside)
    tl.store(marks + 4 * (B + 1) + i, tl.where(valid, 1.0, 0.0).to(tl.float64), mask=inside)
    j = tl.arange(0, B)
    below = tl.load(V + j[None, :] * B + i[:, None], mask=(i < B)[:, None], other=0.0)
    below = tl.where((j[None, :] < i[:, None]) & valid[:, None], below, 0.0)
    whole = tl.where(j[None, :] == i[:, None], root[:, None], below)
    tl.store(block + i[:, None] * B + j[None, :], whole, mask=(i < B)[:, None])


def fused_mark(state: State, taken: Any, V: Any, picks: Any, said: Any) -> tuple[Any, Any]:
    """`guess.mark` as one launch of one program."""
    b = len(V)
    marks, block = torch.empty((5, b + 1), **state.kwargs), torch.empty((b, b), **state.kwargs)
    _mark[(1,)](
        taken, V.contiguous(), picks, state.norms2, state.scale, said, marks, block,
        state.constants,
        RULE=int(state.rule), B=b, LANES=triton.next_power_of_2(b + 1), num_warps=1,
    )  # fmt: skip
    return marks, block
