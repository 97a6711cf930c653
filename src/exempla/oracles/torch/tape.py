"""Record every use of a parameter while the model runs, without touching the model.

A `TorchFunctionMode` sees each torch function that the forward pass calls, from any module or bare
line of code, so shared weights, reused modules and functional calls are all treated alike. A
function in the table of `operations.py` becomes a `Use`; any other differentiable use of a
parameter sends it to the fallback. Gradients are computed only at the outputs of the uses: no
parameter's gradient is computed and no hook is set.

A mixture of experts keeps the weights of all its experts in one parameter (experts, d_out, d_in).
It takes out one matrix at a time, or passes all of them to a grouped product together with the
number of rows of each expert. `_Views` follows such matrices to where they are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from exempla.oracles.torch.layers import StackUse, Use, repeated
from exempla.oracles.torch.operations import EXPANDED, MATMULS, describe, is_packed

CLONE = -2
"""Treatment: copy the output, because an in-place operation on a view would lose its edge."""

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
        self.names: dict[int, str] = {}
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
        if view.piece is not None and (func is F.linear or func in MATMULS):
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


# ---- functions that gather rows by index, after which no axis need carry the samples


def _by_item(n: int, x: Any, index: Any) -> bool:
    first = index[0] if isinstance(index, tuple) and index else index
    if not _carries_samples(x) or not isinstance(first, (Tensor, list)):
        return False
    if isinstance(first, list):
        return True
    if first.ndim == 0:
        return False
    # x[arange(n), last]: one entry of every sample, in order
    in_order = isinstance(index, tuple) and first.ndim == 1 and len(first) == n == len(x)
    return not (in_order and bool((first == torch.arange(n, device=first.device)).all()))


def _by_select(n: int, x: Any, dim: int = 0, index: Any = None, **_: Any) -> bool:
    return _carries_samples(x) and dim % x.ndim == 0


def _always(n: int, x: Any, *_: Any, **__: Any) -> bool:
    return _carries_samples(x)


def _carries_samples(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 0


_GATHERING: dict[Any, Callable[..., bool]] = {
    Tensor.__getitem__: _by_item,
    **dict.fromkeys((torch.index_select, Tensor.index_select), _by_select),
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _always),
    # pack_padded_sequence leaves the padding out, in the order of time steps
    torch._VF._pack_padded_sequence: _always,  # type: ignore[attr-defined]
}


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
                self.gathered = _GATHERING[func](self.n, *args, **kwargs)
            return func(*args, **kwargs)
        expanded = EXPANDED.get(func)
        if expanded is not None:
            with self:  # so that each of its products is seen
                out = expanded(*args, **kwargs)
            if out is not None:
                # the rows of a packed sequence are in the order of its time steps
                self.gathered = self.gathered or is_packed(func, args)
                return out
        out = func(*args, **kwargs)
        if not any(t.requires_grad for t in _tensors(out)):
            return out
        if self.views.follow(func, args, kwargs, out):
            return out
        use = None
        if torch.is_tensor(out):
            use = self.views.describe(func, args, kwargs)
            use = use or describe(func, self.names, args, kwargs)
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
        """Add the names of the parameters among the values.

        Every call of a torch function comes here, so it must be fast: ids are looked up without
        regard to what they belong to.
        """
        names, views = self.names, self.views.names
        for value in values:
            name = names.get(id(value)) or views.get(id(value))
            if name is not None:
                touched.add(name)
            elif isinstance(value, (list, tuple)):
                self._collect(value, touched)


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (list, tuple)):
        for part in out:
            yield from _tensors(part)


class _ScalarOf(torch.autograd.Function):
    """A scalar whose gradient at the outputs is the cotangent (its value does not matter).

    Given `grad_outputs`, `torch.autograd.grad` imports sympy to compare two shapes: a second and
    60 MB in every fresh process. The gradient of a scalar needs none, and costs no memory.
    """

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
    """Return the gradient of ⟨outputs, cotangent⟩ at each tensor wanted; None where unused.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pull_back(x * x, [x], torch.tensor([1.0, 10.0]))
    (tensor([ 2., 40.]),)
    """
    with torch.inference_mode(False), torch.enable_grad():
        cotangent = cotangent.clone() if cotangent.is_inference() else cotangent
        scalar = _ScalarOf.apply(outputs, cotangent)
    return torch.autograd.grad(scalar, wanted, retain_graph=again, allow_unused=True)  # type: ignore
