"""Streams and random items made still: data that reads the same however often it is read.

A stream (an IterableDataset, a shard reader that yields dictionaries) has no positions. It is read
once, and what it yields is kept; an example's position is when it came. A dataset with random
augmentation gives another item at every read: the random state is set by the position first, so
each example has one version, and always that one.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from exempla.arrays import available_memory, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.torch.inputs.batch import tree_map
from exempla.oracles.torch.tape.restore import random_state, restore_random_state

__all__ = ["kept", "seeded", "varies"]

SHARE = 4
"""A stream may fill this fraction of the free memory."""
LOOK_EVERY = 256
_KEPT: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""What streams have yielded, for as long as they live: every model must see the same."""


def kept(stream: Iterable[Any], batched: bool = False) -> list[Any]:
    """Everything the stream yields, read once; of batches their examples one by one."""
    if stream in _KEPT:
        return _KEPT[stream]
    items: list[Any] = []
    room, held = available_memory() / SHARE, 0.0
    for item in stream:
        items += examples_of(item) if batched else [item]
        if len(items) % LOOK_EVERY == 1:
            held = len(items) * bytes_of(items[-1])
        if held > room:
            raise ExemplaError(
                f"a stream has no positions, and the {len(items):,} examples read of it fill a "
                f"{SHARE}th of the free memory without an end: give a map-style Dataset, or "
                "a part of the stream as a list."
            )
    if not items:
        raise ExemplaError("the data is empty: there is no example to score.")
    warnings.warn(
        f"a stream has no positions to refer to: it was read once, its {len(items):,} examples are "
        "kept in memory, and an index says which came when.",
        ExemplaWarning,
        stacklevel=2,
    )
    _KEPT[stream] = items
    return items


def examples_of(batch: Any) -> list[Any]:
    """The examples of a batch, each with its part of every tensor."""
    sizes: list[int] = []
    tree_map(lambda t: sizes.append(len(t)) if has_rows(t) else None, batch)
    if not sizes:
        return [batch]
    return [tree_map(lambda t, i=i: t[i] if has_rows(t) else t, batch) for i in range(sizes[0])]


def has_rows(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


def bytes_of(item: Any) -> float:
    sizes: list[float] = []
    tree_map(lambda t: sizes.append(float(getattr(t, "nbytes", 64))), item)
    return sum(sizes)


def varies(read: Any, positions: Iterable[int]) -> bool:
    """Whether reading one of these positions twice gives different values."""
    return any(not same(read(position), read(position)) for position in positions)


@contextmanager
def seeded() -> Iterator[Any]:
    """A function that sets every random state by a position; all are put back at the end."""
    before = random_state()

    def by(position: int) -> None:
        random.seed(position)
        np.random.seed(position % 2**32)  # noqa: NPY002 - the global one, which datasets use
        torch.manual_seed(position)

    try:
        yield by
    finally:
        restore_random_state(before)


def same(one: Any, other: Any) -> bool:
    """Whether two items hold the same values."""
    left: list[Any] = []
    right: list[Any] = []
    tree_map(left.append, one)
    tree_map(right.append, other)
    pairs = zip(left, right)
    return len(left) == len(right) and all(
        np.array_equal(
            to_numpy(a), to_numpy(b), equal_nan=np.asarray(to_numpy(a)).dtype.kind == "f"
        )
        for a, b in pairs
    )
