"""Rows as files that every machine can open: who reads which part of which file."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from exempla.atomic import replacing
from exempla.errors import ExemplaError
from exempla.selection.shards.backend import cuts_of
from exempla.store import StoredRows

__all__ = ["Piece", "in_files", "pieces_of"]


@dataclass(frozen=True)
class Piece:
    """Rows start … stop of one file."""

    path: str
    start: int
    stop: int

    def read(self) -> np.ndarray:
        """The rows, as a read-only view of the file."""
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise ExemplaError(
                f"{self.path} is not there on {socket.gethostname()}: keep the rows in a folder "
                "that every machine of the cluster sees under this name."
            ) from None
        except (OSError, ValueError) as problem:
            raise ExemplaError(
                f"{self.path} cannot be read on {socket.gethostname()}: {problem}."
            ) from None
        if rows.ndim != 2 or len(rows) < self.stop:
            raise ExemplaError(
                f"{self.path} has shape {rows.shape} on {socket.gethostname()}, but rows up to "
                f"{self.stop} are wanted of it: it is another file, or not whole."
            )
        if rows.dtype not in (np.float32, np.float64):
            raise ExemplaError(f"{self.path} holds {rows.dtype}: store float32 or float64 rows.")
        return rows[self.start : self.stop]


def pieces_of(rows: StoredRows, workers: int) -> list[list[Piece]]:
    """What each of so many workers reads: as many rows, in order, whatever the files' sizes."""
    return [
        [
            Piece(str(s.path.absolute()), max(first - s.start, 0), min(last, s.stop) - s.start)
            for s in rows.shards
            if s.start < last and first < s.stop
        ]
        for first, last in pairwise(cuts_of(len(rows), workers))
    ]


def in_files(array: np.ndarray, folder: str | Path, parts: int) -> StoredRows:
    """The rows of an array, written to the folder in as many files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.path.name for path in in_files(np.eye(4), folder, 2).shards]
    ['rows-0.npy', 'rows-1.npy']
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for i, (start, stop) in enumerate(pairwise(cuts_of(len(array), parts))):
            paths.append(folder / f"rows-{i}.npy")
            with replacing(paths[-1]) as file:
                np.save(file, array[start:stop], allow_pickle=False)
    except OSError as problem:
        why = problem.strerror or problem
        raise ExemplaError(f"rows cannot be written to {folder}: {why}.") from None
    return StoredRows.of(paths)
