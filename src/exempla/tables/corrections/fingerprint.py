"""Which file it is: one digest for patches, for the keys of reviews, and for what was read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from exempla.tables.formats.columnar import fingerprint as file_fingerprint
from exempla.tables.read import read_table
from exempla.tables.table import Table

__all__ = ["fingerprint"]


def fingerprint(data: Table | str | Path) -> str:
    """SHA-256 of a file; of the names of its images for a folder; "" if there is nothing there.

    Of a table it is that of the bytes that were read; a large file that has changed since then is
    refused.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("x,y\\n1,ham\\n2,spam\\n")
    >>> fingerprint(path)[:16], fingerprint(path) == fingerprint(read_table(path))
    ('a3c453dd653d430b', True)
    """
    if not isinstance(data, Table):
        path = Path(data)
        if path.is_dir():
            return fingerprint(read_table(path))
        return file_fingerprint(path) if path.is_file() else ""
    if data.format == "images":
        names = "\n".join(name or "" for name in data.strings("file"))
        return hashlib.sha256(names.encode()).hexdigest()
    return hashlib.sha256(data.source.original()).hexdigest()
