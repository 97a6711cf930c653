"""The one way to write a file: whole or not at all, and never through a link.

A temporary file in the same folder, flushed to the disk, renamed over the target, the folder
flushed too: after a crash at any moment the old file is there, or the new one, never a part.

A set of files is written with `publishing`: they are made in a hidden folder beside their targets
and moved in place together. Their manifest goes first and comes last, so a folder that has one
holds what it says; one without it was caught in the middle.

One file that appears whole or not at all and says itself what it is.

    content │ JSON of what it is, its length in 8 digits, SHA-256 of all before it

An .npy file with such a tail is still one to NumPy, which reads no further than its numbers. There
is no second file that could be lost, or be of another moment than the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from exempla.errors import ExemplaError

MANIFEST = "manifest.json"
"""Size and checksum of every file of a set."""
_FORMAT = "exempla-manifest-1"
_STAGE, _PART = ".exempla-", ".part"


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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
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


@contextmanager
def publishing(
    folder: str | Path, about: Mapping[str, Any] | None = None, *, force: bool = False
) -> Iterator[Path]:
    """Yield a hidden folder for a set of files that appear in `folder` together at the end.

    manifest.json holds `about` and the size and SHA-256 of every file published here. It is removed
    before the first file is replaced and written after the last: a run that is killed leaves the
    earlier files with their manifest, or no manifest. If the block raises, nothing changes.

    Files that exempla did not write are never replaced unless `force` is set; see `check_targets`.

    >>> place = tempfile.TemporaryDirectory()
    >>> with publishing(place.name, {"command": "example"}) as stage:
    ...     _ = (stage / "a.txt").write_text("one")
    ...     _ = (stage / "b.txt").write_text("two")
    >>> made = json.loads((Path(place.name) / "manifest.json").read_text())
    >>> made["command"], {name: file["size"] for name, file in made["files"].items()}
    ('example', {'a.txt': 3, 'b.txt': 3})
    >>> place.cleanup()
    """
    folder = Path(folder)
    with alone_in(folder):  # nobody takes the new stage for a dead one before it is locked
        known = _owned(folder)  # dead stages know files too; ask them before they are removed
        _remove_dead_stages(folder)
        stage = Path(tempfile.mkdtemp(dir=folder, prefix=_STAGE, suffix=_PART))
        alive = _lock(stage, wait=True)
    try:
        yield stage
        names = sorted(path.name for path in stage.iterdir())
        with alone_in(folder):  # two runs into one folder: one after the other
            check_targets(folder, names, force=force, known=known)
            _seal(stage, names, folder, dict(about or {}))
            _move(stage, folder, names)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        _unlock(alive)


def _seal(stage: Path, names: list[str], folder: Path, about: dict[str, Any]) -> None:
    """Flush the staged files and write the manifest of the folder as it will be beside them."""
    mode = file_mode(folder)
    listed = _listed(folder / MANIFEST)
    # Files of earlier commands stay listed, so that those commands may replace them again.
    owned = {name: file["sha256"] for name, file in listed.items()}
    files = {name: listed[name] for name in listed if _is_listed(folder, name, owned)}
    for name in names:
        with open(stage / name, "rb+") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[name] = {"size": file.tell(), "sha256": digest}
        os.chmod(stage / name, mode)
    manifest = {"format": _FORMAT, **about, "files": files}
    write_text(stage / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    os.chmod(stage / MANIFEST, mode)


def foreign_files(
    folder: Path, names: Iterable[str], known: Mapping[str, str | None] | None = None
) -> list[str]:
    """Return those of the names that exist in the folder and were not written by exempla.

    A file is exempla's if the manifest lists it and it has not changed since, or if a run that was
    interrupted while it replaced files lists it.
    """
    owned = {**(known or {}), **_owned(folder)}
    return [
        name
        for name in names
        if name != MANIFEST
        and os.path.lexists(folder / name)
        and not _is_listed(folder, name, owned)
    ]


def _is_listed(folder: Path, name: str, owned: Mapping[str, str | None]) -> bool:
    path = folder / name
    if name not in owned or path.is_symlink() or not path.is_file():
        return False
    if owned[name] is None:
        return True
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == owned[name]


def _owned(folder: Path) -> dict[str, str | None]:
    """Return the files exempla wrote here, with their checksums.

    The checksum is None for files of an interrupted run, which may be the old or the new ones.
    """
    stages = folder.glob(f"{_STAGE}*{_PART}/{MANIFEST}")
    interrupted = {name: None for stage in stages for name in _listed(stage)}
    listed = {name: file["sha256"] for name, file in _listed(folder / MANIFEST).items()}
    return {**listed, **interrupted}


def _listed(manifest: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(manifest.read_bytes())
        if found["format"] != _FORMAT:
            return {}
        return {
            str(name): {"size": int(file["size"]), "sha256": str(file["sha256"])}
            for name, file in found["files"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def check_targets(
    folder: Path,
    names: Iterable[str],
    *,
    force: bool = False,
    known: Mapping[str, str | None] | None = None,
) -> None:
    """Refuse to publish if that would replace a file that exempla did not write.

    Parameters
    ----------
    folder, names
        Where the files will be published.
    force
        Replace such files all the same. A folder is never replaced.
    known
        Further files that exempla wrote, with their checksums.

    Raises
    ------
    ExemplaError
        If a folder, or a file that is not listed in the manifest, has one of the names.
    """
    names = list(names)
    for name in names:
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            raise ExemplaError(f"{place} is a folder, and a file of that name is to be written.")
    manifest = folder / MANIFEST
    if manifest.exists() and not _is_ours(manifest):
        raise ExemplaError(
            f"{manifest} was not written by exempla and would be replaced; move it, or choose "
            "another folder."
        )
    foreign = [] if force else foreign_files(folder, names, known)
    if foreign:
        raise ExemplaError(
            f"{folder} already holds {', '.join(foreign)}, which exempla did not write or which "
            "changed since. Choose another folder with --out, or overwrite with --force."
        )


def _is_ours(manifest: Path) -> bool:
    try:
        return json.loads(manifest.read_bytes())["format"] == _FORMAT
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _move(stage: Path, folder: Path, names: list[str]) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)
    flush_folder(folder)
    for name in names:
        os.replace(stage / name, folder / name)  # a link at the target is replaced, not followed
    flush_folder(folder)
    os.replace(stage / MANIFEST, folder / MANIFEST)
    flush_folder(folder)


def _remove_dead_stages(folder: Path) -> None:
    """What killed runs left: stages that no living process holds."""
    for stage in folder.glob(f"{_STAGE}*{_PART}"):
        if stage.is_symlink():
            continue
        if stage.is_file():  # of a probe
            stage.unlink(missing_ok=True)
            continue
        with suppress(BlockingIOError):  # of a run that lives
            if (held := _lock(stage, wait=False)) is not None:
                shutil.rmtree(stage, ignore_errors=True)
                _unlock(held)


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


def probe(folder: Path) -> None:
    """Raise the OSError now that writing into this folder would raise later."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=_STAGE, suffix=_PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(bytes(4096))  # something, or a full disk is not noticed
            file.flush()
            os.fsync(file.fileno())
    finally:
        Path(name).unlink(missing_ok=True)


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


@contextmanager
def alone_in(folder: Path, busy: Exception | None = None) -> Iterator[None]:
    """The only one in this folder for the time of the block, where the system has locks.

    Who comes second waits, or raises `busy` if that is given. The lock is on the folder itself and
    ends with its process, however that ends.
    """
    try:
        held = _lock(folder, wait=busy is None)
    except BlockingIOError as held_by_another:
        raise busy or held_by_another from None
    try:
        yield
    finally:
        _unlock(held)


def _lock(folder: Path, wait: bool) -> int | None:
    """The lock on a folder; None where there are none. BlockingIOError if somebody holds it and
    this one does not wait."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


MARK = b"exempla-seal-1\n"
_TAIL = 8 + len(MARK) + 64
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
        if size < _TAIL:
            return None
        file.seek(size - _TAIL)
        tail = file.read(_TAIL)
        length, mark = tail[:8], tail[8 : 8 + len(MARK)]
        if mark != MARK or not length.isdigit() or int(length) > size - _TAIL:
            return None
        file.seek(size - _TAIL - int(length))
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
