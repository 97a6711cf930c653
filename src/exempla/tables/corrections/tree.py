"""A corrected image folder: made whole beside its place, and put where nobody's files are lost.

Every folder made here carries a marker with the size and digest of each file. One that stands in
the way is replaced only if it carries that marker and holds nothing else and nothing altered:
whatever a person put or changed there is theirs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from exempla.atomic import file_mode, flush_folder, make_folder, write_text
from exempla.errors import ExemplaError
from exempla.tables.table import show

__all__ = ["MARKER", "remove_leftovers", "replace_tree"]

MARKER = ".exempla-export.json"
FORMAT = "exempla-export-1"


def replace_tree(
    target: str | Path, fill: Callable[[Path], None], *, replace_own: bool = True
) -> Path:
    """Let `fill` make a folder, and put it at `target` when it is complete.

    `replace_own=False` refuses also a folder that was made here.

    >>> place = Path(tempfile.mkdtemp())
    >>> def one(folder):
    ...     folder.mkdir()
    ...     _ = (folder / "a.png").write_bytes(b"a")
    >>> made = replace_tree(replace_tree(place / "corrected", one), one)  # its own: replaced
    >>> (made / "mine.txt").write_text("by hand")
    7
    >>> replace_tree(made, one)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: corrected is not empty and holds what no export wrote ('mine...
    """
    target = Path(target)
    _check_replaceable(target, replace_own)
    above = make_folder(target.parent)
    scratch = Path(tempfile.mkdtemp(dir=above, prefix=f".{target.name}.", suffix=".part"))
    try:
        _mark(scratch, {})  # should we be killed, this says whose scratch it is
        fill(scratch / "new")
        make_folder(scratch / "new")  # where every image was removed
        _seal(scratch / "new", file_mode(above))
        _check_replaceable(target, replace_own)  # again: making it may have taken minutes
        if target.exists():
            os.rename(target, scratch / "old")
        os.rename(scratch / "new", target)
        flush_folder(above)
    except BaseException:
        if not target.exists() and (scratch / "old").exists():
            os.rename(scratch / "old", target)
        raise
    finally:
        _discard(scratch)
    return target


def remove_leftovers(target: Path) -> None:
    """Remove what killed writers of this file or folder left beside it; for one who is alone."""
    for scratch in target.parent.glob(f".{target.name}.*.part"):
        if scratch.is_file() and not scratch.is_symlink():
            scratch.unlink()
        elif not scratch.is_symlink() and _is_scratch(scratch):
            _discard(scratch)


def _is_scratch(folder: Path) -> bool:
    """Ours by its marker, or killed before it had one."""
    return _marked(folder) is not None or not any(
        name for name in os.listdir(folder) if not name.startswith((MARKER, f".{MARKER}"))
    )


def _discard(scratch: Path) -> None:
    """Remove it, the marker last: killed in between, it is still known as ours."""
    for part in ("new", "old", ""):
        shutil.rmtree(scratch / part, ignore_errors=True)


def _check_replaceable(target: Path, replace_own: bool) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ExemplaError(
            f"{target.name} is a link or a file, and a folder of that name is to be written; "
            "move it away and export again."
        )
    if not target.exists():
        return
    if not replace_own and any(target.iterdir()):
        raise ExemplaError(f"{target} is not empty; export into a new folder.")
    written = _marked(target) or {}
    # Missing files are no loss; what is there must be what was written.
    foreign = [
        name
        for name, path in sorted(_files(target).items())
        if name != MARKER and (path.is_symlink() or written.get(name) != _stamp(path))
    ]
    if foreign:
        raise ExemplaError(
            f"{target.name} is not empty and holds what no export wrote ({show(foreign, 3)}); "
            "move it away, or export into a new folder."
        )


def _seal(tree: Path, mode: int) -> None:
    """Private modes, the marker, and everything on the disk."""
    for folder, _, names in os.walk(tree):
        os.chmod(folder, mode | (mode >> 2 & 0o110))  # who may read may enter
        for name in names:
            os.chmod(Path(folder, name), mode)
    _mark(tree, {name: _stamp(path) for name, path in _files(tree).items()})
    os.chmod(tree / MARKER, mode)
    if hasattr(os, "sync"):  # once, not per image: there may be a hundred thousand
        os.sync()


def _mark(tree: Path, files: dict[str, list[str | int]]) -> None:
    write_text(tree / MARKER, json.dumps({"format": FORMAT, "files": files}, indent=0) + "\n")


def _marked(tree: Path) -> dict[str, list[str | int]] | None:
    """The files that the marker names; None without a marker of ours."""
    try:
        marker = json.loads((tree / MARKER).read_bytes())
        return dict(marker["files"]) if marker["format"] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _files(tree: Path) -> dict[str, Path]:
    """Every file and link below, by its name relative to the tree; links are not followed."""
    found = {}
    for folder, folders, names in os.walk(tree):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in [*names, *links]:
            path = Path(folder, name)
            found[path.relative_to(tree).as_posix()] = path
    return found


def _stamp(path: Path) -> list[str | int]:
    with open(path, "rb") as file:
        return [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]
