"""Rows of a NumPy array, scored by compiled passes: product, update and comparison in one reading.

NumPy would write the products, then read c, n and the products again. The result does not depend on
the number of threads, because each row is summed by itself and rows are returned in their order.

float32 rows are multiplied in float32, and sums move to float64 every _STRETCH coordinates. The
greedy loop in `engine` knows the error bound and settles close calls in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numba
import numpy as np

from exempla.selection.rows import (
    ArrayCandidates,
    ArrayRows,
    CandidateScores,
    Leaders,
    Pool,
    Rule,
    Steps,
    Swept,
)
from exempla.selection.threads import in_parts

GROUP = 8
"""Directions multiplied with a row at a time: their sums are held in registers."""
TILE = 96
"""Rows whose products are kept in the nearest cache. Threads get whole tiles, so that no result
depends on how the rows are divided."""
_STRETCH = 256
"""Coordinates summed in the precision of the rows before the sum moves to float64."""
_MAX_LOOKAHEAD = 32

# Sums may be reordered, which vector units need, but infinities keep their meaning: n = −inf marks
# removed rows.
_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy", "nogil": True
}  # fmt: skip


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile with an on-disk cache, or without one where no folder is writable."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**_OPTIONS)(function)


@_compiled
def _score(c, n, scale, rule):
    if rule == 0:
        return c * c / n
    if rule == 1:
        return c * c * scale
    return c * scale


@_compiled
def _multiply(F, Q, top, end, V):
    """Compute V[s, j − top] = f_j·q_s for the rows of a tile and all directions (a whole number of
    groups), summed in the precision of Q over each stretch."""
    p = F.shape[1]
    zero = Q[0, 0] - Q[0, 0]
    for s in range(0, len(Q), GROUP):
        for j in range(top, end):
            t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = 0.0
            for start in range(0, p, _STRETCH):
                v0 = v1 = v2 = v3 = v4 = v5 = v6 = v7 = zero
                for i in range(start, min(start + _STRETCH, p)):
                    f = F[j, i]
                    v0 += f * Q[s, i]
                    v1 += f * Q[s + 1, i]
                    v2 += f * Q[s + 2, i]
                    v3 += f * Q[s + 3, i]
                    v4 += f * Q[s + 4, i]
                    v5 += f * Q[s + 5, i]
                    v6 += f * Q[s + 6, i]
                    v7 += f * Q[s + 7, i]
                t0, t1, t2, t3 = t0 + v0, t1 + v1, t2 + v2, t3 + v3
                t4, t5, t6, t7 = t4 + v4, t5 + v5, t6 + v6, t7 + v7
            r = j - top
            V[s, r], V[s + 1, r], V[s + 2, r], V[s + 3, r] = t0, t1, t2, t3
            V[s + 4, r], V[s + 5, r], V[s + 6, r], V[s + 7, r] = t4, t5, t6, t7


@_compiled
def _promising(V, steps, c, n, lengths, scale, rule, fraction, top, end, cs, ns, flags):
    """Set flags[r] to 1 for rows of a tile that reach a fraction of a threshold after any step.

    Every row and step goes through this loop. Removed rows have n = −inf and are dropped later.
    """
    for j in range(top, end):
        cs[j - top], flags[j - top] = c[j], 0
        ns[j - top] = n[j] if rule == 0 else 1.0 / scale[j]
    for s in range(steps.shape[1]):
        coef, threshold = steps[0, s], fraction * steps[1, s]
        more, less = steps[2, s], steps[3, s]
        falls = 1.0 if rule == 0 else 0.0
        for j in range(top, end):
            r, length = j - top, lengths[j]
            v = np.float64(V[s, r])
            cs[r] -= coef * v
            ns[r] -= falls * v * v
            upper = abs(cs[r]) + more * length
            flags[r] |= upper * upper >= threshold * (ns[r] - falls * less * length * length)


@_compiled
def _reaches(c, n, length, scale, floor, rule, threshold, more, less):
    """Return True if the score of a row may reach the threshold, given the slacks."""
    upper = abs(c) + more * length
    error = less * length * length
    if rule == 0:  # c²/n ≥ threshold without the division
        return (upper * upper >= threshold * (n - error)) & (n + error > floor)
    return (upper * upper * scale >= threshold) & (n + error > floor)


@_compiled
def _follow(V, r, steps, j, c, n, length, scale, floor, rule, fraction, counts, found):
    """Follow one row through all steps and record the thresholds it may reach; return True if it
    reaches a fraction of one."""
    promising = False
    for s in range(steps.shape[1]):
        v = np.float64(V[s, r])
        c -= steps[0, s] * v
        n -= v * v
        threshold, more, less = steps[1, s], steps[2, s], steps[3, s]
        if threshold == np.inf:
            continue
        if _reaches(c, n, length, scale, floor, rule, fraction * threshold, more, less):
            promising = True
            if _reaches(c, n, length, scale, floor, rule, threshold, more, less):
                if counts[s] < found.shape[1]:
                    found[s, counts[s]] = j
                counts[s] += 1
    return promising


@_compiled
def _sweep(F, Q, V, steps, c, n, lengths, floor, scale, rule, limit, fraction, start, stop):
    """Check steps (4, b: coefficients, thresholds, slacks of c and n) on rows start … stop.

    Returns how many rows reach each threshold, the first of them, and the promising rows. The
    products stay in V (tiles, directions, TILE).
    """
    b = steps.shape[1]
    counts, found = np.zeros(b, np.int64), np.empty((b, limit), np.int64)
    promising, count = np.empty(stop - start, np.int64), 0
    cs, ns, flags = np.empty(TILE), np.empty(TILE), np.empty(TILE, np.int64)
    for top in range(start, stop, TILE):
        end = min(top + TILE, stop)
        products = V[top // TILE]
        _multiply(F, Q, top, end, products)
        _promising(products, steps, c, n, lengths, scale, rule, fraction, top, end, cs, ns, flags)
        for j in range(top, end):
            if flags[j - top] and n[j] > -np.inf:
                row = (j, c[j], n[j], lengths[j], scale[j], floor[j], rule)
                if _follow(products, j - top, steps, *row, fraction, counts, found):
                    promising[count] = j
                    count += 1
    return counts, found, promising[:count].copy()


@_compiled
def _commit(V, coefs, c, n, start, stop):
    """Apply steps to rows start … stop from the products that a sweep left in V."""
    for top in range(start, stop, TILE):
        for s in range(len(coefs)):
            for j in range(top, min(top + TILE, stop)):
                v = np.float64(V[top // TILE, s, j - top])
                c[j] -= coefs[s] * v
                n[j] -= v * v


@_compiled
def _advance(F, q, coef, c, n, floor, scale, rule, start, stop):
    """Update c and n of rows start … stop with v = F q; return the best score and its first row.

    Summed in the precision of q: float32 rows times a float64 q are summed in float64.
    """
    best, where = -np.inf, -1
    zero = q[0] - q[0]
    for j in range(start, stop):
        v = zero
        for i in range(F.shape[1]):
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


@_compiled
def _products(F, q, out, start, stop):
    """Compute F q for rows start … stop in float64."""
    for j in range(start, stop):
        v = 0.0
        for i in range(F.shape[1]):
            v += np.float64(F[j, i]) * q[i]
        out[j] = v


@_compiled
def _squares(F, out, start, stop):
    """Compute ‖f‖² for rows start … stop in float64."""
    for j in range(start, stop):
        v = 0.0
        for i in range(F.shape[1]):
            f = np.float64(F[j, i])
            v += f * f
        out[j] = v


@_compiled
def _update_targets(V, coefs, c, n, floor, scale, rule, start, best, where):
    """Update c and n of T targets from the products V (T, m) with rows start … start + m."""
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


@_compiled
def _ties(c, n, lengths, floor, scale, rule, threshold, slack_c, slack_n, limit):
    """Return the first rows whose score may reach the threshold (`CandidateScores.ties`)."""
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


@_compiled
def _scores(c, n, floor, scale, rule, out):
    """Compute the score of every row; −inf for removed rows and rows with nothing new."""
    for j in range(len(c)):
        out[j] = _score(c[j], n[j], scale[j], rule) if n[j] > floor[j] else -np.inf


T = TypeVar("T")
_ALL = slice(None)


class NumbaRows(ArrayRows):
    """Rows of a C-contiguous NumPy array, read by compiled passes."""

    def __init__(self, array: Any, tolerance: float | None = None) -> None:
        super().__init__(self._contiguous(array), tolerance)

    def _contiguous(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield all rows in order, in as many arrays as they are stored in: here, one."""
        yield slice(0, self.t), self.array

    def squares(self) -> np.ndarray:
        out = np.empty(self.t)
        self.in_parts(lambda F, here: partial(_squares, F, out[here]))
        return out

    def products(self, vectors: np.ndarray) -> np.ndarray:
        if len(vectors) > 1:
            return super().products(vectors)
        out, q = np.empty((1, self.t)), np.ascontiguousarray(vectors[0])
        self.in_parts(lambda F, here: partial(_products, F, q, out[0, here]))
        return out

    def in_parts(self, work: Callable[[np.ndarray, slice], Callable[[int, int], T]]) -> list[T]:
        """Call `work(F, here)(start, stop)` on parts of every piece F, one thread per part.

        `here` is the position of the piece among all rows. Reads the rows once.
        """
        found: list[T] = []
        for here, F in self.pieces():
            found += in_parts(work(F, here), len(F), self.p, TILE)
        return found

    def scores(self, candidates: np.ndarray, noise: float, rule: Rule) -> CandidateScores:
        return NumbaCandidates(self, candidates, noise, rule)


class _NumbaPool(Pool):
    """`Pool` with its step compiled."""

    def _advance(self, q: np.ndarray, coef: float) -> int:
        state = (self.c, self.n, self.floor, self.scale, int(self.rule))
        step = partial(_advance, self.features, q, coef, *state)
        found = in_parts(step, len(self.rows), len(q), TILE)
        return max(found, key=lambda leader: leader[0])[1]


class NumbaCandidates(ArrayCandidates):
    """`ArrayCandidates` with compiled passes and lookahead."""

    rows: NumbaRows
    lookahead_batch = GROUP

    def __init__(self, rows: NumbaRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        super().__init__(rows, candidates, noise, rule)
        # The products of a sweep then take at most an eighth of the memory of the rows.
        self.max_lookahead = int(np.clip(rows.p // 8, GROUP, _MAX_LOOKAHEAD))
        self._coefs = np.zeros(0)
        self._products: dict[tuple[int, int], np.ndarray] = {}
        """Products of the last sweep with the rows from … to …."""

    def _rule(self, here: slice = _ALL) -> tuple[np.ndarray, np.ndarray, int]:
        return self.floor[here], self.scale[here], int(self.rule)

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        dtype = np.dtype(np.float64 if self.error == 0.0 else np.float32)
        b = len(steps)
        Q = np.zeros((-(-b // GROUP) * GROUP, self.rows.p), dtype)
        Q[:b] = steps.directions
        table = np.stack([steps.coefs, steps.thresholds, steps.slack_c, steps.slack_n])
        self._coefs = steps.coefs

        def work(F: np.ndarray, here: slice) -> Callable[[int, int], Any]:
            V = self._space(here, len(Q), dtype)
            state = (self.c[0, here], self.n[0, here], self.lengths[here])
            before = (F, Q, V, table, *state, *self._rule(here), limit, fraction)

            def sweep(start: int, stop: int) -> Any:
                counts, found, promising = _sweep(*before, start, stop)
                return counts, found + here.start, promising + here.start

            return sweep

        parts = self.rows.in_parts(work)
        counts = np.sum([count for count, _, _ in parts], axis=0)
        near = [
            None if counts[s] > limit else np.concatenate([f[s, : n[s]] for n, f, _ in parts])
            for s in range(b)
        ]
        return Swept(near, np.concatenate([promising for _, _, promising in parts]))

    def _space(self, here: slice, columns: int, dtype: np.dtype) -> np.ndarray:
        """Return an array for the products of a piece of the rows, reused by the next sweep."""
        piece = here.start, here.stop
        shape = (-(-(here.stop - here.start) // TILE), columns, TILE)
        products = self._products.get(piece)
        if products is None or products.shape != shape or products.dtype != dtype:
            self._products[piece] = products = np.empty(shape, dtype)
        return products

    def commit(self, count: int) -> None:
        for (start, stop), V in self._products.items():
            state = self.c[0, start:stop], self.n[0, start:stop]
            in_parts(partial(_commit, V, self._coefs[:count], *state), stop - start, count, TILE)

    def features(self, rows: np.ndarray) -> np.ndarray:
        F = self.rows.array
        if not isinstance(F, np.ndarray):  # on disk
            return super().features(rows)
        out = np.empty((len(rows), self.rows.p), F.dtype)

        def copy(start: int, stop: int) -> None:
            np.take(F, rows[start:stop], axis=0, out=out[start:stop], mode="clip")

        in_parts(copy, *out.shape, 1)
        return out

    def pool(self, rows: np.ndarray) -> _NumbaPool:
        return _NumbaPool(**vars(super().pool(rows)))

    def best(self, count: int) -> np.ndarray:
        scores = np.empty(self.rows.t, np.float32)
        _scores(self.c[0], self.n[0], *self._rule(), scores)
        rows = np.arange(len(scores))
        if count < len(scores):
            rows = np.sort(np.argpartition(scores, len(scores) - count)[-count:])
        return rows[scores[rows] > -np.inf]

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        if len(directions) == 1:
            q = directions[0] if self.error == 0.0 else directions[0].astype(np.float32)

            def work(F: np.ndarray, here: slice) -> Callable[[int, int], tuple[float, int]]:
                state = (self.c[0, here], self.n[0, here], *self._rule(here))

                def advance(start: int, stop: int) -> tuple[float, int]:
                    best, row = _advance(F, q, float(coefs[0]), *state, start, stop)
                    return best, row + here.start if row >= 0 else -1

                return advance

            found = self.rows.in_parts(work)
            best, where = max(found, key=lambda leader: leader[0])  # the first of ties
            return Leaders(np.array([best]), np.array([where]))
        scores = np.full(len(directions), -np.inf)
        winners = np.full(len(directions), -1)
        state = (self.c, self.n, *self._rule())
        for part, block in self.rows.blocks(len(directions)):
            _update_targets(directions @ block.T, coefs, *state, part.start, scores, winners)
        return Leaders(scores, winners)

    def leaders(self) -> Leaders:
        scores = np.empty(self.rows.t)
        best, rows = [], []
        for c, n in zip(self.c, self.n):
            _scores(c, n, *self._rule(), scores)
            row = int(np.argmax(scores))
            best.append(scores[row])
            rows.append(row if scores[row] > -np.inf else -1)
        return Leaders(np.array(best), np.array(rows))

    def first_above(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        every = zip(thresholds.tolist(), slack_c.tolist(), slack_n.tolist())
        found = [self.ties(i, *bounds, 1) for i, bounds in enumerate(every)]
        return np.array([int(rows[0]) if len(rows) else -1 for rows in found])

    def ties(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        mine = (self.c[target], self.n[target], self.lengths, *self._rule())
        return _ties(*mine, threshold, slack_c, slack_n, limit)
