"""Rows of a NumPy array, raced by compiled passes: product, update and comparison in one reading.

NumPy would write the products, then read c, n and them again. The result is the same to the last
bit for any number of threads, because each row is always summed by itself and the rows that are
handed out have no order but their own.

Rows on disk as candidates: what costs is a reading of all of them, so there are few.

The state of a race (c, n and what belongs to each row) is in memory, some sixty bytes a row, and
four for every step of a sweep (at most 32); the rows themselves pass through a few buffers. Picks
are guessed and checked several at a time, as in memory (`ahead`), and the pass over the rows is the
same compiled code, piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from exempla.selection import compiled as passes
from exempla.selection.compiled import TILE, in_parts
from exempla.selection.rows import (
    ArrayRace,
    ArrayRows,
    Leaders,
    Pool,
    Race,
    Rows,
    Rule,
    Steps,
    Swept,
)
from exempla.store import StoredRows

_TOGETHER = 96 * 8
"""Rows of a piece are a multiple of this: whole tiles of the compiled pass, for several threads."""


class _Stored(ArrayRows):
    """What differs where `array` is a `StoredRows`."""

    array: StoredRows
    readings = 0
    """Passes over all rows so far."""
    _last: tuple[bytes, np.ndarray] | None = None
    """z as it was asked for last: the problem, the race and the certificate all need it."""

    def _usable(self, array: Any) -> Any:
        return array

    def _place(self, like: Any) -> None:
        super()._place(np.asarray(like))

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows in order, as they are read; a piece is used up when the next is asked for."""
        self.readings += 1
        return self.array.stream(_TOGETHER)

    def blocks(self, at_least: int = 1) -> Iterator[tuple[slice, np.ndarray]]:
        step = max(self.step, at_least)
        for here, rows in self.pieces():
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                first = here.start + start
                yield slice(first, first + len(part)), part.astype(np.float64, copy=False)

    def products(self, vectors: np.ndarray) -> np.ndarray:
        if self._last is not None and self._last[0] == vectors.tobytes():
            return self._last[1]
        return super().products(vectors)

    def project(self, vectors: np.ndarray) -> np.ndarray:
        found = self.products(vectors)
        self._last = (vectors.tobytes(), found)
        return found

    def rough_products(self, q: np.ndarray) -> np.ndarray:
        return np.concatenate([np.vecdot(rows, q) for _, rows in self.pieces()])

    def split(self, bounds: list[int]) -> list[Rows]:
        parts = [self.array.part(start, stop) for start, stop in pairwise(bounds)]
        return [type(self)(part, self.tolerance) for part in parts]

    def run_on_device(
        self, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
    ) -> None:
        return


class StoredArrayRows(_Stored):
    """Rows on disk, where nothing can be compiled."""


T = TypeVar("T")
_ALL = slice(None)


class FusedRows(ArrayRows):
    """Rows of a C-contiguous NumPy array, raced by the fused pass."""

    def __init__(self, array: Any, tolerance: float | None = None) -> None:
        super().__init__(self._usable(array), tolerance)

    def _usable(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows in order, in as many arrays as they are in: here, one."""
        yield slice(0, self.t), self.array

    def squares(self) -> np.ndarray:
        out = np.empty(self.t)
        self.in_parts(lambda F, here: partial(passes.squares, F, out[here]))
        return out

    def products(self, vectors: np.ndarray) -> np.ndarray:
        if len(vectors) > 1:
            return super().products(vectors)
        out, q = np.empty((1, self.t)), np.ascontiguousarray(vectors[0])
        self.in_parts(lambda F, here: partial(passes.products, F, q, out[0, here]))
        return out

    def in_parts(self, work: Callable[[np.ndarray, slice], Callable[[int, int], T]]) -> list[T]:
        """`work(F, here)(start, stop)` for parts of every piece F, whose place among all rows is
        `here`, by as many threads as are worth it; in one reading of the rows."""
        found: list[T] = []
        for here, F in self.pieces():
            found += in_parts(work(F, here), len(F), self.p, TILE)
        return found

    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        return FusedRace(self, candidates, noise, rule)


class StoredFusedRows(_Stored, FusedRows):
    """Rows on disk, raced by the fused pass over what has been read of them."""


class _FusedPool(Pool):
    """`Pool` with its step compiled."""

    def _advance(self, q: np.ndarray, coef: float) -> int:
        state = (self.c, self.n, self.floor, self.scale, int(self.rule))
        step = partial(passes.advance, self.features, q, coef, *state)
        found = in_parts(step, len(self.rows), len(q), TILE)
        return max(found, key=lambda leader: leader[0])[1]


class FusedRace(ArrayRace):
    """`ArrayRace` with its passes compiled."""

    rows: FusedRows
    panel = passes.NARROW

    def __init__(self, rows: FusedRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        super().__init__(rows, candidates, noise, rule)
        # so that the products of a sweep are kept in an eighth of what the rows take
        self.most_ahead = int(np.clip(rows.p // 8, self.panel, 32))
        self.coefs = np.zeros(0)
        self.made: dict[tuple[int, int], np.ndarray] = {}
        """Coefficients of the last sweep's steps, and its products with the rows from … to …."""

    def _rule(self, here: slice = _ALL) -> tuple[np.ndarray, np.ndarray, int]:
        return self.floor[here], self.scale[here], int(self.rule)

    def sweep(self, steps: Steps, limit: int, share: float) -> Swept:
        dtype = np.dtype(np.float64 if self.error == 0.0 else np.float32)
        Q = passes.pack(steps.directions, dtype)
        exact = np.stack([steps.coefs, steps.bars, steps.slack_c, steps.slack_n])
        size = math.sqrt(self.rows.norms2.max(initial=0.0) + self.noise) or 1.0
        rough = passes.in_units(exact, share, size, int(self.rule), dtype)
        self.coefs = steps.coefs

        def work(F: np.ndarray, here: slice) -> Callable[[int, int], Any]:
            state = (self.c[0, here], self.n[0, here], self.lengths[here], *self._rule(here))
            before = (
                F,
                *Q,
                dtype.type(0),
                exact,
                *rough,
                self._place(here, len(steps), dtype),
                *state,
            )

            def sweep(start: int, stop: int) -> Any:
                counts, found, hopeful = passes.sweep(*before, start, stop, limit, share)
                return counts, found + here.start, hopeful + here.start

            return sweep

        parts = self.rows.in_parts(work)
        counts = np.sum([count for count, _, _ in parts], axis=0)
        near = [
            None if counts[s] > limit else np.concatenate([f[s, : n[s]] for n, f, _ in parts])
            for s in range(len(steps))
        ]
        return Swept(near, np.concatenate([hopeful for _, _, hopeful in parts]))

    def _place(self, here: slice, count: int, dtype: np.dtype) -> np.ndarray:
        """Where the products of a piece of the rows with so many directions go, a tile of them
        together: at most 128 bytes a row in float32, used again by the next sweep."""
        piece = here.start, here.stop
        shape = (
            -(-(here.stop - here.start) // TILE),
            -(-count // passes.NARROW) * passes.NARROW,
            TILE,
        )
        made = self.made.get(piece)
        if made is None or made.shape != shape or made.dtype != dtype:
            self.made[piece] = made = np.empty(shape, dtype)
        return made

    def keep(self, count: int) -> None:
        for (start, stop), V in self.made.items():
            state = self.c[0, start:stop], self.n[0, start:stop]
            in_parts(partial(passes.keep, V, self.coefs[:count], *state), stop - start, count, TILE)

    def features(self, rows: np.ndarray) -> np.ndarray:
        F = self.rows.array
        if not isinstance(F, np.ndarray):  # on disk
            return super().features(rows)
        out = np.empty((len(rows), self.rows.p), F.dtype)

        def copy(start: int, stop: int) -> None:
            np.take(F, rows[start:stop], axis=0, out=out[start:stop], mode="clip")

        in_parts(copy, *out.shape, 1)
        return out

    def pool(self, rows: np.ndarray) -> _FusedPool:
        return _FusedPool(**vars(super().pool(rows)))

    def best(self, count: int) -> np.ndarray:
        scores = np.empty(self.rows.t, np.float32)
        passes.scores(self.c[0], self.n[0], *self._rule(), scores)
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
                    best, row = passes.advance(F, q, float(coefs[0]), *state, start, stop)
                    return best, row + here.start if row >= 0 else -1

                return advance

            found = self.rows.in_parts(work)
            best, where = max(found, key=lambda leader: leader[0])  # of equals the lowest row
            return Leaders(np.array([best]), np.array([where]))
        scores = np.full(len(directions), -np.inf)
        winners = np.full(len(directions), -1)
        state = (self.c, self.n, *self._rule())
        for part, block in self.rows.blocks(min(1024, 8 * len(directions))):
            passes.apply(directions @ block.T, coefs, *state, part.start, scores, winners)
        return Leaders(scores, winners)

    def leaders(self) -> Leaders:
        best = [passes.leader(c, n, *self._rule()) for c, n in zip(self.c, self.n)]
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
        mine = (self.c[target], self.n[target], self.lengths, *self._rule())
        return passes.reach(*mine, threshold, slack_c, slack_n, limit)
