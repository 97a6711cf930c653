"""Images of rows: re-encoded when written, found by row number when served.

Re-encoding keeps the pixels and nothing else: no SVG script, no metadata, no polyglot file.
"""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from exempla.atomic import replacing
from exempla.errors import ExemplaWarning

__all__ = ["image_bytes", "write_image"]

LARGEST_SIDE = 640


def write_image(folder: Path, space: str, row: int, image: Any) -> bool:
    """Write `image` as folder/SPACE-ROW.webp; False (and a warning) if it cannot be read."""
    target = folder / f"{space}-{row}.webp"
    try:
        data = _encode(image)
    except Exception as error:  # Pillow raises many kinds on damaged or hostile files
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


def _encode(image: Any) -> bytes:
    from PIL import Image

    if isinstance(image, (str, Path)):
        with Image.open(image) as opened:
            picture = opened.convert("RGBA" if "A" in opened.getbands() else "RGB")
    elif isinstance(image, Image.Image):
        picture = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    else:
        picture = Image.fromarray(_as_bytes(np.asarray(image))).convert("RGB")
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    out = io.BytesIO()
    # Digits and icons: every pixel counts and costs nothing. Photographs: lossy is enough.
    picture.save(out, "WEBP", lossless=max(picture.size) <= 64, quality=80, method=2)
    return out.getvalue()


def _as_bytes(pixels: np.ndarray) -> np.ndarray:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint8:
        return pixels
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0.0 or high > 255.0:  # standardised values: stretch them
        pixels = (pixels - low) / max(high - low, 1e-12)
        high = 1.0
    scale = 255.0 if high <= 1.0 else 1.0
    return np.rint(pixels * scale).astype(np.uint8)
