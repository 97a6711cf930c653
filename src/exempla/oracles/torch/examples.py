"""Examples as a network takes them: which part of a row is input, label or weight.

A `Batch` holds arguments, labels and weights, all with samples on the first axis. `CallForm` sorts
the user's batches into these parts, from the signature of the model's forward.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from exempla.arrays import to_numpy
from exempla.data import LARGEST_WEIGHT
from exempla.errors import ExemplaError
from exempla.oracles.base import Examples
from exempla.oracles.torch.sources import (
    ArraySource,
    ExampleSource,
    leaves,
    tree_map,
    usable_tensor,
)

LABEL_KEYS = ("labels", "label", "label_ids", "y", "target", "targets", "cls")
WEIGHT_KEYS = ("weight", "weights", "sample_weight")
IGNORED_LABEL = -100
"""The label of positions without one."""
_ITEMS_AT_ONCE = 64
"""Items read at a time when only their labels are needed."""


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
        picked = {
            name: tree_map(
                lambda t: t[index.to(t.device)] if self._has_samples(t) else t, getattr(self, name)
            )
            for name in ("args", "kwargs", "labels", "weights", "given")
        }
        return replace(self, positions=self.positions[np.asarray(rows)], **picked)

    def tensors(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Batch]]:
        """Return every tensor with one row per sample, and a function that replaces them."""
        fields = ("args", "kwargs", "labels", "given")
        found = {
            id(t): t for name in fields for t in leaves(getattr(self, name)) if self._has_samples(t)
        }

        def rebuild(values: list[Tensor]) -> Batch:
            new = dict(zip(found, values, strict=True))
            parts = {
                name: tree_map(lambda v: new.get(id(v), v), getattr(self, name)) for name in fields
            }
            return replace(self, positions=self.positions[: len(values[0])], **parts)

        return list(found.values()), rebuild

    def _has_samples(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == len(self)


def copied(tree: Any) -> Any:
    """Copy every tensor, so that a forward that works in place changes no data of the caller."""
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Multiply each row by its factor."""
    return rows * factors.to(rows).reshape(-1, *[1] * (rows.ndim - 1))


def weighted(cotangent: Tensor, batch: Batch, root: bool = False) -> Tensor:
    """Multiply by the examples' weights (scores), or by their square roots (Fisher rows)."""
    if batch.weights is None:
        return cotangent
    return scaled(cotangent, batch.weights.sqrt() if root else batch.weights)


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


class CallForm:
    """How the model is called, from the signature of its forward."""

    def __init__(self, model: nn.Module) -> None:
        kinds = inspect.Parameter
        parameters = list(inspect.signature(model.forward).parameters.values())
        positional = [
            p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        found = {p.kind for p in parameters}
        self.required = sum(p.default is kinds.empty for p in positional)
        self.most = 99 if kinds.VAR_POSITIONAL in found else len(positional)
        self.any_keyword = kinds.VAR_KEYWORD in found
        variadic = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        self.names = {p.name for p in parameters if p.kind not in variadic}
        self.translates = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
        """Whether the model makes the decoder's inputs from labels, and therefore needs them."""
        self.classes: int | None = None
        """The number of classes, once it is known that labels are classes."""
        self.free = False
        """Whether a custom likelihood reads batches: then any columns will do."""

    def batch(self, positions: np.ndarray, given: Any) -> Batch:
        """Sort the user's batch into arguments, labels and weights."""
        try:
            found = self._sorted(positions, given)
        except ExemplaError:
            if not self.free:
                raise
            found = Batch(positions, (), {}, None, None, given)
        return replace(found, labels=self.class_numbers(found.labels))

    def class_numbers(self, labels: Any) -> Any:
        """Return one-hot labels as class numbers, and other labels unchanged."""
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
        if hasattr(inputs, "keys"):
            kwargs = {key: inputs[key] for key in inputs.keys()}  # noqa: SIM118
            return Batch(positions, (), kwargs, labels, weights, given)
        args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        return Batch(positions, args, {}, labels, weights, given)

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
        labels, weights = (
            values.pop(next((key for key in keys if key in values), None), None)
            for keys in (LABEL_KEYS, WEIGHT_KEYS)
        )
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


class TorchExamples(Examples):
    """Examples of a source, in the user's order."""

    checked = False
    """True once all labels and weights have been validated."""

    def __init__(
        self,
        source: ExampleSource,
        form: CallForm,
        device: torch.device,
        dtype: torch.dtype,
        weighted: bool = True,
    ) -> None:
        self.source, self.form, self.device, self.dtype = source, form, device, dtype
        self.weighted = weighted
        """Whether weights count; those of test examples do not."""
        self.index = np.arange(len(source))
        self.needs_labels = not form.free

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
        positions = np.arange(start, stop)
        done = 0
        for rows, given in self.source.read(self.index[positions]):
            here = positions[done : done + len(rows)]
            done += len(rows)
            batch = self.form.batch(here, tree_map(self.moved, given))
            if not self.weighted:
                batch = replace(batch, weights=None)
            if batch.weights is not None and not self.checked:
                refuse_weights(batch.weights, batch.positions)
            yield batch

    def moved(self, value: Any) -> Any:
        """Return a tensor on the model's device, and in its precision if it holds reals."""
        if not isinstance(value, Tensor):
            return value
        value = usable_tensor(value)
        # double precision is NumPy's default and seldom the model's
        same = not value.is_floating_point() or value.dtype == self.dtype
        return value.to(self.device, value.dtype if same else self.dtype, non_blocking=True)

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


def pad_rows(rows: list[Any], fill: int = 0) -> dict[str, Any]:
    """Collate rows with named columns: drop texts and pad sequences to the longest.

    Labels are padded with −100, the attention mask with 0, and everything else with `fill`.
    """
    batch: dict[str, Any] = {}
    padded = False
    for key in rows[0].keys():  # noqa: SIM118
        column = [row[key] for row in rows]
        if any(isinstance(v, (str, bytes)) or v is None for v in column):
            continue
        values = [_as_tensor(v, key) for v in column]
        if len({v.shape for v in values}) > 1:
            padded = padded or key == "input_ids"
            blank = {"labels": IGNORED_LABEL, "attention_mask": 0}.get(key, fill)
            values = list(nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=blank))
        batch[key] = torch.stack(values)
    if padded and "attention_mask" not in batch:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        places = torch.arange(batch["input_ids"].shape[1])
        batch["attention_mask"] = (places[None, :] < lengths[:, None]).long()
    return batch


def _as_tensor(value: Any, key: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ExemplaError(
            f"the column {key!r} holds {type(value).__name__}, which is not an array: turn it into "
            "numbers first (dataset.with_transform, map or with_format('torch')), or drop it."
        ) from None
