"""Pixels: images of a folder as one array, and small pictures of them for pages."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from exempla.errors import ExemplaError
from exempla.tables.formats.folder import FolderSource, read_folder, safe_path
from exempla.tables.table import Table, show

__all__ = ["Images", "load_images", "thumbnail"]

DECODERS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Only these: Pillow's rarer decoders are rarely tested, and one of them starts a program."""
MOST_PIXELS = 100_000_000


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
            pictures.append(_opened(safe_path(table.source.root, name), shape))
            read.append(row)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            if isinstance(error, ExemplaError):
                raise
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


def _opened(path: Path, shape: tuple[int, int] | None) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=DECODERS) as file:
                if file.width * file.height > MOST_PIXELS:
                    raise OSError("too many pixels")
                image = ImageOps.exif_transpose(file)
                image = _plain(image)
        except Image.DecompressionBombWarning as error:
            raise OSError(str(error)) from None
    if shape is not None and (image.height, image.width) != shape:
        image = image.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _plain(image: Image.Image) -> Image.Image:
    """Grey stays grey, everything else becomes RGB on white."""
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits a pixel: stretched to 8
        deep = np.asarray(image, dtype=np.float64)
        top = 65_535.0 if image.mode.startswith("I") and deep.max() > 255 else max(deep.max(), 1.0)
        return Image.fromarray((deep.clip(0, top) * (255 / top)).astype(np.uint8))
    if image.mode in ("1", "L"):
        return image.convert("L")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, "white")
        return Image.alpha_composite(white, over).convert("RGB")
    return image.convert("RGB")


def _stacked(pictures: list[np.ndarray]) -> tuple[np.ndarray, list[str]]:
    notes = []
    sizes = Counter(picture.shape[:2] for picture in pictures)
    (height, width), count = sizes.most_common(1)[0]
    if len(sizes) > 1:
        other = len(pictures) - count
        notes.append(f"{other:,} image(s) of another size were scaled to {width}×{height} pixels.")
        pictures = [_scaled(picture, height, width) for picture in pictures]
    if any(picture.ndim == 3 for picture in pictures):
        pictures = [p if p.ndim == 3 else np.repeat(p[:, :, None], 3, axis=2) for p in pictures]
    return np.stack(pictures), notes


def _scaled(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    if picture.shape[:2] == (height, width):
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))


def thumbnail(image: Any, most: int = 128) -> bytes:
    """A WebP of at most `most` pixels a side; re-encoded, so nothing hidden in a file survives.

    Takes an array (h, w[, 3 or 1]), uint8 or floats in [0, 1], or a path to an image.

    >>> import numpy as np
    >>> thumbnail(np.zeros((300, 200), dtype=np.uint8))[8:12]
    b'WEBP'
    """
    if isinstance(image, (str, Path)):
        if Path(image).suffix.lower() in (".svg", ".svgz"):
            raise ExemplaError(
                f"{Path(image).name} is SVG, which can carry scripts; convert to PNG."
            )
        try:
            pixels = _opened(Path(image), None)
        except (OSError, SyntaxError) as error:
            raise ExemplaError(f"{Path(image).name} cannot be read as an image: {error}.") from None
    else:
        pixels = np.asarray(image)
    if pixels.dtype.kind == "f":
        pixels = (pixels.clip(0, 1) * 255).round()
    pixels = pixels.clip(0, 255).astype(np.uint8)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        raise ExemplaError(
            f"An image has shape (h, w), (h, w, 1) or (h, w, 3), not {pixels.shape}."
        )
    small = Image.fromarray(pixels)
    small.thumbnail((most, most))
    out = io.BytesIO()
    small.convert("RGB").save(out, "WEBP", quality=80, method=4)
    return out.getvalue()
