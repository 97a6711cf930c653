"""Stored rows: consecutive ranges of one (t, p) array, each in an .npy file; and fitted objects.

A pass over all rows reads the files in order, a few pieces ahead of the caller (`stream`): memory
stays small whatever the size of the files.
Single rows are taken from the files mapped into memory.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from exempla import __version__
from exempla.errors import ExemplaError
from exempla.io import os_errors, read_seal, verified, write_sealed

_AHEAD, _READERS = 3, 2
"""Pieces read while one is used, and threads that read them."""


def cut_short(path: Path) -> ExemplaError:
    """Return the error about a file that ends too early."""
    return ExemplaError(f"{path} is cut short: fit again with this store=.")


def _read_piece(path: Path, offset: int, rows: int, width: int, dtype: np.dtype) -> np.ndarray:
    """Read consecutive rows of a file, from a byte on."""
    with os_errors(f"{path} cannot be read"):
        values = np.fromfile(path, dtype, rows * width, offset=offset)
    if len(values) < rows * width:
        raise cut_short(path)
    return values.reshape(rows, width)


_MAX_SCATTERED = 8
"""Rows are read one by one if fewer than one in this many is wanted."""
PIECE_BYTES = 2**24
"""Bytes of rows that a pass reads at a time."""


@dataclass(frozen=True)
class Shard:
    """Rows start … stop of the whole, in the file at `path`, after `skip` other rows."""

    path: Path
    start: int
    stop: int
    skip: int = 0
    verify: bool = False
    """Whether the checksum of the file is verified before the first read."""

    @cached_property
    def _file(self) -> np.ndarray:
        if self.verify:
            verified(self.path)
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as problem:
            why = getattr(problem, "strerror", None) or "it is not a complete .npy file of numbers"
            raise ExemplaError(f"{self.path} cannot be read: {why}.") from None
        if rows.ndim != 2 or not rows.flags.c_contiguous or not rows.dtype.isnative:
            raise ExemplaError(
                f"{self.path} is not a file of rows: save a (t, p) array in C order."
            )
        return rows

    @property
    def rows(self) -> np.ndarray:
        """The rows, as a read-only view of the file."""
        return self._file[self.skip : self.skip + self.stop - self.start]

    @property
    def offset(self) -> int:
        """Byte at which the rows begin."""
        first = int(self._file.offset)  # type: ignore[attr-defined]
        return first + self.skip * self._file.strides[0]

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Return some of the rows; positions must ascend.

        A mapped file would load a hundred kilobytes around each of a few scattered rows, so these
        are read one by one.
        """
        if _MAX_SCATTERED * len(positions) > np.ptp(positions):
            return self.rows[positions]
        out = np.empty((len(positions), self._file.shape[1]), self._file.dtype)
        size = out.strides[0]
        with os_errors(f"{self.path} cannot be read"), open(self.path, "rb", buffering=0) as file:
            rows: Any = out
            for row, position in zip(rows, positions.tolist()):
                file.seek(self.offset + position * size)
                if file.readinto(memoryview(row).cast("B")) < size:
                    raise cut_short(self.path)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}


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
    ndim = 2

    @classmethod
    def of(cls, paths: Sequence[str | Path]) -> StoredRows:
        """Open these files as one array, in this order."""
        lengths = [len(Shard(Path(path), 0, 0)._file) for path in paths]
        cuts = np.concatenate([[0], np.cumsum(lengths)]).astype(int).tolist()
        ranges = zip(paths, pairwise(cuts), strict=True)
        return cls(tuple(Shard(Path(path), start, stop) for path, (start, stop) in ranges))

    def __post_init__(self) -> None:
        if not self.shards:
            raise ExemplaError("there are no stored rows: give at least one file.")

    @cached_property
    def _first(self) -> np.ndarray:
        return self.shards[0].rows

    @cached_property
    def _positions(self) -> np.ndarray:
        """0 … t − 1, from which NumPy selects what an index means."""
        return np.arange(len(self))

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards}

    @property
    def shape(self) -> tuple[int, int]:
        """(t, p)."""
        return self.shards[-1].stop - self.shards[0].start, self._first.shape[1]

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

    def verify_when_read(self) -> None:
        """Raise if a file is absent or too short; verify each checksum before the first read."""
        for shard in self.shards:
            if len(shard.rows) != shard.stop - shard.start:
                raise ExemplaError(f"{shard.path} has fewer rows than it had: fit again.")
            vars(shard).pop("_file")  # opened again, and verified, by the first read
            object.__setattr__(shard, "verify", True)

    def stream(self, multiple: int = 1) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield all rows in order, a few pieces ahead of the caller.

        Each array has a number of rows divisible by `multiple`, except at the end of a file.
        """
        width, row = self.shape[1], self.shape[1] * self.dtype.itemsize
        height = max(1, PIECE_BYTES // (max(row, 1) * multiple)) * multiple
        waiting: deque[tuple[slice, Future[np.ndarray]]] = deque()
        pool = ThreadPoolExecutor(_READERS, "exempla-read")
        try:
            for shard in self.shards:
                for start in range(shard.start, shard.stop, height):
                    here = slice(start, min(start + height, shard.stop))
                    offset = shard.offset + (start - shard.start) * row
                    piece = (shard.path, offset, here.stop - start, width, self.dtype)
                    waiting.append((here, pool.submit(_read_piece, *piece)))
                    if len(waiting) > _AHEAD:
                        here, read = waiting.popleft()
                        yield here, read.result()
            for here, read in waiting:
                yield here, read.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def part(self, start: int, stop: int) -> StoredRows:
        """Return rows start … stop, numbered from 0."""
        parts = (
            Shard(s.path, low - start, high - start, s.skip + low - s.start, s.verify)
            for s, low, high in self._within(start, stop)
        )
        return StoredRows(tuple(parts))

    def _within(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int]]:
        """Yield the shards that hold rows start … stop, with the first and end of those rows."""
        for shard in self.shards:
            low, high = max(start, shard.start), min(stop, shard.stop)
            if low < high:
                yield shard, low, high

    def absolute(self) -> StoredRows:
        """Return the same rows with absolute paths."""
        return StoredRows(tuple(replace(s, path=s.path.absolute()) for s in self.shards))

    def __getitem__(self, which: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        """Return copies of one row, of a range, or of rows by number or mask."""
        if isinstance(which, slice) and which.step in (None, 1):
            start, stop, _ = which.indices(len(self))
            out = np.empty((max(stop - start, 0), self.shape[1]), self.dtype)
            for s, low, high in self._within(start, stop):
                out[low - start : high - start] = s.rows[low - s.start : high - s.start]
            return out
        if isinstance(which, Sequence) and not len(which):
            which = slice(0, 0)
        wanted = self._positions[which]
        flat = np.atleast_1d(wanted)
        out = np.empty((len(flat), self.shape[1]), self.dtype)
        order = np.argsort(flat, kind="stable")
        cuts = np.searchsorted(flat[order], [shard.start for shard in self.shards])
        for shard, low, high in zip(self.shards, cuts, [*cuts[1:], len(flat)], strict=True):
            if low < high:
                here = order[low:high]
                out[here] = shard.take(flat[here] - shard.start)
        return out if np.ndim(wanted) else out[0]

    def __matmul__(self, columns: np.ndarray) -> np.ndarray:
        """Multiply all rows by columns (p, m) in one pass; return (t, m)."""
        out = np.empty((len(self), *columns.shape[1:]), np.result_type(self.dtype, columns))
        for part, rows in self.stream():
            out[part] = rows @ columns
        return out

    def squares(self) -> np.ndarray:
        """Return the squared length of every row, (t,), in one pass."""
        out = np.empty(len(self))
        for part, rows in self.stream():
            out[part] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        return out


T = TypeVar("T")


def write_object(thing: object, path: str | Path) -> Path:
    """Write a fitted object to one sealed file; an existing one stays until it is complete."""
    import joblib

    path = Path(path)
    content = {"exempla": __version__, "object": thing}
    about = {"exempla": __version__, "type": type(thing).__name__}
    try:
        with os_errors(f"{path} cannot be written", "; an existing file is unchanged"):
            write_sealed(path, lambda sink: joblib.dump(content, sink), about)
    except (TypeError, AttributeError, pickle.PicklingError) as problem:
        raise ExemplaError(
            f"this model cannot be stored ({problem}): keep the model yourself and fit again."
        ) from None
    return path


def read_object(path: str | Path, kind: type[T]) -> T:
    """Read what `write_object` wrote. Reading runs code in the file: open only what you trust."""
    import joblib

    path = Path(path)
    if not path.exists():
        raise ExemplaError(f"there is no file {path}.")
    if not path.is_dir() and read_seal(path) is None:
        raise ExemplaError(f"{path} is cut short or was not written by {kind.__name__}.save.")
    verified(path)
    try:
        thing = joblib.load(path)["object"]
    except Exception as problem:  # a sealed file of another kind, or of other library versions
        raise ExemplaError(
            f"{path} cannot be loaded ({type(problem).__name__}: {problem}): save it again with "
            f"{kind.__name__}.save."
        ) from None
    if not isinstance(thing, kind):
        raise ExemplaError(f"{path} was not written by {kind.__name__}.save.")
    return thing
