"""Copy the weights of a model, write them to a file and read them back, for each framework.

scikit-learn models that are trained step by step become plain arrays in an NPZ file. A torch
module becomes a safetensors file of its parameters and buffers, under the names of the bare module:
prefixes added by DistributedDataParallel, DataParallel and torch.compile are removed. A tensor with
two names (tied weights) is stored once, and the file's metadata lists the further names. Tensors
that share only part of their storage are stored separately. No file can run code when it is read.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

SUFFIX = ".safetensors"
_HEADER_BYTES = 512
"""Upper bound on the bytes that a file uses for one array beside its name and its numbers."""


@dataclass(frozen=True)
class Weights:
    """How the weights of one kind of model are copied and written."""

    kind: str
    suffix: str
    copied: Callable[[Any], Any]
    """Copy the weights to main memory, where later steps do not change them."""
    encoded: Callable[[Any], bytes]
    """Return the copy as the bytes of a file."""
    nbytes: Callable[[Any], int]
    """Return an upper bound on the size of that file."""
    learning_rate: Callable[[Any], float | None]
    """Return the learning rate that the model itself states, if it does."""


def weights_of(model: Any) -> Weights:
    """Return how to copy this model's weights.

    >>> from sklearn.neural_network import MLPClassifier
    >>> weights_of(MLPClassifier()).kind
    'scikit-learn'
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return Weights("torch", SUFFIX, copied, encoded_tensors, nbytes, lambda model: None)
    if hasattr(model, "partial_fit"):
        return Weights(
            "scikit-learn", ".npz", arrays_of, _encoded_arrays,
            lambda arrays: _HEADER_BYTES + sum(a.nbytes + _HEADER_BYTES for a in arrays.values()),
            _learning_rate,
        )  # fmt: skip
    raise UnsupportedModelError(
        f"{type(model).__name__} is not trained step by step, so there is nothing to record: give "
        "a torch.nn.Module, or a scikit-learn model with partial_fit (of a Pipeline its last step)."
    )


# ---- scikit-learn

_LISTS = ("coefs_", "intercepts_")
"""Attributes of a perceptron: one array per layer."""
_SINGLE = ("coef_", "intercept_")
"""Attributes of a linear model."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Copy the fitted weights, by name.

    >>> from sklearn.linear_model import SGDClassifier
    >>> sorted(arrays_of(SGDClassifier().partial_fit([[0.0], [1.0]], [0, 1], [0, 1])))
    ['coef_', 'intercept_']
    """
    if hasattr(model, _LISTS[0]):
        pairs = [(f"{name}.{i}", a) for name in _LISTS for i, a in enumerate(getattr(model, name))]
    elif hasattr(model, _SINGLE[0]):
        pairs = [(name, getattr(model, name)) for name in _SINGLE]
    else:
        raise UnfittedModelError(
            f"{type(model).__name__} has no weights (coefs_ or coef_) to record yet: call "
            "record.step() after partial_fit."
        )
    return {name: np.array(a) for name, a in pairs}


def place(model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Replace the model's weights by these, which must have the same names and shapes."""
    own = arrays_of(model)
    if {n: a.shape for n, a in own.items()} != {n: a.shape for n, a in arrays.items()}:
        raise ExemplaError(
            f"these weights belong to another model than this {type(model).__name__}: their shapes "
            "differ."
        )
    if hasattr(model, _LISTS[0]):
        for name in _LISTS:
            setattr(model, name, [arrays[f"{name}.{i}"] for i in range(len(getattr(model, name)))])
    else:
        for name in _SINGLE:
            setattr(model, name, arrays[name])


def _encoded_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an NPZ file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # a file may hold anything
        raise ExemplaError(f"{path} is not a snapshot ({type(problem).__name__}).") from None


def _learning_rate(model: Any) -> float | None:
    """Return the initial learning rate; a schedule inside the model is not visible."""
    if hasattr(model, "learning_rate_init"):
        return float(model.learning_rate_init)
    return float(model.eta0) if getattr(model, "learning_rate", None) == "constant" else None


# ---- torch

_TIED = "tied"
_SHARDED = (
    "{} is not on this machine as a whole, so it cannot be recorded: record a model that is not "
    "sharded (DistributedDataParallel is fine)."
)


@dataclass(frozen=True)
class _Tensors:
    """A copy of a state dict; `tied` maps further names of a tensor to the name in `kept`."""

    kept: dict[str, Tensor]
    tied: dict[str, str]


def unwrap_module(model: Any) -> Any:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model.module
    return model if inner is None else unwrap_module(inner)


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict under the names it has without wrappers.

    >>> plain_names({"module._orig_mod.0.weight": 1, "module._orig_mod.0.bias": 2})
    {'0.weight': 1, '0.bias': 2}
    """
    names = [name.replace("_orig_mod.", "") for name in state]
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, state.values(), strict=True))


def copied(model: nn.Module) -> _Tensors:
    """Copy the module's parameters and buffers to main memory.

    >>> from torch import nn
    >>> first = nn.Linear(2, 2)
    >>> second = nn.Linear(2, 2)
    >>> second.weight = first.weight
    >>> made = copied(nn.Sequential(first, second))
    >>> sorted(made.kept), made.tied
    (['0.bias', '0.weight', '1.bias'], {'1.weight': '0.weight'})
    """
    import torch

    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedModelError(_SHARDED.format("this model"))
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, value in plain_names(model.state_dict()).items():
        if not isinstance(value, torch.Tensor):  # a module's own extra state is no weight
            continue
        if type(value).__name__ == "DTensor" or value.is_meta:
            raise UnsupportedModelError(_SHARDED.format(name))
        if value.layout != torch.strided or value.is_quantized:
            raise UnsupportedModelError(f"{name} is sparse or quantized, and cannot be recorded.")
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in places:
            tied[name] = places[place]
            continue
        places[place] = name
        kept[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return _Tensors(kept, tied)


def encoded_tensors(tensors: _Tensors) -> bytes:
    """Return the copy as a safetensors file; the same weights always give the same bytes."""
    # one entry of metadata: safetensors writes several of them in any order
    return _safetensors().save(tensors.kept, {_TIED: json.dumps(tensors.tied)})


def nbytes(tensors: _Tensors) -> int:
    """Return an upper bound on the size of the file."""
    names = [*tensors.kept, *tensors.tied, *tensors.tied.values()]
    numbers = sum(value.nbytes for value in tensors.kept.values())
    return numbers + _HEADER_BYTES + sum(len(name.encode()) + _HEADER_BYTES for name in names)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a safetensors file, tied names included."""
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tied = json.loads((file.metadata() or {}).get(_TIED, "{}"))
            return found | {name: found[kept] for name, kept in tied.items() if kept in found}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError, RecursionError, AttributeError, TypeError) as bad:
        raise ExemplaError(
            f"{path} is not a file of weights alone ({type(bad).__name__}): save "
            "model.state_dict() with safetensors.torch.save_file."
        ) from None


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise ExemplaError(
            "weights are stored in safetensors files: pip install 'exempla[torch]'."
        ) from None
    return safetensors.torch
