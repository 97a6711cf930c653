"""The user's model: find the network, load checkpoints, select parameters, and put it back.

The network may be inside a Trainer or a pipeline, which also says how data is read: a pipeline's
tokenizer (or image processor) encodes raw inputs, and a Trainer's collator makes batches of rows. A
text-generation pipeline learns from `Completions`. These classes are recognised by name, so that no
library is imported only to look.

A pass over the data borrows the model for one batch at a time. Whatever the pass changes is
restored before the rows are handed out, even if the pass is interrupted. One thread at a time
borrows a model: training mode, requires_grad and buffers belong to a module that several Explainers
may share, random state and torch's settings to the whole process.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.utils import checkpoint
from torch.utils.data import DataLoader

from exempla.arrays import to_numpy
from exempla.data import Completions
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.recorder.snapshots import SUFFIX, plain_names, read_tensors

LABEL_KEYS = ("labels", "label", "label_ids", "y", "target", "targets", "cls")
WEIGHT_KEYS = ("weight", "weights", "sample_weight")
IGNORED_LABEL = -100
"""The label of positions without one."""
_TOKENIZED_AT_ONCE = 1000
"""Examples that a tokenizer gets in one call."""
BORROWING = RLock()
"""Held while a model is borrowed, one batch at a time, and while its own state is read."""
_SMALL_NETWORK = 60_000
"""Parameters up to which one CPU thread is faster than several, which mostly wait and spin."""
_Buffers = list[tuple[nn.Module, dict[str, Any]]]
"""Modules with their buffers, by name."""


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


def unwrap_module(model: Any) -> Any:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model.module
    return model if inner is None else unwrap_module(inner)


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
    generates: bool = False
    """Whether this is a text-generation pipeline, whose texts are completions."""

    def read(self, data: Any) -> Any:
        """Return the data with raw inputs encoded and label names as class numbers."""
        if isinstance(data, DataLoader) or (self.tokenizer is None and self.processor is None):
            return data
        texts = _texts_in(data) if self.generates else None
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
        generates = getattr(model, "task", None) == "text-generation"
        processor = getattr(model, "image_processor", None)
        return Reader(names, model.tokenizer, processor, generates=generates)
    collate = getattr(model, "data_collator", None)
    # the default collator only stacks, which padding rows does as well
    plain = getattr(collate, "__name__", "") == "default_data_collator"
    return Reader(names, collate=None if plain else collate)


def _texts_in(data: Any) -> list[Any] | None:
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


# ---- weights and parameters


def with_checkpoints(models: list[Any]) -> list[Any]:
    """Turn every state dict, and every file of one, into a copy of the first model.

    Files are read with `weights_only=True`, or are safetensors: they cannot run code.
    """
    base = next(m for m in models if isinstance(m, nn.Module))
    return [m if isinstance(m, nn.Module) else _loaded(base, m) for m in models]


def _loaded(base: nn.Module, weights: Any) -> nn.Module:
    """Return a copy of the base model with other weights."""
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


# ---- borrowing


class ModelRestorer:
    """Lend a model out for a pass, and restore it afterwards."""

    def __init__(self, model: nn.Module, selected: set[int] | None = None) -> None:
        self.modules = list(model.modules())
        self.parameters = list(model.parameters())
        on_cpu = all(p.device.type == "cpu" for p in self.parameters)
        self.size = sum(p.numel() for p in self.parameters) if on_cpu else _SMALL_NETWORK + 1
        self.others = [p for p in self.parameters if selected is not None and id(p) not in selected]
        tables = [m for m in self.modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        # an embedding with max_norm rescales its rows whenever it is read
        self.rescaled: list[Tensor] = [m.weight for m in tables if m.max_norm is not None]
        self.recurrent = [m for m in self.modules if isinstance(m, nn.RNNBase)]
        self.buffered = [m for m in self.modules if m._buffers]
        self.copies: dict[int, tuple[Tensor, int, Tensor]] = {}
        self.draws = True
        """False once a survey has seen that the model draws no random numbers."""

    @contextmanager
    def borrowed(self, gradients: bool = True) -> Iterator[None]:
        """Put the model in evaluation mode, with gradients for the selected parameters only.

        Without `gradients`, the user's data may be read as well. Restored at the end: training mode
        of every submodule, requires_grad, .grad, backward hooks, buffers (values and objects), the
        number of threads, and the random state unless the model is known to draw nothing.
        """
        same_state = keep_random_state() if self.draws or not gradients else nullcontext()
        with BORROWING, same_state:
            before: list[tuple[Any, str, Any]] = [(p, "grad", p.grad) for p in self.parameters]

            def change(owner: Any, name: str, value: Any) -> None:
                before.append((owner, name, getattr(owner, name)))
                setattr(owner, name, value)

            buffers = [(m, dict(m._buffers)) for m in self.buffered]
            self._copy(buffers)
            fast_attention, threads = mha.get_fastpath_enabled(), torch.get_num_threads()
            try:
                torch.set_num_threads(1 if self.size <= _SMALL_NETWORK else threads)
                # the fast path zeroes padded positions, which the path with gradients does not
                mha.set_fastpath_enabled(False)
                # re-entrant checkpoints hide their graph and cannot give gradients of a part; the
                # newer kind (use_reentrant=False) is left as it is
                change(checkpoint, "CheckpointFunction", _Unchecked)
                for module in self.modules:
                    if module.training:  # not .eval(), which may fold weights together
                        change(module, "training", False)
                for module in self.recurrent:
                    # cuDNN's recurrent layers have a backward pass in training mode only, from
                    # which evaluation mode differs by nothing but dropout
                    change(module, "training", True)
                    change(module, "dropout", 0.0)
                for p in self.others if gradients else ():
                    if p.requires_grad:
                        change(p, "requires_grad", False)
                # backward hooks may change gradients, and are not part of the model
                for owner in (*self.modules, *self.parameters):
                    for name in ("_backward_hooks", "_backward_pre_hooks"):
                        if getattr(owner, name, None):
                            none = None if isinstance(owner, Tensor) else OrderedDict()
                            change(owner, name, none)
                _forget_casts()
                with torch.inference_mode(False), torch.enable_grad():
                    yield
            finally:
                _forget_casts()
                mha.set_fastpath_enabled(fast_attention)
                torch.set_num_threads(threads)
                for owner, name, value in reversed(before):
                    if getattr(owner, name) is not value:
                        setattr(owner, name, value)
                self._restore(buffers)

    def _held(self, buffers: _Buffers) -> list[Tensor]:
        """Return the tensors that a forward may write to."""
        return [t for _, held in buffers for t in held.values() if t is not None] + self.rescaled

    def _copy(self, buffers: _Buffers) -> None:
        """Copy every buffer; a copy is renewed only if the buffer was written to."""
        for tensor in self._held(buffers):
            known = self.copies.get(id(tensor))
            if known is None or known[0] is not tensor or known[1] != _version(tensor):
                self.copies[id(tensor)] = (tensor, _version(tensor), tensor.detach().clone())

    def _restore(self, buffers: _Buffers) -> None:
        for module, held in buffers:
            for name, tensor in held.items():
                if module._buffers.get(name) is not tensor:
                    module._buffers[name] = tensor
        for tensor in self._held(buffers):
            _, before, saved = self.copies[id(tensor)]
            if _version(tensor) != before:
                with torch.no_grad():
                    tensor.copy_(saved)
                self.copies[id(tensor)] = (tensor, _version(tensor), saved)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out whether the code inside draws random numbers."""
        before = pickle.dumps(random_state())
        yield
        self.draws = pickle.dumps(random_state()) != before


class _Unchecked:
    """Replaces torch's re-entrant checkpoint: the function runs once and keeps its graph."""

    @staticmethod
    def apply(function: Any, _: bool, *args: Any) -> Any:
        return function(*args)


def _forget_casts() -> None:
    """Clear autocast's cache of lowered weights, some of which may lack gradients."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


def _version(tensor: Tensor) -> int:
    """Return how often the tensor has been written to (−1 if torch does not count)."""
    return -1 if tensor.is_inference() else tensor._version


def random_state() -> tuple[Any, ...]:
    """Return the state of every global random generator: Python, NumPy, torch and CUDA."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    on_gpus = torch.cuda.get_rng_state_all() if cuda else []
    numpy = np.random.get_state()  # noqa: NPY002 - the user's global generator
    return random.getstate(), numpy, torch.get_rng_state(), on_gpus


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the state of every global random generator at the end."""
    python, numpy, cpu, on_gpus = random_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(on_gpus)
