"""`nn.LSTM`, `nn.GRU` and `nn.RNN` in the open: the same sums, each product a plain Linear.

torch runs a whole recurrent layer inside one function, where the cells' products cannot be seen.
Here the inputs of all time steps meet their weights at once, the states step by step, so the
scores of both weights keep their factors, with the time steps for positions. Packed sequences are
read as torch packs them: step t has the first `batch_sizes[t]` of the samples, longest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["RECURRENT", "is_packed"]

Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""(product of the inputs, product of the state, states) → new states, the output first."""


def lstm_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    reset, update = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    new = (xn + reset * hn).tanh()
    return (new + update * (states[0] - new),)


def tanh_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((x + h).tanh(),)


def relu_step(x: Tensor, h: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((x + h).relu(),)


def opened(step: Step) -> Callable[..., Any]:
    """torch's function for a kind of cell, in the open."""

    def whole(*args: Any) -> Any:
        return packed(step, *args) if is_packed(None, args) else padded(step, *args)

    return whole


def is_packed(func: Any, args: Any) -> bool:
    """Whether these are the arguments of a packed sequence: (data, batch_sizes, …)."""
    if func is not None and func not in RECURRENT:
        return False
    return len(args) > 3 and isinstance(args[3], (list, tuple))


def padded(
    step: Step, x: Tensor, hx: Any, weights: Sequence[Tensor], biases: bool, layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """Sequences of one length, (T, N, d) or (N, T, d)."""
    if (dropout and train) or x.ndim != 3:
        return None
    x = x.transpose(0, 1) if batch_first else x
    sizes = [x.shape[1]] * len(x)
    out, last = stack(step, x.unbind(0), x, sizes, hx, weights, biases, layers, both_ways)
    found = torch.stack(out)
    return (found.transpose(0, 1) if batch_first else found, *last)


def packed(
    step: Step, data: Tensor, batch_sizes: Tensor, hx: Any, weights: Sequence[Tensor],
    biases: bool, layers: int, dropout: float, train: bool, both_ways: bool,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """Sequences of several lengths, the rows of each time step after those of the last."""
    if dropout and train:
        return None
    sizes = batch_sizes.tolist()
    out, last = stack(step, data.split(sizes), data, sizes, hx, weights, biases, layers, both_ways)
    return (torch.cat(out), *last)


def stack(
    step: Step, steps: Sequence[Tensor], whole: Tensor, sizes: list[int], hx: Any,
    weights: Sequence[Tensor], biases: bool, layers: int, both_ways: bool,
) -> tuple[list[Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """All layers: the outputs step by step, and the last states of every layer and direction."""
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
    step: Step, whole: Tensor, sizes: list[int], states: tuple[Tensor, ...],
    weights: Sequence[Tensor], biases: bool, backwards: bool,
) -> tuple[list[Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """One layer in one direction. A sample whose sequence is over keeps its state."""
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


def cell(step: Step) -> Callable[..., Any]:
    """torch's function for one time step, in the open."""

    def one(
        x: Tensor, hx: Any, w_in: Tensor, w_state: Tensor,
        b_in: Tensor | None = None, b_state: Tensor | None = None,
    ) -> Any:  # fmt: skip
        h, *others = (hx,) if isinstance(hx, Tensor) else hx
        new = step(F.linear(x, w_in, b_in), F.linear(h, w_state, b_state), (h, *others))
        return new if others else new[0]

    return one


RECURRENT: dict[Any, Callable[..., Any]] = {
    torch.lstm_cell: cell(lstm_step),
    torch.gru_cell: cell(gru_step),
    torch.rnn_tanh_cell: cell(tanh_step),
    torch.rnn_relu_cell: cell(relu_step),
    torch.lstm: opened(lstm_step),
    torch.gru: opened(gru_step),
    torch.rnn_tanh: opened(tanh_step),
    torch.rnn_relu: opened(relu_step),
}
