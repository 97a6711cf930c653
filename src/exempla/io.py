"""Writing files: complete or not at all, checksummed, and never through a link.

* `replacing`, `write_bytes`, `write_text`: one file. It is written under a temporary name in the
  same folder, flushed to disk and renamed over the target, and the folder is flushed too. After a
  crash at any point the old file is there or the new one, never a part.
* `write_sealed`, `read_seal`, `verified`: one file that carries its description and its checksum in
  a tail, `content │ JSON, its length in 8 digits, mark, SHA-256 of everything before`. NumPy,
  zipfile and joblib ignore the tail, so that .npy, .npz and joblib files stay readable as such.
* `publishing`: a set of files with a manifest of their sizes and checksums. The files are made in a
  hidden folder beside their targets and moved into place together. The manifest is removed first
  and written last: a folder that has one holds what it says.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError

MANIFEST = "manifest.json"
"""Size and checksum of every file of a set."""
_FORMAT = "exempla-manifest-1"
_STAGE, _PART = ".exempla-", ".part"


@contextmanager
def os_errors(what: str, more: str = "") -> Iterator[None]:
    """Turn an OSError into an ExemplaError that says `what` happened, why, and `more`."""
    try:
        yield
    except OSError as problem:
        raise ExemplaError(f"{what}: {problem.strerror or problem}{more}.") from None


@contextmanager
def replacing(path: str | Path, *, keep_existing: bool = False) -> Iterator[BufferedRandom]:
    """Open a temporary file that takes the place of `path` when the block ends without an error.

    With `keep_existing` a file that is there by then stays: of several processes that write, one
    succeeds and all find the same file.
    """
    path = Path(path)
    # every writer has its own temporary name: two at once never share a file
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep_existing:
            _link(name, path)
        else:
            os.chmod(name, file_mode(path.parent))
            os.replace(name, path)  # a link at `path` is replaced, not followed
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def _link(name: str, path: Path) -> None:
    """Give the temporary file the name `path`, unless there is such a file."""
    try:
        os.chmod(name, file_mode(path.parent))
        os.link(name, path)  # fails if there is one; a rename would replace it
    except OSError:
        if not path.exists():  # a file system without links
            os.replace(name, path)
    remove_parts(path)  # other writers are too late or dead


def remove_parts(path: Path) -> None:
    """Remove leftover temporary files of `path`. Once it exists, every writer keeps it as it is."""
    for scratch in path.parent.glob(f".{path.name}.*{_PART}"):
        scratch.unlink(missing_ok=True)


def write_bytes(path: str | Path, data: bytes, *, keep_existing: bool = False) -> Path:
    """Write the bytes as the content of the file, and return its path."""
    with replacing(path, keep_existing=keep_existing) as file:
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
    """
    folder = Path(folder)
    with ExitStack() as alive:
        with alone_in(folder):  # so that no other run takes the new stage for a dead one
            stage = Path(tempfile.mkdtemp(dir=folder, prefix=_STAGE, suffix=_PART))
            alive.enter_context(alone_in(stage))
            alive.callback(shutil.rmtree, stage, ignore_errors=True)
        yield stage
        names = sorted(path.name for path in stage.iterdir())
        with alone_in(folder):  # two runs into one folder publish one after the other
            check_targets(folder, names, force=force)
            _seal(stage, names, folder, dict(about or {}))
            _move(stage, folder, names)
            _remove_dead_stages(folder)


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


def foreign_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Return those of the names that exist in the folder and were not written by exempla.

    A file is exempla's if the manifest lists it and it has not changed since, or if a run that was
    interrupted while it replaced files lists it.
    """
    owned = _owned(folder)
    there = [name for name in names if name != MANIFEST and os.path.lexists(folder / name)]
    return [name for name in there if not _is_listed(folder, name, owned)]


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
    found = read_json(manifest)
    try:
        if found["format"] != _FORMAT:
            return {}
        return {
            str(name): {"size": int(file["size"]), "sha256": str(file["sha256"])}
            for name, file in found["files"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}


def check_targets(folder: Path, names: Iterable[str], *, force: bool = False) -> None:
    """Raise ExemplaError if publishing would replace a folder or a file exempla did not write.

    `force` allows such files to be replaced, but never a folder.
    """
    names = list(names)
    for name in names:
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            raise ExemplaError(f"{place} is a folder, and a file of that name is to be written.")
    manifest = folder / MANIFEST
    listing = read_json(manifest)
    ours = isinstance(listing, dict) and listing.get("format") == _FORMAT
    if manifest.exists() and not ours:
        raise ExemplaError(
            f"{manifest} was not written by exempla and would be replaced; move it, or choose "
            "another folder."
        )
    foreign = [] if force else foreign_files(folder, names)
    if foreign:
        raise ExemplaError(
            f"{folder} already holds {', '.join(foreign)}, which exempla did not write or which "
            "changed since. Choose another folder with --out, or overwrite with --force."
        )


def _move(stage: Path, folder: Path, names: list[str]) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)
    flush_folder(folder)
    for name in names:
        os.replace(stage / name, folder / name)  # a link at the target is replaced, not followed
    flush_folder(folder)
    os.replace(stage / MANIFEST, folder / MANIFEST)
    flush_folder(folder)


def _remove_dead_stages(folder: Path) -> None:
    """Remove the stages that killed runs left: those that no living process has locked."""
    for stage in folder.glob(f"{_STAGE}*{_PART}"):
        if stage.is_symlink():
            continue
        if stage.is_file():  # left by a probe
            stage.unlink(missing_ok=True)
            continue
        with suppress(BlockingIOError), alone_in(stage, BlockingIOError()) as locked:
            if locked:  # otherwise its run may be alive
                shutil.rmtree(stage, ignore_errors=True)


def make_folder(path: str | Path) -> Path:
    """Make the folder and its parents if they do not exist, and return its path.

    Only the owner may enter it, or also the group if the parent is shared with one.
    """
    path = Path(path)
    if path.is_dir():
        return path
    above = make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if _is_shared(above):  # after mkdir, which applies the umask; inherited bits stay
        path.chmod((path.stat().st_mode & 0o7777) | 0o070)
    return path


def probe(folder: Path) -> None:
    """Raise now the OSError that writing into this folder would raise later."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=_STAGE, suffix=_PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(bytes(4096))  # an empty file would not show that the disk is full
            file.flush()
            os.fsync(file.fileno())
    finally:
        Path(name).unlink(missing_ok=True)


def file_mode(folder: Path) -> int:
    """Return the mode of new files in this folder: private, or shared with the group of a folder
    that is writable for its group."""
    return 0o660 if _is_shared(folder) else 0o600


def _is_shared(folder: Path) -> bool:
    """Return True if the folder is writable for its group, but not for everybody as /tmp is."""
    return folder.stat().st_mode & 0o022 == 0o020


def flush_folder(folder: Path) -> None:
    """Flush the folder, so that a rename in it survives a power cut."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(folder: Path, busy: Exception | None = None) -> Iterator[bool]:
    """Hold a lock on this folder (or file) inside the block; yield False if the system has none.

    A second process waits, or raises `busy` if it is given. The operating system releases the lock
    when the process ends.
    """
    handle, locked = None, True
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
    except BlockingIOError as held_by_another:
        assert handle is not None
        os.close(handle)
        raise busy or held_by_another from None
    except (ImportError, OSError):  # Windows, or a file system without locks
        locked = False
    try:
        yield locked
    finally:
        if handle is not None:
            if locked:  # explicitly: processes forked since then share the handle
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


_MARK = b"exempla-seal-1\n"
_TAIL = 8 + len(_MARK) + 64
"""Bytes after the JSON: its length, the mark, the checksum."""


def write_sealed(
    path: Path,
    write: Callable[[Any], object],
    about: Mapping[str, Any],
    *,
    keep_existing: bool = False,
) -> None:
    """Write a file with its description and checksum at the end.

    `write` writes the content into the file it is given; `about` is the description, as JSON can
    hold it. With `keep_existing`, a file that another process has written meanwhile stays.
    """
    text = json.dumps(dict(about), sort_keys=True).encode()
    with replacing(path, keep_existing=keep_existing) as file:
        write(file)
        file.write(text + f"{len(text):08d}".encode() + _MARK)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # ends behind the last byte
        file.write(digest.encode())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError also for text that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; None if it is no such file, or none that can be parsed.

    A pipe or a device is not opened: reading one could wait forever.
    """
    try:
        return parse_json(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError):
        return None


def read_seal(path: Path) -> dict[str, Any] | None:
    """Return the description in the tail of a file, with its `sha256` and `bytes`; None if the file
    has no such tail because it was cut short or not written by exempla."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return None  # a pipe or a device: reading one could wait forever
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _TAIL:
            return None
        file.seek(size - _TAIL)
        tail = file.read(_TAIL)
        length, mark = tail[:8], tail[8 : 8 + len(_MARK)]
        if mark != _MARK or not length.isdigit() or int(length) > size - _TAIL:
            return None
        file.seek(size - _TAIL - int(length))
        try:
            about = parse_json(file.read(int(length)))
        except ValueError:
            return None
    if not isinstance(about, dict):
        return None
    return {**about, "bytes": size, "sha256": tail[-64:].decode("ascii", "replace")}


def verified(path: Path) -> dict[str, Any]:
    """Return the description in the tail after checking every byte against the checksum."""
    with os_errors(f"{path} cannot be read"):
        about = read_seal(path)
        if about is None:
            raise ExemplaError(f"{path} is cut short or was not written by exempla.")
        end, digest = about["bytes"] - 64, hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(min(2**20, end - file.tell())):
                digest.update(block)
    if digest.hexdigest() != about["sha256"]:
        raise ExemplaError(f"{path} has changed since it was written: its checksum does not match.")
    return about
