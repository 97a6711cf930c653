"""What a summary takes beside the model and the data as given.

A: the layer's inputs of all n examples, which are collected in batches and then joined; T: what
the steps of a Pipeline before the last one make of them, once to be read and once to be refitted
on; the candidates' rows of `width` float32 numbers; W = 8·k·width of the picked ones, twice; O:
examples to judge a refit by. The largest of these counts:

    reading     2A + 2T
    rows        A + T + candidates + 3 batches of scores
    choosing    A + T + candidates + compiler of the inner loop + 2W + 2O
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.data import n_rows, take_examples
from exempla.embedding.forecast import COMPILING, LOADING
from exempla.oracles.sklearn.unwrap import unwrap
from exempla.selection.inputs import SMALL
from exempla.tasks.retrain import is_module
from exempla.tasks.summarize.last_layer import LastLayer, read_last_layer
from exempla.tasks.summarize.pool import pool_size
from exempla.tasks.summarize.posterior import BATCH_BYTES, DRAWS, FULL_FISHER, WIDTH
from exempla.tasks.summarize.totals import MOST

__all__ = ["expected_peak"]

LOOKED_AT = 256
"""Examples that are read to see what one takes."""


def expected_peak(
    model: Any, train: Any, k: int, refitted: bool, likelihood: Any, parameters: Any, device: Any
) -> tuple[int, float]:
    """The number of examples, and bytes: most of all at one time. Zeros if it cannot be told yet:
    whatever is wrong is said where it is in the way."""
    try:
        given = train[0] if isinstance(train, tuple) else getattr(train, "dataset", train)
        n = n_rows(given)
        some = np.unique(np.linspace(0, n - 1, LOOKED_AT).astype(np.int64))
        few = read_last_layer(model, take_examples(train, some), likelihood, parameters, device)
        transformed = not is_module(model) and unwrap(model)[0] is not None
        return n, bytes_of(few, n, min(k, n), transformed, refitted)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return 0, 0.0


def bytes_of(few: LastLayer, n: int, k: int, transformed: bool, refitted: bool) -> float:
    """The same, from what a few examples show."""
    row = size_of(few.a) / len(few)
    inputs, p = n * row, few.theta.size
    made = inputs if transformed else 0.0  # once to be read, and once to be refitted on
    refits = made * refitted
    classes = few.theta.shape[1] + 1 if few.discrete else 0
    width = min(DRAWS * p, WIDTH) + classes
    count = min(n, pool_size(k, width))
    fisher = 24.0 * p**2 if p <= FULL_FISHER else 0.0
    pool = 4.0 * count * width
    choosing = 16.0 * k * width + 2.0 * min(n, MOST) * row * refitted
    if count * width > SMALL:
        choosing += COMPILING
    kept = inputs + refits + pool + 24.0 * n + fisher
    return LOADING + max(2 * inputs + made + refits, kept + max(3.0 * BATCH_BYTES, choosing))


def size_of(a: Any) -> int:
    """Bytes of a dense or sparse matrix."""
    return a.data.nbytes + a.indices.nbytes + a.indptr.nbytes if is_sparse(a) else a.nbytes
