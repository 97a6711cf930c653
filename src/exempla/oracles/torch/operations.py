"""Describe the operations whose parameters stay factored.

The table `_KNOWN` has, for each torch function, the order of its arguments and the function that
turns a call into a `Use`.

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

from exempla.oracles.torch.conv import ConvShape
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
"""Names of the tracked parameters, by id."""
_Given = dict[str, Any]
"""Arguments of a call, by the names that torch gives them; those left out are absent."""


def describe(func: Any, names: _Names, args: Any, kwargs: Any) -> Use | None:
    """Return the use of tracked parameters in a call; None if this form of call is unknown."""
    if func not in _KNOWN:
        return None
    maker, order = _KNOWN[func]
    try:
        return maker(func, names, dict(zip(order.split(), args)) | kwargs)
    except KeyError:  # an argument is missing, or the parameter is in an unusual place
        return None


def _linear(func: Any, names: _Names, given: _Given) -> Use | None:
    x = given["input"]
    weight, bias = names.get(id(given["weight"])), names.get(id(given.get("bias")))
    return LinearUse(weight, bias, x.detach(), _axes(x.ndim - 1))


def _matmul(func: Any, names: _Names, given: _Given) -> Use | None:
    x, weight = given["input"], given["other"]
    if id(weight) not in names or weight.ndim != 2 or given.get("out") is not None:
        return None
    return LinearUse(names[id(weight)], None, x.detach(), _axes(x.ndim - 1), table=True)


def _addmm(func: Any, names: _Names, given: _Given) -> Use | None:
    bias, x, weight = given["input"], given["mat1"], given["mat2"]
    scaled = given.get("beta", 1) != 1 or given.get("alpha", 1) != 1
    if scaled or (id(bias) in names and bias.ndim != 1):
        return None
    return LinearUse(names.get(id(weight)), names.get(id(bias)), x.detach(), _axes(1), table=True)


def _conv(func: Any, names: _Names, given: _Given) -> Use | None:
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if x.ndim != weight.ndim:  # a single image without a batch axis
        return None
    dims = weight.ndim - 2

    def each(name: str, default: int) -> Any:
        value = given.get(name, default)
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * dims if len(values) == 1 else values

    padding = given.get("padding", 0)
    transposed = "output_padding" in _KNOWN[func][1]
    shape = ConvShape(
        kernel=tuple(weight.shape[2:]),
        stride=each("stride", 1),
        padding=padding if isinstance(padding, str) else each("padding", 0),
        dilation=each("dilation", 1),
        groups=given.get("groups", 1),
        bias=bias is not None and not transposed,
    )
    kind = ConvTransposeUse if transposed else ConvUse
    return kind(names.get(id(weight)), names.get(id(bias)), x.detach(), _axes(1), conv=shape)


def _embedding(func: Any, names: _Names, given: _Given) -> Use | None:
    if given.get("scale_grad_by_freq"):
        return None
    x, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    size = weight.shape[0]
    padding = None if padding is None else padding % size
    return TableUse(names[id(weight)], None, x.detach(), _axes(x.ndim), size=size, padding=padding)


def _norm(func: Any, names: _Names, given: _Given) -> Use | None:
    """Describe a normalisation: over the last axes if it names their shape, otherwise by channel.

    The normalised input is what the same call returns without weight and bias.
    """
    if given.get("training"):
        return None
    x, shape = given["input"], given.get("normalized_shape")
    last = 0 if shape is None else len(shape)
    plain = given | {name: None for name in ("weight", "bias") if name in given}
    return NormUse(
        names.get(id(given.get("weight"))),
        names.get(id(given.get("bias"))),
        x.detach(),
        _axes(x.ndim - last if last else 1),
        by_channel=not last,
        features=int(x.shape[-last:].numel()) if last else 0,
        normalise=lambda x: func(**plain | {"input": x}),
    )


def _elementwise(func: Any, names: _Names, given: _Given) -> Use | None:
    """Describe a product, sum or difference of a parameter and something else."""
    first, second = given["input"], given["other"]
    weight, x = (first, second) if id(first) in names else (second, first)
    size = weight.shape
    if func in _PRODUCTS:
        if not torch.is_tensor(x):
            return None
        return ScaleUse(names[id(weight)], None, x.detach(), _broadcast(size, x.shape), size=size)
    subtracted = func in _DIFFERENCES
    if (subtracted and id(second) not in names) or given.get("alpha", 1) != 1:
        return None
    shape = x.shape if torch.is_tensor(x) else torch.Size()
    sign = -1.0 if subtracted else 1.0
    return ShiftUse(names[id(weight)], None, None, _broadcast(size, shape), size=size, sign=sign)


def _expand(func: Any, names: _Names, given: _Given) -> Use | None:
    x = given.pop("input")
    shape = x.expand(*given.values()).shape
    return ShiftUse(names[id(x)], None, None, _broadcast(x.shape, shape), size=x.shape)


def _getitem(func: Any, names: _Names, given: _Given) -> Use | None:
    x, index = given["input"], given["index"]
    index = index if isinstance(index, tuple) else (index,)
    if any(not (i is None or i is Ellipsis or isinstance(i, (int, slice))) for i in index):
        return None
    where = _axes(x.detach()[index].ndim)
    return ShiftUse(names[id(x)], None, None, where, size=x.shape, index=index)


def _axes(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def _broadcast(weight: torch.Size, other: torch.Size) -> tuple[int, ...]:
    """Return the axes of the broadcast result along which the weight does not vary."""
    ndim = max(len(weight), len(other))
    padded = (1,) * (ndim - len(weight)) + tuple(weight)
    return tuple(i for i, size in enumerate(padded) if size == 1)


_PRODUCTS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
_SUMS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_)
_DIFFERENCES = (torch.sub, Tensor.sub, Tensor.__sub__)
MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
_CONV = "input weight bias stride padding dilation groups"
_CONV_T = "input weight bias stride padding output_padding groups dilation"
_STATISTICS = "input running_mean running_var weight bias"
_KNOWN: dict[Any, tuple[Callable[[Any, _Names, _Given], Use | None], str]] = {
    F.linear: (_linear, "input weight bias"),
    torch.addmm: (_addmm, "input mat1 mat2"),
    F.embedding: (
        _embedding,
        "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    ),
    F.layer_norm: (_norm, "input normalized_shape weight bias eps"),
    F.rms_norm: (_norm, "input normalized_shape weight eps"),
    F.group_norm: (_norm, "input num_groups weight bias eps"),
    F.batch_norm: (_norm, f"{_STATISTICS} training momentum eps"),
    F.instance_norm: (_norm, f"{_STATISTICS} use_input_stats momentum eps"),
    Tensor.expand: (_expand, "input 0 1 2 3 4 5 6 7"),
    Tensor.__getitem__: (_getitem, "input index"),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), (_conv, _CONV)),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), (_conv, _CONV_T)),
    **dict.fromkeys(MATMULS, (_matmul, "input other")),
    **dict.fromkeys((*_PRODUCTS, *_SUMS, *_DIFFERENCES), (_elementwise, "input other")),
}
"""How each function is described, and the order of its arguments."""


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
