"""Whole fitted objects, one in a file, with its checksum at the end."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import TypeVar

from exempla.atomic import replacing
from exempla.errors import ExemplaError
from exempla.store.sealed import Hashing
from exempla.version import __version__

__all__ = ["read_object", "write_object"]

T = TypeVar("T")
SEAL = b"exempla-sha256:"
"""What stands before the checksum at the end of a stored object."""


def write_object(thing: object, path: str | Path) -> Path:
    """One fitted object in one file; what was there before stays until the new one is whole."""
    import joblib

    path = Path(path)
    try:
        with replacing(path) as file:
            sink = Hashing(file)
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
