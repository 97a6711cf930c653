"""What is kept on disk: rows that would not fit in memory, and whole fitted objects.

Both appear whole or not at all. Beside rows lies a manifest of what they are, so that rows cut
short, changed, or of another fit are noticed; at the end of a stored object stands its checksum.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from exempla.arrays import Array, to_numpy
from exempla.atomic import alone_in, replacing, write_text
from exempla.errors import ExemplaError
from exempla.version import __version__

__all__ = ["on_disk", "open_rows", "read_object", "write_object"]

T = TypeVar("T")
SEAL = b"exempla-sha256:"
"""What stands before the checksum at the end of a stored object."""


# ---- rows


def on_disk(
    rows: Array, folder: str | Path, name: str, about: Mapping[str, Any] | None = None
) -> np.ndarray:
    """Write the rows to folder/name.npy and return them as a read-only view of that file.

    folder/name.json says what they are: shape, type, size, checksum, and `about`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = on_disk(np.eye(2), folder, "rows")
    ...     type(rows).__name__, rows.tolist()
    ('memmap', [[1.0, 0.0], [0.0, 1.0]])
    """
    folder, values = Path(folder), to_numpy(rows)
    path, manifest = _paths(folder, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        busy = ExemplaError(
            f"another Explainer is writing its rows to {folder} at this moment: wait for it, "
            "or give each a folder of its own as store=."
        )
        with alone_in(folder, busy):
            with replacing(path) as file:
                sink = _Hashing(file)
                np.save(sink, values, allow_pickle=False)  # type: ignore[arg-type]
            said = {
                "version": __version__,
                "shape": list(values.shape),
                "dtype": values.dtype.str,
                "bytes": sink.size,
                "sha256": sink.hash.hexdigest(),
                **(about or {}),
            }
            write_text(manifest, json.dumps(said, indent=1) + "\n")
            # opened before anybody else may write: later files of that name are other files
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as problem:
        why = problem.strerror or problem
        raise ExemplaError(f"rows cannot be stored in {folder}: {why}.") from None


def open_rows(folder: str | Path, name: str) -> np.ndarray:
    """The rows that `on_disk` wrote, as a read-only view of their file, once they are found whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = on_disk(np.eye(2), folder, "rows")
    ...     open_rows(folder, "rows").sum()
    np.float64(2.0)
    """
    path, manifest = _paths(Path(folder), name)
    again = "fit again with this store="
    try:
        said = json.loads(manifest.read_text(encoding="utf-8"))
        wanted = (said["bytes"], said["sha256"], tuple(said["shape"]), said["dtype"])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if (path.stat().st_size, digest) != wanted[:2]:
            raise ExemplaError(
                f"{path} is not what its manifest says (cut short, changed, or of another fit): "
                f"{again}."
            )
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        if (rows.shape, rows.dtype.str) != wanted[2:]:
            raise ExemplaError(f"{path} has another shape than its manifest says: {again}.")
        return rows
    except OSError as problem:
        where = problem.filename or path
        raise ExemplaError(f"{where} cannot be read: {problem.strerror}; {again}.") from None
    except (ValueError, KeyError, TypeError) as problem:
        if isinstance(problem, ExemplaError):
            raise
        raise ExemplaError(f"{manifest} is not a manifest of stored rows: {again}.") from None


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    """The rows' file and their manifest."""
    return folder / f"{name}.npy", folder / f"{name}.json"


class _Hashing:
    """A file to write to that knows the size and checksum of what it was given."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.hash = file, 0, hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.size += len(view)
        self.hash.update(view)
        return self.file.write(view)

    def tell(self) -> int:
        return self.size


# ---- whole objects


def write_object(thing: object, path: str | Path) -> Path:
    """One fitted object in one file; what was there before stays until the new one is whole."""
    import joblib

    path = Path(path)
    try:
        with replacing(path) as file:
            sink = _Hashing(file)
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
