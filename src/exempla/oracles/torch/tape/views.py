"""Matrices taken out of a stack of them (experts), and rows gathered by index.

A mixture of experts keeps the weights of all its experts in one parameter (experts, d_out, d_in).
It is read a matrix at a time, or given whole to a grouped product with the number of rows that
each expert gets. Either way rows meet matrices in the order of the routing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.oracles.torch.tape.uses import StackUse, Use

__all__ = ["GATHERING", "Views"]

TRANSPOSES = (Tensor.transpose, torch.transpose, torch.swapaxes, Tensor.swapaxes)
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
GROUPED = (getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None))


class View(NamedTuple):
    """One matrix of a stack, or all of them (piece None), perhaps transposed."""

    name: str
    pieces: int
    piece: int | None
    transposed: bool
    tensor: Tensor
    """Held, so that its identity stays its own."""


class Views:
    """The matrices that one forward pass has taken out of tracked stacks."""

    def __init__(self, names: dict[int, str]) -> None:
        self.tracked = names
        self.names: dict[int, str] = {}
        self.known: dict[int, View] = {}

    def _of(self, value: Any) -> View | None:
        """The view that this is: a stack itself is a view of all of it."""
        known = self.known.get(id(value))
        name = self.tracked.get(id(value))
        if known is None and name is not None and is_stack(value):
            return View(name, value.shape[0], None, False, value)
        return known

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> bool:
        """Whether the call only takes a matrix out of a stack or turns one over: then noted."""
        view = self._of(args[0]) if args else None
        if view is None or not torch.is_tensor(out):
            return False
        if func is Tensor.__getitem__ and view.piece is None and not view.transposed:
            piece = single(args[1])
            new = None if piece is None else view._replace(piece=piece % view.pieces, tensor=out)
        elif func in TRANSPOSES and {a % args[0].ndim for a in args[1:3]} == last_two(args[0]):
            new = view._replace(transposed=not view.transposed, tensor=out)
        else:
            new = None
        if new is None:
            return False
        self.known[id(out)], self.names[id(out)] = new, new.name
        return True

    def describe(self, func: Any, args: Any, kwargs: Any) -> Use | None:
        """The use of a view in a product, if this is one."""
        if len(args) < 2:
            return None
        x, view = args[0], self._of(args[1])
        if view is None or not torch.is_tensor(x):
            return None
        if func is F.linear and view.piece is not None:
            return self._use(view, x, None, table=view.transposed)
        if func in PRODUCTS and view.piece is not None:
            return self._use(view, x, None, table=not view.transposed)
        offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
        if func in GROUPED and view.piece is None and offsets is not None and x.ndim == 2:
            rows = torch.arange(len(x), device=x.device)
            which = torch.searchsorted(offsets.long(), rows, right=True)
            return self._use(view, x, which.clamp_max(view.pieces - 1), not view.transposed)
        return None

    @staticmethod
    def _use(view: View, x: Tensor, which: Tensor | None, table: bool) -> StackUse:
        if which is None:
            assert view.piece is not None
            which = torch.full((x.shape[:-1].numel(),), view.piece, device=x.device)
        axes = tuple(range(x.ndim - 1))
        return StackUse(
            view.name, None, x.detach(), axes, pieces=view.pieces, which=which, table=table
        )


def is_stack(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.shape[0] > 1


def single(index: Any) -> int | None:
    """The number of one matrix, if the index is one."""
    if isinstance(index, Tensor) and index.ndim == 0 and not index.is_floating_point():
        return None if index.dtype == torch.bool else int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def last_two(t: Tensor) -> set[int]:
    return {t.ndim - 1, t.ndim - 2}


# ---- rows gathered by index: whether the samples may have left their axis


def by_item(n: int, x: Any, index: Any) -> bool:
    first = index[0] if isinstance(index, tuple) and index else index
    if not carries_samples(x) or not isinstance(first, (Tensor, list)):
        return False
    if isinstance(first, list):
        return True
    if first.ndim == 0:
        return False
    # x[arange(n), last]: one entry of every sample, in order
    in_order = isinstance(index, tuple) and first.ndim == 1 and len(first) == n == len(x)
    return not (in_order and bool((first == torch.arange(n, device=first.device)).all()))


def by_select(n: int, x: Any, dim: int = 0, index: Any = None, **_: Any) -> bool:
    return carries_samples(x) and dim % x.ndim == 0


def always(n: int, x: Any, *_: Any, **__: Any) -> bool:
    return carries_samples(x)


def carries_samples(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 0


GATHERING: dict[Any, Callable[..., bool]] = {
    Tensor.__getitem__: by_item,
    **dict.fromkeys((torch.index_select, Tensor.index_select), by_select),
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), always),
    # pack_padded_sequence leaves the padding out, in the order of time steps
    torch._VF._pack_padded_sequence: always,  # type: ignore[attr-defined]
}
