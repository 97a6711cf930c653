"""What is kept on disk: rows that would not fit in memory, and whole fitted objects."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TypeVar

import numpy as np

from exempla.arrays import Array, to_numpy
from exempla.errors import ExemplaError
from exempla.version import __version__

__all__ = ["on_disk", "read_object", "write_object"]

T = TypeVar("T")


def on_disk(rows: Array, folder: str | Path, name: str) -> np.ndarray:
    """Write the rows to folder/name.npy and return them as a read-only view of that file.

    The file appears whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = on_disk(np.eye(2), folder, "rows")
    ...     type(rows).__name__, rows.tolist()
    ('memmap', [[1.0, 0.0], [0.0, 1.0]])
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished, path = folder / f".{name}.part", folder / f"{name}.npy"
        with unfinished.open("wb") as stream:
            np.save(stream, to_numpy(rows), allow_pickle=False)
        os.replace(unfinished, path)
    except OSError as problem:
        raise ExemplaError(f"rows cannot be stored in {folder}: {problem.strerror}.") from None
    return np.load(path, mmap_mode="r", allow_pickle=False)


def write_object(thing: object, path: str | Path) -> Path:
    """One fitted object in one file."""
    import joblib

    path = Path(path)
    try:
        joblib.dump({"exempla": __version__, "object": thing}, path)
    except (TypeError, AttributeError, pickle.PicklingError) as problem:
        path.unlink(missing_ok=True)
        raise ExemplaError(
            f"this model cannot be stored ({problem}): keep the model yourself and fit again."
        ) from None
    return path


def read_object(path: str | Path, kind: type[T]) -> T:
    """What `write_object` wrote. Reading runs code in the file."""
    import joblib

    try:
        thing = joblib.load(path)["object"]
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # whatever strange bytes may do to an unpickler
        raise ExemplaError(
            f"{path} was not written by {kind.__name__}.save ({type(problem).__name__})."
        ) from None
    if not isinstance(thing, kind):
        raise ExemplaError(f"{path} was not written by {kind.__name__}.save.")
    return thing
