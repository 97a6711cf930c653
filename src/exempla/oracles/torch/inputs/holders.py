"""What holds a network and is handed over in its place: a Trainer, a pipeline.

The network inside is what is explained. What else they know is used to read data as they do: a
pipeline's tokenizer (or image processor) for raw inputs, a Trainer's collator for rows. What a
pipeline that writes learns from are `Completions`. Recognised by their classes' names, so that
nobody's library is imported to look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from exempla.arrays import to_numpy
from exempla.completions import Completions
from exempla.errors import ExemplaError
from exempla.oracles.torch.inputs.examples import LABEL_KEYS, WEIGHT_KEYS, pad_rows

__all__ = ["Reader", "module_of", "reader_of"]

TOKENIZED_AT_ONCE = 1000


def module_of(model: Any) -> nn.Module | None:
    """The network inside a Trainer or pipeline; None if this is none of them."""
    if is_a(model, "transformers.trainer", "Trainer") or is_a(model, "transformers", "Pipeline"):
        return model.model
    if is_a(model, "lightning", "Trainer") or is_a(model, "pytorch_lightning", "Trainer"):
        inside = model.lightning_module
        if inside is None:
            raise ExemplaError(
                "this Lightning Trainer has no module yet: fit it, or give the module itself."
            )
        return inside
    return None


def is_a(model: Any, package: str, name: str) -> bool:
    """Whether a class of this name, from this package, is among the model's classes."""
    kinds = type(model).__mro__
    return any(k.__name__ == name and k.__module__.startswith(package) for k in kinds)


@dataclass(frozen=True)
class Reader:
    """How the holder of a network turns data into rows for it."""

    names: Mapping[str, int]
    """Class numbers of the names of labels."""
    encode: Callable[..., Any] | None = None
    """Raw inputs of many examples → columns; None if inputs are given as they are."""
    collate: Callable[[list[Any]], Any] | None = None
    """Rows → batch, where the holder has its own way."""
    writer: Any = None
    """The tokenizer of a pipeline that writes: texts are completions then, not to be classified."""

    def read(self, data: Any) -> Any:
        """The data with raw inputs encoded, and names of labels as numbers."""
        if self.encode is None or isinstance(data, DataLoader):
            return data
        texts = None if self.writer is None else texts_in(data)
        if texts is not None:
            return Completions(self.writer, texts)
        if isinstance(data, tuple) and len(data) > 0 and is_raw(data[0]):
            inputs, *rest = data
            return self._rows([list(inputs)], dict(zip(("labels", "weight"), rest)))
        if is_raw(data):
            return self._rows([list(data)], {})
        return self._table(data) if is_table(data) else data

    def collated(self, rows: list[Any], names: set[str], fill: int) -> Any:
        """Rows with named columns as a batch: by the holder's collator, of the columns that the
        network's forward names (the others it was never given), else padded."""
        if self.collate is not None:
            known = names | {*LABEL_KEYS, *WEIGHT_KEYS}
            try:
                return self.collate([{k: r[k] for k in r if k in known} for r in rows])
            except (ValueError, TypeError, KeyError):
                pass  # rows that the collator was not made for
        return pad_rows(rows, fill)

    def _table(self, data: Any) -> Any:
        """Rows with named columns, of which one or two (a pair) are raw inputs."""
        first = data[0]
        raw = [k for k in first if is_raw_value(first[k]) and k not in LABEL_KEYS]
        if not raw or any(key in first for key in ("input_ids", "pixel_values")):
            return data
        if len(raw) > 2:
            raise ExemplaError(
                f"the data has the text columns {', '.join(raw)} and it cannot be told which is "
                "read: keep the one (or the pair) that the model was trained on."
            )
        rows = [data[i] for i in range(len(data))]
        kept = [k for k in first if k in (*LABEL_KEYS, *WEIGHT_KEYS)]
        return self._rows(
            [[row[k] for row in rows] for k in raw], {k: [row[k] for row in rows] for k in kept}
        )

    def _rows(self, inputs: list[list[Any]], columns: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.encode is not None
        rows: list[dict[str, Any]] = []
        for start in range(0, len(inputs[0]), TOKENIZED_AT_ONCE):
            some = self.encode(*(part[start : start + TOKENIZED_AT_ONCE] for part in inputs))
            keys = list(some.keys())
            rows += [dict(zip(keys, values)) for values in zip(*(some[k] for k in keys))]
        for key, values in columns.items():
            if values is None:
                continue
            named = self._numbers(values) if key in LABEL_KEYS else list(to_numpy(values))
            if len(named) != len(rows):
                raise ExemplaError(
                    f"{len(rows)} examples have {len(named)} values of {key}: give one for each."
                )
            for row, value in zip(rows, named):
                row[key] = value
        return rows

    def _numbers(self, labels: Any) -> list[Any]:
        """Labels as class numbers, where they were given by name."""
        values = list(labels) if isinstance(labels, list | tuple) else list(to_numpy(labels))
        unknown = sorted({str(v) for v in values if isinstance(v, str) and v not in self.names})
        if unknown:
            raise ExemplaError(
                f"the labels hold {', '.join(unknown[:5])} and the model's classes are "
                f"{', '.join(list(self.names)[:10])}: name the labels as the model does (its "
                "config.label2id)."
            )
        return [self.names[v] if isinstance(v, str) else v for v in values]


def reader_of(model: Any) -> Reader | None:
    """How this holder reads data; None if it has no way of its own."""
    inside = module_of(model)
    if inside is None:
        return None
    config = getattr(inside, "config", None)
    numbered = getattr(config, "id2label", None) or {}
    names = {name: int(number) for number, name in numbered.items()}
    names |= getattr(config, "label2id", None) or {}
    if is_a(model, "transformers", "Pipeline"):
        encode = Encoder(model.tokenizer, getattr(model, "image_processor", None))
        writes = getattr(model, "task", None) == "text-generation"
        return Reader(names, encode, writer=model.tokenizer if writes else None)
    collate = getattr(model, "data_collator", None)
    # the default collator only stacks, which padding rows does as well
    if collate is None or getattr(collate, "__name__", "") == "default_data_collator":
        return Reader(names)
    return Reader(names, collate=collate)


@dataclass(frozen=True)
class Encoder:
    """A pipeline's tokenizer, or its image processor."""

    tokenizer: Any
    processor: Any

    def __call__(self, *parts: list[Any]) -> Any:
        if self.tokenizer is not None:
            return self.tokenizer(*parts, truncation=True)
        return self.processor(images=parts[0], return_tensors="pt")


def texts_in(data: Any) -> list[Any] | None:
    """What `Completions` are made from: texts, pairs of them, or rows that name them; (prompts,
    completions) as pairs. None if the data holds something else, tokens mostly.

    >>> texts_in((["2+2="], ["4"])), texts_in([("2+2=", "4")]), texts_in([{"input_ids": [1]}])
    ([('2+2=', '4')], [('2+2=', '4')], None)
    """
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_raw, data)):
        prompts, completions = data
        if len(prompts) != len(completions):
            raise ExemplaError(
                f"{len(prompts)} prompts have {len(completions)} completions: give one for each."
            )
        return list(zip(prompts, completions))
    if is_raw(data):
        return list(data)
    if not (isinstance(data, list) or is_table(data)) or len(data) == 0:
        return None
    rows = [data[i] for i in range(len(data))]
    return rows if names_texts(rows[0]) else None


def names_texts(row: Any) -> bool:
    """Whether this is a pair of texts, or says which of its columns a text is."""
    if hasattr(row, "keys"):
        named = any(key in row for key in ("completion", "text", "messages"))
        return named and "input_ids" not in row
    pair = isinstance(row, tuple | list) and len(row) == 2
    return pair and all(isinstance(text, str) for text in row)


def is_raw(values: Any) -> bool:
    """Whether these are texts or pictures, one an example."""
    if isinstance(values, str) or not hasattr(values, "__getitem__") or hasattr(values, "keys"):
        return False
    if not isinstance(values, Sequence) and not hasattr(values, "dtype"):
        return False
    return len(values) > 0 and is_raw_value(next(iter(values)))


def is_raw_value(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "getexif")  # a picture of PIL


def is_table(data: Any) -> bool:
    """Whether the data has rows with named columns."""
    rows = (isinstance(data, list) or hasattr(data, "column_names")) and len(data) > 0
    return rows and hasattr(data[0], "keys")
