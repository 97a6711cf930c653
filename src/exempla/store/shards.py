"""Rows in several files: consecutive ranges of one (t, p) array, each an .npy file of its own.

Passes over all rows read the files in order, ahead of the caller (`stream`). Single rows are taken
from the files mapped into memory, of which the system keeps what there is room for.

Rows of files in order, read ahead by threads while the caller computes.

Read, not mapped: what a pass needs is a few buffers, whatever the files' size, and the next ones
fill while one is used. A mapped file would be called in page by page by the thread that computes.

Whole fitted objects, one in a file, with its checksum at the end.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from exempla.errors import ExemplaError
from exempla.io import Hashing, replacing
from exempla.version import __version__

_AHEAD = 3
"""Buffers that are filled while one is used."""
_READERS = 2
"""Threads that fill them."""


class Range(NamedTuple):
    """Bytes of a file that are consecutive rows of a whole."""

    path: Path
    offset: int
    start: int
    stop: int


def read_ahead(
    ranges: Sequence[Range], width: int, dtype: np.dtype
) -> Iterator[tuple[slice, np.ndarray]]:
    """The rows of each range, in order. An array is used up when the next one is asked for."""
    if not ranges:
        return
    most = max(r.stop - r.start for r in ranges)
    count = min(_AHEAD + 1, len(ranges))
    free = deque(np.empty((most, width), dtype) for _ in range(count))
    waiting: deque[tuple[Range, np.ndarray, Future[None]]] = deque()
    left = iter(ranges)
    pool = ThreadPoolExecutor(min(_READERS, count), "exempla-read")
    try:
        while True:
            while free and (one := next(left, None)) is not None:
                buffer = free.popleft()
                waiting.append((one, buffer, pool.submit(_fill, one, buffer)))
            if not waiting:
                return
            one, buffer, filled = waiting.popleft()
            filled.result()
            yield slice(one.start, one.stop), buffer[: one.stop - one.start]
            free.append(buffer)
    finally:
        pool.shutdown(cancel_futures=True)


def read_rows(path: Path, offset: int, positions: np.ndarray, out: np.ndarray) -> None:
    """A few rows from all over a file, into `out`: each is read by itself, as a mapped file would
    call in a hundred kilobytes around every one of them."""
    size = out.itemsize * out.shape[1]
    values: Any = out
    view = memoryview(values).cast("B")
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            for i, position in enumerate(positions.tolist()):
                row = os.pread(handle, size, offset + position * size)
                if len(row) < size:
                    raise ExemplaError(f"{path} is cut short: fit again with this store=.")
                view[i * size : (i + 1) * size] = row
        finally:
            os.close(handle)
    except OSError as problem:
        raise ExemplaError(f"{path} cannot be read: {problem.strerror or problem}.") from None


def _fill(one: Range, buffer: np.ndarray) -> None:
    part: Any = buffer[: one.stop - one.start]
    view = memoryview(part).cast("B")
    try:
        with open(one.path, "rb", buffering=0) as file:
            file.seek(one.offset)
            while len(view):
                got = file.readinto(view)
                if not got:
                    raise ExemplaError(
                        f"{one.path} is cut short: fit again with this store=, which makes it anew."
                    )
                view = view[got:]
    except OSError as problem:
        raise ExemplaError(f"{one.path} cannot be read: {problem.strerror or problem}.") from None


_SCATTERED = 8
"""Rows are read one by one where fewer than one in so many is wanted."""
PIECE_BYTES = 2**24
"""Bytes of rows that a pass takes at a time."""


@dataclass(frozen=True)
class Shard:
    """Rows start … stop of the whole, in the file at `path`, after `skip` other rows."""

    path: Path
    start: int
    stop: int
    skip: int = 0

    @cached_property
    def _file(self) -> np.ndarray:
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as problem:
            why = getattr(problem, "strerror", None) or "it is no whole .npy file of numbers"
            raise ExemplaError(f"{self.path} cannot be read: {why}.") from None
        if rows.ndim != 2 or not rows.flags.c_contiguous or not rows.dtype.isnative:
            raise ExemplaError(f"{self.path} is no file of rows: save a (t, p) array in C order.")
        return rows

    @property
    def rows(self) -> np.ndarray:
        """The rows, as a read-only view of the file."""
        return self._file[self.skip : self.skip + self.stop - self.start]

    @property
    def offset(self) -> int:
        """Where in the file they begin."""
        first = int(self._file.offset)  # type: ignore[attr-defined]
        return first + self.skip * self._file.strides[0]

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Some of the rows, ascending positions."""
        if _SCATTERED * len(positions) > np.ptp(positions) or not hasattr(os, "pread"):
            return self.rows[positions]
        out = np.empty((len(positions), self._file.shape[1]), self._file.dtype)
        read_rows(self.path, self.offset, positions, out)
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

    @classmethod
    def of(cls, paths: Sequence[str | Path]) -> StoredRows:
        """The rows of these files, in this order."""
        lengths = [len(Shard(Path(path), 0, 0)._file) for path in paths]
        cuts = np.concatenate([[0], np.cumsum(lengths)]).astype(int).tolist()
        ranges = zip(paths, pairwise(cuts), strict=True)
        return cls(tuple(Shard(Path(path), start, stop) for path, (start, stop) in ranges))

    def __post_init__(self) -> None:
        if not self.shards:
            raise ExemplaError("there are no stored rows: give at least one file of them.")

    @cached_property
    def _first(self) -> np.ndarray:
        return self.shards[0].rows

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards}

    @property
    def shape(self) -> tuple[int, int]:
        """(t, p)."""
        return self.shards[-1].stop - self.shards[0].start, self._first.shape[1]

    @property
    def ndim(self) -> int:
        """2."""
        return 2

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

    def refuse_missing(self) -> None:
        """Raise if a file is not there or too short; what is in it is not looked at."""
        for shard in self.shards:
            if len(shard.rows) != shard.stop - shard.start:
                raise ExemplaError(f"{shard.path} has fewer rows than it had: fit again.")

    def blocks(self, height: int) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows in order, at most so many at a time, as views of their files."""
        for shard in self.shards:
            rows = shard.rows
            for start in range(0, len(rows), height):
                stop = min(start + height, len(rows))
                yield slice(shard.start + start, shard.start + stop), rows[start:stop]

    def stream(self, multiple: int = 1) -> Iterator[tuple[slice, np.ndarray]]:
        """All rows in order, read ahead into a few buffers, a number divisible by `multiple` at a
        time (but for the end of a file). An array is used up when the next one is asked for.
        """
        row = self.shape[1] * self.dtype.itemsize
        height = max(1, PIECE_BYTES // (max(row, 1) * multiple)) * multiple
        ranges = []
        for shard in self.shards:
            for start in range(shard.start, shard.stop, height):
                stop = min(start + height, shard.stop)
                offset = shard.offset + (start - shard.start) * row
                ranges.append(Range(shard.path, offset, start, stop))
        return read_ahead(ranges, self.shape[1], self.dtype)

    def part(self, start: int, stop: int) -> StoredRows:
        """Rows start … stop alone, numbered from 0."""
        found = []
        for s in self.shards:
            low, high = max(start, s.start), min(stop, s.stop)
            if low < high:
                found.append(Shard(s.path, low - start, high - start, s.skip + low - s.start))
        return StoredRows(tuple(found))

    def __getitem__(self, which: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        """Copies of one row, of a range, or of rows by number or by a mask."""
        if isinstance(which, slice) and which.step in (None, 1):
            return self._range(*which.indices(len(self))[:2])
        wanted = self._numbers(which)
        flat = np.atleast_1d(wanted)
        out = np.empty((len(flat), self.shape[1]), self.dtype)
        order = np.argsort(flat, kind="stable")
        cuts = np.searchsorted(flat[order], [shard.start for shard in self.shards])
        for shard, low, high in zip(self.shards, cuts, [*cuts[1:], len(flat)], strict=True):
            if low < high:
                here = order[low:high]
                out[here] = shard.take(flat[here] - shard.start)
        return out if np.ndim(wanted) else out[0]

    def _range(self, start: int, stop: int) -> np.ndarray:
        out = np.empty((max(stop - start, 0), self.shape[1]), self.dtype)
        for s in self.shards:
            low, high = max(start, s.start), min(stop, s.stop)
            if low < high:
                out[low - start : high - start] = s.rows[low - s.start : high - s.start]
        return out

    def _numbers(self, which: Any) -> np.ndarray:
        """Which rows are meant, as NumPy would understand it."""
        t = len(self)
        if isinstance(which, slice):
            return np.arange(*which.indices(t))
        wanted = np.asarray(which)
        if wanted.dtype == bool:
            if wanted.shape != (t,):
                raise IndexError(f"a mask of shape {wanted.shape} for {t} rows")
            return np.flatnonzero(wanted)
        wanted = wanted.astype(np.int64) if wanted.size else np.empty(wanted.shape, np.int64)
        if wanted.size and not (-t <= wanted.min() and wanted.max() < t):
            raise IndexError(f"there are {t} rows, and one outside of them was asked for")
        return np.where(wanted < 0, wanted + t, wanted)

    def __matmul__(self, columns: np.ndarray) -> np.ndarray:
        """Products of all rows with some columns (p, m), (t, m), in one pass."""
        out = np.empty((len(self), *columns.shape[1:]), np.result_type(self.dtype, columns))
        for part, rows in self.stream():
            out[part] = rows @ columns
        return out

    def squares(self) -> np.ndarray:
        """Squared length of every row, (t,), in one pass."""
        out = np.empty(len(self))
        for part, rows in self.stream():
            out[part] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        return out


T = TypeVar("T")
SEAL = b"exempla-sha256:"
"""What stands before the checksum at the end of a stored object."""


def write_object(thing: object, path: str | Path) -> Path:
    """One fitted object in one file; what was there before stays until the new one is whole."""
    import joblib

    path = Path(path)
    try:
        with replacing(path) as file:
            sink = Hashing(file)
            joblib.dump({"exempla": __version__, "object": thing}, sink)  # type: ignore[arg-type]
            file.write(SEAL + sink.hash.hexdigest().encode())
    except OSError as problem:
        raise ExemplaError(
            f"{path} cannot be written: {problem.strerror or problem}; what was there before is "
            "untouched."
        ) from None
    except (TypeError, AttributeError, pickle.PicklingError) as problem:
        raise ExemplaError(
            f"this model cannot be stored ({problem}): keep the model yourself and fit again."
        ) from None
    return path


def read_object(path: str | Path, kind: type[T]) -> T:
    """What `write_object` wrote. Reading runs code in the file."""
    import joblib

    try:
        _refuse_changed(Path(path))
        thing = joblib.load(path)["object"]
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except ExemplaError:
        raise
    except OSError as problem:
        raise ExemplaError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except Exception as problem:  # whatever strange bytes may do to an unpickler
        raise ExemplaError(
            f"{path} is not whole, or was not written by {kind.__name__}.save "
            f"({type(problem).__name__}): save it again."
        ) from None
    if not isinstance(thing, kind):
        raise ExemplaError(f"{path} was not written by {kind.__name__}.save.")
    return thing


def _refuse_changed(path: Path) -> None:
    """Raise if the file ends in a checksum that is not that of what stands before it (a file cut
    short has none, and stops the unpickler)."""
    length = len(SEAL) + 2 * hashlib.sha256().digest_size
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(size - length, 0))
        seal = file.read()
        if not seal.startswith(SEAL):
            return
        file.seek(0)
        digest, left = hashlib.sha256(), size - length
        while left > 0 and (chunk := file.read(min(left, 2**20))):
            digest.update(chunk)
            left -= len(chunk)
    if seal != SEAL + digest.hexdigest().encode():
        raise ExemplaError(f"{path} has been changed since it was saved: save it again.")
