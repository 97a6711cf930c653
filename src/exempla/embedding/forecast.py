"""What a job will take before it begins: memory, and for a store the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from exempla.fisher.estimate import PIECE_BYTES
from exempla.store import shard_height

__all__ = [
    "COMPILING", "LOADING", "forecast_bytes", "forecast_stored", "forecasting", "wanted_forecast",
]  # fmt: skip

LOADING, COMPILING = 40 * 2**20, 100 * 2**20
"""Bytes that modules loaded on the way take, and the compiler of the selection's inner loop."""
READING = 2**27
"""Bytes of the buffers that stored rows are read through."""


def forecast_bytes(
    examples: int, width: int, itemsize: int = 8, kept: int = 0, built: int = 0, models: int = 1
) -> int:
    """Main memory that an explanation takes at its peak, beyond the model and the data as given.

    Rows of `width` numbers of `itemsize` bytes take R = examples·width·itemsize, a Fisher in double
    precision S = 8·width². `kept` is what the basis takes (the dual form's factor and landmarks,
    K-FAC's directions) and inputs transformed once, `built` what finding the basis took. The
    largest of these counts:

        basis       built
        fit         kept + R + 2S + 2B         rows, the Fisher's sum and a batch's share of it, and
                                               a batch of rows twice
        explain     kept + 3R + S (or 3S)      rows, whitened rows, and those of unit length; of
                                               torch's rows the factor's inverse besides
        selection   kept + 2R + S + 48n + C    rows and unit rows, six numbers for each, and the
                                               compiler of the inner loop

    Several models' bases, rows and Fishers stay together, and their whitened rows are put side by
    side, for which torch takes one copy more of them.

    >>> round(forecast_bytes(400_000, 41) / 2**20)
    415
    """
    rows, square = examples * width * itemsize, 8 * width**2
    batch = min(rows, PIECE_BYTES)
    before = (models - 1) * (kept + rows + square)
    metric = models * (kept + square) + (0 if itemsize == 8 else 2 * square)
    rows *= models
    return LOADING + max(
        before + built,
        before + kept + rows // models + 2 * square + 2 * batch,
        metric + (4 if models > 1 and itemsize < 8 else 3) * rows,
        metric + 2 * rows + 48 * examples + COMPILING,
    )


Forecast = Callable[[int, int, int, int, int, int], int]
"""`forecast_bytes`, or one like it for another job."""
_FORECAST: ContextVar[Forecast] = ContextVar("exempla_forecast", default=forecast_bytes)


def wanted_forecast() -> Forecast:
    """The forecast of the job at hand."""
    return _FORECAST.get()


@contextmanager
def forecasting(forecast: Forecast) -> Iterator[None]:
    """What is embedded below this call is for another job than an explanation: the memory it will
    take is that job's."""
    token = _FORECAST.set(forecast)
    try:
        yield
    finally:
        _FORECAST.reset(token)


def forecast_stored(
    examples: int, width: int, itemsize: int = 8, kept: int = 0, built: int = 0, models: int = 1
) -> tuple[int, int]:
    """Main memory and disk that an explanation takes at its peak where its rows are on disk.

    In memory are the basis, the Fisher, two shards while they are made (whitening a shard takes
    three of its size), and in the selection ten numbers for each example and the buffers that rows
    are read through. On disk are the rows, and once more whitened.

    >>> memory, disk = forecast_stored(10_000_000, 256, 4)
    >>> round(memory / 2**30, 1), round(disk / 2**30, 1)
    (1.1, 19.1)
    """
    row, square = width * itemsize, 8 * width**2
    shard = shard_height(examples, row) * row
    metric = models * (kept + square)
    memory = LOADING + max(
        (models - 1) * (kept + square) + built,
        metric + 2 * square + max(4 * shard * models, 2 * min(examples * row, PIECE_BYTES)),
        metric + 80 * examples + min(READING, examples * row) + COMPILING,
    )
    return memory, 2 * models * examples * row
