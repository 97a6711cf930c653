"""Several checkpoints of one network: state dicts or files stand for copies of the first model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exempla.errors import ExemplaError
from exempla.oracles.torch.tape.restore import BORROWING
from exempla.recorder.torch_weights import SUFFIX, plain_names, read_tensors

__all__ = ["has_weights", "with_checkpoints"]


def with_checkpoints(models: list[Any]) -> list[Any]:
    """The list with every state dict, and every file of one, turned into a model.

    Files are read with `weights_only=True`, or are safetensors: they cannot run code.

    >>> net = nn.Linear(2, 1)
    >>> other = {name: value + 1 for name, value in net.state_dict().items()}
    >>> [type(model).__name__ for model in with_checkpoints([net, other])]
    ['Linear', 'Linear']
    """
    base = next((m for m in models if isinstance(m, nn.Module)), None)
    return [m if isinstance(m, nn.Module) else loaded(base, m) for m in models]


def loaded(base: nn.Module | None, weights: Any) -> nn.Module:
    """A copy of the base model with other weights."""
    if base is None:
        raise ExemplaError(
            "a list of checkpoints needs the model they belong to: put the torch module first."
        )
    name = "a state dict"
    if isinstance(weights, str | Path):
        name, weights = str(weights), read(Path(weights))
    with BORROWING:
        model = copy.deepcopy(base)
    try:
        model.load_state_dict(_named_as_in(base, weights))
    except (RuntimeError, TypeError, AttributeError) as problem:
        first = str(problem).splitlines()[0]
        raise ExemplaError(f"{name} does not fit {type(base).__name__}: {first}") from None
    return model


def _named_as_in(base: nn.Module, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights under the base model's own names, which a wrapper (DistributedDataParallel,
    torch.compile) around either of them may have changed."""
    own = base.state_dict()
    if set(own) == set(weights):
        return weights
    names = dict(zip(plain_names(own), own, strict=True))
    found = {names.get(name, name): value for name, value in plain_names(weights).items()}
    # extra state of a module that is no tensor is not recorded: the base's own stays
    return {n: v for n, v in own.items() if not isinstance(v, torch.Tensor)} | found


def has_weights(model: nn.Module, path: Path) -> bool:
    """Whether the file holds the very weights that the model has."""
    own, found = plain_names(model.state_dict()), plain_names(read(path))
    own = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    if set(own) != set(found):
        return False
    return all(torch.equal(value.cpu(), found[name]) for name, value in own.items())


def read(path: Path) -> Mapping[str, Any]:
    """The state dict in a file, alone or under "state_dict" or "model"."""
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
