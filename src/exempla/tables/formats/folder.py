"""A folder of images with one sub-folder per class, as a table of files and as one array."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.images import ImageError, as_pixels
from exempla.tables.table import Edits, Table, show

_IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
PARTS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})


def safe_path(root: str | Path, name: str) -> Path:
    """Return the file `name` inside `root`; refuse every path or link that leads outside."""
    base = Path(root).resolve()
    plain = unquote(unquote(name)).replace("\\", "/")
    parts = PurePosixPath(plain).parts
    escapes = re.match(r"[/~]|[A-Za-z]:|[A-Za-z]+://", plain) or re.search(r"[\x00-\x1f]", plain)
    if parts and ".." not in parts and not escapes:
        target = _resolved(base / name)
        if target is not None and target.is_relative_to(base):
            return target
    raise ExemplaError(f"The path {name!r} leads outside its folder and is refused.")


def _resolved(path: Path) -> Path | None:
    """Resolve links; return None if they are circular."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # which one depends on the version of Python
        return None


@dataclass(frozen=True)
class FolderSource:
    """Files of an image folder, relative to it, in row order."""

    root: Path
    files: tuple[str, ...]

    def original(self) -> bytes:
        raise ExemplaError(f"{self.root.name} is a folder; export it to a folder, not to bytes.")

    def rewrite(self, edits: Edits) -> bytes:
        return self.original()

    def moved(self, row: int, label: str) -> str:
        """Return the new path of a relabelled file: the same path under the other class."""
        if label in ("", ".", "..") or re.search(r"[/\\\x00-\x1f]", label):
            raise ExemplaError(
                f"The label {label!r} cannot be the name of a folder; choose another."
            )
        return str(PurePosixPath(label, *PurePosixPath(self.files[row]).parts[1:]))

    def copy_to(self, out: Path, changes: Mapping[int, str], removed: Collection[int]) -> None:
        """Copy every file that stays, each into its (new) class folder."""
        targets = {
            row: self.moved(row, changes[row]) if row in changes else name
            for row, name in enumerate(self.files)
            if row not in removed
        }
        if twice := [name for name, times in Counter(targets.values()).items() if times > 1]:
            raise ExemplaError(
                f"After relabelling, two images would be called {show(twice, 3)}; rename one."
            )
        for row, name in targets.items():
            place = out / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(safe_path(self.root, self.files[row]), place)


def read_folder(path: str | Path, labelled: bool = True) -> Table:
    """List an image folder: columns `file` (relative path) and `label` (its first folder).

    If `labelled` is False, images may also lie in the folder itself; there is no label column then.
    """
    root = Path(path)
    if not root.is_dir():
        raise ExemplaError(f"There is no folder {str(root)!r}.")
    files, stray = _listed(root)
    loose = [] if labelled else [f for f in stray if Path(f).suffix.lower() in _IMAGE_SUFFIXES]
    files, stray = files + loose, [name for name in stray if name not in loose]
    if not files:
        raise ExemplaError(
            f"{root.name} has no images in class folders; arrange them as CLASS/image.png "
            f"({', '.join(sorted(s[1:] for s in _IMAGE_SUFFIXES))})."
        )
    labels = [name.split("/", 1)[0] for name in files]
    classes = tuple(dict.fromkeys(labels))
    if {c.casefold() for c in classes} <= PARTS and any(n.count("/") > 1 for n in files):
        raise ExemplaError(
            f"{root.name} holds the parts {show(classes)}, not classes; give "
            f"{root.name}/{classes[0]} as the data and the other as the test."
        )
    kinds = "without labels" if loose else f"in {len(classes)} classes"
    notes = [f"Read {root.name}: {len(files):,} images {kinds}."]
    if stray:
        notes.append(
            f"Ignored {len(stray)} file(s) that are no images in a class folder: {show(stray, 3)}."
        )
    return Table(
        path=root,
        format="images",
        data=pa.table({"file": files} if loose else {"file": files, "label": labels}),
        source=FolderSource(root, tuple(files)),
        notes=tuple(notes),
    )


def _listed(root: Path) -> tuple[list[str], list[str]]:
    """Return the images in class folders, and all other files."""
    files: list[str] = []
    stray: list[str] = []
    base = root.resolve()
    for entry in sorted(root.rglob("*"), key=lambda p: _natural(p.relative_to(root))):
        name = entry.relative_to(root).as_posix()
        if any(part.startswith(".") for part in PurePosixPath(name).parts):
            continue
        target = _resolved(entry) if entry.is_symlink() else entry
        if entry.is_symlink() and target is not None and not target.is_relative_to(base):
            raise ExemplaError(
                f"{name!r} in {root.name} is a link that leads outside the folder and is refused; "
                "replace it with a copy."
            )
        if entry.is_dir():
            continue
        known = entry.suffix.lower() in _IMAGE_SUFFIXES and name.isprintable() and entry.is_file()
        (files if "/" in name and known else stray).append(name)
    return files, stray


def _natural(path: Path) -> list[tuple[int, int, str]]:
    # "img10" comes after "img9": digits are compared as numbers, part by part of the path.
    pieces: list[tuple[int, int, str]] = []
    for part in path.parts:
        for piece in re.findall(r"\d+|\D+", part):
            pieces.append((1, int(piece), "") if piece.isdecimal() else (2, 0, piece))
        pieces.append((0, 0, ""))
    return pieces


@dataclass(frozen=True)
class Images:
    """The images of a folder; entry i of every field belongs to row `rows[i]` of its table."""

    pixels: np.ndarray
    """(n, h, w) if all are grey, else (n, h, w, 3); uint8."""
    labels: np.ndarray
    rows: np.ndarray
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def load_images(
    folder: str | Path | Table,
    rows: Sequence[int] | np.ndarray | None = None,
    size: int | tuple[int, int] | None = None,
) -> Images:
    """Read the images of a folder (or of some of its rows) into one array.

    `size` is (height, width), or one number for both; by default, images of different sizes are
    scaled to the most frequent one. Files that cannot be read are named in the notes and left out.
    """
    table = folder if isinstance(folder, Table) else read_folder(folder)
    if not isinstance(table.source, FolderSource):
        raise ExemplaError(f"{table.path.name} is not a folder of images.")
    wanted = np.arange(len(table)) if rows is None else np.asarray(rows, dtype=np.int64)
    pictures: list[np.ndarray] = []
    read: list[int] = []
    broken: list[str] = []
    shape = (size, size) if isinstance(size, int) else size
    for row in wanted.tolist():
        name = table.source.files[row]
        try:
            pictures.append(as_pixels(safe_path(table.source.root, name), shape))
            read.append(row)
        except ImageError:
            broken.append(name)
    if not pictures:
        raise ExemplaError(
            f"None of the images in {table.path.name} can be read: {show(broken, 3)}."
        )
    left = f"{len(broken)} image(s) cannot be read and are left out: {show(broken, 5)}."
    notes = [left] if broken else []
    pixels, said = _stacked(pictures)
    known = "label" in table.names
    labels = np.array(table.strings("label", read) if known else [""] * len(read))
    return Images(pixels, labels, np.array(read, dtype=np.int64), (*notes, *said))


def _stacked(pictures: list[np.ndarray]) -> tuple[np.ndarray, list[str]]:
    notes = []
    sizes = Counter(picture.shape[:2] for picture in pictures)
    (height, width), count = sizes.most_common(1)[0]
    if len(sizes) > 1:
        other = len(pictures) - count
        notes.append(f"{other:,} image(s) of another size were scaled to {width}×{height} pixels.")
        pictures = [as_pixels(picture, (height, width)) for picture in pictures]
    if any(picture.ndim == 3 for picture in pictures):
        pictures = [p if p.ndim == 3 else np.repeat(p[:, :, None], 3, axis=2) for p in pictures]
    return np.stack(pictures), notes
