"""One file that appears whole or not at all and says itself what it is.

    content │ JSON of what it is, its length in 8 digits, SHA-256 of all before it

An .npy file with such a tail is still one to NumPy, which reads no further than its numbers. There
is no second file that could be lost, or be of another moment than the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from exempla.atomic import file_mode, replacing
from exempla.errors import ExemplaError

__all__ = ["Hashing", "publish_first", "read_seal", "verified", "write_sealed"]

MARK = b"exempla-seal-1\n"
TAIL = 8 + len(MARK) + 64
"""Bytes behind the JSON: its length, the mark, the checksum."""


class Hashing:
    """A file to write to that knows the size and checksum of what it was given."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.hash = file, 0, hashlib.sha256()

    def write(self, data: Any) -> int:
        """Pass the bytes on."""
        view = memoryview(data).cast("B")
        self.size += len(view)
        self.hash.update(view)
        return self.file.write(view)

    def tell(self) -> int:
        """How many there were."""
        return self.size


def write_sealed(path: Path, write: Callable[[Any], object], about: Mapping[str, Any]) -> None:
    """`write` puts the content into the file it is given; `about` says what it is."""
    with replacing(path) as file:
        sink = Hashing(file)
        write(sink)
        said = json.dumps(dict(about), sort_keys=True).encode()
        sink.write(said)
        sink.write(f"{len(said):08d}".encode() + MARK)
        file.write(sink.hash.hexdigest().encode())


def read_seal(path: Path) -> dict[str, Any] | None:
    """What the file says it is, from its tail alone; None if it has no such tail: it was cut short,
    or is of another maker. `sha256` and `bytes` of the whole are said too."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < TAIL:
            return None
        file.seek(size - TAIL)
        tail = file.read(TAIL)
        length, mark = tail[:8], tail[8 : 8 + len(MARK)]
        if mark != MARK or not length.isdigit() or int(length) > size - TAIL:
            return None
        file.seek(size - TAIL - int(length))
        try:
            said = json.loads(file.read(int(length)))
        except ValueError:
            return None
    if not isinstance(said, dict):
        return None
    return {**said, "bytes": size, "sha256": tail[-64:].decode("ascii", "replace")}


def verified(path: Path) -> dict[str, Any]:
    """What the file says it is, once all its bytes are found to be those that were written."""
    try:
        said = read_seal(path)
        if said is None:
            raise ExemplaError(f"{path} is cut short or was not written by exempla.")
        left, digest = said["bytes"] - 64, hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            buffer = memoryview(bytearray(2**20))
            while left > 0:
                got = file.readinto(buffer[: min(left, len(buffer))])
                if not got:
                    break
                digest.update(buffer[:got])
                left -= got
    except OSError as problem:
        raise ExemplaError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    if digest.hexdigest() != said["sha256"]:
        raise ExemplaError(f"{path} has changed since it was written: its checksum does not match.")
    return said


def publish_first(path: Path, content: bytes) -> Path:
    """Write the file unless there is one: of many who try, one succeeds, and all find the same."""
    if path.exists():
        return _settled(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.chmod(name, file_mode(path.parent))
            os.link(name, path)  # fails if there is one by now; a rename would replace it
        except OSError:
            if not path.exists():  # a file system without links
                os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return _settled(path)


def _settled(path: Path) -> Path:
    """Whoever is still writing comes too late, and may be dead: what they wrote can go."""
    for scratch in path.parent.glob(f".{path.name}.*.part"):
        scratch.unlink(missing_ok=True)
    return path
