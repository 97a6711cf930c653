"""Rows in a folder, made shard by shard, and the identity of the store they belong to.

A shard is one sealed .npy file (`exempla.io`) named by its range of rows. A set that is killed at
any byte holds complete shards and nothing else; to continue is to make the missing ones.

store.json, written by the first process, identifies the store: model, data and every option that
the rows depend on. Every later process is compared with it and refused with the differences, since
rows of two models in one folder would give wrong answers.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from exempla import __version__
from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.io import (
    alone_in,
    make_folder,
    os_errors,
    read_json,
    read_seal,
    remove_parts,
    verified,
    write_bytes,
    write_sealed,
)
from exempla.progress import counter, say
from exempla.store.shards import Shard, StoredRows, cut_short

_SHARD_BYTES, _MAX_SHARDS = 2**26, 256
"""Size of a shard, which is the most that a killed job loses. Shards are larger if there would be
more than the maximum number, because each is an open file while the rows are used."""
_MIN_SHARD_BYTES, _MIN_SHARDS = 2**20, 32
"""A job has at least this many shards, so that it can be shared and resumed, unless they would be
smaller than this."""
_N_RANDOMNESS_PROBES = 4
"""Items of a data set that are read twice to see whether its items are random."""
_MANIFEST = "manifest.json"
_SHARD_NAME = re.compile(r"\d{12}-\d{12}\.npy")
_Range = tuple[int, int]
Blocks = Callable[[list[_Range]], Iterable[np.ndarray]]


def _shard_height(rows: int, row_bytes: int) -> int:
    """Return the number of rows in a shard."""
    row_bytes = max(row_bytes, 1)
    height = max(1, _SHARD_BYTES // row_bytes, -(-rows // _MAX_SHARDS))
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

    @classmethod
    def sized(
        cls, folder: Path, rows: int, width: int, dtype: np.dtype, about: Mapping[str, Any]
    ) -> RowSet:
        """Choose the height of the shards."""
        dtype = np.dtype(dtype)
        return cls(folder, rows, width, dtype, _shard_height(rows, width * dtype.itemsize), about)

    @property
    def ranges(self) -> list[_Range]:
        """First row and end of every shard."""
        starts = range(0, self.rows, self.height)
        return [(start, min(start + self.height, self.rows)) for start in starts]

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
            try:
                if path.exists():
                    self._check(path, start, stop, verified(path))
                    continue
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
        path = self.path(start, stop)
        with disk_errors(self.folder):
            write_sealed(path, lambda sink: np.save(sink, values, allow_pickle=False), about)

    def fill(self, blocks: Blocks, what: str, ranges: list[_Range] | None = None) -> None:
        """Write the missing shards, of all or of some ranges.

        `blocks(missing)` yields the rows of each missing range. Raises before the first row is made
        if the shards do not fit on the disk.
        """
        ranges = self.ranges if ranges is None else ranges
        with self.writing(ranges):
            missing = self.missing(ranges)
            count = sum(stop - start for start, stop in missing)
            needed, free = count * self.width * self.dtype.itemsize, disk_usage(self.folder).free
            if needed > free:
                raise ExemplaError(
                    f"the rows need {needed / 2**30:.2g} GiB more, but {self.folder} has only "
                    f"{free / 2**30:.2g} GiB free: free some space, or give another folder."
                )
            with counter(what, count) as bar:
                for (start, _), rows in zip(missing, blocks(missing) if missing else ()):
                    self.write(start, rows)
                    bar.update(len(rows))

    def finish(self) -> StoredRows:
        """Write a manifest of all shards beside them, and open the rows as one array."""
        files = {}
        for start, stop in self.ranges:
            path = self.path(start, stop)
            with os_errors(f"{path} cannot be read", "; fit again"):
                seal = read_seal(path)
            if seal is None:
                raise cut_short(path)
            self._check(path, start, stop, seal)
            sizes = {name: seal[name] for name in ("bytes", "sha256")}
            files[path.name] = {"rows": [start, stop], **sizes}
        shape = [self.rows, self.width]
        manifest = {**self.about, "shape": shape, "dtype": self.dtype.str, "files": files}
        data = (json.dumps(manifest, indent=1) + "\n").encode()
        path = self.folder / _MANIFEST
        with disk_errors(self.folder):
            if path.exists() and path.read_bytes() != data:
                path.unlink(missing_ok=True)
            if not path.exists():
                write_bytes(path, data, keep_existing=True)
            remove_parts(path)  # of writers that were killed
        return self.before(self.rows)

    def before(self, row: int) -> StoredRows:
        """Open the shards that end before this row, or with it."""
        return StoredRows(tuple(Shard(self.path(*r), *r) for r in self.ranges if r[1] <= row))

    def _check(self, path: Path, start: int, stop: int, seal: Mapping[str, Any]) -> None:
        wanted = {**self.about, "start": start, "stop": stop}
        other = [name for name, value in wanted.items() if seal.get(name) != value]
        if other:
            raise ExemplaError(f"{path} belongs to another job: it differs in {', '.join(other)}.")
        rows = Shard(path, start, stop).rows
        if rows.shape != (stop - start, self.width) or rows.dtype != self.dtype:
            raise ExemplaError(
                f"{path} holds an array of shape {rows.shape}, not the range in its name."
            )

    @contextmanager
    def writing(self, ranges: list[_Range]) -> Iterator[None]:
        """Hold a lock on these shards inside the block, where the system has locks.

        On Ctrl-C, print what has been saved.
        """
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
                found = re.fullmatch(r"\.writing-(\d+)-(\d+)", other.name)
                if other != mine and found and int(found[1]) < last and first < int(found[2]):
                    with alone_in(other, busy):
                        other.unlink(missing_ok=True)
            for one in ranges:  # temporary files that killed writers left
                for scratch in self.folder.glob(f".{self.path(*one).name}.*"):
                    scratch.unlink(missing_ok=True)
            try:
                yield
            except KeyboardInterrupt as stopped:
                every = len(self.ranges)
                note = (
                    f"{every - len(self.absent())} of {every} shards are saved in {self.folder}: "
                    "the same call with the same store continues from there"
                )
                stopped.add_note(note)
                say(f"stopped; {note}")
                raise
            mine.unlink(missing_ok=True)


def delete_rows(folder: Path) -> None:
    """Delete the files of a row set, and the folder unless it holds anything else."""
    for path in folder.iterdir():
        if _SHARD_NAME.fullmatch(path.name) or path.name == _MANIFEST:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty: somebody put other files there
        folder.rmdir()


def disk_errors(folder: Path) -> AbstractContextManager[None]:
    """Turn an OSError (full, read-only or failing disk) into one sentence."""
    more = (
        "; finished shards are kept: free some space or repair the folder, and run the same again"
    )
    return os_errors(f"rows cannot be stored in {folder}", more)


_FORMAT = "exempla-store-2"
_FILE = "store.json"
_OWN_NAMES = ("*.npy", "basis-*.npz", "rows-*", "white-*")
"""What a store holds. A folder with such names and without store.json belongs to someone else."""
_NAMES = {
    "format": "the format of the store", "version": "the version of exempla", "models": "the model",
    "data": "the training data", "rows": "the number of training examples",
    "fisher": "fisher=", "sketch": "sketch=", "seed": "seed=", "likelihood": "likelihood=",
    "parameters": "parameters=", "damping": "damping=",
}  # fmt: skip
"""What may differ, in words."""


def identity_of(models: Iterable[Any], data: Any, labels: Any, rows: int, **options: Any) -> dict:
    """Return everything that the rows depend on, as plain data."""
    return {
        "format": _FORMAT,
        "version": __version__,
        "models": [_model_hash(model) for model in models],
        "data": _data_fingerprint(data, labels, rows),
        "rows": rows,
        **{name: _plain(value) for name, value in options.items()},
    }


def claim(folder: Path, mine: dict[str, Any]) -> None:
    """Make this folder the store of this identity; raise if it belongs to another."""
    make_folder(folder)
    path = folder / _FILE
    if not path.exists():
        foreign = [one.name for pattern in _OWN_NAMES for one in folder.glob(pattern)]
        if foreign:
            raise ExemplaError(
                f"{folder} holds {', '.join(sorted(foreign)[:3])} and no {_FILE}: it is not a "
                "store of exempla. Give an empty folder as the store."
            )
        write_bytes(path, (json.dumps(mine, indent=1) + "\n").encode(), keep_existing=True)
    found = read_json(path)
    if not isinstance(found, dict):
        raise ExemplaError(
            f"{path} was not written by exempla or is damaged: delete the store and fit again, or "
            "give another folder."
        )
    wanted = json.loads(json.dumps(mine))
    other = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if other:
        each = [(_NAMES.get(name, name), found.get(name), wanted.get(name)) for name in other]
        said = "; ".join(f"{name} ({_short(a)} there, {_short(b)} here)" for name, a, b in each)
        raise ExemplaError(
            f"the store in {folder} belongs to another job: it differs in {said}. Give another "
            "folder, or delete that one if it is no longer needed."
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
    return _model_hash(value)


# ---- hashes


def _model_hash(model: Any) -> str:
    """Return a hash of the model's weights and settings.

    For a torch module, of the values of its state; for anything else, of what pickling it would
    write, arrays and dictionaries by content. A model that cannot be pickled is identified by its
    type; the scores of a few examples are compared as well (`exempla.kernel.stored`).
    """
    if isinstance(model, str | Path) and Path(model).is_file():
        with open(model, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    state = getattr(model, "state_dict", None)
    if callable(state) and hasattr(model, "named_parameters"):
        model = state()
    tensors = isinstance(model, Mapping) and any(map(is_tensor, model.values()))
    try:
        return _hash(_content(model) if tensors else model)
    except (TypeError, AttributeError, pickle.PicklingError, ValueError):
        return f"{type(model).__module__}.{type(model).__qualname__}"


def _data_fingerprint(data: Any, labels: Any, rows: int) -> str:
    """Return a hash of the training data: of every value of arrays, tables and lists, and of every
    item of a Dataset that gives the same items twice. Warn if that is impossible."""
    try:
        found = _data_hash(data, rows)
    except Exception:  # of any kind: a data set may raise what it likes, and the fit will name it
        found = None
    if found is None:
        warnings.warn(
            "The inputs of this data set cannot be fingerprinted (they are random, cannot be read "
            "by position, or cannot be pickled): only their number and labels identify the store. "
            "If the inputs change, give another folder as store=.",
            ExemplaWarning,
            stacklevel=2,
        )
        found = _hash(_content(labels))
    return _hash([found, rows])


def _data_hash(data: Any, rows: int) -> str | None:
    """Return a hash of all training data; None if not all of it can be read twice alike."""
    parts = data if isinstance(data, tuple) else (data,)
    if all(_is_values(part) for part in parts):
        return _hash([_content(part) for part in parts])
    if not hasattr(data, "__getitem__"):  # a DataLoader
        data = getattr(data, "dataset", data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or len(data) != rows:
        return None
    for i in np.linspace(0, rows - 1, _N_RANDOMNESS_PROBES).astype(int).tolist():
        if _hash(_content(data[i])) != _hash(_content(data[i])):
            return None
    digest = hashlib.sha256()
    with counter("fingerprinting the training data", rows) as bar:
        for i in range(rows):
            digest.update(_hash(_content(data[i])).encode())
            bar.update()
    return digest.hexdigest()


def _is_values(part: Any) -> bool:
    simple = part is None or isinstance(part, np.ndarray | list | dict) or is_tensor(part)
    return simple or is_sparse(part) or hasattr(part, "iloc")


def _hash(value: Any) -> str:
    """Return a hash of what pickling the value would write, arrays and dictionaries by content."""
    import joblib

    return str(joblib.hash(value, hash_name="sha1", coerce_mmap=True))


def _content(value: Any) -> Any:
    """Return a value whose hash depends on what it holds, and not on its layout in memory."""
    if is_tensor(value):
        value = to_numpy(value)
    if is_sparse(value):
        value = value.tocsr()
        return [value.data, value.indices, value.indptr, tuple(value.shape)]
    if hasattr(value, "iloc"):
        import pandas as pd

        names = [*value.columns] if hasattr(value, "columns") else [value.name]
        return [names, pd.util.hash_pandas_object(value, index=False).to_numpy()]
    if isinstance(value, Mapping):
        return {str(name): _content(value[name]) for name in value}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return np.ascontiguousarray(value)
    if isinstance(value, np.ndarray):
        value = [*value.shape, *value.ravel()]
    return [_content(item) for item in value] if isinstance(value, list | tuple) else value
