"""A loader's own batches, put together to larger ones where that changes nothing.

A collate function of the user's own is called with as many examples as its loader gives it: it may
pad, or count. What it returns can be joined if every part of it is a tensor with a row for each
example, and neighbouring batches agree in everything but their number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exempla.oracles.torch.inputs.batch import tree_map

__all__ = ["are_joinable", "joined"]

Piece = tuple[np.ndarray, Any]
"""Positions, and the batch of the examples there."""


def are_joinable(collate: Callable[[list[Any]], Any], items: list[Any]) -> bool:
    """Whether batches of these items (three at least) have a row an example in all of their parts.

    Two sizes are tried: a table that has as many rows by chance, or a matrix of pairs of examples,
    keeps to one of them.
    """
    if len(items) < 3:
        return False
    try:
        two, three = collate(items[:2]), collate(items[:3])
    except Exception:  # the function asks for something else: its batches stay as they are
        return False
    return have_rows(two, 2) and have_rows(three, 3) and form_of(two) == form_of(three)


def have_rows(batch: Any, count: int) -> bool:
    parts = leaves(batch)
    return bool(parts) and all(
        isinstance(t, Tensor) and t.layout == torch.strided and t.ndim > 0 and len(t) == count
        for t in parts
    )


def form_of(batch: Any) -> Any:
    """Everything about a batch of tensors but its number of rows."""
    return tree_map(lambda t: (t.dtype, t.device, tuple(t.shape[1:])), batch)


def leaves(batch: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, batch)
    return found


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same rows in the same order, neighbours of one form in one batch.

    >>> pieces = [(np.array([i]), {"x": torch.ones(1, 2 + i // 2)}) for i in range(4)]
    >>> [(p.tolist(), b["x"].shape) for p, b in joined(pieces)]
    [([0, 1], torch.Size([2, 2])), ([2, 3], torch.Size([2, 3]))]
    """
    waiting: list[Piece] = []
    form: Any = None
    for positions, batch in pieces:
        alone = not have_rows(batch, len(positions))
        own = None if alone else form_of(batch)
        if waiting and (alone or own != form):
            yield one_of(waiting)
            waiting = []
        waiting.append((positions, batch))
        form = own
        if alone:
            yield waiting.pop()
    if waiting:
        yield one_of(waiting)


def one_of(pieces: list[Piece]) -> Piece:
    """All of these in one."""
    if len(pieces) == 1:
        return pieces[0]
    columns = iter(zip(*(leaves(batch) for _, batch in pieces), strict=True))
    whole = tree_map(lambda _: torch.cat(next(columns)), pieces[0][1])
    return np.concatenate([positions for positions, _ in pieces]), whole
