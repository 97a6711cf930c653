"""Rows in several files: consecutive ranges of one (t, p) array, each an .npy file of its own.

A range is opened, read-only and mapped into memory, when it is asked for: the system keeps of it
what there is room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from exempla.errors import ExemplaError

__all__ = ["Shard", "StoredRows"]


@dataclass(frozen=True)
class Shard:
    """Rows start … stop of the whole, in the file at `path`."""

    path: Path
    start: int
    stop: int

    @property
    def rows(self) -> np.ndarray:
        """The rows, as a read-only view of the file."""
        return np.load(self.path, mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True)
class StoredRows:
    """The rows of consecutive shards as one (t, p) array that is read a part at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/a.npy", np.eye(3)[:2])
    ...     np.save(folder + "/b.npy", np.eye(3)[2:])
    ...     rows = StoredRows.of([folder + "/a.npy", folder + "/b.npy"])
    ...     rows.shape, rows[1:].tolist(), rows[[2, 0]].tolist()
    ((3, 3), [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, paths: Sequence[str | Path]) -> StoredRows:
        """The rows of these files, in this order."""
        lengths = [len(np.load(path, mmap_mode="r", allow_pickle=False)) for path in paths]
        cuts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        ranges = zip(paths, pairwise(cuts), strict=True)
        return cls(tuple(Shard(Path(path), start, stop) for path, (start, stop) in ranges))

    def __post_init__(self) -> None:
        if not self.shards:
            raise ExemplaError("there are no stored rows: give at least one file of them.")

    @cached_property
    def _first(self) -> np.ndarray:
        return self.shards[0].rows

    @property
    def shape(self) -> tuple[int, int]:
        """(t, p)."""
        return self.shards[-1].stop, self._first.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """The type of the numbers."""
        return self._first.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, on disk."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self, height: int) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows in order, at most so many at a time, as views of their files."""
        for shard in self.shards:
            rows = shard.rows
            for start in range(0, len(rows), height):
                stop = min(start + height, len(rows))
                yield slice(shard.start + start, shard.start + stop), rows[start:stop]

    def __getitem__(self, which: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        """Copies of one row, of a range, or of rows by number or by a mask."""
        wanted = np.arange(len(self))[which]
        flat = np.atleast_1d(wanted)
        out = np.empty((len(flat), self.shape[1]), self.dtype)
        for shard in self.shards:
            here = np.flatnonzero((shard.start <= flat) & (flat < shard.stop))
            if len(here):
                out[here] = shard.rows[flat[here] - shard.start]
        return out if np.ndim(wanted) else out[0]
