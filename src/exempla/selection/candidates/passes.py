"""Compiled passes over the rows and over the state of a race.

float32 rows are multiplied in float32 and summed in float64 every STRETCH coordinates: the loop
in `engine` knows the error and settles close calls in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from exempla.selection.candidates.panel import (
    COLUMNS,
    HEIGHT,
    NARROW,
    RUN,
    add_narrow,
    add_products,
    turn,
)

__all__ = [
    "NARROW", "TILE", "advance", "apply", "compiled", "in_units", "keep", "leader", "pack",
    "products", "reach", "scores", "squares", "sweep",
]  # fmt: skip

# Sums may be reordered (that is what vector units need), but infinities keep their meaning:
# rows out of the race are marked by n = −inf.
FASTMATH = {"reassoc", "contract", "nsz"}
_OPTIONS: dict[str, Any] = {"fastmath": FASTMATH, "error_model": "numpy", "nogil": True}
TILE = 16 * HEIGHT
"""Rows whose products are kept at a time, in the nearest cache. Parts of the rows that are read by
different threads are cut between tiles, so that no number depends on the cuts."""
STRETCH = 256
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
    cut = lines - lines % COLUMNS
    padded = np.zeros((lines, p), dtype)
    padded[:b] = directions
    wide, narrow = padded[:cut].reshape(-1, COLUMNS, p), padded[cut:].reshape(-1, NARROW, p)
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
    whole = p - p % RUN
    sums, few = np.empty((HEIGHT, COLUMNS)), np.empty((HEIGHT, NARROW))
    for group in range(len(wide) + len(narrow)):
        is_wide = group < len(wide)
        Q, g, panel = (wide, group, sums) if is_wide else (narrow, 0, few)
        columns, line = Q.shape[2], group * COLUMNS
        for r in range(0, height, HEIGHT):
            j = top + r
            if j + HEIGHT <= t:
                panel[:] = 0.0
                for i in range(0, whole, STRETCH):
                    stop = min(whole, i + STRETCH)
                    if is_wide:
                        add_products(F, j, Q, g, i, stop, panel)  # pyright: ignore[reportCallIssue]
                    else:
                        add_narrow(F, j, Q, g, i, stop, panel)  # pyright: ignore[reportCallIssue]
                if whole < p:
                    _add_rest(F, Q, j, g, whole, panel, zero)
                turn(panel, V, line, r)  # pyright: ignore[reportCallIssue]
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
