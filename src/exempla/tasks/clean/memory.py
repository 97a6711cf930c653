"""What cleaning takes beside the model and the data as given: less than an explanation does.

The rows are neither whitened nor normalised; only the few questioned ones meet M⁻¹, and what is
left of n rows are a few numbers each: products, their order, and copies on the way. With
R = n·width·itemsize bytes of rows, S = 8·width² of a Fisher and B of a batch of rows the largest of
these counts:

    basis      built
    Fisher     kept + 2S + P                  P: a piece of Fisher rows
    rows       kept + R + 2S + 3B + 58n
"""

from __future__ import annotations

from exempla.fisher.estimate import PIECE_BYTES

__all__ = ["cleaning_bytes"]

LOADED = 13 * 2**20
"""Bytes that modules loaded on the way take."""
BATCH_ROWS = 4096


def cleaning_bytes(
    examples: int, width: int, itemsize: int = 8, kept: int = 0, built: int = 0, models: int = 1
) -> int:
    """Main memory at the peak; arguments as of `embedding.forecast_bytes`.

    >>> round(cleaning_bytes(400_000, 41) / 2**20)
    164
    """
    rows, square = examples * width * itemsize, 8 * width**2
    batch = min(examples, BATCH_ROWS) * width * itemsize
    before = (models - 1) * (kept + rows + square)
    return (
        LOADED
        + before
        + max(
            built,
            kept + 2 * square + min(rows, PIECE_BYTES),
            kept + rows + 2 * square + 3 * batch + 58 * examples,
        )
    )
