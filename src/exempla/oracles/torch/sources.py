"""Turn whatever the user calls data into examples that can be read in order, more than once.

Arrays stay arrays. A `Dataset` or `DataLoader` is read through its dataset, in the dataset's order
and with its own collate function, even if the loader shuffles. Batches for scoring may be larger
than the loader's, unless it has a collate function of its own.

A stream (an IterableDataset, a shard reader) has no positions, so it is read once and its examples
are kept in memory. A dataset with random augmentation returns another item at every read: the
random state is set by the position first, so each example has one version.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

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

from exempla.arrays import is_sparse, native, refuse_masked, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.factors import as_slice
from exempla.oracles.torch.restore import random_state, restore_random_state
from exempla.progress import available_memory

_EMPTY = "the data is empty: there is no example to score."
STREAM_MEMORY_SHARE = 4
"""A stream may fill one part in so many of the free memory."""
MAX_STREAM_EXAMPLES = 250_000
"""Examples read from a stream before it is taken for endless."""
_STREAMS: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""What streams have yielded, for as long as they live: every model must see the same examples."""

_Collate = Callable[[list[Any]], Any]
_Piece = tuple[np.ndarray, Any]
"""Positions, and the batch of the examples there."""


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply the function to every leaf of nested lists, tuples and dictionaries."""
    if hasattr(tree, "__array__"):
        return function(tree)
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        return {key: tree_map(function, tree[key]) for key in tree.keys()}  # noqa: SIM118
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, v) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, v) for v in tree)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves that `tree_map` visits, in order."""
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def _usable(value: Any) -> Any:
    """Return arrays and frames as tensors, and anything that is not an array unchanged."""
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
    array = _forward_strides(native(array))
    return usable_tensor(torch.as_tensor(array if array.flags.writeable else array.copy()))


def _forward_strides(value: Any) -> Any:
    """Copy an array with negative strides (`x[::-1]`), which torch cannot read."""
    if isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides):
        return value.copy()
    return value


def usable_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor in a type that networks compute with; refuse one without real values."""
    if tensor.is_meta:
        raise ExemplaError("a tensor on the meta device has no values: load the data first.")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise ExemplaError("a sparse or nested tensor cannot be read by rows: give a dense one.")
    if tensor.is_complex() or tensor.is_quantized:
        raise ExemplaError("a complex or quantized tensor cannot be scored: give real numbers.")
    unsigned = (torch.uint16, torch.uint32, torch.uint64)  # torch hardly computes with them
    if tensor.dtype in unsigned:
        tensor = tensor.to(torch.int64)
        if bool((tensor < 0).any()):
            raise ExemplaError("whole numbers above 2**63 cannot be given to a network.")
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):  # autograd takes no tensor made in inference mode
        return tensor.clone()


class ArraySource:
    """Arrays with one row per example, nested as the user gave them."""

    batch_size = None
    """Batches may have any size."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = tree_map(_usable, arrays)
        sizes = [len(t) for t in leaves(self.arrays) if _has_rows(t)]
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

    def read(self, positions: np.ndarray) -> Iterator[_Piece]:
        """Yield the positions and the rows there."""
        index = as_slice(positions)
        yield positions, tree_map(lambda t: t[index] if _has_rows(t) else t, self.arrays)


class ItemSource:
    """A map-style dataset, read item by item and collated, `batch_size` at a time if it is given.

    The user's own collate function may pad or count: it gets as many as its loader gives it.
    """

    seeded: bool = False
    """Whether the random state is set by the position before an item is read."""

    def __init__(self, items: Any, collate: _Collate, batch_size: int | None = None) -> None:
        self.items, self.collate, self.batch_size = items, collate, batch_size
        try:
            self.count = len(items)
        except Exception as error:
            raise ExemplaError(f"the length of this {_kind(items)} {_fails(error)}") from error
        if self.count == 0:
            raise ExemplaError(_EMPTY)

    def __len__(self) -> int:
        return self.count

    def fix_augmentation(self) -> None:
        """Warn if two reads of an item differ, and seed the reads if that makes them equal."""
        if not self._varies():
            return
        self.seeded = True
        what = (
            "the scores are of one random version of each; give the dataset without augmentation."
        )
        if not self._varies():
            what = "each is scored in one version, drawn by its position, the same at every read."
        warnings.warn(
            f"reading an example twice gives different values (random augmentation?): {what}",
            ExemplaWarning,
            stacklevel=4,
        )

    def _varies(self) -> bool:
        """Return True if reading one of a few items twice gives different values."""
        some = sorted({0, self.count // 2, self.count - 1})
        return any(not _same(*self._items([i]), *self._items([i])) for i in some)

    def _items(self, positions: Iterable[int]) -> list[Any]:
        if not self.seeded:
            return [self._item(int(i)) for i in positions]
        before, found = random_state(), []
        try:
            for i in map(int, positions):
                random.seed(i)
                np.random.seed(i % 2**32)  # noqa: NPY002 - the global one, which datasets use
                torch.manual_seed(i)
                found.append(self._item(i))
        finally:
            restore_random_state(before)
        return found

    def _item(self, i: int) -> Any:
        try:
            item = self.items[i]
        except ExemplaError:
            raise
        except IndexError as error:
            raise ExemplaError(
                f"this {_kind(self.items)} states a length of {self.count:,} and has no example "
                f"{i}: correct its __len__."
            ) from error
        except Exception as error:
            what = f"example {i} of this {_kind(self.items)}"
            raise ExemplaError(f"{what} {_fails(error)}") from error
        if item is None:
            raise ExemplaError(f"example {i} of this {_kind(self.items)} is None: leave it out.")
        return tree_map(_readable, item)

    def read(self, positions: np.ndarray) -> Iterator[_Piece]:
        """Yield (positions, collated batch), in several pieces if examples cannot be stacked."""
        step = self.batch_size or len(positions) or 1
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            yield from self._collated(part, self._items(part))

    def _collated(self, positions: np.ndarray, items: list[Any]) -> list[_Piece]:
        """Return the items as one batch, or neighbours of equal size as one batch each."""
        try:
            return [(positions, self.collate(items))]
        except ExemplaError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            shapes = [[getattr(x, "shape", ()) for x in leaves(item)] for item in items]
            ends = [i for i in range(1, len(items)) if shapes[i] != shapes[i - 1]]
            if not ends or not isinstance(error, (RuntimeError, ValueError)):
                which = f"examples {positions[0]} to {positions[-1]}"
                raise ExemplaError(
                    f"{which} cannot be collated to a batch ({_brief_error(error)}): give every "
                    "example the same parts, or a DataLoader with a collate_fn."
                ) from error
        cuts = zip([0, *ends], [*ends, len(items)], strict=True)
        return [p for a, b in cuts for p in self._collated(positions[a:b], items[a:b])]


ExampleSource = ArraySource | ItemSource


def _kind(items: Any) -> str:
    return type(items).__name__


def _fails(error: Exception) -> str:
    return f"cannot be read ({_brief_error(error)}): correct the data set, or leave it out."


def _brief_error(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _readable(value: Any) -> Any:
    """Check one part of an item before it is collated."""
    return usable_tensor(value) if isinstance(value, Tensor) else _forward_strides(value)


def _has_rows(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


# ---- which source


def source_of(data: Any, pad: _Collate) -> ExampleSource:
    """Return the examples in the user's data; `pad` collates rows with named columns."""
    if isinstance(data, tuple):
        data = tuple(_as_array(x) if isinstance(x, list) else x for x in data)
    if data is None or (isinstance(data, list) and not data):
        raise ExemplaError(_EMPTY)
    if isinstance(data, DataLoader):
        return _source_of_loader(data, pad)
    if isinstance(data, IterableDataset):
        items = _read_stream(data)
        return ItemSource(items, _collate_of(items, pad))
    if isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        data = tuple(t[list(data.indices)] for t in data.dataset.tensors)
    data = data.tensors if isinstance(data, TensorDataset) else data
    if _is_items(data):
        return ItemSource(data, _collate_of(data, pad))
    if hasattr(data, "__next__") or not _is_arrays(data):
        raise ExemplaError(
            f"{type(data).__name__} can be read only once or not by position, and the data is "
            "read several times: give arrays (X, y), a Dataset, a DataLoader or a list."
        )
    source = ArraySource(data)
    if len(source) == 0:
        raise ExemplaError(_EMPTY)
    return source


def _collate_of(data: Any, pad: _Collate) -> _Collate:
    """Return how items become a batch if the user has not said so."""
    try:
        rows = len(data) > 0 and hasattr(data[0], "keys")
    except Exception:  # reading the item again gives the sentence
        rows = False
    return pad if rows else default_collate


def _source_of_loader(loader: DataLoader, pad: _Collate) -> ExampleSource:
    """Return a loader's dataset in its own order: shuffling would lose the positions."""
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    batches = loader.batch_size is None and loader.batch_sampler is None
    plain = loader.collate_fn is default_collate or batches
    if isinstance(dataset, IterableDataset):
        # without a batch size the stream yields batches, which are split into examples
        dataset = _read_stream(dataset, batches)
    elif hasattr(sampler, "indices") and not isinstance(
        sampler, (RandomSampler, SequentialSampler)
    ):
        raise ExemplaError(
            "this DataLoader reads only part of its dataset: give DataLoader(Subset(dataset, "
            "indices)) instead of a subset sampler, so that positions are those of the subset."
        )
    elif plain:
        return source_of(dataset, pad)
    if plain:
        return ItemSource(dataset, _collate_of(dataset, pad))
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return ItemSource(dataset, loader.collate_fn, size)


def _is_items(data: Any) -> bool:
    """Return True for anything with a length and positions whose elements are examples."""
    if isinstance(data, (Tensor, np.ndarray, tuple, dict)) or not hasattr(data, "__getitem__"):
        return False
    if isinstance(data, list):
        arrays = all(isinstance(x, (Tensor, np.ndarray)) for x in data)
        return bool(data) and isinstance(data[0], (tuple, dict, list)) and not arrays
    positions = isinstance(data, (Dataset, Sequence)) or hasattr(data, "column_names")
    return positions and hasattr(data, "__len__") and not isinstance(data, str)


def _as_array(values: list[Any]) -> Any:
    """Return a list of numbers as an array, and a list of arrays unchanged."""
    if not values or isinstance(values[0], (Tensor, np.ndarray)):
        return values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ExemplaError(
            "the rows of a list have different lengths: pad them, or give a list of (x, y) pairs."
        ) from error


def _is_arrays(data: Any) -> bool:
    if isinstance(data, (tuple, list)):
        return all(_is_arrays(x) for x in data)
    if hasattr(data, "keys") and not hasattr(data, "to_numpy") and not isinstance(data, type):
        return all(_is_arrays(data[key]) for key in data.keys())  # noqa: SIM118
    if data is None or is_sparse(data) or hasattr(data, "__array__"):
        return True
    return isinstance(data, (Tensor, int, float, str))


def _read_stream(stream: Any, batched: bool = False) -> list[Any]:
    """Read everything the stream yields, once; split batches into their examples."""
    if stream in _STREAMS:
        return _STREAMS[stream]
    reader = iter(stream)
    items = list(islice(reader, 1))
    item_bytes = 64 + sum(getattr(t, "nbytes", 64) for t in leaves(items))
    limit = int(available_memory() / STREAM_MEMORY_SHARE / item_bytes)
    limit = min(limit, MAX_STREAM_EXAMPLES)
    items += islice(reader, limit)
    if len(items) > limit:
        raise ExemplaError(
            f"{limit:,} examples of this stream came without an end: give a map-style Dataset, or "
            "the part of the stream to use as a list."
        )
    items = [one for item in items for one in _examples_of(item)] if batched else items
    if not items:
        raise ExemplaError(_EMPTY)
    warnings.warn(
        f"a stream has no positions: it was read once, its {len(items):,} examples are kept in "
        "memory, and indices count them in the order in which they came.",
        ExemplaWarning,
        stacklevel=2,
    )
    _STREAMS[stream] = items
    return items


def _examples_of(batch: Any) -> list[Any]:
    """Return the examples of a batch, each with its part of every tensor."""
    sizes = [len(t) for t in leaves(batch) if _has_rows(t)]
    if not sizes:
        return [batch]
    return [tree_map(lambda t, i=i: t[i] if _has_rows(t) else t, batch) for i in range(sizes[0])]


def _same(one: Any, other: Any) -> bool:
    """Return True if two items hold the same values."""
    left, right = ([np.asarray(to_numpy(x)) for x in leaves(item)] for item in (one, other))
    return len(left) == len(right) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(left, right)
    )
