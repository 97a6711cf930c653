"""Rows on disk as candidates: what costs is a reading of all of them, so there are few.

The state of a race (c, n and what belongs to each row) is in memory, some sixty bytes a row, and
four for every step of a sweep (at most 32); the rows themselves pass through a few buffers. Picks
are guessed and checked several at a time, as in memory (`ahead`), and the pass over the rows is the
same compiled code, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from exempla.selection.candidates.arrays import ArrayRows
from exempla.selection.candidates.base import Rows, Rule
from exempla.store import StoredRows

__all__ = ["Stored", "StoredArrayRows"]

TOGETHER = 96 * 8
"""Rows of a piece are a multiple of this: whole tiles of the compiled pass, for several threads."""


class Stored(ArrayRows):
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
        return self.array.stream(TOGETHER)

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


class StoredArrayRows(Stored):
    """Rows on disk, where nothing can be compiled."""
