"""The tape: notes every use of a parameter while the model runs, without touching the model.

A `TorchFunctionMode` sees each torch function the forward pass calls, whichever module (or bare
line of code) calls it: shared weights, reused modules and functional calls are all seen alike.
What the table of `operations.py` lists becomes a `Use`; any other differentiable use of a
parameter puts it on the list for the fallback. A matrix taken from a stack of them (`views.py`) is
followed to where it is used. Gradients are then asked for at the outputs of the
uses only, so no parameter's gradient is computed and no hook is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from exempla.oracles.torch.tape.opened.attention import attention
from exempla.oracles.torch.tape.opened.bags import embedding_bag
from exempla.oracles.torch.tape.opened.recurrent import RECURRENT, is_packed
from exempla.oracles.torch.tape.operations import KNOWN
from exempla.oracles.torch.tape.uses import StackUse, Use, repeated
from exempla.oracles.torch.tape.views import GATHERING, Views

__all__ = ["Tape"]

CLONE = -2
"""Treatment: copy the output, because an in-place operation on a view would lose its edge."""


OPENED: dict[Any, Any] = {
    F.multi_head_attention_forward: attention,
    F.embedding_bag: embedding_bag,
    **RECURRENT,
}
"""Functions with parameters inside, and the same sums in the open (None: a rarer case)."""


class Tape(TorchFunctionMode):
    """Uses of the tracked parameters during one forward pass.

    `treatments` maps (parameter, which use of it) to `CLONE`, or to the axis on which an output
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
        self.views = Views(names)
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
            if not self.gathered and func in GATHERING:
                self.gathered = GATHERING[func](self.n, *args, **kwargs)
            return func(*args, **kwargs)
        in_the_open = OPENED.get(func)
        if in_the_open is not None:
            with self:  # the same sums in the open, so that each product is seen
                out = in_the_open(*args, **kwargs)
            if out is not None:
                # the rows of a packed sequence are in the order of its time steps
                self.gathered = self.gathered or is_packed(func, args)
                return out
        out = func(*args, **kwargs)
        if not any(t.requires_grad for t in tensors(out)):
            return out
        if self.views.follow(func, args, kwargs, out):
            return out
        use = self._described(func, args, kwargs) if torch.is_tensor(out) else None
        if use is None or {use.weight, use.bias} - {None} != touched:
            self.unknown |= touched
            return out
        return self._note(use, out)

    def _described(self, func: Any, args: Any, kwargs: Any) -> Use | None:
        use, describe = self.views.describe(func, args, kwargs), KNOWN.get(func)
        return use or (describe(self.names, *args, **kwargs) if describe else None)

    def _note(self, use: Use, out: Tensor) -> Tensor:
        self.routed = self.routed or self.gathered or isinstance(use, StackUse)
        key = (use.key, self._counts[use.key])
        self._counts[use.key] += 1
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
        """Add the names of the parameters among the values. Every call of torch comes here, so it
        must be quick: an id is looked up whatever it belongs to."""
        names, views = self.names, self.views.names
        for value in values:
            name = names.get(id(value)) or views.get(id(value))
            if name is not None:
                touched.add(name)
            elif isinstance(value, (list, tuple)):
                self._collect(value, touched)


def tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (list, tuple)):
        for part in out:
            yield from tensors(part)
