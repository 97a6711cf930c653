"""Weights of a torch module, parameters and buffers, in a safetensors file.

Names are those of the bare module: what DistributedDataParallel, DataParallel and torch.compile
put in front of them is left out. A tensor under two names (tied weights) is kept once, and the
file's own metadata says which names are one; tensors that overlap otherwise are kept apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.recorder.weights import ENTRY, Weights

__all__ = ["SUFFIX", "WEIGHTS", "copied", "plain_names", "read_tensors"]

SUFFIX = ".safetensors"
TIED = "tied"
SHARDED = (
    "{} is not on this machine as a whole, so it cannot be recorded: record a model that is not "
    "sharded (DistributedDataParallel is fine)."
)
COMPILED, WRAPPED = "_orig_mod.", "module."


@dataclass(frozen=True)
class Tensors:
    """A copy of a state dict."""

    kept: dict[str, Tensor]
    tied: dict[str, str]
    """Further names, each with the one its tensor is kept under."""


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict under the names it has without wrappers.

    >>> plain_names({"module._orig_mod.0.weight": 1, "module._orig_mod.0.bias": 2})
    {'0.weight': 1, '0.bias': 2}
    """
    names = [name.replace(COMPILED, "") for name in state]
    while names and all(name.startswith(WRAPPED) for name in names):
        names = [name.removeprefix(WRAPPED) for name in names]
    return dict(zip(names, state.values(), strict=True))


def copied(model: nn.Module) -> Tensors:
    """The module's parameters and buffers in main memory, as they are now.

    >>> first = nn.Linear(2, 2)
    >>> second = nn.Linear(2, 2)
    >>> second.weight = first.weight
    >>> made = copied(nn.Sequential(first, second))
    >>> sorted(made.kept), made.tied
    (['0.bias', '0.weight', '1.bias'], {'1.weight': '0.weight'})
    """
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise UnsupportedModelError(SHARDED.format("this model"))
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, value in plain_names(model.state_dict()).items():
        if not isinstance(value, Tensor):  # a module's own extra state is no weight
            continue
        _refuse(name, value)
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in places:
            tied[name] = places[place]
            continue
        places[place] = name
        kept[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return Tensors(kept, tied)


def _refuse(name: str, value: Tensor) -> None:
    """What is not here as a whole, or is no plain array, cannot be written as one."""
    if type(value).__name__ == "DTensor" or value.is_meta:
        raise UnsupportedModelError(SHARDED.format(name))
    if value.layout != torch.strided or value.is_quantized:
        raise UnsupportedModelError(f"{name} is sparse or quantized, and cannot be recorded.")


def encoded(tensors: Tensors) -> bytes:
    """The copy as the bytes of a safetensors file, the same for the same weights (the library
    writes several entries of metadata in any order, so there is one)."""
    return _library().save(tensors.kept, {TIED: json.dumps(tensors.tied)})


def nbytes(tensors: Tensors) -> int:
    """Bytes that the file takes, or a few more."""
    names = [*tensors.kept, *tensors.tied, *tensors.tied.values()]
    numbers = sum(value.nbytes for value in tensors.kept.values())
    return numbers + ENTRY + sum(len(name.encode()) + ENTRY for name in names)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dict in a safetensors file, tied names included; the file cannot run code."""
    _library()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tied = json.loads((file.metadata() or {}).get(TIED, "{}"))
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as problem:
        raise ExemplaError(
            f"{path} is not a file of weights alone ({type(problem).__name__}): save "
            "model.state_dict() with safetensors.torch.save_file."
        ) from None
    return found | {name: found[kept] for name, kept in tied.items() if kept in found}


def _library() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise ExemplaError(
            "weights are kept in safetensors files: pip install 'exempla[torch]'."
        ) from None
    return safetensors.torch


WEIGHTS = Weights(
    kind="torch",
    suffix=SUFFIX,
    copied=copied,
    encoded=encoded,
    nbytes=nbytes,
    learning_rate=lambda model: None,
)
