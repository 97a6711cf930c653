"""Compiled passes over the rows and over the state of a race.

float32 rows are multiplied in float32 and summed in float64 every STRETCH coordinates: the loop
in `engine` knows the error and settles close calls in float64.

The innermost loop of a pass: a few rows times a few directions, held in registers.

Written as LLVM instructions because neither numba nor NumPy can be told to keep a tile of sums in
registers: 6 rows × 16 directions (8 where there are no more), one vector multiply-add for every
number read. LLVM cuts the vectors to what the machine has (AVX-512, AVX2, NEON). Each (row,
direction) is summed by itself, in the order of the coordinates: the products of a direction do not
depend on where it stands.

Threads that read rows: as many as this process may use, and the same answer from any number.

They are Python's own threads, which leave the interpreter while they compute: numba's parallel
loops stand on OpenMP, which ends every process that forks after using it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

HEIGHT = 6
"""Rows of a panel."""
_COLUMNS, NARROW = 16, 8
"""Directions of a panel, and of a narrow one, which takes two thirds of the time."""
_RUN = 16
"""Coordinates taken per turn of the loop; `_add_products` takes whole runs only."""
_FARTHER = 2
"""Panels ahead of this one whose rows are called into the cache: they lie in as many streams as
the panel has rows, more than processors foresee by themselves. Into the second cache: the first is
full of directions and products, which such rows would drive out."""


@intrinsic
def _add_products(typingctx: Any, F: Any, j: Any, Q: Any, g: Any, start: Any, stop: Any, out: Any):
    """out[r, s] += Σ_i F[j + r, i]·Q[g, i, s] over start ≤ i < stop, a whole number of runs.

    F (t, p), Q (groups, p, COLUMNS) and out (HEIGHT, COLUMNS) are C-contiguous; products are summed
    in the precision of Q, then added in that of out.
    """
    word = types.intp
    return types.void(F, word, Q, word, word, word, out), _emit_wide


@intrinsic
def _add_narrow(typingctx: Any, F: Any, j: Any, Q: Any, g: Any, start: Any, stop: Any, out: Any):
    """`_add_products` with NARROW for COLUMNS."""
    word = types.intp
    return types.void(F, word, Q, word, word, word, out), _emit_narrow


@intrinsic
def _turn(typingctx: Any, panel: Any, V: Any, row: Any, column: Any):
    """V[row + s, column + r] = panel[r, s]: the sums of a panel, a direction a line, in the
    precision of V."""
    return types.void(panel, V, types.intp, types.intp), _emit_turn


def _emit_turn(context: Any, b: Any, signature: Any, args: Any) -> Any:
    panel, V = (
        context.make_array(kind)(context, b, value)
        for kind, value in zip(signature.args[:2], args[:2])
    )
    of_sum, of_line = (context.get_data_type(kind.dtype) for kind in signature.args[:2])
    word = args[2].type
    columns, width = (cgutils.unpack_tuple(b, array.shape)[1] for array in (panel, V))
    with cgutils.for_range(b, columns) as loop:
        line = b.gep(V.data, [b.add(b.mul(b.add(args[2], loop.index), width), args[3])])
        for r in range(HEIGHT):
            at = b.add(b.mul(columns, word(r)), loop.index)
            value = b.load(b.gep(panel.data, [at]))
            value = value if of_sum == of_line else b.fptrunc(value, of_line)
            b.store(value, b.gep(line, [word(r)]))
    return context.get_dummy_value()


def _emit_wide(context: Any, b: Any, signature: Any, args: Any) -> Any:
    return _emit(context, b, signature, args, _COLUMNS)


def _emit_narrow(context: Any, b: Any, signature: Any, args: Any) -> Any:
    return _emit(context, b, signature, args, NARROW)


def _emit(context: Any, b: Any, signature: Any, args: Any, columns: int) -> Any:
    kinds = [signature.args[k] for k in (0, 2, 6)]
    arrays = [context.make_array(kind)(context, b, args[k]) for kind, k in zip(kinds, (0, 2, 6))]
    F, Q, out = arrays
    of_row, of_sum, of_out = (context.get_data_type(kind.dtype) for kind in kinds)
    j, g, start, stop = args[1], args[3], args[4], args[5]
    word = start.type
    vector = ir.VectorType(of_sum, columns)
    p = cgutils.unpack_tuple(b, F.shape)[1]
    lines = [b.gep(F.data, [b.mul(b.add(j, word(r)), p)]) for r in range(HEIGHT)]
    directions = b.gep(Q.data, [b.mul(b.mul(g, p), word(columns))])

    before, loop, after = b.block, b.append_basic_block("run"), b.append_basic_block("sums")
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(word)
    sums = [b.phi(vector) for _ in range(HEIGHT)]
    new: list[Any] = list(sums)
    for r in range(HEIGHT):
        _prefetch(b, b.gep(lines[r], [b.add(i, b.mul(p, word(_FARTHER * HEIGHT)))]))
    for k in range(_RUN):
        at = b.add(i, word(k))
        q = _load(b, b.gep(directions, [b.mul(at, word(columns))]), vector)
        for r in range(HEIGHT):
            f = b.load(b.gep(lines[r], [at]))
            f = f if of_row == of_sum else b.fpext(f, of_sum)
            new[r] = b.call(_fma(b, vector), [_spread(b, f, vector), q, new[r]])
    turn = b.add(i, word(_RUN))
    for phi, first, then in zip([i, *sums], [start, *[vector(None)] * HEIGHT], [turn, *new]):
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    b.cbranch(b.icmp_signed("<", turn, stop), loop, after)

    b.position_at_end(after)
    wide = ir.VectorType(of_out, columns)
    for r in range(HEIGHT):
        where = b.gep(out.data, [word(r * columns)])
        total = new[r] if of_out == of_sum else b.fpext(new[r], wide)
        total = b.fadd(_load(b, where, wide), total)
        b.store(total, b.bitcast(where, wide.as_pointer()), align=4)
    return context.get_dummy_value()


def _load(b: Any, where: Any, vector: Any) -> Any:
    return b.load(b.bitcast(where, vector.as_pointer()), align=4)


def _spread(b: Any, value: Any, vector: Any) -> Any:
    """The value in every lane."""
    small, nothing = ir.IntType(32), vector(ir.Undefined)
    one = b.insert_element(nothing, value, small(0))
    return b.shuffle_vector(one, nothing, ir.VectorType(small, vector.count)([0] * vector.count))


def _fma(b: Any, vector: Any) -> Any:
    kind = "f32" if isinstance(vector.element, ir.FloatType) else "f64"
    shape = ir.FunctionType(vector, [vector] * 3)
    return cgutils.get_or_insert_function(b.module, shape, f"llvm.fma.v{vector.count}{kind}")


def _prefetch(b: Any, where: Any) -> None:
    byte, small = ir.IntType(8).as_pointer(), ir.IntType(32)
    shape = ir.FunctionType(ir.VoidType(), [byte, small, small, small])
    call = cgutils.get_or_insert_function(b.module, shape, "llvm.prefetch.p0i8")
    b.call(call, [b.bitcast(where, byte), small(0), small(2), small(1)])


# Sums may be reordered (that is what vector units need), but infinities keep their meaning:
# rows out of the race are marked by n = −inf.
_FASTMATH = {"reassoc", "contract", "nsz"}
_OPTIONS: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy", "nogil": True}
TILE = 16 * HEIGHT
"""Rows whose products are kept at a time, in the nearest cache. Parts of the rows that are read by
different threads are cut between tiles, so that no number depends on the cuts."""
_STRETCH = 256
"""Coordinates that are summed in the precision of the rows before float64 takes over."""


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile with an on-disk cache, or without one where no folder can be written."""
    options = _OPTIONS | options
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**options)(function)


def exactly(function: Callable[..., Any]) -> Any:
    """`compiled`, with every sum and product in the order as written."""
    return compiled(function, fastmath={"contract", "nsz"})


def pack(directions: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """(groups, p, COLUMNS) and (0 or 1, p, NARROW): directions (b, p) side by side as panels read
    them, padded by 0."""
    b, p = directions.shape
    lines = -(-b // NARROW) * NARROW
    cut = lines - lines % _COLUMNS
    padded = np.zeros((lines, p), dtype)
    padded[:b] = directions
    wide, narrow = padded[:cut].reshape(-1, _COLUMNS, p), padded[cut:].reshape(-1, NARROW, p)
    return np.ascontiguousarray(wide.swapaxes(1, 2)), np.ascontiguousarray(narrow.swapaxes(1, 2))


def in_units(
    steps: np.ndarray, share: float, size: float, rule: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """What `sweep` follows the rows by, roughly: numbers of about 1, whatever the rows' lengths.

    Rows are measured by the longest, `size`, scores by the highest bar. Returns coefficients and
    lowered bars, the unit of a product (for c, for n), and what `_begin` needs.
    """
    coefs, bars, slack_c, slack_n = steps
    highest = bars[np.isfinite(bars)].max(initial=0.0) or 1.0
    # A sum of b products is off by b roundings of the largest number met, and units cost a few.
    rough = 2.0 * (len(coefs) + 8) * 2.0**-24
    lowered = share * (1.0 - 2.0**-20) * (bars / highest)
    about = np.stack([coefs / math.sqrt(highest), lowered]).astype(dtype)
    units = np.array([1.0, float(rule == 0)], dtype) / dtype.type(size)
    c_unit, n_unit = 1.0 / (size * math.sqrt(highest)), 1.0 / size**2
    drift = float(np.abs(coefs).sum())
    return about, units, (rough, c_unit, n_unit, float(slack_c.max()), float(slack_n.max()), drift)


@compiled
def _score(c, n, scale, rule):
    if rule == 0:
        return c * c / n
    if rule == 1:
        return c * c * scale
    return c * scale


@compiled
def _add_rest(F, Q, j, g, whole, panel, zero):
    """The coordinates that fill no whole run."""
    for h in range(HEIGHT):
        for s in range(Q.shape[2]):
            v = zero
            for i in range(whole, F.shape[1]):
                v += F[j + h, i] * Q[g, i, s]
            panel[h, s] += v


@compiled
def _tile(F, wide, narrow, top, height, V, zero):
    """V[s, r] = f·q_s for the rows r of a tile and the directions of all panels."""
    t, p = F.shape
    whole = p - p % _RUN
    sums, few = np.empty((HEIGHT, _COLUMNS)), np.empty((HEIGHT, NARROW))
    for group in range(len(wide) + len(narrow)):
        is_wide = group < len(wide)
        Q, g, panel = (wide, group, sums) if is_wide else (narrow, 0, few)
        columns, line = Q.shape[2], group * _COLUMNS
        for r in range(0, height, HEIGHT):
            j = top + r
            if j + HEIGHT <= t:
                panel[:] = 0.0
                for i in range(0, whole, _STRETCH):
                    stop = min(whole, i + _STRETCH)
                    if is_wide:
                        _add_products(F, j, Q, g, i, stop, panel)  # pyright: ignore[reportCallIssue]
                    else:
                        _add_narrow(F, j, Q, g, i, stop, panel)  # pyright: ignore[reportCallIssue]
                if whole < p:
                    _add_rest(F, Q, j, g, whole, panel, zero)
                _turn(panel, V, line, r)  # pyright: ignore[reportCallIssue]
            else:  # the last rows of all
                for h in range(t - j):
                    for s in range(columns):
                        v = 0.0
                        for i in range(p):
                            v += np.float64(F[j + h, i]) * Q[g, i, s]
                        V[line + s, r + h] = v


@compiled
def _reaches(c, n, length, scale, floor, rule, bar, more, less):
    """Whether a row's score may reach the bar, given the slacks."""
    most = abs(c) + more * length
    error = less * length * length
    if rule == 0:  # c²/n ≥ bar without the division
        return (most * most >= bar * (n - error)) & (n + error > floor)
    return (most * most * scale >= bar) & (n + error > floor)


@exactly
def _hopes(V, coefs, bars, units, c, n, more, hope):
    """hope[r] becomes 1 where a row of a tile reaches a bar after any step, and wherever a number
    went out of range. Every row and step goes through this loop."""
    for s in range(len(coefs)):
        coef, bar = coefs[s], bars[s]
        for r in range(TILE):
            v = V[s, r] * units[0]
            fall = V[s, r] * units[1]
            c[r] -= coef * v
            n[r] -= fall * fall
            most = abs(c[r]) + more[r]
            hope[r] |= not (most * most < bar * n[r])


@compiled
def _begin(
    c, n, lengths, floor, scale, rule, rough, c_unit, n_unit, more, less, drift, cs, ns, ms, hope
):  # fmt: skip
    """c, n and the error of c of a tile's rows in units in which all is about 1; n = +inf for rows
    that are out. `rough` bounds the rounding of all that follows, relative to the largest number
    that is met on the way."""
    for r in range(TILE):
        cs[r], ns[r], ms[r], hope[r] = 0.0, np.inf, 0.0, 0
    for r in range(len(c)):
        error = less * lengths[r] * lengths[r]
        if n[r] + error > floor[r]:
            below = n[r] if rule == 0 else 1.0 / scale[r]
            cs[r] = c[r] * c_unit
            ns[r] = (below - error - rough * below) * n_unit
            rounding = rough * (abs(c[r]) + drift * lengths[r])
            ms[r] = (more * lengths[r] + rounding) * c_unit


@compiled
def _follow(products, r, steps, j, c, n, length, scale, floor, rule, share, counts, found):
    """Follow one row through all steps in float64, and note where it reaches a bar; whether it
    reaches a share of one."""
    good = False
    for s in range(steps.shape[1]):
        v = np.float64(products[s, r])
        c -= steps[0, s] * v
        n -= v * v
        bar, more, less = steps[1, s], steps[2, s], steps[3, s]
        if bar == np.inf:
            continue
        if _reaches(c, n, length, scale, floor, rule, share * bar, more, less):
            good = True
            if _reaches(c, n, length, scale, floor, rule, bar, more, less):
                if counts[s] < found.shape[1]:
                    found[s, counts[s]] = j
                counts[s] += 1
    return good


@compiled
def sweep(
    F, wide, narrow, zero, steps, about, units, begin, V,
    c, n, lengths, floor, scale, rule, start, stop, limit, share,
):  # fmt: skip
    """`Race.sweep` for rows start … stop: how many rows reach each bar, the first of them, and
    which rows reach a share of one. The products are left in V (tiles, steps, TILE).

    Every row is followed roughly, in the precision of the products, its rounding on the safe side
    (`in_units`); only the few that may reach a share of a bar are followed in float64.
    """
    b = steps.shape[1]
    counts, found = np.zeros(b, np.int64), np.empty((b, limit), np.int64)
    hopeful, hopes = np.empty(stop - start, np.int64), 0
    cs, ns, ms = np.empty(TILE, V.dtype), np.empty(TILE, V.dtype), np.empty(TILE, V.dtype)
    hope = np.empty(TILE, np.int32)
    for top in range(start, stop, TILE):
        end = min(top + TILE, stop)
        products = V[top // TILE]
        _tile(F, wide, narrow, top, end - top, products, zero)
        _begin(
            c[top:end], n[top:end], lengths[top:end], floor[top:end], scale[top:end], rule,
            *begin, cs, ns, ms, hope,
        )  # fmt: skip
        _hopes(products, about[0], about[1], units, cs, ns, ms, hope)
        for j in range(top, end):
            if hope[j - top]:
                row = (j, c[j], n[j], lengths[j], scale[j], floor[j], rule)
                if _follow(products, j - top, steps, *row, share, counts, found):
                    hopeful[hopes] = j
                    hopes += 1
    return counts, found, hopeful[:hopes].copy()


@compiled
def keep(V, coefs, c, n, start, stop):
    """Take steps in from their products, as a sweep has left them, in rows start … stop."""
    cs, ns = np.zeros(TILE), np.zeros(TILE)
    for top in range(start, stop, TILE):
        products, height = V[top // TILE], min(TILE, stop - top)
        for r in range(height):  # slices would take seconds to compile
            cs[r], ns[r] = c[top + r], n[top + r]
        for s in range(len(coefs)):
            coef = coefs[s]
            for r in range(TILE):
                v = np.float64(products[s, r])
                cs[r] -= coef * v
                ns[r] -= v * v
        for r in range(height):
            c[top + r], n[top + r] = cs[r], ns[r]


@compiled
def advance(F, q, coef, c, n, floor, scale, rule, start, stop):
    """v = F q, c −= coef·v, n −= v²; best score and its first row, in rows start … stop.

    Summed in the precision of q: float32 rows times a float64 q are summed in float64.
    """
    best, where = -np.inf, -1
    p = F.shape[1]
    zero = q[0] - q[0]
    for j in range(start, stop):
        v = zero
        for i in range(p):
            v += F[j, i] * q[i]
        cj = c[j] - coef * v
        nj = n[j] - np.float64(v) * v
        c[j] = cj
        n[j] = nj
        if nj > floor[j]:
            score = _score(cj, nj, scale[j], rule)
            if score > best:
                best, where = score, j
    return best, where


@compiled
def products(F, q, out, start, stop):
    """F q with every product and sum in float64, in rows start … stop."""
    for j in range(start, stop):
        v = 0.0
        for i in range(F.shape[1]):
            v += np.float64(F[j, i]) * q[i]
        out[j] = v


@compiled
def squares(F, out, start, stop):
    """‖f‖² in float64, in rows start … stop."""
    for j in range(start, stop):
        v = 0.0
        for i in range(F.shape[1]):
            f = np.float64(F[j, i])
            v += f * f
        out[j] = v


@compiled
def apply(V, coefs, c, n, floor, scale, rule, start, best, where):
    """The update for T targets from their products V (T, m) with rows start … start + m."""
    for i in range(V.shape[0]):
        for j in range(V.shape[1]):
            v = V[i, j]
            cj = c[i, start + j] - coefs[i] * v
            nj = n[i, start + j] - v * v
            c[i, start + j] = cj
            n[i, start + j] = nj
            if nj > floor[start + j]:
                score = _score(cj, nj, scale[start + j], rule)
                if score > best[i]:
                    best[i], where[i] = score, start + j


@compiled
def reach(c, n, lengths, floor, scale, rule, threshold, slack_c, slack_n, limit):
    """The first rows whose score may reach the threshold (`Race.contenders`)."""
    found, count = np.empty(limit, np.int64), 0
    for j in range(len(c)):
        error = slack_n * lengths[j] * lengths[j]
        if n[j] + error > floor[j]:
            lowest = n[j] - error
            highest = (abs(c[j]) if rule < 2 else c[j]) + slack_c * lengths[j]
            if rule == 0:  # c²/n ≥ threshold without the division
                reached = lowest <= 0 or highest * highest >= threshold * lowest
            else:
                reached = _score(highest, lowest, scale[j], rule) >= threshold
            if reached:
                found[count] = j
                count += 1
                if count == limit:
                    break
    return found[:count]


@compiled
def leader(c, n, floor, scale, rule):
    """The best score and the first row that has it; −inf and −1 if none is left."""
    best, where = -np.inf, -1
    for j in range(len(c)):
        if n[j] > floor[j]:
            score = _score(c[j], n[j], scale[j], rule)
            if score > best:
                best, where = score, j
    return best, where


@compiled
def scores(c, n, floor, scale, rule, out):
    """The score of every row, roughly; −inf for rows that are out."""
    for j in range(len(c)):
        out[j] = _score(c[j], n[j], scale[j], rule) if n[j] > floor[j] else -np.inf


_PartResult = TypeVar("_PartResult")
FEWEST = 1 << 20
"""Numbers to read for which more than one thread is worth it."""
_QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def threads() -> int:
    """Threads to use: EXEMPLA_THREADS if that is set (1 if it is no number), else what this
    process may use, or OMP_NUM_THREADS if that is lower."""
    named = os.environ.get("EXEMPLA_THREADS")
    if named is not None:
        return max(1, _number(named, 1))
    return max(1, min(available(), _number(os.environ.get("OMP_NUM_THREADS", ""), available())))


@cache
def available() -> int:
    """Processors this process may use, a container's share of them respected."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        count = os.cpu_count() or 1
    return max(1, min(count, _quota()))


def _quota() -> int:
    """Processors that a container's limit amounts to, rounded up; many if there is none."""
    try:
        if Path(_QUOTAS[0]).exists():
            share, period = Path(_QUOTAS[0]).read_text().split()[:2]
        else:
            share = Path(_QUOTAS[1]).read_text().strip()
            period = Path(_QUOTAS[1]).with_name("cpu.cfs_period_us").read_text()
        share, period = int(share), int(period)  # "max" is no number
    except (OSError, ValueError):
        return 1 << 16
    return -(-share // period) if share > 0 and period > 0 else 1 << 16


def _number(text: str, otherwise: int) -> int:
    try:
        return int(text.split(",")[0])
    except ValueError:
        return otherwise


_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(count: int) -> ThreadPoolExecutor:
    """So many threads of this process: those of a parent do not live on in its child."""
    key = os.getpid(), count
    return _POOLS.get(key) or _POOLS.setdefault(key, ThreadPoolExecutor(count, "exempla"))


def in_parts(
    work: Callable[[int, int], _PartResult], t: int, width: int, tile: int
) -> list[_PartResult]:
    """work(start, stop) of consecutive parts of t rows, cut at multiples of `tile`, in order.

    >>> in_parts(lambda start, stop: stop - start, 10, 4, 8)
    [10]
    """
    count = min(threads(), t * width // FEWEST, -(-t // tile))
    if count <= 1:
        return [work(0, t)]
    tiles = -(-t // tile)
    cuts = [min(t, tiles * i // count * tile) for i in range(count + 1)]
    pool = _pool(count - 1)  # this thread reads, too
    others = [pool.submit(work, *part) for part in pairwise(cuts[1:])]
    return [work(*cuts[:2]), *(other.result() for other in others)]
