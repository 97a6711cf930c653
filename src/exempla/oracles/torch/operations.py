"""Describe the operations whose parameters stay factored, each by a function of its signature.

Every function of the table `KNOWN` takes the names of the tracked parameters (by id) and then
exactly what the torch function it describes takes; it returns the `Use`, or None if it does not
know this form of call.

Functions of torch that hide several products inside (multi-head attention, embedding bags,
recurrent layers) have a twin here that computes the same in single products, so that the tape sees
each of them. In attention, query, key and value that are one tensor share one projection. In
recurrent layers, the inputs of all time steps meet their weights at once and the states step by
step, so the scores of both weights stay factored with time steps as positions. Packed sequences are
read as torch packs them: step t has the first `batch_sizes[t]` samples, longest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.torch.factors import ConvShape
from exempla.oracles.torch.layers import (
    ConvTransposeUse,
    ConvUse,
    LinearUse,
    NormUse,
    ScaleUse,
    ShiftUse,
    TableUse,
    Use,
)

_Names = dict[int, str]


def linear(names: _Names, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use | None:
    return LinearUse(
        names.get(id(weight)), names.get(id(bias)), input.detach(), axes(input.ndim - 1)
    )


def matmul(names: _Names, input: Tensor, other: Tensor, **_: Any) -> Use | None:
    if id(other) not in names or other.ndim != 2 or _.get("out") is not None:
        return None
    return LinearUse(names[id(other)], None, input.detach(), axes(input.ndim - 1), table=True)


def _addmm(
    names: _Names, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Use | None:
    if beta != 1 or alpha != 1 or (id(input) in names and input.ndim != 1):
        return None
    return LinearUse(names.get(id(mat2)), names.get(id(input)), mat1.detach(), axes(1), table=True)


def conv(
    names: _Names,
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
    shape = _conv_shape(weight, stride, padding, dilation, groups, bias is not None)
    return ConvUse(names.get(id(weight)), names.get(id(bias)), input.detach(), axes(1), conv=shape)


def _conv_transpose(
    names: _Names,
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
    shape = _conv_shape(weight, stride, padding, dilation, groups, False)
    return ConvTransposeUse(
        names.get(id(weight)), names.get(id(bias)), input.detach(), axes(1), conv=shape
    )


def _conv_shape(
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
    names: _Names,
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
    names: _Names,
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


def _layer_norm(
    names: _Names,
    input: Tensor,
    shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Use | None:
    return norm(names, input, weight, bias, len(shape), lambda x: F.layer_norm(x, shape, eps=eps))


def _rms_norm(
    names: _Names, input: Tensor, shape: Any, weight: Any = None, eps: float | None = None
) -> Use | None:
    return norm(names, input, weight, None, len(shape), lambda x: F.rms_norm(x, shape, eps=eps))


def _group_norm(
    names: _Names,
    input: Tensor,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Use | None:
    return norm(names, input, weight, bias, None, lambda x: F.group_norm(x, groups, eps=eps))


def _batch_norm(
    names: _Names,
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


def _instance_norm(
    names: _Names,
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


def _mul(names: _Names, input: Any, other: Any) -> Use | None:
    weight, x = (input, other) if id(input) in names else (other, input)
    if not torch.is_tensor(x):
        return None
    return ScaleUse(
        names[id(weight)], None, x.detach(), _broadcast(weight.shape, x.shape), size=weight.shape
    )


def add(names: _Names, input: Any, other: Any) -> Use | None:
    weight, x = (input, other) if id(input) in names else (other, input)
    shape = x.shape if torch.is_tensor(x) else torch.Size()
    return ShiftUse(
        names[id(weight)], None, None, _broadcast(weight.shape, shape), size=weight.shape
    )


def sub(names: _Names, input: Any, other: Any) -> Use | None:
    use = add(names, input, other) if id(other) in names else None
    if isinstance(use, ShiftUse):
        use.sign = -1.0
    return use


def _expand(names: _Names, input: Tensor, *sizes: Any) -> Use | None:
    shape = input.expand(*sizes).shape
    return ShiftUse(names[id(input)], None, None, _broadcast(input.shape, shape), size=input.shape)


def _getitem(names: _Names, input: Tensor, index: Any) -> Use | None:
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


def _broadcast(weight: torch.Size, other: torch.Size) -> tuple[int, ...]:
    """Axes of the broadcast result along which the weight does not vary."""
    ndim = max(len(weight), len(other))
    padded = (1,) * (ndim - len(weight)) + tuple(weight)
    return tuple(i for i, size in enumerate(padded) if size == 1)


KNOWN: dict[Any, Callable[..., Use | None]] = {
    F.linear: linear,
    torch.addmm: _addmm,
    F.embedding: embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    Tensor.expand: _expand,
    Tensor.__getitem__: _getitem,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), conv),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), _conv_transpose),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), matmul),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _mul),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_), add),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), sub),
}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """Compute torch's multi_head_attention_forward; return None for rare options."""
    rare = (bias_k, bias_v, static_k, static_v)
    if any(t is not None for t in rare) or add_zero_attn or query.ndim != 3 or training:
        return None
    if use_separate_proj_weight or in_proj_weight is None:
        return None
    length, batch, width = query.shape

    def heads(t: Tensor) -> Tensor:  # (L, N, E) → (N, heads, L, E/heads)
        return t.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)

    projected: dict[int, tuple[Tensor, ...]] = {}
    for source in (query, key, value):
        if id(source) not in projected:
            packed = F.linear(source, in_proj_weight, in_proj_bias)
            projected[id(source)] = packed.chunk(3, dim=-1)
    sources = enumerate((query, key, value))
    q, k, v = (heads(projected[id(source)][i]) for i, source in sources)
    scores = q @ k.transpose(2, 3) / math.sqrt(width // num_heads)
    scores = scores + mask(scores, attn_mask, key_padding_mask, num_heads)
    weights = scores.softmax(-1)
    mixed = (weights @ v).permute(2, 0, 1, 3).reshape(length, batch, -1)
    out = F.linear(mixed, out_proj_weight, out_proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def mask(scores: Tensor, attn_mask: Any, key_padding_mask: Any, heads: int) -> Tensor | float:
    """Return what is added to the scores: −∞ where a boolean mask forbids, or the mask itself."""
    total: Tensor | float = 0.0
    if attn_mask is not None:
        m = _as_float(attn_mask, scores)
        total = m.unflatten(0, (-1, heads)) if m.ndim == 3 else m
    if key_padding_mask is not None:
        total = total + _as_float(key_padding_mask, scores)[:, None, None, :]
    return total


def _as_float(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> Tensor | None:
    """Compute torch's embedding_bag for bags of one size; return None for rare options."""
    rare = offsets is not None or max_norm is not None or scale_grad_by_freq
    if rare or input.ndim != 2 or mode not in ("sum", "mean") or per_sample_weights is not None:
        return None
    rows = F.embedding(input, weight, padding_idx)
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    counts = (input != padding_idx % weight.shape[0])[:, :, None].to(rows.dtype)
    total = (rows * counts).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp_min(1)


_Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""(product of the inputs, product of the state, states) → new states, the output first."""


def _lstm_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    reset, update = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    new = (xn + reset * hn).tanh()
    return (new + update * (states[0] - new),)


def _tanh_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((x + h).tanh(),)


def _relu_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((x + h).relu(),)


def _layers(step: _Step) -> Callable[..., Any]:
    """Return the twin of torch's function for all layers of one kind of cell."""

    def whole(*args: Any) -> Any:
        return _packed(step, *args) if is_packed(None, args) else _padded(step, *args)

    return whole


def is_packed(func: Any, args: Any) -> bool:
    """Return True for the arguments of a packed sequence: (data, batch_sizes, …)."""
    if func is not None and func not in RECURRENT:
        return False
    return len(args) > 3 and isinstance(args[3], (list, tuple))


def _padded(
    step: _Step, x: Tensor, hx: Any, weights: Sequence[Tensor], biases: bool, layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """Run sequences of one length, (T, N, d) or (N, T, d)."""
    if (dropout and train) or x.ndim != 3:
        return None
    x = x.transpose(0, 1) if batch_first else x
    sizes = [x.shape[1]] * len(x)
    out, last = stack(step, x.unbind(0), x, sizes, hx, weights, biases, layers, both_ways)
    found = torch.stack(out)
    return (found.transpose(0, 1) if batch_first else found, *last)


def _packed(
    step: _Step, data: Tensor, batch_sizes: Tensor, hx: Any, weights: Sequence[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both_ways: bool,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """Run sequences of several lengths, the rows of each time step after those of the last."""
    if dropout and train:
        return None
    sizes = batch_sizes.tolist()
    out, last = stack(step, data.split(sizes), data, sizes, hx, weights, biases, layers, both_ways)
    return (torch.cat(out), *last)


def stack(
    step: _Step, steps: Sequence[Tensor], whole: Tensor, sizes: list[int], hx: Any,
    weights: Sequence[Tensor], biases: bool, layers: int, both_ways: bool,
) -> tuple[list[Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """Return the outputs step by step, and the last states of every layer and direction."""
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    ways = 2 if both_ways else 1
    each = len(weights) // (layers * ways)
    flat = steps[0].ndim == whole.ndim
    ends: list[tuple[Tensor, ...]] = []
    out: list[Tensor] = list(steps)
    for layer in range(layers):
        whole = whole if layer == 0 else (torch.cat(out) if flat else torch.stack(out))
        runs = []
        for way in range(ways):
            k = layer * ways + way
            own = weights[k * each : (k + 1) * each]
            mine = tuple(s[k] for s in states)
            made, end = run(step, whole, sizes, mine, own, biases, way == 1)
            runs.append(made)
            ends.append(end)
        out = [torch.cat(both, -1) for both in zip(*runs)] if both_ways else runs[0]
    return out, tuple(torch.stack(parts) for parts in zip(*ends))


def run(
    step: _Step, whole: Tensor, sizes: list[int], states: tuple[Tensor, ...],
    weights: Sequence[Tensor], biases: bool, backwards: bool,
) -> tuple[list[Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """Run one layer in one direction. A sample whose sequence has ended keeps its state."""
    w_in, w_state = weights[:2]
    b_in, b_state = weights[2:4] if biases else (None, None)
    narrow = weights[4 if biases else 2 :]  # an LSTM may project its output
    products = F.linear(whole, w_in, b_in)
    inputs = products.split(sizes) if whole.ndim == 2 else products.unbind(0)
    made: list[Any] = [None] * len(sizes)
    for t in reversed(range(len(sizes))) if backwards else range(len(sizes)):
        here, others = (
            tuple(s[i] for s in states) for i in (slice(sizes[t]), slice(sizes[t], None))
        )
        new = step(inputs[t], F.linear(here[0], w_state, b_state), here)
        new = (F.linear(new[0], narrow[0]), *new[1:]) if narrow else new
        made[t] = new[0]
        states = tuple(torch.cat([a, b]) if len(b) else a for a, b in zip(new, others))
    return made, states


def _cell(step: _Step) -> Callable[..., Any]:
    """Return the twin of torch's function for one time step."""

    def one(
        x: Tensor, hx: Any, w_in: Tensor, w_state: Tensor,
        b_in: Tensor | None = None, b_state: Tensor | None = None,
    ) -> Any:  # fmt: skip
        h, *others = (hx,) if isinstance(hx, Tensor) else hx
        new = step(F.linear(x, w_in, b_in), F.linear(h, w_state, b_state), (h, *others))
        return new if others else new[0]

    return one


RECURRENT: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: _cell(_lstm_step),
    torch.gru_cell: _cell(_gru_step),
    torch.rnn_tanh_cell: _cell(_tanh_step),
    torch.rnn_relu_cell: _cell(_relu_step),
    torch.lstm: _layers(_lstm_step),
    torch.gru: _layers(_gru_step),
    torch.rnn_tanh: _layers(_tanh_step),
    torch.rnn_relu: _layers(_relu_step),
}
