"""Rows as files that every machine can open."""

from __future__ import annotations

import socket
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from exempla.atomic import replacing
from exempla.errors import ExemplaError
from exempla.selection.shards.backend import cuts_of
from exempla.store import StoredRows

__all__ = ["absolute", "check_visible", "in_files"]


def absolute(rows: StoredRows) -> StoredRows:
    """The same rows, under names that mean the same in any folder."""
    return StoredRows(tuple(replace(s, path=s.path.absolute()) for s in rows.shards))


def check_visible(rows: StoredRows) -> None:
    """Refuse files that cannot be read on this machine, by its name."""
    here = socket.gethostname()
    for shard in rows.shards:
        if not shard.path.exists():
            raise ExemplaError(
                f"{shard.path} is not there on {here}: keep the rows in a folder that every "
                "machine of the cluster sees under this name."
            )
        if len(shard.rows) < shard.stop - shard.start:
            raise ExemplaError(
                f"{shard.path} has fewer rows on {here} than it should: it is another file, or "
                "not whole."
            )


def in_files(array: np.ndarray, folder: str | Path, parts: int) -> StoredRows:
    """The rows of an array, written to the folder in as many files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.path.name for path in in_files(np.eye(4), folder, 2).shards]
    ['rows-0.npy', 'rows-1.npy']
    """
    folder = Path(folder).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for i, (start, stop) in enumerate(pairwise(cuts_of(len(array), parts))):
            paths.append(folder / f"rows-{i}.npy")
            with replacing(paths[-1]) as file:
                np.save(file, np.ascontiguousarray(array[start:stop]), allow_pickle=False)
    except OSError as problem:
        why = problem.strerror or problem
        raise ExemplaError(f"rows cannot be written to {folder}: {why}.") from None
    return StoredRows.of(paths)
