"""Turn whatever the user calls data into examples that can be read in order, more than once.

Arrays stay arrays. A `Dataset` or `DataLoader` is read through its dataset, in the dataset's order
and with its own collate function, even if the loader shuffles. Batches for scoring may be larger
than the loader's: a training batch is small for scoring.

A stream (an IterableDataset, a shard reader) has no positions, so it is read once and its examples
are kept in memory. A dataset with random augmentation returns another item at every read: the
random state is set by the position first, so each example has one version.
"""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
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
from exempla.memory import available_memory
from exempla.oracles.factors import as_slice
from exempla.oracles.torch.restore import random_state, restore_random_state

_EMPTY = "the data is empty: there is no example to score."
STREAM_MEMORY_SHARE = 4
"""A stream may fill one part in so many of the free memory."""
MAX_STREAM_EXAMPLES = 250_000
"""Examples read from a stream that states no length before it is taken for endless."""
CHECK_MEMORY_EVERY = 256
"""Examples of a stream between two checks of the memory they take."""
_STREAMS: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""What streams have yielded, for as long as they live: every model must see the same examples."""

_Piece = tuple[np.ndarray, Any]
"""Positions, and the batch of the examples there."""
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores but hardly computes with."""


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
    """Return arrays and frames as tensors, and anything that is not an array unchanged.

    >>> _usable(np.array([1, 2], dtype=">i4"))
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
    array = _forward_strides(native(array))
    return usable_tensor(torch.as_tensor(array if array.flags.writeable else array.copy()))


def _forward_strides(value: Any) -> Any:
    """Copy an array with negative strides (`x[::-1]`), which torch cannot read."""
    if isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides):
        return value.copy()
    return value


def usable_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor in a type that networks compute with; refuse it if it has no real values.

    Raises
    ------
    ExemplaError
        If the tensor is on the meta device, sparse, nested, complex or quantized, or holds whole
        numbers above 2**63.
    """
    uneven = tensor.is_nested or tensor.layout != torch.strided
    for wrong, message in (
        (tensor.is_meta, "a tensor on the meta device has no values: load the data first."),
        (uneven, "a sparse or nested tensor cannot be read by rows: give a dense one."),
        (tensor.is_complex(), "a complex tensor has no likelihood here: give real numbers."),
        (tensor.is_quantized, "a quantized tensor has no gradient: give tensor.dequantize()."),
    ):
        if wrong:
            raise ExemplaError(message)
    if tensor.dtype in _WIDE_UNSIGNED:
        as_signed = tensor.to(torch.int64)
        if bool((as_signed < 0).any()):
            raise ExemplaError("whole numbers above 2**63 cannot be given to a network.")
        tensor = as_signed
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):  # autograd takes no tensor made in inference mode
        return tensor.clone()


class ExampleSource(ABC):
    """Examples by position."""

    batch_size: int | None = None
    """The loader's batch size, which bounds the memory of a training step; None without one."""
    fixed: bool = False
    """Whether batches must have that size."""

    @abstractmethod
    def __len__(self) -> int: ...

    def whole_batches(self, size: int) -> int:
        """Round a batch size down to a multiple of what the collate function takes."""
        return size

    @abstractmethod
    def read(self, positions: np.ndarray) -> Iterator[_Piece]:
        """Yield (positions, collated batch), in several pieces if examples cannot be stacked."""

    def fix_augmentation(self) -> None:  # noqa: B027 - arrays have none
        """Warn if two reads of an item differ, and seed the reads if that makes them equal."""


class ArraySource(ExampleSource):
    """Arrays with one row per example, nested as the user gave them."""

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
        index = as_slice(positions)
        yield positions, tree_map(lambda t: t[index] if _has_rows(t) else t, self.arrays)


class _ItemSource(ExampleSource):
    """A map-style dataset, read item by item and collated."""

    seeded: bool = False
    """Whether the random state is set by the position before an item is read."""

    def __init__(
        self, items: Any, collate: Callable[[list[Any]], Any], batch_size: int | None = None
    ) -> None:
        self.items, self.collate, self.batch_size = items, collate, batch_size
        try:
            self.count = len(items)
        except Exception as error:
            raise ExemplaError(f"the length of this {_kind(items)} {_fails(error)}") from error
        if self.count == 0:
            raise ExemplaError(_EMPTY)
        # torch's default_collate can stack any number of examples; another function may pad or
        # count, so it is called with as many as its loader gives it
        self.collated: int | None = None if collate is default_collate else batch_size
        if self.collated is not None:
            self.fixed = not are_joinable(collate, self._items(range(min(3, self.count))))

    def __len__(self) -> int:
        return self.count

    def whole_batches(self, size: int) -> int:
        return size - size % self.collated if self.collated and size > self.collated else size

    def fix_augmentation(self) -> None:
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
        step = self.collated or len(positions)
        parts = (positions[i : i + step] for i in range(0, len(positions), step))
        pieces = (piece for part in parts for piece in self._collate(part))
        yield from pieces if self.fixed else joined(pieces)

    def _collate(self, positions: np.ndarray) -> Iterator[_Piece]:
        items = self._items(positions)
        try:
            yield positions, self.collate(items)
            return
        except (RuntimeError, ValueError):
            pass  # sizes differ: collate neighbours of equal size, in order
        except (TypeError, KeyError, AttributeError) as error:
            raise self._no_batch(positions, error) from error
        start = 0
        for _, same in groupby(_shapes(item) for item in items):
            stop = start + len(list(same))
            try:
                yield positions[start:stop], self.collate(items[start:stop])
            except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
                raise self._no_batch(positions[start:stop], error) from error
            start = stop

    @staticmethod
    def _no_batch(positions: np.ndarray, error: Exception) -> ExemplaError:
        if isinstance(error, ExemplaError):
            return error
        which = f"examples {positions[0]} to {positions[-1]}"
        return ExemplaError(
            f"{which} cannot be collated to a batch ({_brief_error(error)}): give every example "
            "the same parts, or a DataLoader with a collate_fn."
        )


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


def _shapes(item: Any) -> list[Any]:
    return [tuple(getattr(value, "shape", ())) for value in leaves(item)]


# ---- which source


def source_of(data: Any, pad: Callable[[list[Any]], Any]) -> ExampleSource:
    """Return the examples in the user's data.

    Parameters
    ----------
    data
        Arrays, a Dataset, a DataLoader, a stream, or a list of examples.
    pad : callable
        Collate function for rows with named columns.

    Raises
    ------
    ExemplaError
        If the data is empty, or cannot be read twice and by position.
    """
    if isinstance(data, tuple):
        data = tuple(_as_array(x) if isinstance(x, list) else x for x in data)
    if data is None or (isinstance(data, list) and not data):
        raise ExemplaError(_EMPTY)
    if isinstance(data, DataLoader):
        source = _source_of_loader(data, pad)
    elif isinstance(data, IterableDataset):
        items = read_stream(data)
        source = _ItemSource(items, _collate_of(items, pad))
    elif isinstance(data, TensorDataset):
        source = ArraySource(data.tensors)
    elif isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        source = ArraySource(tuple(t[list(data.indices)] for t in data.dataset.tensors))
    elif _is_items(data):
        source = _ItemSource(data, _collate_of(data, pad))
    elif hasattr(data, "__next__") or not _is_arrays(data):
        raise ExemplaError(
            f"{type(data).__name__} can be read only once or not by position, and the data is "
            "read several times: give arrays (X, y), a Dataset, a DataLoader or a list."
        )
    else:
        source = ArraySource(data)
    if len(source) == 0:
        raise ExemplaError(_EMPTY)
    return source


def _collate_of(data: Any, pad: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return how items become a batch if the user has not said so."""
    try:
        rows = len(data) > 0 and hasattr(data[0], "keys")
    except Exception:  # reading the item again gives the sentence
        rows = False
    return pad if rows else default_collate


def _source_of_loader(loader: DataLoader, pad: Callable[[list[Any]], Any]) -> ExampleSource:
    """Return a loader's dataset in its own order: shuffling would lose the positions."""
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    plain = loader.collate_fn is default_collate or loader.batch_size is None
    if isinstance(dataset, IterableDataset):
        # without a batch size the stream yields batches, which are split into examples
        items = read_stream(dataset, batched=loader.batch_size is None)
        collate = _collate_of(items, pad) if plain else loader.collate_fn
        return _ItemSource(items, collate, loader.batch_size)
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
    return _ItemSource(dataset, _collate_of(dataset, pad) if plain else loader.collate_fn, size)


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


# ---- batches of a collate function, joined to larger ones


def are_joinable(collate: Callable[[list[Any]], Any], items: list[Any]) -> bool:
    """Return True if batches of these items have one row per example in all of their parts.

    Two sizes are tried, because a table may have the number of rows of one of them by chance.
    """
    if len(items) < 3:
        return False
    try:
        two, three = collate(items[:2]), collate(items[:3])
    except Exception:  # the function needs something else: its batches stay as they are
        return False
    return _is_stacked(two, 2) and _is_stacked(three, 3) and _form_of(two) == _form_of(three)


def _is_stacked(batch: Any, count: int) -> bool:
    parts = leaves(batch)
    return bool(parts) and all(
        isinstance(t, Tensor) and t.layout == torch.strided and t.ndim > 0 and len(t) == count
        for t in parts
    )


def _form_of(batch: Any) -> Any:
    """Describe everything about a batch of tensors except its number of rows."""
    return tree_map(lambda t: (t.dtype, t.device, tuple(t.shape[1:])), batch)


def joined(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """Yield the same rows in the same order, with neighbours of one form in one batch.

    >>> pieces = [(np.array([i]), {"x": torch.ones(1, 2 + i // 2)}) for i in range(4)]
    >>> [(p.tolist(), b["x"].shape) for p, b in joined(pieces)]
    [([0, 1], torch.Size([2, 2])), ([2, 3], torch.Size([2, 3]))]
    """
    waiting: list[_Piece] = []
    form: Any = None
    for positions, batch in pieces:
        own = _form_of(batch) if _is_stacked(batch, len(positions)) else None
        if waiting and (own is None or own != form):
            yield _concatenated(waiting)
            waiting = []
        if own is None:
            yield positions, batch
        else:
            waiting.append((positions, batch))
            form = own
    if waiting:
        yield _concatenated(waiting)


def _concatenated(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    columns = iter(zip(*(leaves(batch) for _, batch in pieces), strict=True))
    whole = tree_map(lambda _: torch.cat(next(columns)), pieces[0][1])
    return np.concatenate([positions for positions, _ in pieces]), whole


# ---- streams


def read_stream(stream: Any, batched: bool = False) -> list[Any]:
    """Read everything the stream yields, once; split batches into their examples.

    Raises
    ------
    ExemplaError
        If the stream is empty, fills the memory, or states no length and does not end within
        `MAX_STREAM_EXAMPLES` examples.
    """
    if stream in _STREAMS:
        return _STREAMS[stream]
    try:
        length = len(stream)
    except (TypeError, NotImplementedError, AttributeError):
        length = None
    items: list[Any] = []
    room, held = available_memory() / STREAM_MEMORY_SHARE, 0.0
    for item in stream if length is None else islice(stream, length):
        items += _examples_of(item) if batched else [item]
        if len(items) % CHECK_MEMORY_EVERY == 1:
            held = len(items) * sum(float(getattr(t, "nbytes", 64)) for t in leaves(items[-1]))
        if held > room or (length is None and len(items) > MAX_STREAM_EXAMPLES):
            why = f"fill a {STREAM_MEMORY_SHARE}th of the free memory" if held > room else "came"
            raise ExemplaError(
                f"this stream states no length or a large one, and {len(items):,} examples of it "
                f"{why} without an end: give a map-style Dataset, a part of the stream as a list, "
                "or define its __len__."
            )
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
