"""Decode images, so that models and people see the same pixels.

Every image (a file, a Pillow image or an array) becomes 8-bit grey or RGB: rotated according to
EXIF, palettes resolved, transparency on white, 16-bit and float values scaled to 0…255. Only
well-tested decoders are used, up to a maximum number of pixels.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from exempla.errors import ExemplaError

__all__ = ["ImageError", "as_image", "as_pixels", "fitted", "thumbnail", "webp"]

_DECODERS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Pillow's other decoders are less tested, and one of them starts a program."""
MOST_PIXELS = 100_000_000
"""Largest image; a small file can expand to more pixels than fit in memory."""
_DEEPEST = 65_535.0
"""White in a 16-bit image."""


class ImageError(ExemplaError):
    """An image that cannot be read."""


def as_image(picture: Any, largest: int | None = None) -> Image.Image:
    """Return an image in 8-bit grey ("L") or RGB, without metadata.

    `picture` is a path, a Pillow image, or an array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4). If
    no side longer than `largest` is needed, a JPEG may be decoded at a fraction of its size.
    """
    if isinstance(picture, str | Path):
        return _from_file(Path(picture), largest)
    if isinstance(picture, Image.Image):
        with _readable(Path(getattr(picture, "filename", "") or "An image").name):
            return _decoded(picture, None)
    return _plain(Image.fromarray(_array(picture)))


def as_pixels(picture: Any, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return an image as a uint8 array, (h, w) or (h, w, 3); `size` is (height, width)."""
    image = as_image(picture)
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def fitted(image: Image.Image, largest: int) -> Image.Image:
    """Scale the image down so that no side is longer than `largest`."""
    if max(image.size) <= largest:
        return image
    small = image.copy()
    small.thumbnail((largest, largest))
    return small


def webp(
    image: Image.Image, *, quality: int = 80, lossless: bool = False, effort: int = 4
) -> bytes:
    """Encode the pixels as WebP, without metadata."""
    out = io.BytesIO()
    image.save(out, "WEBP", quality=quality, lossless=lossless, method=effort)
    return out.getvalue()


def thumbnail(picture: Any, most: int = 128) -> bytes:
    """Return a WebP with at most `most` pixels per side."""
    return webp(fitted(as_image(picture, most), most))


def _from_file(path: Path, largest: int | None) -> Image.Image:
    if path.suffix.lower() in (".svg", ".svgz"):
        raise ImageError(f"{path.name} is SVG, which can contain scripts; convert it to PNG.")
    if not path.is_file():
        raise ImageError(f"{path.name} cannot be read as an image: there is no such file.")
    with _readable(path.name), Image.open(path, formats=_DECODERS) as opened:
        return _decoded(opened, largest)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn every error in the block into one sentence about this image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except Exception as error:  # Pillow raises many kinds on damaged or hostile files
        reason = str(error).rstrip(".") or type(error).__name__
        raise ImageError(
            f"{name} cannot be read as an image ({reason}); save it again as PNG or JPEG."
        ) from None


def _decoded(image: Image.Image, largest: int | None) -> Image.Image:
    if image.width * image.height > MOST_PIXELS:
        raise OSError(f"{image.width:,} × {image.height:,} pixels are more than {MOST_PIXELS:,}")
    if largest is not None:
        image.draft(None, (2 * largest, 2 * largest))
    return _plain(ImageOps.exif_transpose(image))


def _plain(image: Image.Image) -> Image.Image:
    """Return a copy in grey, if the image is grey, or in RGB on white."""
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits a pixel
        return Image.fromarray(_as_bytes(np.asarray(image)))
    grey = image.mode in ("1", "L")
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    plain = image.convert("L" if grey else "RGB").copy()
    plain.info = {}  # otherwise EXIF data, profiles and comments would be saved with the pixels
    return plain


def _array(values: Any) -> np.ndarray:
    """Return a uint8 array for Pillow, (h, w), (h, w, 3) or (h, w, 4)."""
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        raise ImageError("This image has masked pixels; fill them in (`.filled(value)`) first.")
    pixels = np.asarray(values)
    if pixels.dtype.kind not in "biuf":
        raise ImageError(f"An image must have numbers, not {pixels.dtype}; convert it first.")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] in (3, 4)):
        raise ImageError(
            f"An image must have shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4), not "
            f"{pixels.shape}."
        )
    if not pixels.size or pixels.shape[0] * pixels.shape[1] > MOST_PIXELS:
        raise ImageError(
            f"An image must have 1 to {MOST_PIXELS:,} pixels; this one has shape {pixels.shape}."
        )
    return np.ascontiguousarray(_as_bytes(pixels))


def _as_bytes(values: np.ndarray) -> np.ndarray:
    """Scale numbers to 0…255, by the same rule for files and arrays; NaN becomes black.

    Floats are fractions of white (of their maximum if it exceeds 1). White is 1 (a mask), 255 or
    65,535 for integers: the smallest of these that no value exceeds. Values below zero, as in
    standardised pixels, are scaled from their minimum to their maximum.
    """
    if values.dtype == np.uint8:
        return values
    deep = values.astype(np.float64)
    known = deep[np.isfinite(deep)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    base, top = 0.0, max(high, 1.0)
    if low < 0:
        base, top = low, max(high, low + 1e-12)
    elif values.dtype.kind != "f":
        top = next((t for t in (1.0, 255.0, _DEEPEST) if high <= t), high)
    with np.errstate(over="ignore", invalid="ignore"):
        share = np.nan_to_num((deep - base) / (top - base), nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(share * 255).astype(np.uint8)
