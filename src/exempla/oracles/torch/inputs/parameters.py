"""Which parameters to look at: trainable ones, narrowed by name, glob, module or parameter."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from exempla.errors import ExemplaError, UnsupportedModelError

__all__ = ["select_parameters", "unwrap"]


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside a data-parallel or compiled wrapper."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        inner = model.module
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def select_parameters(model: nn.Module, wanted: Any = None) -> list[str]:
    """Names of the chosen trainable parameters, in the model's order.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> select_parameters(model, "2")
    ['2.weight', '2.bias']
    >>> select_parameters(model, ["*.weight"])
    ['0.weight', '2.weight']
    """
    everything = dict(model.named_parameters())
    trainable = [name for name, p in everything.items() if p.requires_grad]
    if not trainable:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no trainable parameters, so no training example can have "
            "shaped it: set requires_grad on the ones that were trained."
        )
    if wanted is None:
        return trainable
    several: list[Any] = [wanted]
    if isinstance(wanted, Iterable) and not isinstance(wanted, (str, nn.Module, Tensor)):
        several = list(wanted)
    if not several:
        raise ExemplaError("parameters= names nothing: leave it out for all trainable parameters.")
    chosen: set[int] = set()
    for one in several:
        chosen |= set(matching(model, one))
    names = [name for name in trainable if id(everything[name]) in chosen]
    if not names:
        raise ExemplaError(
            "parameters= selects only frozen parameters: set requires_grad on them, or select "
            "others."
        )
    return names


def matching(model: nn.Module, wanted: Any) -> Iterable[int]:
    """Identities of the parameters meant by one name, glob, module or parameter."""
    # tied parameters carry several names, each of which may be used
    named = list(model.named_parameters(remove_duplicate=False))
    if isinstance(wanted, nn.Module):
        found = [id(p) for p in wanted.parameters()]
        found = [i for i in found if i in {id(p) for _, p in named}]
    elif isinstance(wanted, Tensor):
        found = [id(p) for _, p in named if p is wanted]
    elif isinstance(wanted, str):
        found = [
            id(p)
            for name, p in named
            if fnmatchcase(name, wanted) or fnmatchcase(name, wanted.rstrip(".") + ".*")
        ]
    else:
        raise ExemplaError(
            f"parameters= takes names, globs, modules or parameters, not {type(wanted).__name__}."
        )
    if not found:
        what = wanted if isinstance(wanted, str) else f"this {type(wanted).__name__}"
        some = ", ".join(name for name, _ in named[:6])
        raise ExemplaError(f"parameters={what!r} is not in the model, whose names are: {some}, ….")
    return found
