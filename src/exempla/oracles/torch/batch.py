"""A batch as the model takes it: arguments, labels and weights, all with samples first.

A loader's own batches, put together to larger ones where that changes nothing.

A collate function of the user's own is called with as many examples as its loader gives it: it may
pad, or count. What it returns can be joined if every part of it is a tensor with a row for each
example, and neighbouring batches agree in everything but their number of rows.

What can be given to a network: real numbers that are there, and weights that weigh.

Streams and random items made still: data that reads the same however often it is read.

A stream (an IterableDataset, a shard reader that yields dictionaries) has no positions. It is read
once, and what it yields is kept; an example's position is when it came. A dataset with random
augmentation gives another item at every read: the random state is set by the position first, so
each example has one version, and always that one.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from exempla.arrays import is_sparse, native, refuse_masked, to_numpy
from exempla.data import LARGEST_WEIGHT
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.memory import available_memory
from exempla.oracles.torch.restore import random_state, restore_random_state


@dataclass(frozen=True)
class Batch:
    """Some examples, collated and on the model's device.

    Attributes
    ----------
    positions : (n,) int64 array
        Where the examples stand in the data set.
    args, kwargs
        What the model is called with.
    labels, weights : tensors or None
    given
        The batch as the user's data gave it, for likelihoods of the user's own.
    """

    positions: np.ndarray
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Any
    weights: Tensor | None
    given: Any

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: Any) -> Batch:
        """Some of the examples."""
        n, index = len(self), torch.as_tensor(np.asarray(rows, dtype=np.int64))

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == n:
                return value[index.to(value.device)]
            return value

        fields = ("args", "kwargs", "labels", "weights", "given")
        picked = {name: tree_map(pick, getattr(self, name)) for name in fields}
        return replace(self, positions=self.positions[np.asarray(rows)], **picked)

    def tensors(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Batch]]:
        """Every tensor that has one row per sample, and how to put others in their place."""
        n = len(self)
        found: dict[int, Tensor] = {}

        def collect(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == n:
                found.setdefault(id(value), value)
            return value

        fields = ("args", "kwargs", "labels", "given")
        for name in fields:
            tree_map(collect, getattr(self, name))
        order = list(found)

        def rebuild(values: list[Tensor]) -> Batch:
            new = dict(zip(order, values, strict=True))
            parts = {
                name: tree_map(lambda v: new.get(id(v), v), getattr(self, name)) for name in fields
            }
            return replace(self, positions=self.positions[: len(values[0])], **parts)

        return list(found.values()), rebuild


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The function applied to every leaf of nested lists, tuples and dictionaries."""
    if hasattr(tree, "__array__"):
        return function(tree)
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        return {key: tree_map(function, tree[key]) for key in tree.keys()}  # noqa: SIM118
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, v) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, v) for v in tree)
    return function(tree)


_Piece = tuple[np.ndarray, Any]
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
    return _have_rows(two, 2) and _have_rows(three, 3) and _form_of(two) == _form_of(three)


def _have_rows(batch: Any, count: int) -> bool:
    parts = leaves(batch)
    return bool(parts) and all(
        isinstance(t, Tensor) and t.layout == torch.strided and t.ndim > 0 and len(t) == count
        for t in parts
    )


def _form_of(batch: Any) -> Any:
    """Everything about a batch of tensors but its number of rows."""
    return tree_map(lambda t: (t.dtype, t.device, tuple(t.shape[1:])), batch)


def leaves(batch: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, batch)
    return found


def joined(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """The same rows in the same order, neighbours of one form in one batch.

    >>> pieces = [(np.array([i]), {"x": torch.ones(1, 2 + i // 2)}) for i in range(4)]
    >>> [(p.tolist(), b["x"].shape) for p, b in joined(pieces)]
    [([0, 1], torch.Size([2, 2])), ([2, 3], torch.Size([2, 3]))]
    """
    waiting: list[_Piece] = []
    form: Any = None
    for positions, batch in pieces:
        alone = not _have_rows(batch, len(positions))
        own = None if alone else _form_of(batch)
        if waiting and (alone or own != form):
            yield _one_of(waiting)
            waiting = []
        waiting.append((positions, batch))
        form = own
        if alone:
            yield waiting.pop()
    if waiting:
        yield _one_of(waiting)


def _one_of(pieces: list[_Piece]) -> _Piece:
    """All of these in one."""
    if len(pieces) == 1:
        return pieces[0]
    columns = iter(zip(*(leaves(batch) for _, batch in pieces), strict=True))
    whole = tree_map(lambda _: torch.cat(next(columns)), pieces[0][1])
    return np.concatenate([positions for positions, _ in pieces]), whole


_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores and hardly computes with."""


def usable(value: Any) -> Any:
    """Arrays and frames as tensors; anything that is no array as it is.

    >>> usable(np.array([1, 2], dtype=">i4"))
    tensor([1, 2], dtype=torch.int32)
    """
    if is_sparse(value):
        raise ExemplaError("a sparse matrix cannot be given to a network: give X.toarray().")
    if isinstance(value, Tensor):
        return usable_tensor(value)
    if not hasattr(value, "__array__"):
        return value
    refuse_masked(value, "the data")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ExemplaError(
            f"an array of type {array.dtype} cannot be given to a network: encode it as numbers "
            "(class labels as 0, 1, 2, …; for raw texts give a pipeline, which has a tokenizer)."
        )
    if array.dtype.itemsize > 8:  # torch has no longer numbers
        array = array.astype(np.float64)
    array = native(array)
    return usable_tensor(torch.as_tensor(array if array.flags.writeable else array.copy()))


def usable_tensor(tensor: Tensor) -> Tensor:
    """The tensor, in a type that networks compute with; refused if it holds no real numbers."""
    if tensor.is_meta:
        raise ExemplaError("a tensor on the meta device has no values: load the data first.")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise ExemplaError("a sparse or nested tensor cannot be read by rows: give a dense one.")
    if tensor.is_complex():
        raise ExemplaError("a complex tensor has no likelihood here: give real numbers.")
    if tensor.is_quantized:
        raise ExemplaError("a quantized tensor has no gradient: give tensor.dequantize().")
    if tensor.dtype in _WIDE_UNSIGNED:
        as_signed = tensor.to(torch.int64)
        if bool((as_signed < 0).any()):
            raise ExemplaError("whole numbers above 2**63 cannot be given to a network.")
        tensor = as_signed
    # one made in inference mode cannot take part in a backward pass
    return tensor.clone() if tensor.is_inference() else tensor


def refuse_weights(weights: Any, positions: np.ndarray) -> None:
    """Raise unless there is one weight for each example, finite and not negative."""
    shape = tuple(getattr(weights, "shape", ()))
    if not isinstance(weights, Tensor) or shape not in ((len(positions),), (len(positions), 1)):
        raise ExemplaError(
            f"weights of shape {shape} were given for {len(positions)} examples: give one number "
            "for each."
        )
    wrong = ~(weights.isfinite() & (weights >= 0))
    refuse_rows(wrong, positions, "have a weight that is negative, NaN or infinite")
    what = f"have a weight above {LARGEST_WEIGHT:g}, and sums of it overflow"
    refuse_rows(weights > LARGEST_WEIGHT, positions, what)


def refuse_rows(wrong: Tensor, positions: np.ndarray, what: str) -> None:
    """Raise, naming the examples by their positions, if any entry of their rows is wrong."""
    rows = wrong.reshape(len(wrong), -1).any(1).nonzero()[:, 0].tolist()
    if rows:
        named = ", ".join(str(int(positions[i])) for i in rows[:5])
        more = "…" if len(rows) > 5 else ""
        raise ExemplaError(f"{len(rows)} examples {what} (rows {named}{more}): correct them.")


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
        items += _examples_of(item) if batched else [item]
        if len(items) % LOOK_EVERY == 1:
            held = len(items) * _bytes_of(items[-1])
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


def _examples_of(batch: Any) -> list[Any]:
    """The examples of a batch, each with its part of every tensor."""
    sizes: list[int] = []
    tree_map(lambda t: sizes.append(len(t)) if _has_rows(t) else None, batch)
    if not sizes:
        return [batch]
    return [tree_map(lambda t, i=i: t[i] if _has_rows(t) else t, batch) for i in range(sizes[0])]


def _has_rows(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


def _bytes_of(item: Any) -> float:
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
