"""Why a network cannot be scored on the data it is given, in a sentence that says what to do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.oracles.torch.inputs.batch import Batch, tree_map
from exempla.oracles.torch.tape.network import brief

__all__ = ["cannot_run", "refuse_headless", "refuse_parameters", "shares_said"]


def shares_said(classes: int) -> str:
    """How labels with a column for each class were read."""
    return (
        f"labels with a column for each of {classes} classes, adding up to one, were read as cross "
        "entropy reads them; say likelihood='multilabel' if the network was trained with a yes or "
        "no for each class."
    )


def cannot_run(error: Exception, batch: Batch, dtype: torch.dtype) -> str:
    """Why the model fails on the first examples, and what to do about it."""
    inputs: list[Tensor] = []
    tree_map(lambda t: inputs.append(t) if isinstance(t, Tensor) else None, batch.args)
    whole = [t for t in inputs if not t.is_floating_point()]
    lines = str(error).splitlines()
    what = f"the model fails on the first examples ({lines[0] if lines else type(error).__name__})"
    if whole and "dtype" in str(error):
        kind = str(dtype).removeprefix("torch.")
        return f"{what}: X holds whole numbers and the model computes in {kind}; give X.float()."
    shapes = ", ".join(str(tuple(t.shape[1:])) for t in inputs) or "what they hold"
    return f"{what}: see whether it takes examples of shape {shapes}."


def refuse_headless(model: nn.Module, error: Exception) -> None:
    """Raise if the module has no forward, as a LightningModule need not have."""
    if isinstance(error, NotImplementedError) and "forward" in str(error):
        inside = brief(dict.fromkeys(name for name, _ in model.named_children()))
        raise ExemplaError(
            f"{type(model).__name__} has no forward: give the network inside it that turns inputs "
            f"into outputs ({inside}), or add a forward that calls it."
        ) from error


def refuse_parameters(model: nn.Module) -> None:
    """Raise if the model itself holds NaN or infinity."""
    named = [*model.named_parameters(), *model.named_buffers()]
    wrong = [name for name, p in named if p.is_floating_point() and not bool(p.isfinite().all())]
    if wrong:
        raise ExemplaError(
            f"the model holds NaN or infinity in {brief(dict.fromkeys(wrong))}: train it again, or "
            "load weights that are finite."
        )
