"""Which parameters to look at: trainable ones, narrowed by name, glob, module or parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from exempla.errors import ExemplaError, UnsupportedModelError

__all__ = ["refuse_absent", "select_parameters", "unwrap"]


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
        raise UnsupportedModelError(nothing_trainable(model, everything))
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


def refuse_absent(model: nn.Module) -> None:
    """Raise if weights of the model are not there."""
    absent = [name for name, p in model.named_parameters() if p.is_meta]
    if absent:
        raise UnsupportedModelError(
            f"{type(model).__name__} is on the meta device and has no values ({len(absent)} of its "
            f"parameters, {absent[0]} the first): load its weights first, without offloading "
            "(device_map) if they were offloaded."
        )


def nothing_trainable(model: nn.Module, parameters: Mapping[str, Tensor]) -> str:
    """Why no parameter can be looked at, and what to do."""
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
