"""Write a file whole or not at all, and never through a link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when it is complete.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "a.txt"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"all of it")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'all of it', 1)
    >>> folder.cleanup()
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    scratch.unlink(missing_ok=True)
    try:
        with open(scratch, "xb") as file:  # "x": a link that someone put there is refused
            yield file
        os.replace(scratch, path)  # a link at `path` is replaced, not followed
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
