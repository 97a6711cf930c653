"""Images of rows: re-encoded when written, found by row number when served.

`exempla.images` decodes and re-encodes: pixels and nothing else, the same ones the model saw.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from exempla.atomic import replacing
from exempla.errors import ExemplaWarning
from exempla.images import ImageError, as_image, fitted, webp

__all__ = ["image_bytes", "write_image"]

LARGEST_SIDE = 640
TINY = 64
"""Up to this size a picture is kept without loss."""


def write_image(folder: Path, space: str, row: int, image: Any) -> bool:
    """Write `image` as folder/SPACE-ROW.webp; False (and a warning) if it cannot be read."""
    target = folder / f"{space}-{row}.webp"
    try:
        data = _encode(image)
    except ImageError as error:
        warnings.warn(
            f"The image of row {row} cannot be shown: {error}", ExemplaWarning, stacklevel=3
        )
        return False
    folder.mkdir(exist_ok=True)
    with replacing(target) as file:
        file.write(data)
    return True


def image_bytes(directory: Path, space: str, row: int) -> bytes | None:
    """The image of a row, or None if there is none inside `directory`.

    A link is refused, be it the file or the images folder: what it points at is not ours to serve.
    """
    path = directory / "images" / f"{space}-{row}.webp"
    if path.is_symlink() or not path.resolve().is_relative_to(directory.resolve()):
        return None
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        data = file.read()
    return data if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _encode(picture: Any) -> bytes:
    image = fitted(as_image(picture, LARGEST_SIDE), LARGEST_SIDE)
    # Digits and icons: every pixel counts and costs nothing. Photographs: lossy is enough.
    return webp(image, lossless=max(image.size) <= TINY, effort=2)
