"""Small pictures inside the page: WebP, each stored once, the whole under a stated size."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from exempla.images import as_image, fitted, webp

__all__ = ["Gallery", "Thumbnail"]

LARGEST = 128
"""Pixels on the longer side; larger pictures are scaled down, smaller ones kept."""
TINY = 48
"""Up to this size a picture is kept without loss."""
BUDGET = 3_600_000
"""Characters all pictures of a page may take. The ladder below is climbed down until they fit."""
LADDER = ((LARGEST, 80), (LARGEST, 55), (96, 50), (64, 45), (48, 30))


@dataclass(frozen=True)
class Thumbnail:
    """One picture: where the page keeps it, and its size."""

    key: str
    width: int
    height: int


@dataclass
class Gallery:
    """Collects pictures for one page; equal pictures are kept once.

    >>> import numpy as np
    >>> gallery = Gallery()
    >>> a, b = gallery.add(np.zeros((8, 8), np.uint8)), gallery.add(np.zeros((8, 8), np.uint8))
    >>> a.key == b.key, len(gallery.encoded()), gallery.encoded()[0][1][:22]
    (True, 1, 'data:image/webp;base64')
    """

    pictures: dict[str, tuple[Thumbnail, Image.Image]] = field(default_factory=dict)

    def add(self, picture: Any) -> Thumbnail:
        """Keep a picture (array, Pillow image or path) and say where it is."""
        image = fitted(as_image(picture, LARGEST), LARGEST)
        digest = hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()[:16]
        if digest not in self.pictures:
            key = f"p{len(self.pictures)}"
            self.pictures[digest] = (Thumbnail(key, *image.size), image)
        return self.pictures[digest][0]

    def encoded(self) -> list[tuple[Thumbnail, str]]:
        """Every picture with its data address, at the best quality that fits the budget."""
        out: list[tuple[Thumbnail, str]] = []
        for size, quality in LADDER:
            out = [(t, _address(image, size, quality)) for t, image in self.pictures.values()]
            if sum(len(address) for _, address in out) <= BUDGET:
                break
        return out


def _address(image: Image.Image, size: int, quality: int) -> str:
    data = webp(fitted(image, size), quality=quality, lossless=max(image.size) <= TINY)
    return "data:image/webp;base64," + base64.b64encode(data).decode()
