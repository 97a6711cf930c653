"""Compiled passes over the rows and over the state of a race.

float32 rows are multiplied in float32 and summed in float64 every STRETCH coordinates: the loop
in `engine` knows the error and settles close calls in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from exempla.selection.candidates.panel import COLUMNS, HEIGHT, RUN, add_products, turn

__all__ = [
    "COLUMNS", "TILE", "advance", "apply", "compiled", "leader", "pack", "products", "reach",
    "scores", "squares", "sweep",
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
    try:
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**_OPTIONS, **options)(function)


def pack(directions: np.ndarray, dtype: Any) -> np.ndarray:
    """(groups, p, COLUMNS): directions (b, p) side by side as a panel reads them, padded by 0."""
    b, p = directions.shape
    groups = -(-b // COLUMNS)
    padded = np.zeros((groups * COLUMNS, p), dtype)
    padded[:b] = directions
    return np.ascontiguousarray(padded.reshape(groups, COLUMNS, p).swapaxes(1, 2))


@compiled
def _score(c, n, scale, rule):
    if rule == 0:
        return c * c / n
    if rule == 1:
        return c * c * scale
    return c * scale


@compiled
def _add_rest(F, Q, j, g, whole, r, V, zero):
    """The coordinates that fill no whole run."""
    for h in range(HEIGHT):
        for s in range(COLUMNS):
            v = zero
            for i in range(whole, F.shape[1]):
                v += F[j + h, i] * Q[g, i, s]
            V[g * COLUMNS + s, r + h] += v


@compiled
def _tile(F, Q, top, height, V, panel, zero):
    """V[s, r] = f·q_s for the rows r of a tile."""
    t, p = F.shape
    whole = p - p % RUN
    for g in range(Q.shape[0]):
        for r in range(0, height, HEIGHT):
            j = top + r
            if j + HEIGHT <= t:
                panel[:] = 0.0
                for i in range(0, whole, STRETCH):
                    add_products(F, j, Q, g, i, min(whole, i + STRETCH), panel)  # pyright: ignore[reportCallIssue]
                turn(panel, V, g * COLUMNS, r)  # pyright: ignore[reportCallIssue]
                if whole < p:
                    _add_rest(F, Q, j, g, whole, r, V, zero)
            else:  # the last rows of all
                for h in range(t - j):
                    for s in range(COLUMNS):
                        v = 0.0
                        for i in range(p):
                            v += np.float64(F[j + h, i]) * Q[g, i, s]
                        V[g * COLUMNS + s, r + h] = v


@compiled
def _reaches(c, n, length, scale, floor, rule, bar, more, less):
    """1 if a row's score may reach the bar, given the slacks, else 0."""
    most = abs(c) + more * length
    error = less * length * length
    if rule == 0:  # c²/n ≥ bar without the division
        return np.int64((most * most >= bar * (n - error)) & (n + error > floor))
    return np.int64((most * most * scale >= bar) & (n + error > floor))


@compiled
def sweep(F, Q, zero, steps, c, n, lengths, floor, scale, rule, keep, start, stop, limit, share):
    """`Race.sweep` for rows start … stop: how many rows reach each bar, the first of them, and
    which rows reach a share of one.

    Nothing of the size t × b is ever written: a tile's products are used up at once.
    """
    b = steps.shape[1]
    counts, found = np.zeros(b, np.int64), np.empty((b, limit), np.int64)
    hopeful, hopes = np.empty(stop - start, np.int64), 0
    V, panel = np.empty((Q.shape[0] * COLUMNS, TILE)), np.empty((HEIGHT, COLUMNS))
    cs, ns, hope = np.empty(TILE), np.empty(TILE), np.empty(TILE, np.int64)
    ls, gs, fs = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    for top in range(start, stop, TILE):
        height = min(TILE, stop - top)
        _tile(F, Q, top, height, V, panel, zero)
        for r in range(height):
            cs[r], ns[r], hope[r] = c[top + r], n[top + r], 0
            ls[r], gs[r], fs[r] = lengths[top + r], scale[top + r], floor[top + r]
        for s in range(b):
            coef, sign, bar, more, less = (
                steps[0, s], steps[1, s], steps[2, s], steps[3, s], steps[4, s]
            )  # fmt: skip
            for r in range(height):
                v = V[s, r]
                cs[r] -= coef * v
                ns[r] -= sign * v * v
            if s == keep - 1:
                for r in range(height):
                    c[top + r], n[top + r] = cs[r], ns[r]
            if bar == np.inf:
                continue
            some, lower = 0, share * bar
            for r in range(height):
                good = _reaches(cs[r], ns[r], ls[r], gs[r], fs[r], rule, lower, more, less)
                hope[r] |= good
                some += good
            if some:
                for r in range(height):
                    if _reaches(cs[r], ns[r], ls[r], gs[r], fs[r], rule, bar, more, less):
                        if counts[s] < limit:
                            found[s, counts[s]] = top + r
                        counts[s] += 1
        for r in range(height):
            if hope[r]:
                hopeful[hopes] = top + r
                hopes += 1
    return counts, found, hopeful[:hopes].copy()


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
