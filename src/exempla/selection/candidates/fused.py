"""The fused pass: product, update of c and n, and the best score in one reading of the rows.

A pick costs one pass over the rows; NumPy would write v, then read c, n and v again. float32 rows
are multiplied in float32 (a float64 sum is 1.4 times slower); the loop in `engine` knows the error
and settles close calls in float64.

Threads: one, unless the environment variable EXEMPLA_THREADS says more. The result is the same to
the last bit, because each row is always summed by itself and the maximum has no order. They are
Python's own threads, which leave the interpreter while they compute: numba's parallel loops stand
on OpenMP, which ends every process that forks after using it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from exempla.selection.candidates.arrays import ArrayRace, ArrayRows
from exempla.selection.candidates.base import Leaders, Race, Rule

__all__ = ["FusedRace", "FusedRows", "threads"]

# Sums may be reordered (that is what vector units need), but infinities keep their meaning:
# rows out of the race are marked by n = −inf.
FASTMATH = {"reassoc", "contract", "nsz"}
FEWEST = 32_768
"""Rows for which more than one thread is worth it."""
_OPTIONS: dict[str, Any] = {"fastmath": FASTMATH, "error_model": "numpy", "nogil": True}


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile with an on-disk cache, or without one where no folder can be written."""
    try:
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return numba.njit(**_OPTIONS, **options)(function)


def threads() -> int:
    """Threads to use: EXEMPLA_THREADS, at most what numba was started with; 1 if unset."""
    try:
        wanted = int(os.environ.get("EXEMPLA_THREADS", "1"))
    except ValueError:
        wanted = 1
    return max(1, min(wanted, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(count: int) -> ThreadPoolExecutor:
    """So many threads of this process: those of a parent do not live on in its child."""
    key = os.getpid(), count
    return _POOLS.get(key) or _POOLS.setdefault(key, ThreadPoolExecutor(count, "exempla"))


@compiled
def _score(c, n, scale, rule):
    if rule == 0:
        return c * c / n
    if rule == 1:
        return c * c * scale
    return c * scale


@compiled
def _advance(F, q, coef, c, n, floor, scale, rule, start, stop):
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
def _products(F, q, out):
    """F q with every product and sum in float64."""
    for j in range(F.shape[0]):
        v = 0.0
        for i in range(F.shape[1]):
            v += np.float64(F[j, i]) * q[i]
        out[j] = v


@compiled
def _apply(V, coefs, c, n, floor, scale, rule, start, best, where):
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
def _reach(c, n, lengths, floor, scale, rule, threshold, slack_c, slack_n, limit):
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
def _leader(c, n, floor, scale, rule):
    best, where = -np.inf, -1
    for j in range(len(c)):
        if n[j] > floor[j]:
            score = _score(c[j], n[j], scale[j], rule)
            if score > best:
                best, where = score, j
    return best, where


class FusedRows(ArrayRows):
    """Rows of a C-contiguous NumPy array, raced by the fused pass."""

    def __init__(self, array: np.ndarray, tolerance: float | None = None) -> None:
        super().__init__(np.ascontiguousarray(array), tolerance)

    def products(self, vectors: np.ndarray) -> np.ndarray:
        if len(vectors) > 1:
            return super().products(vectors)
        out = np.empty((1, self.t))
        _products(self.array, np.ascontiguousarray(vectors[0]), out[0])
        return out

    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        return FusedRace(self, candidates, noise, rule)


class FusedRace(ArrayRace):
    """`ArrayRace` with its passes compiled."""

    @property
    def _rule(self) -> tuple[np.ndarray, np.ndarray, int]:
        return self.floor, self.scale, int(self.rule)

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        if len(directions) == 1:
            q = directions[0] if self.error == 0.0 else directions[0].astype(np.float32)
            one = (self.rows.array, q, float(coefs[0]), self.c[0], self.n[0], *self._rule)
            best, where = self._pass(one)
            return Leaders(np.array([best]), np.array([where]))
        scores = np.full(len(directions), -np.inf)
        winners = np.full(len(directions), -1)
        state = (self.c, self.n, *self._rule)
        for part, block in self.rows.blocks():
            _apply(directions @ block.T, coefs, *state, part.start, scores, winners)
        return Leaders(scores, winners)

    def _pass(self, arguments: tuple[Any, ...]) -> tuple[float, int]:
        t, count = self.rows.t, threads()
        if count == 1 or t < FEWEST:
            return _advance(*arguments, 0, t)
        cuts = [t * i // count for i in range(count + 1)]
        found = _pool(count).map(lambda *part: _advance(*arguments, *part), cuts[:-1], cuts[1:])
        return max(found, key=lambda leader: leader[0])  # the first of equals: the lowest row

    def leaders(self) -> Leaders:
        best = [_leader(c, n, *self._rule) for c, n in zip(self.c, self.n)]
        return Leaders(np.array([b[0] for b in best]), np.array([b[1] for b in best]))

    def firsts(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        every = zip(thresholds.tolist(), slack_c.tolist(), slack_n.tolist())
        found = [self.contenders(i, *bounds, 1) for i, bounds in enumerate(every)]
        return np.array([int(rows[0]) if len(rows) else -1 for rows in found])

    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        mine = (self.c[target], self.n[target], self.lengths, *self._rule)
        return _reach(*mine, threshold, slack_c, slack_n, limit)
