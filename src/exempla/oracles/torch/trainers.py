"""Unwrap the network inside a Trainer or a pipeline, and read data as they do.

A pipeline's tokenizer (or image processor) encodes raw inputs, and a Trainer's collator makes
batches of rows. A text-generation pipeline learns from `Completions`. These classes are recognised
by name, so that no library is imported only to look.

Also here: models from checkpoints (state dicts or files of the first model's weights), and the
selection of parameters by name, glob, module or parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from exempla.arrays import to_numpy
from exempla.data import Completions
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.torch.examples import LABEL_KEYS, WEIGHT_KEYS, pad_rows
from exempla.oracles.torch.restore import BORROWING
from exempla.recorder.weights import SUFFIX, plain_names, read_tensors

_TOKENIZED_AT_ONCE = 1000
"""Examples that a tokenizer gets in one call."""


def module_of(model: Any) -> nn.Module | None:
    """Return the network inside a Trainer or pipeline; None for anything else."""
    if _is_a(model, "transformers.trainer", "Trainer") or _is_a(model, "transformers", "Pipeline"):
        return model.model
    if _is_a(model, "lightning", "Trainer") or _is_a(model, "pytorch_lightning", "Trainer"):
        inside = model.lightning_module
        if inside is None:
            raise ExemplaError(
                "this Lightning Trainer has no module yet: fit it, or give the module itself."
            )
        return inside
    return None


def _is_a(model: Any, package: str, name: str) -> bool:
    """Return True if the model's class, or a base of it, has this name in this package."""
    kinds = type(model).__mro__
    return any(k.__name__ == name and k.__module__.startswith(package) for k in kinds)


@dataclass(frozen=True)
class Reader:
    """How a Trainer or pipeline turns data into rows for its network."""

    names: Mapping[str, int]
    """Class numbers by label name."""
    tokenizer: Any = None
    processor: Any = None
    """The image processor of a pipeline without a tokenizer."""
    collate: Callable[[list[Any]], Any] | None = None
    """Rows → batch, if the Trainer has a collator."""
    writes: bool = False
    """Whether this is a text-generation pipeline, whose texts are completions."""

    def read(self, data: Any) -> Any:
        """Return the data with raw inputs encoded and label names as class numbers."""
        if isinstance(data, DataLoader) or (self.tokenizer is None and self.processor is None):
            return data
        texts = texts_in(data) if self.writes else None
        if texts is not None:
            return Completions(self.tokenizer, texts)
        if _is_raw(data):
            data = (data,)
        if isinstance(data, tuple) and len(data) > 0 and _is_raw(data[0]):
            return self._rows([list(data[0])], dict(zip(("labels", "weight"), data[1:])))
        return self._table(data) if _is_table(data) else data

    def collated(self, rows: list[Any], names: set[str], fill: int) -> Any:
        """Collate rows with named columns, with the Trainer's collator or by padding.

        The collator gets only the columns that the network's forward names.
        """
        if self.collate is not None:
            known = names | {*LABEL_KEYS, *WEIGHT_KEYS}
            try:
                return self.collate([{k: r[k] for k in r if k in known} for r in rows])
            except (ValueError, TypeError, KeyError):
                pass  # rows that the collator was not made for
        return pad_rows(rows, fill)

    def _table(self, data: Any) -> Any:
        """Encode rows with named columns, of which one or two (a pair) are raw inputs."""
        first = data[0]
        raw = [k for k in first if _is_raw_value(first[k]) and k not in LABEL_KEYS]
        if not raw or any(key in first for key in ("input_ids", "pixel_values")):
            return data
        if len(raw) > 2:
            raise ExemplaError(
                f"the data has the text columns {', '.join(raw)}, and it is unclear which of them "
                "the model reads: keep the one (or the pair) that it was trained on."
            )
        rows = [data[i] for i in range(len(data))]
        kept = [k for k in first if k in (*LABEL_KEYS, *WEIGHT_KEYS)]
        raw_columns, columns = ([[row[k] for row in rows] for k in keys] for keys in (raw, kept))
        return self._rows(raw_columns, dict(zip(kept, columns)))

    def _rows(self, inputs: list[list[Any]], columns: dict[str, Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for start in range(0, len(inputs[0]), _TOKENIZED_AT_ONCE):
            parts = [part[start : start + _TOKENIZED_AT_ONCE] for part in inputs]
            if self.tokenizer is not None:
                some = self.tokenizer(*parts, truncation=True)
            else:
                some = self.processor(images=parts[0], return_tensors="pt")
            rows += [dict(zip(some.keys(), row)) for row in zip(*some.values())]
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
        """Return labels as class numbers if they are names."""
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
    """Return how this Trainer or pipeline reads data; None for anything else."""
    inside = module_of(model)
    if inside is None:
        return None
    config = getattr(inside, "config", None)
    numbered = getattr(config, "id2label", None) or {}
    names = {name: int(number) for number, name in numbered.items()}
    names |= getattr(config, "label2id", None) or {}
    if _is_a(model, "transformers", "Pipeline"):
        writes = getattr(model, "task", None) == "text-generation"
        processor = getattr(model, "image_processor", None)
        return Reader(names, model.tokenizer, processor, writes=writes)
    collate = getattr(model, "data_collator", None)
    # the default collator only stacks, which padding rows does as well
    plain = getattr(collate, "__name__", "") == "default_data_collator"
    return Reader(names, collate=None if plain else collate)


def texts_in(data: Any) -> list[Any] | None:
    """Return what `Completions` takes: texts, pairs of texts, or rows that name them.

    (prompts, completions) become pairs. Returns None for other data, such as tokens.
    """
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_raw, data)):
        prompts, completions = data
        if len(prompts) != len(completions):
            raise ExemplaError(
                f"{len(prompts)} prompts have {len(completions)} completions: give one for each."
            )
        return list(zip(prompts, completions))
    if _is_raw(data):
        return list(data)
    if not (isinstance(data, list) or _is_table(data)) or len(data) == 0:
        return None
    first = data[0]
    if hasattr(first, "keys"):
        named = {"completion", "text", "messages"} & {*first} and "input_ids" not in first
    else:
        pair = isinstance(first, tuple | list) and len(first) == 2
        named = pair and all(isinstance(text, str) for text in first)
    return [data[i] for i in range(len(data))] if named else None


def _is_raw(values: Any) -> bool:
    """Return True if these are texts or images, one per example."""
    if isinstance(values, str) or not hasattr(values, "__getitem__") or hasattr(values, "keys"):
        return False
    if not isinstance(values, Sequence) and not hasattr(values, "dtype"):
        return False
    return len(values) > 0 and _is_raw_value(next(iter(values)))


def _is_raw_value(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "getexif")  # an image of PIL


def _is_table(data: Any) -> bool:
    """Return True if the data has rows with named columns."""
    rows = (isinstance(data, list) or hasattr(data, "column_names")) and len(data) > 0
    return rows and hasattr(data[0], "keys")


def with_checkpoints(models: list[Any]) -> list[Any]:
    """Turn every state dict, and every file of one, into a copy of the first model.

    Files are read with `weights_only=True`, or are safetensors: they cannot run code.
    """
    base = next((m for m in models if isinstance(m, nn.Module)), None)
    return [m if isinstance(m, nn.Module) else _loaded(base, m) for m in models]


def _loaded(base: nn.Module | None, weights: Any) -> nn.Module:
    """Return a copy of the base model with other weights."""
    if base is None:
        raise ExemplaError(
            "a list of checkpoints needs the model they belong to: put the torch module first."
        )
    name = "a state dict"
    if isinstance(weights, str | Path):
        name, weights = str(weights), _read_weights(Path(weights))
    with BORROWING:
        model = copy.deepcopy(base)
    try:
        model.load_state_dict(_named_as_in(base, weights))
    except (RuntimeError, TypeError, AttributeError) as problem:
        first = str(problem).splitlines()[0]
        raise ExemplaError(f"{name} does not fit {type(base).__name__}: {first}") from None
    return model


def _named_as_in(base: nn.Module, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the weights under the base model's names, whatever wrappers either of them has."""
    own = base.state_dict()
    if set(own) == set(weights):
        return weights
    names = dict(zip(plain_names(own), own, strict=True))
    found = {names.get(name, name): value for name, value in plain_names(weights).items()}
    # extra state that is not a tensor is not recorded: that of the base model stays
    return {n: v for n, v in own.items() if not isinstance(v, torch.Tensor)} | found


def has_weights(model: nn.Module, path: Path) -> bool:
    """Return True if the file holds exactly the model's weights."""
    own, found = plain_names(model.state_dict()), plain_names(_read_weights(path))
    own = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    if set(own) != set(found):
        return False
    return all(torch.equal(value.cpu(), found[name]) for name, value in own.items())


def _read_weights(path: Path) -> Mapping[str, Any]:
    """Read the state dict in a file, alone or under "state_dict" or "model"."""
    if path.suffix == SUFFIX:
        return read_tensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # a file may hold anything
        raise ExemplaError(
            f"{path} is not a file of weights alone ({type(problem).__name__}): save "
            "model.state_dict() with torch.save."
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            return content[key]
    return content


def select_parameters(model: nn.Module, wanted: Any = None) -> list[str]:
    """Return the names of the selected trainable parameters, in the model's order."""
    everything = dict(model.named_parameters())
    trainable = [name for name, p in everything.items() if p.requires_grad]
    if not trainable:
        raise UnsupportedModelError(_nothing_trainable(model, everything))
    if wanted is None:
        return trainable
    several: list[Any] = [wanted]
    if isinstance(wanted, Iterable) and not isinstance(wanted, (str, nn.Module, Tensor)):
        several = list(wanted)
    if not several:
        raise ExemplaError("parameters= names nothing: leave it out for all trainable parameters.")
    chosen = {found for one in several for found in _matching(model, one)}
    names = [name for name in trainable if id(everything[name]) in chosen]
    if not names:
        raise ExemplaError(
            "parameters= selects only frozen parameters: set requires_grad on them, or select "
            "others."
        )
    return names


def refuse_absent(model: nn.Module) -> None:
    """Raise if weights of the model are on the meta device."""
    absent = [name for name, p in model.named_parameters() if p.is_meta]
    if absent:
        raise UnsupportedModelError(
            f"{type(model).__name__} is on the meta device and has no values ({len(absent)} of its "
            f"parameters, {absent[0]} the first): load its weights first, without offloading "
            "(device_map) if they were offloaded."
        )


def _nothing_trainable(model: nn.Module, parameters: Mapping[str, Tensor]) -> str:
    """Return why the model has no trainable parameter, and what to do."""
    kind, adapters = type(model).__name__, [name for name in parameters if "lora_" in name]
    if not any(p.is_floating_point() for p in parameters.values()):
        return (
            f"{kind} has no trainable parameters, and none that can have a gradient: if it is "
            "quantised, give the model before quantisation, or one with trained parts added to it "
            "(LoRA)."
        )
    if adapters:
        return (
            f"{kind} has no trainable parameters because its adapters were loaded frozen: load "
            "them with PeftModel.from_pretrained(base, folder, is_trainable=True)."
        )
    return (
        f"{kind} has no trainable parameters, so no training example can have shaped it: set "
        "requires_grad on the ones that were trained."
    )


def _matching(model: nn.Module, wanted: Any) -> Iterable[int]:
    """Return the ids of the parameters selected by one name, glob, module or parameter."""
    # tied parameters carry several names, each of which may be used
    named = list(model.named_parameters(remove_duplicate=False))
    if isinstance(wanted, nn.Module | Tensor):
        parts = wanted.parameters() if isinstance(wanted, nn.Module) else [wanted]
        own = {id(p) for p in parts}
        found = [id(p) for _, p in named if id(p) in own]
    elif isinstance(wanted, str):
        globs = (wanted, wanted.rstrip(".") + ".*")
        found = [id(p) for name, p in named if any(fnmatchcase(name, glob) for glob in globs)]
    else:
        raise ExemplaError(
            f"parameters= takes names, globs, modules or parameters, not {type(wanted).__name__}."
        )
    if not found:
        what = wanted if isinstance(wanted, str) else f"this {type(wanted).__name__}"
        some = ", ".join(name for name, _ in named[:6])
        raise ExemplaError(f"parameters={what!r} is not in the model, whose names are: {some}, ….")
    return found
