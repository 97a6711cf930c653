"""The one way to write a file: whole or not at all, and never through a link.

A temporary file in the same folder, flushed to the disk, renamed over the target, the folder
flushed too: after a crash at any moment the old file is there, or the new one, never a part.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["make_folder", "replacing", "write_bytes", "write_text"]


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when it is complete.

    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "a.txt"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"all of it")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'all of it', 1)
    >>> folder.cleanup()
    """
    path = Path(path)
    # a name of its own for every writer: two at once never share a scratch file
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, file_mode(path.parent))
        os.replace(name, path)  # a link at `path` is replaced, not followed
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write the bytes as the whole content of the file, and return its path."""
    with replacing(path) as file:
        file.write(data)
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write the text as UTF-8, and return the path."""
    return write_bytes(path, text.encode("utf-8"))


def make_folder(path: str | Path) -> Path:
    """The folder, made if it is not there with all above it, for its owner alone; for the group
    too where the folder above is shared with one.

    >>> place = tempfile.TemporaryDirectory()
    >>> oct(make_folder(Path(place.name) / "a" / "b").stat().st_mode & 0o777)
    '0o700'
    >>> place.cleanup()
    """
    path = Path(path)
    if path.is_dir():
        return path
    above = make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if _shared(above):  # after mkdir, which heeds the umask; bits it inherited stay
        path.chmod((path.stat().st_mode & 0o7777) | 0o070)
    return path


def file_mode(folder: Path) -> int:
    """Readable by the owner alone, as results hold private data; in a folder that its owner made
    writable for a group, by that group too."""
    return 0o660 if _shared(folder) else 0o600


def _shared(folder: Path) -> bool:
    """Writable for a group on purpose; what all the world may write to, such as /tmp, is no sign
    of that."""
    return folder.stat().st_mode & 0o022 == 0o020


def flush_folder(folder: Path) -> None:
    """Make a rename in this folder outlast a power cut, where the system can."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
