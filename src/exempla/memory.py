"""Memory forecasts: how much memory a job needs at its peak, announced once before it starts.

A job that may need much memory says so before it begins, so that you can stop it, choose a smaller
`sketch=`, or keep rows on disk with `store=`. A function computes the peak in bytes beyond the
model and the data as given (`explain_bytes`, `stored_bytes`, or one of another job), and `announce`
prints one line if it is large. Forecasts are tested against the measured peak.

In the formulas below, rows of `width` numbers of `itemsize` bytes take R = examples·width·itemsize
bytes, a Fisher matrix in double precision S = 8·width², and B is one batch of rows. `kept` is the
size of the basis and of inputs that are transformed once; `built` is the peak while the basis is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from exempla.progress import say

MIN_ANNOUNCED_BYTES = 2**28
"""Forecasts below this many bytes are not printed."""
IMPORT_BYTES = 16 * 2**20
"""Memory taken by modules imported during a job."""
PIECE_BYTES = 2**26
"""Fisher rows are summed in pieces of this many bytes: the rows of all classes of one batch may
take far more memory than the factors of the batch."""
_READ_BUFFER_BYTES = 2**27
"""Buffers through which stored rows are read."""
STORE_BYTES = 2**28
"""Peak memory of making and reading stored rows."""
KEPT_WIDTH = 3072
"""Coordinates up to which a metric keeps the Cholesky factors of two dampings, 72 MiB each; those
of torch rows also keep their inverses."""
_COPY_BLOCK_ROWS = 8192
"""Rows that are compared at a time when copies of an example are sought."""
_UNKNOWN_MEMORY = 2**32
"""Bytes assumed to be free where the system does not report it."""

Forecast = Callable[[int, int, int, int, int, int], int]
"""Peak bytes from (examples, width, itemsize, kept, built, models), as `explain_bytes`."""

_INCLUDED: ContextVar[bool] = ContextVar("exempla_memory_included", default=False)


@contextmanager
def _silence() -> Iterator[None]:
    token = _INCLUDED.set(True)
    try:
        yield
    finally:
        _INCLUDED.reset(token)


def announce(needed: float, what: str, disk: float = 0.0) -> AbstractContextManager[None]:
    """Print a memory forecast if it is large; as a context manager, silence those inside.

    `what` is the size of the job in words. A large number of bytes written to `disk` also makes the
    line appear. A job that calls other jobs runs them in the block: ``with announce(…): …``.
    """
    if max(needed, disk) > MIN_ANNOUNCED_BYTES and not _INCLUDED.get():
        say(f"{what}; about {needed / 2**30:.2g} GiB of memory")
    return _silence()


def available_memory(device: Any = None) -> int:
    """Return the free bytes of a GPU, or those of main memory without swapping."""
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:  # includes pages that only cache files
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return _UNKNOWN_MEMORY


def explain_bytes(
    examples: int,
    width: int,
    itemsize: int = 8,
    kept: int = 0,
    built: int = 0,
    models: int = 1,
    inputs: int = 0,
    whitened: bool = True,
) -> int:
    """Return the peak memory of an explanation whose rows are in memory.

    `inputs` is the size of the training inputs if the model is retrained without the examples
    found, which takes a copy of them. The peak is the largest of

        basis       built
        fit         kept + R + 2S + 2B         rows, the Fisher sum, and one batch's share of it
        selection   kept + 2R + 3S + An + C    rows, unit rows, the metric with its two factors
                                               (one above `KEPT_WIDTH`), A = 48 + 4·p/8 bytes per
                                               example (8 ≤ p/8 ≤ 32 steps are checked in a pass),
                                               and C: a copy of the rows of several models, or the
                                               inputs

    `clean` does not whiten the training rows (`whitened=False`): only the queried rows are
    multiplied by M⁻¹.
    """
    rows, square = examples * width * itemsize, 8 * width**2
    before = (models - 1) * (kept + rows + square)
    fit = before + kept + rows + 2 * square + 2 * min(rows, PIECE_BYTES)
    retraining = inputs + 42 * examples if inputs else 0
    if not whitened:
        block = min(examples, _COPY_BLOCK_ROWS) * width * itemsize
        use = before + kept + rows + 3 * square + 3 * block + 58 * examples + retraining
        return IMPORT_BYTES + max(before + built, fit, use)
    single = itemsize < 8  # torch: the inverse of each factor, and another copy of several models
    factors = (2 if width <= KEPT_WIDTH else 1) * (1 + single)
    metric = models * (kept + square * (1 + factors)) + square * single
    joined = 0 if models == 1 else (1 + single) * models * rows
    numbers = 48 + 4 * min(max(width // 8, 8), 32)
    use = metric + 2 * models * rows + numbers * examples + max(joined, retraining)
    return IMPORT_BYTES + max(before + built, fit, use)


def stored_bytes(
    examples: int,
    width: int,
    shard_rows: int,
    itemsize: int = 8,
    kept: int = 0,
    built: int = 0,
    models: int = 1,
) -> tuple[int, int]:
    """Return the peak memory and the disk space of an explanation whose rows are in a store.

    In memory are the basis, the metric, the shards that are made (whitening one of `shard_rows`
    rows takes three times its size), and during selection ten numbers per example and the read
    buffers. On disk are the rows, and a whitened copy of them.
    """
    row, square = width * itemsize, 8 * width**2
    metric = models * (kept + 2 * square)
    memory = IMPORT_BYTES + max(
        (models - 1) * (kept + square) + built,
        metric + 2 * square + max(4 * shard_rows * row * models, 2 * PIECE_BYTES),
        metric + 80 * examples + min(_READ_BUFFER_BYTES, examples * row),
    )
    return memory, 2 * models * examples * row
