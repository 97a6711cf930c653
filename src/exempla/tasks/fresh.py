"""A torch module without what it has learnt: every trainable parameter drawn anew.

A layer knows how it starts (`reset_parameters`). Whether all of them do is not taken on trust:
every trainable parameter is overwritten with NaN first, so that nothing learnt can survive, and
one that is still NaN afterwards was set by no layer and is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from exempla.errors import ExemplaError

__all__ = ["redraw"]

RESETS = ("reset_parameters", "_reset_parameters", "reset_running_stats")
"""What torch calls it: in most layers, in its attention and transformers, in norms without
weights."""


def redraw(module: Any) -> None:
    """Draw all that training changes anew, in place, from torch's random state.

    Frozen layers keep their weights and running statistics: pretrained features stay what they are.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2)
    >>> learnt = net.weight.detach().clone()
    >>> redraw(net)
    >>> torch.equal(net.weight, learnt)
    False
    """
    import torch

    layers = list(_children_first(module, frozen=False, seen=set()))
    frozen = [p for p in module.parameters() if not p.requires_grad]
    frozen += [b for layer, still in layers if still for b in layer.buffers(recurse=False)]
    with torch.no_grad():
        kept = [tensor.clone() for tensor in frozen]
        learnt = [p for p in module.parameters() if p.requires_grad and not _is_lazy(p)]
        for parameter in learnt:
            parameter.fill_(float("nan"))
            parameter.grad = None
        for layer, still in layers:
            own = list(layer.parameters(recurse=False))
            if not still and (not own or any(p.requires_grad for p in own)):
                _reset(layer)
        for tensor, before in zip(frozen, kept, strict=True):
            tensor.copy_(before)
    _refuse_unset(module)


def _children_first(module: Any, frozen: bool, seen: set[int]) -> Iterator[tuple[Any, bool]]:
    """Every layer and whether it is frozen, a network after its layers: its own way to start wins.

    A layer without parameters (a norm that only keeps statistics) is as frozen as its parent.
    """
    if id(module) in seen:
        return
    seen.add(id(module))
    parameters = list(module.parameters())
    if parameters:
        frozen = not any(p.requires_grad for p in parameters)
    for child in module.children():
        yield from _children_first(child, frozen, seen)
    yield module, frozen


def _reset(layer: Any) -> None:
    for name in RESETS:
        reset = getattr(layer, name, None)
        if callable(reset) and _needs_nothing(reset):
            reset()
            return


def _needs_nothing(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _is_lazy(parameter: Any) -> bool:
    """Whether its shape is not known before the first batch: then nothing was learnt yet."""
    from torch.nn.parameter import is_lazy

    return is_lazy(parameter)


def _refuse_unset(module: Any) -> None:
    unset = [
        name
        for name, p in module.named_parameters()
        if p.requires_grad and not _is_lazy(p) and bool(p.detach().isnan().any())
    ]
    if unset:
        more = f" and {len(unset) - 3} more" if len(unset) > 3 else ""
        raise ExemplaError(
            f"{type(module).__name__} cannot be trained afresh, because no reset_parameters() sets "
            f"its parameters {', '.join(unset[:3])}{more}: give the module that owns them such a "
            "method, or freeze them with requires_grad_(False)."
        )
