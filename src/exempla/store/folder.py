"""A set of rows in a folder, made shard by shard: what is there, what is missing, who writes.

A shard is one sealed .npy file (`sealed`) whose name is its range. A set that is killed at any byte
holds whole shards and nothing else; to go on is to make the missing ones.

What a store belongs to: model, data and every choice that its rows depend on.

Kept in store.json by the first who writes there. Everybody later is held against it, and told what
differs: rows of two models in one folder would answer nobody's question.
"""

from __future__ import annotations

import errno
import hashlib
import json
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.io import alone_in, make_folder, publish_first, read_seal, verified, write_sealed
from exempla.store.shards import Shard, StoredRows
from exempla.version import __version__

_SHARD_BYTES = 2**26
"""Bytes of a shard: what a killed job loses at most …"""
_MOST_SHARDS = 256
"""… unless that makes more shards than this: each is an open file while the rows are used."""
SMALLEST, PARTS = 2**20, 32
"""A job is cut into so many shards at least, so that it can be shared and gone on with, unless that
makes them smaller than this."""
_MANIFEST = "manifest.json"
_Range = tuple[int, int]


def shard_height(rows: int, row_bytes: int) -> int:
    """Rows of a shard.

    >>> shard_height(10_000_000, 1024), shard_height(150, 120)
    (65536, 8738)
    """
    row_bytes = max(row_bytes, 1)
    height = max(1, _SHARD_BYTES // row_bytes, -(-rows // _MOST_SHARDS))
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
    def ranges(self) -> list[_Range]:
        """First row and end of every shard."""
        starts = range(0, self.rows, self.height)
        return [(start, min(start + self.height, self.rows)) for start in starts]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.width * self.dtype.itemsize

    def share(self, part: int, parts: int) -> list[_Range]:
        """The shards of the part-th (from 1) of so many parts, about equal."""
        every = self.ranges
        cuts = [len(every) * i // parts for i in range(parts + 1)]
        return every[cuts[part - 1] : cuts[part]]

    def path(self, start: int, stop: int) -> Path:
        """The file of a shard."""
        return self.folder / f"{start:012d}-{stop:012d}.npy"

    def missing(self, among: list[_Range] | None = None) -> list[_Range]:
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

    def absent(self) -> list[_Range]:
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
        path = self.folder / _MANIFEST
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
    def writing(self, ranges: list[_Range]) -> Iterator[None]:
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


_FORMAT = "exempla-store-1"
FILE = "store.json"
NAMES = {
    "format": "the form of the store", "version": "the version of exempla", "models": "the model",
    "data": "the training data", "rows": "the number of training examples",
    "fisher": "fisher=", "sketch": "sketch=", "seed": "seed=", "likelihood": "likelihood=",
    "parameters": "parameters=",
}  # fmt: skip
"""Words for what may differ."""


def identity_of(models: Iterable[Any], data: Any, labels: Any, rows: int, **options: Any) -> dict:
    """Everything that rows depend on, as plain data."""
    return {
        "format": _FORMAT,
        "version": __version__,
        "models": [model_hash(model) for model in models],
        "data": _data_fingerprint(data, labels, rows),
        "rows": rows,
        **{name: _plain(value) for name, value in options.items()},
    }


def claim(folder: Path, mine: dict[str, Any]) -> None:
    """Make this folder the store of this identity, or refuse it as that of another."""
    make_folder(folder)
    path = folder / FILE
    if not path.exists() and any(folder.glob("*.npy")):
        raise ExemplaError(
            f"{folder} holds .npy files and no {FILE}: give an empty folder as the store."
        )
    found = _read(publish_first(path, (json.dumps(mine, indent=1) + "\n").encode()))
    wanted = json.loads(json.dumps(mine))
    other = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if other:
        said = "; ".join(
            f"{NAMES.get(name, name)} ({_short(found.get(name))} there, "
            f"{_short(wanted.get(name))} here)"
            for name in other
        )
        raise ExemplaError(
            f"the store in {folder} is of another job, and differs in {said}: give another folder, "
            "or delete that one if it is no longer wanted."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise ExemplaError(
        f"{path} is not what exempla wrote: delete the store and fit again, or give another folder."
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return str(value)[:12]


def _plain(value: Any) -> Any:
    """An option as JSON can hold it: a name, or a hash of what has none."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return model_hash(value)


# ---- hashes


def model_hash(model: Any) -> str:
    """A hash of the model's weights and settings.

    A torch module: the values of its state. Anything else: what pickling it would write, in which
    joblib makes arrays and dictionaries count by their content. What cannot be pickled counts by
    its type alone; its scores are compared as well (see `exempla.kernel.stored`).

    >>> from sklearn.linear_model import Ridge
    >>> one, two = Ridge().fit([[0.0], [1.0]], [0, 1]), Ridge().fit([[0.0], [1.0]], [0, 2])
    >>> model_hash(one) == model_hash(one), model_hash(one) == model_hash(two)
    (True, False)
    """
    if isinstance(model, str | Path) and Path(model).is_file():
        with open(model, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    state = getattr(model, "state_dict", None)
    if callable(state) and hasattr(model, "named_parameters"):
        model = state()
    digest = hashlib.sha256()
    if isinstance(model, Mapping) and model and any(map(is_tensor, model.values())):
        for name in sorted(model):
            _add_value(digest, str(name))
            _add_value(digest, model[name])
        return digest.hexdigest()
    import joblib

    try:
        return str(joblib.hash(model, hash_name="sha1"))
    except (TypeError, AttributeError, pickle.PicklingError, ValueError):
        return f"{type(model).__module__}.{type(model).__qualname__}"


def _data_fingerprint(data: Any, labels: Any, rows: int) -> str:
    """A hash of the training data: every number of arrays, tables and lists; of a torch Dataset or
    anything else that is read item by item, how many there are and their labels.

    >>> X = np.eye(3)
    >>> _data_fingerprint((X, [0, 1, 0]), None, 3) == _data_fingerprint((X, [0, 1, 1]), None, 3)
    False
    """
    digest = hashlib.sha256()
    parts = data if isinstance(data, tuple) else (data,)
    if all(_is_values(part) for part in parts):
        for part in parts:
            _add_value(digest, part)
    else:
        _add_value(digest, labels)
    digest.update(str(rows).encode())
    return digest.hexdigest()


def _is_values(part: Any) -> bool:
    simple = part is None or isinstance(part, np.ndarray | list | dict) or is_tensor(part)
    return simple or is_sparse(part) or hasattr(part, "iloc")


def _add_value(digest: Any, value: Any) -> None:
    """Feed a value's type and content to the hash."""
    if is_tensor(value):
        value = to_numpy(value)
    if is_sparse(value):
        value = value.tocsr()
        for part in (value.data, value.indices, value.indptr, np.array(value.shape)):
            _add_value(digest, part)
    elif hasattr(value, "iloc"):
        import pandas as pd

        for name in [*value.columns] if hasattr(value, "columns") else [value.name]:
            digest.update(repr(name).encode())
        _add_value(digest, pd.util.hash_pandas_object(value, index=False).to_numpy())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        step = max(1, 2**24 // max(1, value[:1].nbytes)) if value.ndim else 1
        for start in range(0, len(value), step) if value.ndim else ():
            digest.update(value[start : start + step].tobytes())
        if not value.ndim:
            digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        for name in value:
            _add_value(digest, str(name))
            _add_value(digest, value[name])
    elif isinstance(value, list | tuple | np.ndarray):
        digest.update(f"{len(value)}:".encode())
        for item in value:
            _add_value(digest, item)
    else:
        known = value is None or isinstance(value, str | bytes | int | float | np.generic)
        text = (repr(value) if known else model_hash(value)).encode("utf-8", "backslashreplace")
        digest.update(f"{len(text)}:".encode() + text)
