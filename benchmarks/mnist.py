"""MNIST from its four idx files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

__all__ = ["load_mnist"]


def load_mnist(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 28, 28) in [0, 1] as float32, and labels as int64; part: train or test."""
    stem = {"train": "train", "test": "t10k"}[part]
    with gzip.open(folder / f"{stem}-images-idx3-ubyte.gz") as stream:
        pixels = np.frombuffer(stream.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(folder / f"{stem}-labels-idx1-ubyte.gz") as stream:
        labels = np.frombuffer(stream.read(), np.uint8, offset=8).astype(np.int64)
    return pixels.astype(np.float32) / 255, labels
