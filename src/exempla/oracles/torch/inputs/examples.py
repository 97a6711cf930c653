"""Examples as a network takes them: which part of a row is input, label or weight."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from exempla.arrays import to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.base import Examples
from exempla.oracles.torch.inputs.batch import Batch, tree_map
from exempla.oracles.torch.inputs.sources import ArraySource, ExampleSource, ItemSource
from exempla.oracles.torch.inputs.streams import varies
from exempla.oracles.torch.inputs.usable import refuse_weights, usable_tensor

__all__ = ["CallForm", "TorchExamples", "pad_rows", "warn_of_augmentation"]

LABEL_KEYS = ("labels", "label", "label_ids", "y", "target", "targets", "cls")
WEIGHT_KEYS = ("weight", "weights", "sample_weight")
IGNORED = -100
READ_AHEAD = 64
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
        args, kwargs = as_call(inputs)
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
        labels = take_key(values, LABEL_KEYS)
        weights = take_key(values, WEIGHT_KEYS)
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


def take_key(values: dict[str, Any], keys: tuple[str, ...]) -> Any:
    present = [key for key in keys if key in values]
    return values.pop(present[0]) if present else None


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
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
        for start in range(0, len(self), READ_AHEAD):
            positions = self.index[start : start + READ_AHEAD]
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
        values = [as_numbers(v, key) for v in column]
        if len({v.shape for v in values}) > 1:
            padded = padded or key == "input_ids"
            blank = {"labels": IGNORED, "attention_mask": 0}.get(key, fill)
            values = list(nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=blank))
        batch[key] = torch.stack(values)
    if padded and "attention_mask" not in batch:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch["attention_mask"] = (
            torch.arange(batch["input_ids"].shape[1])[None, :] < lengths[:, None]
        ).long()
    return batch


def as_numbers(value: Any, key: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ExemplaError(
            f"the column {key!r} holds {type(value).__name__}, which is no array: turn it into "
            "numbers first (dataset.with_transform, map or with_format('torch')), or drop it."
        ) from None


def warn_of_augmentation(source: ExampleSource) -> None:
    """Say if two reads of an item differ, and make them equal where that can be done."""
    if not isinstance(source, ItemSource):
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
