"""Whatever the user calls data becomes rows that can be read in order, more than once.

Arrays stay arrays; a `Dataset` or `DataLoader` is read through its dataset, in its order, with
its own collate function, whatever the loader's shuffling. How many examples are read at a time is
the machine's affair, not the loader's: a training batch is small for scoring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from exempla.arrays import is_sparse
from exempla.errors import ExemplaError
from exempla.oracles.torch.inputs.batch import tree_map
from exempla.oracles.torch.inputs.joining import are_joinable, joined
from exempla.oracles.torch.inputs.streams import kept, seeded
from exempla.oracles.torch.inputs.usable import usable

__all__ = ["ArraySource", "ItemSource", "ExampleSource", "source_of"]


class ExampleSource(ABC):
    """Examples by position."""

    batch_size: int | None = None
    """What the user's loader says, which tells what a training step may take; None without one."""
    fixed: bool = False
    """Whether batches have to be of that size."""

    @abstractmethod
    def __len__(self) -> int: ...

    def whole_batches(self, size: int) -> int:
        """So many examples, or a few less where they come several at a time."""
        return size

    @abstractmethod
    def read(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """(positions, collated batch) once, or several times if the examples cannot be stacked."""


class ArraySource(ExampleSource):
    """Arrays with one row per example, nested as the user gave them."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = tree_map(usable, arrays)
        sizes: list[int] = []
        tree_map(lambda t: sizes.append(len(t)) if is_rows(t) else None, self.arrays)
        if not sizes:
            raise ExemplaError("the data holds no array: give (X, y) with one row per example.")
        if len(set(sizes)) > 1:
            raise ExemplaError(
                f"the arrays have different lengths ({', '.join(map(str, sizes))}): "
                "give one row per example in each."
            )
        self.count = sizes[0]

    def __len__(self) -> int:
        return self.count

    def read(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions) and bool((np.diff(positions) == 1).all()):
            index: Any = slice(first, last + 1)  # a view: nothing is copied
        else:
            index = torch.as_tensor(positions)
        yield positions, tree_map(lambda t: t[index] if is_rows(t) else t, self.arrays)


class ItemSource(ExampleSource):
    """A map-style dataset, read item by item and collated."""

    still: bool = False
    """Whether random items are drawn by their position, to be the same at every read."""

    def __init__(
        self, items: Any, collate: Callable[[list[Any]], Any], batch_size: int | None = None
    ) -> None:
        self.items, self.collate, self.batch_size = items, collate, batch_size
        # what torch's own function stacks can be stacked in any number; what another one can, or
        # pads well, is what its loader gives it
        self.collated: int | None = None if collate is default_collate else batch_size
        if self.collated is not None:
            self.fixed = not are_joinable(collate, self._items(range(min(3, len(items)))))

    def __len__(self) -> int:
        return len(self.items)

    def whole_batches(self, size: int) -> int:
        return size - size % self.collated if self.collated and size > self.collated else size

    def item(self, position: int) -> Any:
        """One item, as it was given or, of random ones, as its position draws it."""
        return self._items([position])[0]

    def _items(self, positions: Any) -> list[Any]:
        if not self.still:
            return [self.items[int(i)] for i in positions]
        found = []
        with seeded() as by:
            for i in positions:
                by(int(i))
                found.append(self.items[int(i)])
        return found

    def read(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        step = self.collated or len(positions)
        parts = (positions[i : i + step] for i in range(0, len(positions), step))
        pieces = (piece for part in parts for piece in self._collated(part))
        yield from pieces if self.fixed else joined(pieces)

    def _collated(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        items = self._items(positions)
        try:
            yield positions, self.collate(items)
        except (RuntimeError, ValueError):
            # sizes differ: neighbours of equal size together, in order
            for start, stop in runs([sizes_of(item) for item in items]):
                yield positions[start:stop], self.collate(items[start:stop])


def source_of(data: Any, pad: Callable[[list[Any]], Any]) -> ExampleSource:
    """The rows behind the user's data; raises where they cannot be read twice or in order."""
    if isinstance(data, tuple):
        data = tuple(numbers(x) if isinstance(x, list) else x for x in data)
    if data is None or (isinstance(data, list) and not data):
        raise ExemplaError("the data is empty: there is no example to score.")
    if isinstance(data, DataLoader):
        source = source_of_loader(data, pad)
    elif isinstance(data, IterableDataset):
        source = items_of(kept(data), pad)
    elif isinstance(data, TensorDataset):
        source = ArraySource(data.tensors)
    elif isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        source = ArraySource(tuple(t[list(data.indices)] for t in data.dataset.tensors))
    elif is_items(data):
        source = items_of(data, pad)
    elif hasattr(data, "__next__") or not is_arrays(data):
        raise ExemplaError(
            f"{type(data).__name__} can be read only once or not by position, and the data is "
            "read several times: give arrays (X, y), a Dataset, a DataLoader or a list."
        )
    else:
        source = ArraySource(data)
    if len(source) == 0:
        raise ExemplaError("the data is empty: there is no example to score.")
    return source


def items_of(data: Any, pad: Callable[[list[Any]], Any]) -> ItemSource:
    return ItemSource(data, collate_of(data, pad))


def collate_of(data: Any, pad: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """How items become a batch where the user has not said it."""
    return pad if is_dict_rows(data) else default_collate


def source_of_loader(loader: DataLoader, pad: Callable[[list[Any]], Any]) -> ExampleSource:
    """A loader's dataset in its own order: shuffling would lose which example is which."""
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    plain = loader.collate_fn is default_collate or loader.batch_size is None
    if isinstance(dataset, IterableDataset):
        # without a batch size the stream yields batches, which are read example by example
        items = kept(dataset, batched=loader.batch_size is None)
        collate = collate_of(items, pad) if plain else loader.collate_fn
        return ItemSource(items, collate, loader.batch_size)
    if hasattr(sampler, "indices") and not isinstance(sampler, (RandomSampler, SequentialSampler)):
        raise ExemplaError(
            "this DataLoader reads only part of its dataset: give DataLoader(Subset(dataset, "
            "indices)) instead of a subset sampler, so that positions are those of the subset."
        )
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    source = source_of(dataset, pad) if plain else None
    if isinstance(source, ArraySource):
        source.batch_size = size
        return source
    if len(dataset) == 0:
        raise ExemplaError("the data is empty: there is no example to score.")
    collate = collate_of(dataset, pad) if plain else loader.collate_fn
    return ItemSource(dataset, collate, size)


def is_items(data: Any) -> bool:
    """True for anything with len and positions whose elements are examples."""
    if isinstance(data, (Tensor, np.ndarray, tuple, dict)) or not hasattr(data, "__getitem__"):
        return False
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], (tuple, dict, list)) and not all_arrays(data)
    positions = isinstance(data, (Dataset, Sequence)) or hasattr(data, "column_names")
    return positions and hasattr(data, "__len__") and not isinstance(data, str)


def numbers(values: list[Any]) -> Any:
    """A list of numbers as an array; a list of arrays as it is."""
    if not values or isinstance(values[0], (Tensor, np.ndarray)):
        return values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ExemplaError(
            "the rows of a list have different lengths: pad them, or give a list of (x, y) pairs."
        ) from error


def all_arrays(data: list[Any]) -> bool:
    return all(isinstance(x, (Tensor, np.ndarray)) for x in data)


def is_dict_rows(data: Any) -> bool:
    return len(data) > 0 and hasattr(data[0], "keys")


def is_arrays(data: Any) -> bool:
    if isinstance(data, (tuple, list)):
        return all(is_arrays(x) for x in data)
    if hasattr(data, "keys") and not hasattr(data, "to_numpy") and not isinstance(data, type):
        return all(is_arrays(data[key]) for key in data.keys())  # noqa: SIM118
    if data is None or is_sparse(data) or hasattr(data, "__array__"):
        return True
    return isinstance(data, (Tensor, int, float, str))


def is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def sizes_of(item: Any) -> tuple[Any, ...]:
    """The shapes of everything in an item."""
    sizes: list[Any] = []

    def note(value: Any) -> None:
        sizes.append(tuple(getattr(value, "shape", ())))

    tree_map(note, item)
    return tuple(sizes)


def runs(sizes: list[Any]) -> Iterator[tuple[int, int]]:
    """Neighbours that are equal, as (start, stop)."""
    start = 0
    for i in range(1, len(sizes) + 1):
        if i == len(sizes) or sizes[i] != sizes[start]:
            yield start, i
            start = i
