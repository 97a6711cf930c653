"""Read the user's data as batches for a network: in order, and more than once.

A source holds the data. Arrays stay arrays. A `Dataset` or `DataLoader` is read through its
dataset, in the dataset's order and with its own collate function, even if the loader shuffles.
Batches for scoring may be larger than the loader's, unless it has a collate function of its own. A
stream (an IterableDataset, a shard reader) has no positions, so it is read once and its examples
are kept in memory. A dataset with random augmentation returns another item at every read: the
random state is set by the position first, so each example has one version.

`CallForm` sorts what a source yields into inputs, labels and weights, from the signature of the
model's forward. The result is a `Batch`, with samples on the first axis of every tensor.
"""

from __future__ import annotations

import copy
import inspect
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from exempla.arrays import is_sparse, leaves, native, refuse_masked, to_numpy, tree_map
from exempla.data import LARGEST_WEIGHT
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.memory import available_memory
from exempla.oracles.base import Examples, as_slice
from exempla.oracles.torch.model import LABEL_KEYS, WEIGHT_KEYS, keep_random_state

_EMPTY = "the data is empty: there is no example to score."
_STREAM_MEMORY_SHARE = 4
"""A stream may fill 1/4 of the free memory."""
_MAX_STREAM_EXAMPLES = 250_000
"""Examples read from a stream before it is taken for endless."""
_ITEMS_AT_ONCE = 64
"""Items read at a time when only their labels are needed."""
_STREAMS: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""What streams have yielded, for as long as they live: every model must see the same examples."""

_Collate = Callable[[list[Any]], Any]
_Piece = tuple[np.ndarray, Any]
"""Positions, and the batch of the examples there."""


def _usable(value: Any) -> Any:
    """Return arrays and frames as tensors, and anything that is not an array unchanged."""
    if is_sparse(value):
        raise ExemplaError("a sparse matrix cannot be given to a network: give X.toarray().")
    if isinstance(value, Tensor):
        return _usable_tensor(value)
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
    array = _readable(native(array))
    return _usable_tensor(torch.as_tensor(array if array.flags.writeable else array.copy()))


def _readable(value: Any) -> Any:
    """Check one part of an item; copy an array with negative strides, which torch cannot read."""
    if isinstance(value, Tensor):
        return _usable_tensor(value)
    reversed_axis = isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides)
    return value.copy() if reversed_axis else value


def _usable_tensor(tensor: Tensor) -> Tensor:
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
        if self.count == 0:
            raise ExemplaError(_EMPTY)

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
        self.name = f"this {type(items).__name__}"
        try:
            self.count = len(items)
        except Exception as error:
            raise ExemplaError(f"the length of {self.name} {_fails(error)}") from error
        if self.count == 0:
            raise ExemplaError(_EMPTY)

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
        with keep_random_state() if self.seeded else nullcontext():
            return [self._item(int(i)) for i in positions]

    def _item(self, i: int) -> Any:
        if self.seeded:
            random.seed(i)
            np.random.seed(i % 2**32)  # noqa: NPY002 - the global one, which datasets use
            torch.manual_seed(i)
        try:
            item = self.items[i]
        except ExemplaError:
            raise
        except IndexError as error:
            raise ExemplaError(
                f"{self.name} states a length of {self.count:,} and has no example {i}: correct "
                "its __len__."
            ) from error
        except Exception as error:
            raise ExemplaError(f"example {i} of {self.name} {_fails(error)}") from error
        if item is None:
            raise ExemplaError(f"example {i} of {self.name} is None: leave it out.")
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


def _fails(error: Exception) -> str:
    return f"cannot be read ({_brief_error(error)}): correct the data set, or leave it out."


def _brief_error(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _has_rows(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


# ---- which source


def source_of(data: Any, pad: _Collate) -> ExampleSource:
    """Return the examples in the user's data; `pad` collates rows with named columns."""
    if isinstance(data, tuple):
        data = tuple(_as_array(x) if isinstance(x, list) else x for x in data)
    if data is None or (isinstance(data, list) and not data):
        raise ExemplaError(_EMPTY)
    data = DataLoader(data) if isinstance(data, IterableDataset) else data
    if isinstance(data, DataLoader):
        return _source_of_loader(data, pad)
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
    return ArraySource(data)


def _collate_of(data: Any, pad: _Collate) -> _Collate:
    """Return how items become a batch if the user has not said so."""
    try:
        rows = len(data) > 0 and hasattr(data[0], "keys")
    except Exception:  # reading the item again gives the sentence
        rows = False
    return pad if rows else default_collate


def _source_of_loader(loader: DataLoader, pad: _Collate) -> ExampleSource:
    """Return a loader's dataset in its own order: shuffling would lose the positions."""
    dataset: Any = loader.dataset
    batches = loader.batch_size is None and loader.batch_sampler is None
    plain = loader.collate_fn is default_collate or batches
    if isinstance(dataset, IterableDataset):
        # without a batch size the stream yields batches, which are split into examples
        dataset = _read_stream(dataset, batches)
    elif hasattr(loader.sampler, "indices"):
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
        return bool(data) and isinstance(data[0], (tuple, dict, list))
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
    fit = int(available_memory() / _STREAM_MEMORY_SHARE / item_bytes)
    limit = min(fit, _MAX_STREAM_EXAMPLES)
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


# ---- batches


@dataclass(frozen=True)
class Batch:
    """Some examples, collated and on the model's device.

    `positions` are those in the data set, `args` and `kwargs` the arguments of the model's forward;
    `given` is the batch as the user's data provides it, for custom likelihoods.
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
        """Return some of the examples."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        parts = vars(self) | {"positions": self.positions[np.asarray(rows)]}
        return Batch(
            **tree_map(lambda t: t[index.to(t.device)] if self._has_samples(t) else t, parts)
        )

    def tensors(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Batch]]:
        """Return every tensor with one row per sample, and a function that replaces them."""
        found = {id(t): t for t in leaves(vars(self)) if self._has_samples(t)}

        def rebuild(values: list[Tensor]) -> Batch:
            new = dict(zip(found, values, strict=True))
            parts = vars(self) | {"positions": self.positions[: len(values[0])]}
            return Batch(**tree_map(lambda t: new.get(id(t), t), parts))

        return list(found.values()), rebuild

    def _has_samples(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == len(self)


def refuse_weights(weights: Any, positions: np.ndarray) -> None:
    """Raise unless there is one finite, nonnegative weight for each example."""
    shape = tuple(getattr(weights, "shape", ()))
    if not isinstance(weights, Tensor) or shape not in ((len(positions),), (len(positions), 1)):
        raise ExemplaError(
            f"weights of shape {shape} were given for {len(positions)} examples: give one number "
            "for each."
        )
    what = f"have a weight that is negative, NaN, infinite or above {LARGEST_WEIGHT:g}"
    refuse_rows(~((weights >= 0) & (weights <= LARGEST_WEIGHT)), positions, what)


def refuse_rows(wrong: Tensor, positions: np.ndarray, what: str) -> None:
    """Raise if any entry is True, naming the examples of these rows by their positions."""
    rows = wrong.reshape(len(wrong), -1).any(1).nonzero()[:, 0].tolist()
    if rows:
        named = ", ".join(str(int(positions[i])) for i in rows[:5])
        more = "…" if len(rows) > 5 else ""
        raise ExemplaError(f"{len(rows)} examples {what} (rows {named}{more}): correct them.")


_Sorted = tuple[tuple[Any, ...], dict[str, Any], Any, Any]
"""Arguments and named arguments of the model's forward, labels, and weights."""


class CallForm:
    """How the model is called, from the signature of its forward."""

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        kinds = inspect.Parameter
        parameters = inspect.signature(model.forward).parameters.values()
        variadic = {p.kind for p in parameters} & {kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD}
        named = [p for p in parameters if p.kind not in variadic]
        positional = [p for p in named if p.kind is not kinds.KEYWORD_ONLY]
        self.names = {p.name for p in named}
        self.min_inputs = sum(p.default is kinds.empty for p in positional)
        self.max_inputs = 99 if kinds.VAR_POSITIONAL in variadic else len(positional)
        self.any_keyword = kinds.VAR_KEYWORD in variadic
        config = getattr(model, "config", None)
        self.takes_labels = bool(getattr(config, "is_encoder_decoder", False))
        """Whether the model makes the decoder's inputs from labels, and therefore needs them."""
        self.classes: int | None = None
        """The number of classes, once it is known that labels are classes."""
        self.any_columns = False
        """Whether a custom likelihood reads batches: then any columns will do."""

    def batch(self, positions: np.ndarray, given: Any) -> Batch:
        """Sort the user's batch into arguments, labels and weights."""
        try:
            args, kwargs, labels, weights = self._sorted(given)
        except ExemplaError:
            if not self.any_columns:
                raise
            args, kwargs, labels, weights = (), {}, None, None
        return Batch(positions, args, kwargs, self._class_numbers(labels), weights, given)

    def moved(self, value: Any) -> Any:
        """Return a tensor on the model's device, and in its precision if it holds reals."""
        if not isinstance(value, Tensor):
            return value
        value = _usable_tensor(value)
        # double precision is NumPy's default and seldom the model's
        dtype = self.dtype if value.is_floating_point() else value.dtype
        return value.to(self.device, dtype, non_blocking=True)

    def _class_numbers(self, labels: Any) -> Any:
        """Return one-hot labels as class numbers, and other labels unchanged."""
        columns = labels.shape[1] if isinstance(labels, Tensor) and labels.ndim == 2 else 0
        if columns < 2 or columns != self.classes:
            return labels
        one_hot = ((labels == 0) | (labels == 1)).all() & (labels.sum(1) == 1).all()
        return labels.long().argmax(1) if bool(one_hot) else labels

    def _sorted(self, given: Any) -> _Sorted:
        if isinstance(given, Tensor):
            return (given,), {}, None, None
        if hasattr(given, "keys"):
            return self._from_dict(given)
        inputs, labels, weights = self._from_tuple(tuple(given))
        if hasattr(inputs, "keys"):
            named = {key: inputs[key] for key in inputs.keys()}  # noqa: SIM118
            return (), named, labels, weights
        args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        return args, {}, labels, weights

    def _from_tuple(self, parts: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        count, required = len(parts), self.min_inputs
        nested = not isinstance(parts[0], Tensor)
        if nested or required <= 1:
            third = parts[2] if count == 3 else None
            one_number = isinstance(third, Tensor) and third.ndim <= 1 and third.is_floating_point()
            if count < 3 or (count == 3 and (one_number or self.max_inputs < 2)):
                inputs = parts[0] if nested else parts[:1]
                return inputs, *(parts[1:] + (None,) * (3 - count))
        elif count == required:
            return parts, None, None
        elif count == required + 2:
            return parts[:required], parts[-2], parts[-1]
        if not nested and count - 1 <= self.max_inputs:
            return parts[:-1], parts[-1], None
        raise ExemplaError(
            f"a row of the data has {count} parts and the model takes {required} to "
            f"{self.max_inputs} inputs: give (inputs…, label) or (inputs…, label, weight)."
        )

    def _from_dict(self, given: Any) -> _Sorted:
        values = {key: given[key] for key in given.keys()}  # noqa: SIM118
        labels, weights = (
            values.pop(next((key for key in keys if key in values), None), None)
            for keys in (LABEL_KEYS, WEIGHT_KEYS)
        )
        inputs = {k: v for k, v in values.items() if isinstance(v, (Tensor, tuple, list, dict))}
        known = {k: v for k, v in inputs.items() if k in self.names}
        if self.takes_labels and isinstance(labels, Tensor) and "decoder_input_ids" not in known:
            known["labels"] = labels
        if known or self.any_keyword:
            # a model that takes any keyword still gets only what it names, if it names something
            return (), known or inputs, labels, weights
        if len(inputs) == 1:
            return tuple(inputs.values()), {}, labels, weights
        raise ExemplaError(
            f"the data has the columns {', '.join(map(str, values))} and the model's forward takes "
            f"{', '.join(sorted(self.names))}: name the columns as the model does."
        )


class TorchExamples(Examples):
    """Examples of a source, in the user's order."""

    checked = False
    """True once all labels and weights have been validated."""

    def __init__(self, source: ExampleSource, form: CallForm, weighted: bool) -> None:
        self.source, self.form = source, form
        self.weighted = weighted
        """Whether weights count; those of test examples do not."""
        self.index = np.arange(source.count)
        self.needs_labels = not form.any_columns

    def __len__(self) -> int:
        return len(self.index)

    def take(self, positions: np.ndarray) -> TorchExamples:
        """Return the examples at these positions, in this order."""
        at, part = np.asarray(positions), copy.copy(self)
        vars(part).pop("labels", None)
        part.index = self.index[at]
        part.ids = None if self.ids is None else np.asarray(self.ids)[at]
        return part

    def read(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the examples from start to stop, on the model's device and in its precision."""
        for rows, given in self.source.read(self.index[start:stop]):
            positions = np.arange(start, start + len(rows))
            start += len(rows)
            batch = self.form.batch(positions, tree_map(self.form.moved, given))
            if not self.weighted:
                batch = replace(batch, weights=None)
            if batch.weights is not None and not self.checked:
                refuse_weights(batch.weights, batch.positions)
            yield batch

    def whole(self) -> Batch:
        """Return all examples of an array source as one batch, without moving them."""
        _, given = next(self.source.read(self.index))
        return self.form.batch(np.arange(len(self)), given)

    @cached_property
    def labels(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The labels, read on first access: a pass over an image folder is not free."""
        if isinstance(self.source, ArraySource):
            labels = self.whole().labels
            return None if labels is None else to_numpy(labels)
        found: list[Any] = []
        for start in range(0, len(self), _ITEMS_AT_ONCE):
            for rows, given in self.source.read(self.index[start : start + _ITEMS_AT_ONCE]):
                labels = self.form.batch(rows, given).labels
                if labels is None:
                    return None
                found.extend(to_numpy(labels))
        same = len({np.shape(x) for x in found}) == 1
        return np.array(found, dtype=None if same else object)
