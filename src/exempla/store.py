"""Rows on disk: for embeddings that would not fit in memory beside everything else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from exempla.errors import ExemplaError
from exempla.linalg import to_numpy
from exempla.types import Array

__all__ = ["on_disk"]


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
