"""Encode the weights of a model as a file and read them back, for each framework.

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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

SUFFIX = ".safetensors"
SUFFIXES = {"torch": SUFFIX, "scikit-learn": ".npz"}
"""The file name suffix of each kind of model."""


def kind_of(model: Any) -> str:
    """Return "torch" or "scikit-learn"; raise if the model is not trained step by step."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    if hasattr(model, "partial_fit"):
        return "scikit-learn"
    raise UnsupportedModelError(
        f"{type(model).__name__} is not trained step by step, so there is nothing to record: give "
        "a torch.nn.Module, or a scikit-learn model with partial_fit (of a Pipeline its last step)."
    )


def encoded(model: Any) -> bytes:
    """Return the model's weights as the bytes of a file; the same weights give the same bytes."""
    if kind_of(model) == "torch":
        return _encoded_tensors(model)
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays_of(model))  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def learning_rate(model: Any) -> float | None:
    """Return the initial learning rate that a scikit-learn model states, if it does."""
    if hasattr(model, "learning_rate_init"):
        return float(model.learning_rate_init)
    return float(model.eta0) if getattr(model, "learning_rate", None) == "constant" else None


# ---- scikit-learn

_LISTS = ("coefs_", "intercepts_")
"""Attributes of a perceptron: one array per layer."""
_SINGLE = ("coef_", "intercept_")
"""Attributes of a linear model."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Copy the fitted weights, by name."""
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


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an NPZ file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # a file may hold anything
        raise ExemplaError(f"{path} is not a snapshot ({type(problem).__name__}).") from None


# ---- torch

_TIED = "tied"
_SHARDED = (
    "{} is not on this machine as a whole, so it cannot be recorded: record a model that is not "
    "sharded (DistributedDataParallel is fine)."
)


def unwrap_module(model: Any) -> Any:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model.module
    return model if inner is None else unwrap_module(inner)


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict under the names it has without wrappers."""
    names = [name.replace("_orig_mod.", "") for name in state]
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, state.values(), strict=True))


def _encoded_tensors(model: nn.Module) -> bytes:
    """Return the module's parameters and buffers as a safetensors file."""
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
    # one entry of metadata: safetensors writes several of them in any order
    return _safetensors().save(kept, {_TIED: json.dumps(tied)})


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
