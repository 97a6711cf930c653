"""Rows in a folder, made shard by shard, and the identity of the store they belong to.

A shard is one sealed .npy file (`exempla.io`) named by its range of rows. A set that is killed at
any byte holds complete shards and nothing else; to continue is to make the missing ones.

store.json, written by the first process, identifies the store: model, data and every option that
the rows depend on. Every later process is compared with it and refused with the differences, since
rows of two models in one folder would give wrong answers.
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

from exempla import __version__
from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.io import (
    alone_in,
    make_folder,
    parse_json,
    read_seal,
    verified,
    write_bytes,
    write_sealed,
)
from exempla.progress import counter
from exempla.store.shards import Shard, StoredRows

_SHARD_BYTES = 2**26
"""Size of a shard in bytes, the most that a killed job loses …"""
_MOST_SHARDS = 256
"""… unless there were more shards than this: each is an open file while the rows are used."""
_MIN_SHARD_BYTES, _MIN_SHARDS = 2**20, 32
"""A job has at least this many shards, so that it can be shared and resumed, unless they would be
smaller than this."""
_N_RANDOMNESS_PROBES = 4
"""Items of a data set that are read twice to see whether its items are random."""
_MANIFEST = "manifest.json"
_Range = tuple[int, int]


def shard_height(rows: int, row_bytes: int) -> int:
    """Return the number of rows in a shard.

    >>> shard_height(10_000_000, 1024), shard_height(150, 120)
    (65536, 8738)
    """
    row_bytes = max(row_bytes, 1)
    height = max(1, _SHARD_BYTES // row_bytes, -(-rows // _MOST_SHARDS))
    return min(height, max(1, _MIN_SHARD_BYTES // row_bytes, -(-rows // _MIN_SHARDS)))


@dataclass(frozen=True)
class RowSet:
    """The shards of `rows` rows of one width, each of `height` rows, in `folder`."""

    folder: Path
    rows: int
    width: int
    dtype: np.dtype
    height: int
    about: Mapping[str, Any]
    """Description of the rows; a shard with another one does not belong to the set."""

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
        """Return the shards of one part, counted from 1, of about equal parts."""
        every = self.ranges
        return every[len(every) * (part - 1) // parts : len(every) * part // parts]

    def path(self, start: int, stop: int) -> Path:
        """The file of a shard."""
        return self.folder / f"{start:012d}-{stop:012d}.npy"

    def missing(self, among: list[_Range] | None = None) -> list[_Range]:
        """Return the shards that are absent or damaged, after checking every byte of the others.

        A damaged shard is reported in a warning and made again.
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
                warnings.warn(f"{problem} It will be made again.", ExemplaWarning, stacklevel=2)
                left.append((start, stop))
        return left

    def absent(self) -> list[_Range]:
        """Return the shards that are absent, without reading the others."""
        return [(start, stop) for start, stop in self.ranges if not self.path(start, stop).exists()]

    def write(self, start: int, rows: np.ndarray) -> None:
        """Write one shard; it is on disk when this returns."""
        stop = start + len(rows)
        values = np.ascontiguousarray(rows, self.dtype)
        about = {**self.about, "start": start, "stop": stop}
        with disk_errors(self.folder):
            write_sealed(
                self.path(start, stop),
                lambda sink: np.save(sink, values, allow_pickle=False),
                about,
            )

    def opened(self, check: bool = False) -> StoredRows:
        """Open all rows as one array; `check` verifies every byte, otherwise sizes and ranges."""
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
        """Write a manifest of all shards beside them, and return the rows."""
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
        with disk_errors(self.folder):
            if path.exists() and path.read_bytes() != text.encode():
                path.unlink(missing_ok=True)
            write_bytes(path, text.encode(), keep_existing=True)
        return rows

    def _check(self, path: Path, start: int, stop: int, said: Mapping[str, Any]) -> None:
        wanted = {**self.about, "start": start, "stop": stop}
        other = [name for name, value in wanted.items() if said.get(name) != value]
        if other:
            raise ExemplaError(f"{path} belongs to another job: it differs in {', '.join(other)}.")
        rows = Shard(path, start, stop).rows
        if rows.shape != (stop - start, self.width) or rows.dtype != self.dtype:
            raise ExemplaError(
                f"{path} holds an array of shape {rows.shape}, not the range in its name."
            )

    @contextmanager
    def writing(self, ranges: list[_Range]) -> Iterator[None]:
        """Hold a lock on these shards inside the block, where the system has locks."""
        with disk_errors(self.folder):
            make_folder(self.folder)
        if not ranges:
            yield
            return
        first, last = ranges[0][0], ranges[-1][1]
        busy = ExemplaError(
            f"another process is writing rows to {self.folder}: wait for it, or give each process "
            "its own folder as store=."
        )
        with disk_errors(self.folder):
            mine = self.folder / f".writing-{first}-{last}"
            mine.touch()
        with alone_in(mine, busy):
            for other in self.folder.glob(".writing-*"):
                low, high = map(int, other.name.split("-")[1:])
                if other != mine and low < last and first < high:
                    with alone_in(other, busy):
                        other.unlink(missing_ok=True)
            for one in ranges:  # temporary files that killed writers left
                for scratch in self.folder.glob(f".{self.path(*one).name}.*"):
                    scratch.unlink(missing_ok=True)
            yield
            mine.unlink(missing_ok=True)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError (full, read-only or failing disk) into one sentence."""
    try:
        yield
    except OSError as problem:
        more = ""
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            more = "; free some space and run the same again: finished shards are kept"
        why = problem.strerror or problem
        raise ExemplaError(f"rows cannot be stored in {folder}: {why}{more}.") from None


_FORMAT = "exempla-store-2"
_FILE = "store.json"
_NAMES = {
    "format": "the format of the store", "version": "the version of exempla", "models": "the model",
    "data": "the training data", "rows": "the number of training examples",
    "fisher": "fisher=", "sketch": "sketch=", "seed": "seed=", "likelihood": "likelihood=",
    "parameters": "parameters=",
}  # fmt: skip
"""What may differ, in words."""


def identity_of(models: Iterable[Any], data: Any, labels: Any, rows: int, **options: Any) -> dict:
    """Return everything that the rows depend on, as plain data."""
    return {
        "format": _FORMAT,
        "version": __version__,
        "models": [model_hash(model) for model in models],
        "data": _data_fingerprint(data, labels, rows),
        "rows": rows,
        **{name: _plain(value) for name, value in options.items()},
    }


def claim(folder: Path, mine: dict[str, Any]) -> None:
    """Make this folder the store of this identity; raise if it belongs to another."""
    make_folder(folder)
    path = folder / _FILE
    if not path.exists() and any(folder.glob("*.npy")):
        raise ExemplaError(
            f"{folder} holds .npy files and no {_FILE}: give an empty folder as the store."
        )
    if not path.exists():
        write_bytes(path, (json.dumps(mine, indent=1) + "\n").encode(), keep_existing=True)
    found = _read(path)
    wanted = json.loads(json.dumps(mine))
    other = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if other:
        said = "; ".join(
            f"{_NAMES.get(name, name)} ({_short(found.get(name))} there, "
            f"{_short(wanted.get(name))} here)"
            for name in other
        )
        raise ExemplaError(
            f"the store in {folder} belongs to another job: it differs in {said}. Give another "
            "folder, or delete that one if it is no longer needed."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise ExemplaError(
        f"{path} was not written by exempla or is damaged: delete the store and fit again, or give "
        "another folder."
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return str(value)[:12]


def _plain(value: Any) -> Any:
    """Return an option as JSON can hold it; objects without a name as a hash."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return model_hash(value)


# ---- hashes


def model_hash(model: Any) -> str:
    """Return a hash of the model's weights and settings.

    For a torch module, of the values of its state; for anything else, of what pickling it would
    write, arrays and dictionaries by content. A model that cannot be pickled is identified by its
    type; the scores of a few examples are compared as well (`exempla.kernel.stored`).

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
    """Return a hash of the training data: of every value of arrays, tables and lists, and of every
    item of a Dataset that gives the same items twice. Warn if that is impossible.

    >>> X = np.eye(3)
    >>> _data_fingerprint((X, [0, 1, 0]), None, 3) == _data_fingerprint((X, [0, 1, 1]), None, 3)
    False
    """
    digest = hashlib.sha256()
    parts = data if isinstance(data, tuple) else (data,)
    if all(_is_values(part) for part in parts):
        for part in parts:
            _add_value(digest, part)
    elif not _add_items(digest, data, rows):
        _add_value(digest, labels)
        warnings.warn(
            "The inputs of this data set cannot be fingerprinted (they are random, or cannot be "
            "read by position): only their number and labels identify the store. If the inputs "
            "change, give another folder as store=.",
            ExemplaWarning,
            stacklevel=2,
        )
    digest.update(str(rows).encode())
    return digest.hexdigest()


def _add_items(digest: Any, data: Any, rows: int) -> bool:
    """Feed every item of a data set to the hash; return False if it cannot be read twice alike."""
    if not hasattr(data, "__getitem__"):  # a DataLoader
        data = getattr(data, "dataset", data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or len(data) != rows:
        return False
    probes = np.unique(np.linspace(0, rows - 1, _N_RANDOMNESS_PROBES).astype(int)).tolist()
    try:
        reads = [hashlib.sha256(), hashlib.sha256()]
        for read in reads:
            for i in probes:
                _add_value(read, data[i])
        if reads[0].digest() != reads[1].digest():
            return False
        with counter("fingerprinting the training data", rows, "ex") as bar:
            for i in range(rows):
                _add_value(digest, data[i])
                bar.update()
    except (TypeError, KeyError, IndexError, NotImplementedError):
        return False
    return True


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
