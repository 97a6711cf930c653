"""A set of rows in a folder, made shard by shard: what is there, what is missing, who writes.

A shard is one sealed .npy file (`sealed`) whose name is its range. A set that is killed at any byte
holds whole shards and nothing else; to go on is to make the missing ones.
"""

from __future__ import annotations

import errno
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exempla.atomic import alone_in, make_folder
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.store.sealed import publish_first, read_seal, verified, write_sealed
from exempla.store.shards import Shard, StoredRows

__all__ = ["RowSet", "failing_disk", "shard_height"]

SHARD_BYTES = 2**26
"""Bytes of a shard: what a killed job loses at most …"""
MOST_SHARDS = 256
"""… unless that makes more shards than this: each is an open file while the rows are used."""
SMALLEST, PARTS = 2**20, 32
"""A job is cut into so many shards at least, so that it can be shared and gone on with, unless that
makes them smaller than this."""
MANIFEST = "manifest.json"
Range = tuple[int, int]


def shard_height(rows: int, row_bytes: int) -> int:
    """Rows of a shard.

    >>> shard_height(10_000_000, 1024), shard_height(150, 120)
    (65536, 8738)
    """
    row_bytes = max(row_bytes, 1)
    height = max(1, SHARD_BYTES // row_bytes, -(-rows // MOST_SHARDS))
    return min(height, max(1, SMALLEST // row_bytes, -(-rows // PARTS)))


@dataclass(frozen=True)
class RowSet:
    """The shards of `rows` rows of one width, each of `height` rows, in `folder`."""

    folder: Path
    rows: int
    width: int
    dtype: np.dtype
    height: int
    about: Mapping[str, Any]
    """What the rows are; a shard that says otherwise is not one of these."""

    @property
    def ranges(self) -> list[Range]:
        """First row and end of every shard."""
        starts = range(0, self.rows, self.height)
        return [(start, min(start + self.height, self.rows)) for start in starts]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.width * self.dtype.itemsize

    def share(self, part: int, parts: int) -> list[Range]:
        """The shards of the part-th (from 1) of so many parts, about equal."""
        every = self.ranges
        cuts = [len(every) * i // parts for i in range(parts + 1)]
        return every[cuts[part - 1] : cuts[part]]

    def path(self, start: int, stop: int) -> Path:
        """The file of a shard."""
        return self.folder / f"{start:012d}-{stop:012d}.npy"

    def missing(self, among: list[Range] | None = None) -> list[Range]:
        """Shards that are not there, or not whole: those are named, and are to be made again.

        Every byte of the others is read and held against its checksum.
        """
        left = []
        for start, stop in self.ranges if among is None else among:
            path = self.path(start, stop)
            if not path.exists():
                left.append((start, stop))
                continue
            try:
                self._check(path, start, stop, verified(path))
            except ExemplaError as problem:
                warnings.warn(f"{problem} It is made again.", ExemplaWarning, stacklevel=2)
                left.append((start, stop))
        return left

    def absent(self) -> list[Range]:
        """Shards that are not there, without a look inside the others."""
        return [(start, stop) for start, stop in self.ranges if not self.path(start, stop).exists()]

    def write(self, start: int, rows: np.ndarray) -> None:
        """Keep the rows of one shard; they are on the disk when this returns."""
        stop = start + len(rows)
        values = np.ascontiguousarray(rows, self.dtype)
        about = {**self.about, "start": start, "stop": stop}
        with failing_disk(self.folder):
            write_sealed(
                self.path(start, stop),
                lambda sink: np.save(sink, values, allow_pickle=False),
                about,
            )

    def opened(self, check: bool = False) -> StoredRows:
        """All rows as one array, once each shard is there and has its size and its place; with
        `check` also every byte of it."""
        shards = []
        for start, stop in self.ranges:
            path = self.path(start, stop)
            try:
                said = verified(path) if check else read_seal(path)
            except OSError as problem:
                why = problem.strerror or problem
                raise ExemplaError(f"{path} cannot be read: {why}; fit again.") from None
            if said is None:
                raise ExemplaError(f"{path} is cut short: fit again with this store=.")
            self._check(path, start, stop, said)
            shards.append(Shard(path, start, stop))
        return StoredRows(tuple(shards))

    def finish(self) -> StoredRows:
        """The rows, with a manifest of all shards beside them."""
        rows = self.opened()
        files = {}
        for shard in rows.shards:
            said = read_seal(shard.path) or {}
            files[shard.path.name] = {
                "rows": [shard.start, shard.stop], "bytes": said["bytes"], "sha256": said["sha256"]
            }  # fmt: skip
        said = {
            **self.about, "shape": [self.rows, self.width], "dtype": self.dtype.str, "files": files
        }  # fmt: skip
        text = json.dumps(said, indent=1) + "\n"
        path = self.folder / MANIFEST
        with failing_disk(self.folder):
            if path.exists() and path.read_bytes() != text.encode():
                path.unlink(missing_ok=True)
            publish_first(path, text.encode())
        return rows

    def _check(self, path: Path, start: int, stop: int, said: Mapping[str, Any]) -> None:
        wanted = {**self.about, "start": start, "stop": stop}
        other = [name for name, value in wanted.items() if said.get(name) != value]
        if other:
            raise ExemplaError(f"{path} is of another job: it differs in {', '.join(other)}.")
        rows = Shard(path, start, stop).rows
        if rows.shape != (stop - start, self.width) or rows.dtype != self.dtype:
            raise ExemplaError(f"{path} holds {rows.shape} numbers, not what its name says.")

    @contextmanager
    def writing(self, ranges: list[Range]) -> Iterator[None]:
        """Nobody else makes these shards for the time of the block, where the system has locks."""
        with failing_disk(self.folder):
            make_folder(self.folder)
        if not ranges:
            yield
            return
        first, last = ranges[0][0], ranges[-1][1]
        busy = ExemplaError(
            f"another process is writing rows to {self.folder} at this moment: wait for it, or "
            "give each a folder of its own as store=."
        )
        with failing_disk(self.folder):
            mine = self.folder / f".writing-{first}-{last}"
            mine.touch()
        with alone_in(mine, busy):
            for other in self.folder.glob(".writing-*"):
                low, high = map(int, other.name.split("-")[1:])
                if other != mine and low < last and first < high:
                    with alone_in(other, busy):
                        other.unlink(missing_ok=True)
            for one in ranges:  # what killed writers of these shards left, under no name
                for scratch in self.folder.glob(f".{self.path(*one).name}.*"):
                    scratch.unlink(missing_ok=True)
            yield
            mine.unlink(missing_ok=True)


@contextmanager
def failing_disk(folder: Path) -> Iterator[None]:
    """One sentence for a disk that is full, read-only or failing."""
    try:
        yield
    except OSError as problem:
        more = ""
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            more = "; make room and run the same again: what is there already is kept"
        why = problem.strerror or problem
        raise ExemplaError(f"rows cannot be stored in {folder}: {why}{more}.") from None
