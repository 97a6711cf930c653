"""Rows on disk as candidates: reading them is the cost, so there are few passes.

c, n and the constants of each row stay in memory (about 60 bytes per row, plus 4 bytes for every
step of a sweep, at most 32); the rows pass through a few buffers. Picks are guessed and checked
several at a time (`lookahead`), by the same compiled passes, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from exempla.selection.rows import ArrayRows, Rows, Rule
from exempla.store import StoredRows

_PIECE_MULTIPLE = 96 * 8
"""Pieces have a multiple of this many rows: whole tiles of a compiled pass for several threads."""


class _StoredMixin(ArrayRows):
    """The methods that differ where `array` is a `StoredRows`."""

    array: StoredRows
    readings = 0
    """Passes over all rows so far."""
    _last: tuple[bytes, np.ndarray] | None = None
    """The last projection: the problem, the scores and the certificate all need z."""

    def _contiguous(self, array: Any) -> Any:
        return array

    def _set_device(self, like: Any) -> None:
        super()._set_device(np.asarray(like))

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield all rows in order as they are read; each buffer is reused for the next piece."""
        self.readings += 1
        return self.array.stream(_PIECE_MULTIPLE)

    def blocks(self, n_vectors: int = 1) -> Iterator[tuple[slice, np.ndarray]]:
        step = max(self.block_rows, min(1024, 8 * n_vectors))
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


class StoredArrayRows(_StoredMixin):
    """Rows on disk without numba."""


try:
    from exempla.selection.numba_rows import NumbaRows
except ImportError:  # numba is not installed
    StoredNumbaRows = StoredArrayRows  # pyright: ignore[reportAssignmentType]
else:

    class StoredNumbaRows(_StoredMixin, NumbaRows):  # pyright: ignore[reportRedeclaration]
        """Rows on disk, scored by compiled passes."""
