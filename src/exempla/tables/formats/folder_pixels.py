"""The images of a folder, read into one array of one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exempla.errors import ExemplaError
from exempla.images import ImageError, as_pixels
from exempla.tables.formats.folder import FolderSource, read_folder, safe_path
from exempla.tables.table import Table, show

__all__ = ["Images", "load_images"]


@dataclass(frozen=True)
class Images:
    """Images of one folder; entry i of every field belongs to row `rows[i]` of its table."""

    pixels: np.ndarray
    """(n, h, w) if all are grey, else (n, h, w, 3); uint8."""
    labels: np.ndarray
    classes: tuple[str, ...]
    files: tuple[str, ...]
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

    `size` is (height, width), or one number for both; without it images of different sizes are
    scaled to the commonest. Files that cannot be read are named and left out.

    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("L", (8, 6), 200).save(root / name / "1.png")
    >>> images = load_images(root)
    >>> images.pixels.shape, images.classes
    ((2, 6, 8), ('cat', 'dog'))
    """
    table = folder if isinstance(folder, Table) else read_folder(folder)
    if not isinstance(table.source, FolderSource):
        raise ExemplaError(f"{table.path.name} is no folder of images.")
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
    notes = [f"{len(broken)} image(s) cannot be read: {show(broken, 5)}."] if broken else []
    pixels, said = _stacked(pictures)
    labels = np.array(table.strings("label", read))
    return Images(
        pixels=pixels,
        labels=labels,
        classes=table.source.classes,
        files=tuple(table.source.files[row] for row in read),
        rows=np.array(read, dtype=np.int64),
        notes=(*notes, *said),
    )


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
