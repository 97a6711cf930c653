"""∂⟨outputs, cotangent⟩, without what `torch.autograd.grad` does to compare two shapes.

Given `grad_outputs`, it imports sympy: a second and 60 MB in every fresh process. Asked for the
gradient of a scalar it does not, so one is made whose gradient is the cotangent, at no cost in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["pull_back"]


class ScalarOf(torch.autograd.Function):
    """A scalar whose gradient at the outputs is the cotangent (its value does not matter)."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, cotangent: Tensor) -> Tensor:
        ctx.save_for_backward(cotangent)
        return outputs.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *one: Tensor) -> tuple[Tensor, None]:
        (cotangent,) = ctx.saved_tensors
        return cotangent, None


def pull_back(
    outputs: Tensor, wanted: Sequence[Any], cotangent: Tensor, again: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradient of ⟨outputs, cotangent⟩ at each tensor wanted; None where there is none.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pull_back(x * x, [x], torch.tensor([1.0, 10.0]))
    (tensor([ 2., 40.]),)
    """
    with torch.enable_grad():
        scalar = ScalarOf.apply(outputs, cotangent)
    return torch.autograd.grad(scalar, wanted, retain_graph=again, allow_unused=True)  # type: ignore
