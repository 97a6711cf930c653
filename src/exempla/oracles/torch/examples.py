"""Examples as a network takes them: which part of a row is input, label or weight.

Whatever the user calls data becomes rows that can be read in order, more than once.

Arrays stay arrays; a `Dataset` or `DataLoader` is read through its dataset, in its order, with
its own collate function, whatever the loader's shuffling. How many examples are read at a time is
the machine's affair, not the loader's: a training batch is small for scoring.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
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

from exempla.arrays import is_sparse, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.base import Examples
from exempla.oracles.torch.batch import (
    Batch,
    are_joinable,
    joined,
    kept,
    refuse_weights,
    seeded,
    tree_map,
    usable,
    usable_tensor,
    varies,
)


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
        tree_map(lambda t: sizes.append(len(t)) if _is_rows(t) else None, self.arrays)
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
        yield positions, tree_map(lambda t: t[index] if _is_rows(t) else t, self.arrays)


class _ItemSource(ExampleSource):
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
            for start, stop in runs([_sizes_of(item) for item in items]):
                yield positions[start:stop], self.collate(items[start:stop])


def source_of(data: Any, pad: Callable[[list[Any]], Any]) -> ExampleSource:
    """The rows behind the user's data; raises where they cannot be read twice or in order."""
    if isinstance(data, tuple):
        data = tuple(numbers(x) if isinstance(x, list) else x for x in data)
    if data is None or (isinstance(data, list) and not data):
        raise ExemplaError("the data is empty: there is no example to score.")
    if isinstance(data, DataLoader):
        source = _source_of_loader(data, pad)
    elif isinstance(data, IterableDataset):
        source = _items_of(kept(data), pad)
    elif isinstance(data, TensorDataset):
        source = ArraySource(data.tensors)
    elif isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        source = ArraySource(tuple(t[list(data.indices)] for t in data.dataset.tensors))
    elif _is_items(data):
        source = _items_of(data, pad)
    elif hasattr(data, "__next__") or not _is_arrays(data):
        raise ExemplaError(
            f"{type(data).__name__} can be read only once or not by position, and the data is "
            "read several times: give arrays (X, y), a Dataset, a DataLoader or a list."
        )
    else:
        source = ArraySource(data)
    if len(source) == 0:
        raise ExemplaError("the data is empty: there is no example to score.")
    return source


def _items_of(data: Any, pad: Callable[[list[Any]], Any]) -> _ItemSource:
    return _ItemSource(data, _collate_of(data, pad))


def _collate_of(data: Any, pad: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """How items become a batch where the user has not said it."""
    return pad if _is_dict_rows(data) else default_collate


def _source_of_loader(loader: DataLoader, pad: Callable[[list[Any]], Any]) -> ExampleSource:
    """A loader's dataset in its own order: shuffling would lose which example is which."""
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    plain = loader.collate_fn is default_collate or loader.batch_size is None
    if isinstance(dataset, IterableDataset):
        # without a batch size the stream yields batches, which are read example by example
        items = kept(dataset, batched=loader.batch_size is None)
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
    if len(dataset) == 0:
        raise ExemplaError("the data is empty: there is no example to score.")
    collate = _collate_of(dataset, pad) if plain else loader.collate_fn
    return _ItemSource(dataset, collate, size)


def _is_items(data: Any) -> bool:
    """True for anything with len and positions whose elements are examples."""
    if isinstance(data, (Tensor, np.ndarray, tuple, dict)) or not hasattr(data, "__getitem__"):
        return False
    if isinstance(data, list):
        return bool(data) and isinstance(data[0], (tuple, dict, list)) and not _all_arrays(data)
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


def _all_arrays(data: list[Any]) -> bool:
    return all(isinstance(x, (Tensor, np.ndarray)) for x in data)


def _is_dict_rows(data: Any) -> bool:
    return len(data) > 0 and hasattr(data[0], "keys")


def _is_arrays(data: Any) -> bool:
    if isinstance(data, (tuple, list)):
        return all(_is_arrays(x) for x in data)
    if hasattr(data, "keys") and not hasattr(data, "to_numpy") and not isinstance(data, type):
        return all(_is_arrays(data[key]) for key in data.keys())  # noqa: SIM118
    if data is None or is_sparse(data) or hasattr(data, "__array__"):
        return True
    return isinstance(data, (Tensor, int, float, str))


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _sizes_of(item: Any) -> tuple[Any, ...]:
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


LABEL_KEYS = ("labels", "label", "label_ids", "y", "target", "targets", "cls")
WEIGHT_KEYS = ("weight", "weights", "sample_weight")
_IGNORED = -100
_READ_AHEAD = 64
"""Items read at a time when only their labels are wanted."""


class CallForm:
    """How the model wants to be called, from the signature of its forward."""

    def __init__(self, model: nn.Module) -> None:
        parameters = list(inspect.signature(model.forward).parameters.values())
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p for p in parameters if p.kind in plain]
        kinds = {p.kind for p in parameters}
        self.required = sum(p.default is inspect.Parameter.empty for p in positional)
        self.most = 99 if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional)
        self.any_keyword = inspect.Parameter.VAR_KEYWORD in kinds
        self.names = {
            p.name
            for p in parameters
            if p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        }
        config = getattr(model, "config", None)
        self.translates = bool(getattr(config, "is_encoder_decoder", False))
        """Whether the model makes the decoder's inputs from labels, and so has to see them."""
        self.classes: int | None = None
        """How many there are, once it is known that labels are classes."""
        self.free = False
        """Whether a likelihood of the user's own reads batches: any columns will do."""

    def batch(self, positions: np.ndarray, given: Any) -> Batch:
        """The user's batch sorted into arguments, labels and weights."""
        try:
            found = self._sorted(positions, given)
        except ExemplaError:
            if not self.free:
                raise
            found = Batch(positions, (), {}, None, None, given)
        return replace(found, labels=self.class_numbers(found.labels))

    def class_numbers(self, labels: Any) -> Any:
        """One-hot labels as the numbers they stand for; anything else as it is."""
        if self.classes is None or not isinstance(labels, Tensor):
            return labels
        if labels.ndim != 2 or not 1 < labels.shape[1] == self.classes:
            return labels
        one_hot = ((labels == 0) | (labels == 1)).all() & (labels.sum(1) == 1).all()
        return labels.long().argmax(1) if bool(one_hot) else labels

    def _sorted(self, positions: np.ndarray, given: Any) -> Batch:
        if isinstance(given, Tensor):
            return Batch(positions, (given,), {}, None, None, given)
        if hasattr(given, "keys"):
            return self._from_dict(positions, given)
        inputs, labels, weights = self._from_tuple(tuple(given))
        args, kwargs = _as_call(inputs)
        return Batch(positions, args, kwargs, labels, weights, given)

    def _from_tuple(self, parts: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        count, required = len(parts), self.required
        nested = not isinstance(parts[0], Tensor)
        if nested or required <= 1:
            if count <= 3 and (count < 3 or self._looks_like_weights(parts[2])):
                inputs = parts[0] if nested else parts[:1]
                return inputs, *(parts[1:] + (None,) * (3 - count))
        elif count == required:
            return parts, None, None
        elif count == required + 2:
            return parts[:required], parts[-2], parts[-1]
        if not nested and count - 1 <= self.most:
            return parts[:-1], parts[-1], None
        raise ExemplaError(
            f"a row of the data has {count} parts and the model takes {required} to {self.most} "
            "inputs: give (inputs…, label) or (inputs…, label, weight)."
        )

    def _looks_like_weights(self, part: Any) -> bool:
        one_number = isinstance(part, Tensor) and part.ndim <= 1 and part.is_floating_point()
        return one_number or self.most < 2

    def _from_dict(self, positions: np.ndarray, given: Any) -> Batch:
        values = {key: given[key] for key in given.keys()}  # noqa: SIM118
        labels = _take_key(values, LABEL_KEYS)
        weights = _take_key(values, WEIGHT_KEYS)
        inputs = {k: v for k, v in values.items() if isinstance(v, (Tensor, tuple, list, dict))}
        known = {k: v for k, v in inputs.items() if k in self.names}
        if self.translates and isinstance(labels, Tensor) and "decoder_input_ids" not in known:
            known["labels"] = labels
        if known or self.any_keyword:
            # a model that takes any keyword still gets only what it names, if it names something
            return Batch(positions, (), known or inputs, labels, weights, given)
        if len(inputs) == 1:
            return Batch(positions, tuple(inputs.values()), {}, labels, weights, given)
        raise ExemplaError(
            f"the data has the columns {', '.join(map(str, values))} and the model's forward takes "
            f"{', '.join(sorted(self.names))}: name the columns as the model does."
        )


def _take_key(values: dict[str, Any], keys: tuple[str, ...]) -> Any:
    present = [key for key in keys if key in values]
    return values.pop(present[0]) if present else None


def _as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if hasattr(inputs, "keys"):
        return (), {key: inputs[key] for key in inputs.keys()}  # noqa: SIM118
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


class TorchExamples(Examples):
    """Rows of a source, in the user's order."""

    def __init__(
        self,
        source: ExampleSource,
        form: CallForm,
        device: torch.device,
        dtype: torch.dtype,
        index: np.ndarray | None = None,
        weighted: bool = True,
    ) -> None:
        self.source, self.form, self.device, self.dtype = source, form, device, dtype
        self.weighted = weighted
        """Whether weights count: those of questioned examples do not."""
        self.index = np.arange(len(source)) if index is None else index
        self.checked = False
        """True once every label has been found to be one."""
        self.weights_checked = False
        """Likewise of weights."""
        self._labels: np.ndarray | None = None
        self._read = False

    def __len__(self) -> int:
        return len(self.index)

    def take(self, positions: np.ndarray) -> TorchExamples:
        index = self.index[np.asarray(positions)]
        part = TorchExamples(self.source, self.form, self.device, self.dtype, index, self.weighted)
        part.checked, part.weights_checked = self.checked, self.weights_checked
        part.needs_labels = self.needs_labels
        part.ids = None if self.ids is None else np.asarray(self.ids)[np.asarray(positions)]
        return part

    def read(self, start: int, stop: int) -> Iterator[Batch]:
        """The examples from start to stop, on the model's device and in its precision."""
        positions = np.arange(start, stop)
        done = 0
        for rows, given in self.source.read(self.index[positions]):
            here = positions[done : done + len(rows)]
            done += len(rows)
            yield self._weighed(self.form.batch(here, tree_map(self.moved, given)))

    def _weighed(self, batch: Batch) -> Batch:
        if batch.weights is None or not self.weighted:
            return batch if batch.weights is None else replace(batch, weights=None)
        if not self.weights_checked:
            refuse_weights(batch.weights, batch.positions)
        return batch

    def moved(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = usable_tensor(value)
        # double precision is NumPy's default and seldom the model's
        same = not value.is_floating_point() or value.dtype == self.dtype
        return value.to(self.device, value.dtype if same else self.dtype, non_blocking=True)

    def whole(self) -> Batch:
        """All examples of an array source as one batch, where they are."""
        _, given = next(self.source.read(self.index))
        return self.form.batch(np.arange(len(self)), given)

    @property
    def labels(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Read when asked for: a pass over an image folder only to list labels is not free."""
        if not self._read:
            self._labels, self._read = self._read_labels(), True
        return self._labels

    def _read_labels(self) -> np.ndarray | None:
        found: list[Any] = []
        if isinstance(self.source, ArraySource):
            labels = self.whole().labels
            return None if labels is None else to_numpy(labels)
        for start in range(0, len(self), _READ_AHEAD):
            positions = self.index[start : start + _READ_AHEAD]
            for rows, given in self.source.read(positions):
                labels = self.form.batch(rows, given).labels
                if labels is None:
                    return None
                found.extend(to_numpy(labels))
        same = len({np.shape(x) for x in found}) == 1
        return np.array(found, dtype=None if same else object)


def pad_rows(rows: list[Any], fill: int = 0) -> dict[str, Any]:
    """Rows of named columns as a batch: texts dropped, sequences padded to the longest.

    Labels are padded with −100, the mask with 0, everything else with `fill`.
    """
    batch: dict[str, Any] = {}
    padded = False
    for key in rows[0].keys():  # noqa: SIM118
        column = [row[key] for row in rows]
        if any(isinstance(v, (str, bytes)) or v is None for v in column):
            continue
        values = [_as_numbers(v, key) for v in column]
        if len({v.shape for v in values}) > 1:
            padded = padded or key == "input_ids"
            blank = {"labels": _IGNORED, "attention_mask": 0}.get(key, fill)
            values = list(nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=blank))
        batch[key] = torch.stack(values)
    if padded and "attention_mask" not in batch:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch["attention_mask"] = (
            torch.arange(batch["input_ids"].shape[1])[None, :] < lengths[:, None]
        ).long()
    return batch


def _as_numbers(value: Any, key: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ExemplaError(
            f"the column {key!r} holds {type(value).__name__}, which is no array: turn it into "
            "numbers first (dataset.with_transform, map or with_format('torch')), or drop it."
        ) from None


def warn_of_augmentation(source: ExampleSource) -> None:
    """Say if two reads of an item differ, and make them equal where that can be done."""
    if not isinstance(source, _ItemSource):
        return
    looked_at = sorted({0, len(source) // 2, len(source) - 1})
    if not varies(source.item, looked_at):
        return
    source.still = True
    what = "the scores are of one random version of each; give the dataset without augmentation."
    if not varies(source.item, looked_at):
        what = "each is scored in one version, drawn by its position, the same at every read."
    warnings.warn(
        f"reading an example twice gives different values (random augmentation?): {what}",
        ExemplaWarning,
        stacklevel=4,
    )
