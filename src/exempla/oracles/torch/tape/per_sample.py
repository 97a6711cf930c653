"""Per-sample gradients of what the tape cannot describe: vmap where it works, else a loop.

Only the parameters that need it are differentiated here; the rest of the model is scored by
factors as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from exempla.oracles.torch.inputs.batch import Batch
from exempla.oracles.torch.tape.backward import pull_back

__all__ = ["by_loop", "by_vmap"]

Run = Callable[[Any, Batch], Tensor]
"""(model, batch) → what is pulled back: outputs, or log-probabilities."""


def by_vmap(
    model: nn.Module, parameters: dict[str, Tensor], run: Run, batch: Batch, cotangent: Tensor
) -> dict[str, Tensor]:
    """(n, *shape) per parameter: the gradient of ⟨outputs, cotangent⟩, vmapped over samples."""
    values, rebuild = batch.tensors()

    def pulled(changed: dict[str, Tensor], values: list[Tensor], cotangent: Tensor) -> Tensor:
        def call(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(model, changed, args, kwargs)

        one = rebuild([v.unsqueeze(0) for v in values])
        return (run(call, one)[0] * cotangent).sum()

    one_by_one = torch.func.vmap(torch.func.grad(pulled), in_dims=(None, 0, 0), randomness="same")
    detached = {name: p.detach() for name, p in parameters.items()}
    return one_by_one(detached, values, cotangent)


def by_loop(
    model: nn.Module, parameters: dict[str, Tensor], run: Run, batch: Batch, cotangent: Tensor
) -> dict[str, Tensor]:
    """The same by one forward and backward pass a sample."""
    rows: list[tuple[Tensor | None, ...]] = []
    for i in range(len(batch)):
        outputs = run(model, batch.take([i]))
        wanted = list(parameters.values())
        rows.append(pull_back(outputs, wanted, cotangent[i : i + 1]))
    columns = zip(parameters.items(), zip(*rows, strict=True), strict=True)
    return {
        name: torch.stack([torch.zeros_like(p) if g is None else g for g in column])
        for (name, p), column in columns
    }
