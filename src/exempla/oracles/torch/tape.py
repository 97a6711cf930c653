"""Record every use of a parameter while the model runs, without touching the model.

A `TorchFunctionMode` sees each torch function that the forward pass calls, from any module or bare
line of code, so shared weights, reused modules and functional calls are all treated alike. A
function in the table `_KNOWN` becomes a `Use`; any other differentiable use of a parameter sends it
to the fallback. Gradients are computed only at the outputs of the uses.

Functions that hide several products (multi-head attention, embedding bags, recurrent layers) have a
twin here that computes the same in single products, so that the tape sees each of them. Packed
sequences are read as torch packs them: step t has the first `batch_sizes[t]` samples.

A mixture of experts keeps the weights of all its experts in one parameter (experts, d_out, d_in).
It takes out one matrix at a time, or passes all of them to a grouped product together with the
number of rows of each expert. `_Views` follows such matrices to where they are used.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from exempla.oracles.torch.conv import ConvShape
from exempla.oracles.torch.layers import (
    ConvTransposeUse,
    ConvUse,
    LinearUse,
    NormUse,
    ScaleUse,
    ShiftUse,
    StackUse,
    TableUse,
    Use,
    repeated,
)

CLONE = -2
"""Treatment: copy the output, because an in-place operation on a view would lose its edge."""

_Names = dict[int, str]
"""Names of the tracked parameters, by id."""
_Given = dict[str, Any]
"""Arguments of a call, by the names that torch gives them; those left out are absent."""


def _describe(func: Any, names: _Names, args: Any, kwargs: Any) -> Use | None:
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
    x, weight = given["input"], given["weight"]
    if x.ndim != weight.ndim:  # a single image without a batch axis
        return None
    dims = weight.ndim - 2

    def each(name: str, default: int) -> Any:
        value = given.get(name, default)
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * dims if len(values) == 1 else values

    padding = given.get("padding", 0)
    shape = ConvShape(
        kernel=tuple(weight.shape[2:]),
        stride=each("stride", 1),
        padding=padding if isinstance(padding, str) else each("padding", 0),
        dilation=each("dilation", 1),
        groups=given.get("groups", 1),
    )
    kind = ConvTransposeUse if "output_padding" in _KNOWN[func][1] else ConvUse
    bias = names.get(id(given.get("bias")))
    return kind(names.get(id(weight)), bias, x.detach(), _axes(1), conv=shape)


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
_MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
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
    **dict.fromkeys(_MATMULS, (_matmul, "input other")),
    **dict.fromkeys((*_PRODUCTS, *_SUMS, *_DIFFERENCES), (_elementwise, "input other")),
}
"""How each function is described, and the order of its arguments."""


def _arguments(func: Any, args: Any, kwargs: Any) -> SimpleNamespace:
    """Return the arguments of a call by name, with defaults for those left out."""
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


def _attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None] | None:
    """Compute torch's multi_head_attention_forward; return None for rare options."""
    given = _arguments(F.multi_head_attention_forward, args, kwargs)
    rare = (given.bias_k, given.bias_v, given.static_k, given.static_v)
    if any(t is not None for t in rare) or given.add_zero_attn or given.training:
        return None
    if given.use_separate_proj_weight or given.in_proj_weight is None or given.query.ndim != 3:
        return None
    length, batch, width = given.query.shape

    def heads(t: Tensor) -> Tensor:  # (L, N, E) → (N, heads, L, E/heads)
        return t.unflatten(-1, (given.num_heads, -1)).permute(1, 2, 0, 3)

    sources = (given.query, given.key, given.value)
    projected = {
        id(x): F.linear(x, given.in_proj_weight, given.in_proj_bias).chunk(3, dim=-1)
        for x in {id(x): x for x in sources}.values()
    }
    q, k, v = (heads(projected[id(x)][i]) for i, x in enumerate(sources))
    scores = q @ k.transpose(2, 3) / math.sqrt(width // given.num_heads)
    if given.attn_mask is not None:
        m = _as_float(given.attn_mask, scores)
        scores = scores + (m.unflatten(0, (-1, given.num_heads)) if m.ndim == 3 else m)
    if given.key_padding_mask is not None:
        scores = scores + _as_float(given.key_padding_mask, scores)[:, None, None, :]
    weights = scores.softmax(-1)
    mixed = (weights @ v).permute(2, 0, 1, 3).reshape(length, batch, -1)
    out = F.linear(mixed, given.out_proj_weight, given.out_proj_bias)
    if not given.need_weights:
        return out, None
    return out, weights.mean(1) if given.average_attn_weights else weights


def _as_float(mask: Tensor, like: Tensor) -> Tensor:
    """Return what is added to the scores: −∞ where a boolean mask forbids, or the mask."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _embedding_bag(*args: Any, **kwargs: Any) -> Tensor | None:
    """Compute torch's embedding_bag for bags of one size; return None for rare options."""
    given = _arguments(F.embedding_bag, args, kwargs)
    rare = (given.offsets, given.max_norm, given.per_sample_weights)
    if any(option is not None for option in rare) or given.scale_grad_by_freq:
        return None
    if given.input.ndim != 2 or given.mode not in ("sum", "mean"):
        return None
    rows = F.embedding(given.input, given.weight, given.padding_idx)
    if given.padding_idx is None:
        return rows.sum(1) if given.mode == "sum" else rows.mean(1)
    counts = (given.input != given.padding_idx % given.weight.shape[0])[:, :, None].to(rows.dtype)
    total = (rows * counts).sum(1)
    return total if given.mode == "sum" else total / counts.sum(1).clamp_min(1)


_States = tuple[Tensor, ...]
_Step = Callable[[Tensor, Tensor, _States], _States]
"""(product of the inputs, product of the state, states) → new states, the output first."""


def _lstm_step(x: Tensor, h: Tensor, states: _States) -> _States:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x: Tensor, h: Tensor, states: _States) -> _States:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    reset, update = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    new = (xn + reset * hn).tanh()
    return (new + update * (states[0] - new),)


def _layers(step: _Step, x: Tensor, *options: Any) -> Any:
    """Run all layers of one kind of cell, on padded or packed sequences.

    Both are rows of the first time step, then those of the second, and so on: step t has the first
    `sizes[t]` samples. Returns None for dropout and for a sequence without a batch axis.
    """
    packed = isinstance(options[2], (list, tuple))
    batch_first = False
    if packed:
        batch_sizes, hx, weights, biases, layers, dropout, train, both_ways = options
        sizes = batch_sizes.tolist()
    else:
        hx, weights, biases, layers, dropout, train, both_ways, batch_first = options
        if x.ndim != 3:
            return None
        x = x.transpose(0, 1) if batch_first else x
        sizes = [x.shape[1]] * len(x)
        x = x.flatten(0, 1)
    if dropout and train:
        return None
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    ways = 2 if both_ways else 1
    each = len(weights) // (layers * ways)
    ends: list[_States] = []
    for layer in range(layers):
        made = []
        for k in range(layer * ways, (layer + 1) * ways):
            own, mine = weights[k * each : (k + 1) * each], tuple(s[k] for s in states)
            out, end = _one_way(step, x, sizes, mine, own, biases, backwards=k % ways == 1)
            made.append(out)
            ends.append(end)
        x = torch.cat(made, -1)
    last = tuple(torch.stack(parts) for parts in zip(*ends))
    if not packed:
        x = x.unflatten(0, (len(sizes), -1))
        x = x.transpose(0, 1) if batch_first else x
    return (x, *last)


def _one_way(
    step: _Step, x: Tensor, sizes: list[int], states: _States, weights: Sequence[Tensor],
    biases: bool, backwards: bool,
) -> tuple[Tensor, _States]:  # fmt: skip
    """Run one layer in one direction. A sample whose sequence has ended keeps its state."""
    w_in, w_state = weights[:2]
    b_in, b_state = weights[2:4] if biases else (None, None)
    narrow = weights[4 if biases else 2 :]  # an LSTM may project its output
    inputs = F.linear(x, w_in, b_in).split(sizes)
    made: list[Any] = [None] * len(sizes)
    for t in reversed(range(len(sizes))) if backwards else range(len(sizes)):
        here, others = (
            tuple(s[i] for s in states) for i in (slice(sizes[t]), slice(sizes[t], None))
        )
        new = step(inputs[t], F.linear(here[0], w_state, b_state), here)
        new = (F.linear(new[0], narrow[0]), *new[1:]) if narrow else new
        made[t] = new[0]
        states = tuple(torch.cat([a, b]) if len(b) else a for a, b in zip(new, others))
    return torch.cat(made), states


_RECURRENT: dict[Any, Callable[..., Any]] = {
    torch.lstm: partial(_layers, _lstm_step),
    torch.gru: partial(_layers, _gru_step),
    torch.rnn_tanh: partial(_layers, lambda x, h, _: ((x + h).tanh(),)),
    torch.rnn_relu: partial(_layers, lambda x, h, _: ((x + h).relu(),)),
}
_EXPANDED: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: _attention,
    F.embedding_bag: _embedding_bag,
    **_RECURRENT,
}
"""Functions with parameters inside, and the same computation in single products (which return None
for rare options)."""


# ---- stacks of matrices

_TRANSPOSES = (Tensor.transpose, torch.transpose, torch.swapaxes, Tensor.swapaxes)
_GROUPED = (getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None))


class _View(NamedTuple):
    """One matrix of a stack, or all of them (piece None), possibly transposed."""

    name: str
    pieces: int
    piece: int | None
    transposed: bool
    tensor: Tensor
    """Kept alive, so that its id stays unique."""


class _Views:
    """The matrices that one forward pass has taken out of tracked stacks."""

    def __init__(self, names: dict[int, str]) -> None:
        self.tracked = names
        self.names = dict(names)
        self.known: dict[int, _View] = {}

    def _of(self, value: Any) -> _View | None:
        """Return the view that a tensor is; a stack is a view of all of itself."""
        known = self.known.get(id(value))
        name = self.tracked.get(id(value))
        is_stack = isinstance(value, Tensor) and value.ndim == 3 and value.shape[0] > 1
        if known is None and name is not None and is_stack:
            return _View(name, value.shape[0], None, False, value)
        return known

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> bool:
        """Note a call that only takes a matrix out of a stack or transposes it."""
        view = self._of(args[0]) if args else None
        if view is None or not torch.is_tensor(out):
            return False
        ndim, new = args[0].ndim, None
        if func is Tensor.__getitem__ and view.piece is None and not view.transposed:
            piece = _single(args[1])
            new = None if piece is None else view._replace(piece=piece % view.pieces, tensor=out)
        elif func in _TRANSPOSES and {a % ndim for a in args[1:3]} == {ndim - 1, ndim - 2}:
            new = view._replace(transposed=not view.transposed, tensor=out)
        if new is None:
            return False
        self.known[id(out)], self.names[id(out)] = new, new.name
        return True

    def describe(self, func: Any, args: Any, kwargs: Any) -> Use | None:
        """Return the use of a view in a product, if this call is one."""
        if len(args) < 2:
            return None
        x, view = args[0], self._of(args[1])
        if view is None or not torch.is_tensor(x):
            return None
        table = not view.transposed
        offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
        if view.piece is not None and (func is F.linear or func in _MATMULS):
            table = view.transposed if func is F.linear else table
            which = torch.full((x.shape[:-1].numel(),), view.piece, device=x.device)
        elif func in _GROUPED and view.piece is None and offsets is not None and x.ndim == 2:
            rows = torch.arange(len(x), device=x.device)
            which = torch.searchsorted(offsets.long(), rows, right=True)
            which = which.clamp_max(view.pieces - 1)
        else:
            return None
        axes = tuple(range(x.ndim - 1))
        return StackUse(
            view.name, None, x.detach(), axes, pieces=view.pieces, which=which, table=table
        )


def _single(index: Any) -> int | None:
    """Return the number of one matrix, if the index is one."""
    if isinstance(index, Tensor) and index.ndim == 0 and not index.is_floating_point():
        return None if index.dtype == torch.bool else int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


_SELECTS = (torch.index_select, Tensor.index_select)
_GATHERING = {
    Tensor.__getitem__,
    *_SELECTS,
    torch.masked_select,
    Tensor.masked_select,
    # pack_padded_sequence leaves the padding out, in the order of time steps
    torch._VF._pack_padded_sequence,  # type: ignore[attr-defined]
}


def _gathers(func: Any, n: int, x: Any, *args: Any, **kwargs: Any) -> bool:
    """Return True if a call gathers rows by index, after which no axis need carry the samples."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
        return False
    if func in _SELECTS:
        return kwargs.get("dim", args[0] if args else 0) % x.ndim == 0
    if func is not Tensor.__getitem__:
        return True
    index = args[0]
    first = index[0] if isinstance(index, tuple) and index else index
    if not isinstance(first, Tensor) or first.ndim == 0:
        return isinstance(first, list)
    # x[arange(n), last]: one entry of every sample, in order
    in_order = isinstance(index, tuple) and first.ndim == 1 and len(first) == n == len(x)
    return not (in_order and bool((first == torch.arange(n, device=first.device)).all()))


class Tape(TorchFunctionMode):
    """Uses of the tracked parameters during one forward pass.

    `treatments` maps (parameter, number of the use) to `CLONE`, or to the axis on which an output
    without samples (position embeddings) is repeated for each of the n samples.
    """

    def __init__(
        self, names: dict[int, str], n: int, treatments: dict[tuple[str, int], int]
    ) -> None:
        super().__init__()
        self.names, self.n, self.treatments = names, n, treatments
        self.uses: list[Use] = []
        self.keys: list[tuple[str, int]] = []
        self.unknown: set[str] = set()
        self.views = _Views(names)
        self.known = self.views.names
        """Names of the parameters and of the matrices taken out of them, by id."""
        self.gathered = False
        """Whether rows have been gathered by index so far."""
        self.routed = False
        """Whether a parameter was used after that: then no axis need carry the samples."""
        self._counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        touched: set[str] = set()
        self._collect(args, touched)
        if kwargs:
            self._collect(kwargs.values(), touched)
        if not touched:
            if not self.gathered and func in _GATHERING:
                self.gathered = _gathers(func, self.n, *args, **kwargs)
            return func(*args, **kwargs)
        expanded = _EXPANDED.get(func)
        if expanded is not None:
            with self:  # so that each of its products is seen
                out = expanded(*args, **kwargs)
            if out is not None:
                if func in _RECURRENT and len(args) > 3 and isinstance(args[3], (list, tuple)):
                    self.gathered = True  # rows of a packed sequence: in the order of time steps
                return out
        out = func(*args, **kwargs)
        single = torch.is_tensor(out)
        if not (out.requires_grad if single else any(t.requires_grad for t in _tensors(out))):
            return out
        if self.views.follow(func, args, kwargs, out):
            return out
        use = None
        if single:
            use = self.views.describe(func, args, kwargs)
            use = use or _describe(func, self.names, args, kwargs)
        if use is None or use.names != touched:
            self.unknown |= touched
            return out
        return self._record(use, out)

    def _record(self, use: Use, out: Tensor) -> Tensor:
        self.routed = self.routed or self.gathered or isinstance(use, StackUse)
        name = use.weight or use.bias or ""
        key = (name, self._counts[name])
        self._counts[name] += 1
        treatment = self.treatments.get(key)
        use.shape = out.shape
        if treatment == CLONE:
            out = out.clone()
        elif treatment is not None:
            out, use.repeat = repeated(out, self.n, treatment), treatment
        # the edge now, not the tensor: an in-place ReLU would move the tensor past itself
        use.edge = get_gradient_edge(out)
        self.uses.append(use)
        self.keys.append(key)
        return out

    def _collect(self, values: Any, touched: set[str]) -> None:
        """Add the names of the parameters among the values; every torch call comes here."""
        known = self.known
        for value in values:
            if id(value) in known:
                touched.add(known[id(value)])
            elif isinstance(value, (list, tuple)):
                self._collect(value, touched)


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (list, tuple)):
        for part in out:
            yield from _tensors(part)
