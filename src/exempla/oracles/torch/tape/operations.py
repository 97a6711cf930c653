"""The operations whose parameters stay factored: each described by a function of its signature.

Every function below takes the names of the tracked parameters (by identity) and then exactly what
the torch function it describes takes; it returns the `Use`, or None if this call of it is not one
it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.torch.factors.conv import ConvShape
from exempla.oracles.torch.tape.uses import (
    ConvTransposeUse,
    ConvUse,
    LinearUse,
    NormUse,
    ScaleUse,
    ShiftUse,
    TableUse,
    Use,
)

__all__ = ["KNOWN"]

Names = dict[int, str]


def linear(names: Names, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use | None:
    return LinearUse(
        names.get(id(weight)), names.get(id(bias)), input.detach(), axes(input.ndim - 1)
    )


def matmul(names: Names, input: Tensor, other: Tensor, **_: Any) -> Use | None:
    if id(other) not in names or other.ndim != 2 or _.get("out") is not None:
        return None
    return LinearUse(names[id(other)], None, input.detach(), axes(input.ndim - 1), table=True)


def addmm(
    names: Names, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Use | None:
    if beta != 1 or alpha != 1 or (id(input) in names and input.ndim != 1):
        return None
    return LinearUse(names.get(id(mat2)), names.get(id(input)), mat1.detach(), axes(1), table=True)


def conv(
    names: Names,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Use | None:
    if input.ndim != weight.ndim:  # a single image without a batch axis
        return None
    shape = conv_shape(weight, stride, padding, dilation, groups, bias is not None)
    return ConvUse(names.get(id(weight)), names.get(id(bias)), input.detach(), axes(1), conv=shape)


def conv_transpose(
    names: Names,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Use | None:
    if input.ndim != weight.ndim:
        return None
    shape = conv_shape(weight, stride, padding, dilation, groups, False)
    return ConvTransposeUse(
        names.get(id(weight)), names.get(id(bias)), input.detach(), axes(1), conv=shape
    )


def conv_shape(
    weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int, bias: bool
) -> ConvShape:
    dims = weight.ndim - 2

    def each(value: Any) -> tuple[int, ...]:
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * dims if len(values) == 1 else values

    margins = padding if isinstance(padding, str) else each(padding)
    kernel = tuple(weight.shape[2:])
    return ConvShape(kernel, each(stride), margins, each(dilation), groups, bias)


def embedding(
    names: Names,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Use | None:
    if scale_grad_by_freq:
        return None
    size = weight.shape[0]
    padding = None if padding_idx is None else padding_idx % size
    return TableUse(
        names[id(weight)], None, input.detach(), axes(input.ndim), size=size, padding=padding
    )


def norm(
    names: Names,
    x: Tensor,
    weight: Any,
    bias: Any,
    last: int | None,
    normalise: Callable[[Tensor], Tensor],
) -> Use:
    """`last` axes are normalised over and scaled; None: scaled by channel, axis 1."""
    features = 0 if last is None else int(x.shape[-last:].numel())
    where = axes(1) if last is None else axes(x.ndim - last)
    return NormUse(
        names.get(id(weight)),
        names.get(id(bias)),
        x.detach(),
        where,
        by_channel=last is None,
        features=features,
        normalise=normalise,
    )


def layer_norm(
    names: Names, input: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Use | None:
    return norm(names, input, weight, bias, len(shape), lambda x: F.layer_norm(x, shape, eps=eps))


def rms_norm(
    names: Names, input: Tensor, shape: Any, weight: Any = None, eps: float | None = None
) -> Use | None:
    return norm(names, input, weight, None, len(shape), lambda x: F.rms_norm(x, shape, eps=eps))


def group_norm(
    names: Names,
    input: Tensor,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Use | None:
    return norm(names, input, weight, bias, None, lambda x: F.group_norm(x, groups, eps=eps))


def batch_norm(
    names: Names,
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Use | None:
    if training:
        return None
    return norm(
        names,
        input,
        weight,
        bias,
        None,
        lambda x: F.batch_norm(x, running_mean, running_var, eps=eps),
    )


def instance_norm(
    names: Names,
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Use | None:
    def normalise(x: Tensor) -> Tensor:
        stats = (None, None) if use_input_stats else (running_mean, running_var)
        return F.instance_norm(x, *stats, use_input_stats=use_input_stats, eps=eps)

    return norm(names, input, weight, bias, None, normalise)


def mul(names: Names, input: Any, other: Any) -> Use | None:
    weight, x = (input, other) if id(input) in names else (other, input)
    if not torch.is_tensor(x):
        return None
    return ScaleUse(
        names[id(weight)], None, x.detach(), broadcast(weight.shape, x.shape), size=weight.shape
    )


def add(names: Names, input: Any, other: Any) -> Use | None:
    weight, x = (input, other) if id(input) in names else (other, input)
    shape = x.shape if torch.is_tensor(x) else torch.Size()
    return ShiftUse(
        names[id(weight)], None, None, broadcast(weight.shape, shape), size=weight.shape
    )


def sub(names: Names, input: Any, other: Any) -> Use | None:
    use = add(names, input, other) if id(other) in names else None
    if isinstance(use, ShiftUse):
        use.sign = -1.0
    return use


def expand(names: Names, input: Tensor, *sizes: Any) -> Use | None:
    shape = input.expand(*sizes).shape
    return ShiftUse(names[id(input)], None, None, broadcast(input.shape, shape), size=input.shape)


def getitem(names: Names, input: Tensor, index: Any) -> Use | None:
    index = index if isinstance(index, tuple) else (index,)
    if any(not (i is None or i is Ellipsis or isinstance(i, (int, slice))) for i in index):
        return None
    return ShiftUse(
        names[id(input)],
        None,
        None,
        axes(input.detach()[index].ndim),
        size=input.shape,
        index=index,
    )


def axes(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def broadcast(weight: torch.Size, other: torch.Size) -> tuple[int, ...]:
    """Axes of the broadcast result along which the weight does not vary."""
    ndim = max(len(weight), len(other))
    padded = (1,) * (ndim - len(weight)) + tuple(weight)
    return tuple(i for i, size in enumerate(padded) if size == 1)


KNOWN: dict[Any, Callable[..., Use | None]] = {
    F.linear: linear,
    torch.addmm: addmm,
    F.embedding: embedding,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.batch_norm: batch_norm,
    F.instance_norm: instance_norm,
    Tensor.expand: expand,
    Tensor.__getitem__: getitem,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), conv),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), conv_transpose),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), matmul),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), mul),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_), add),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), sub),
}
