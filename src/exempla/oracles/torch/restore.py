"""Borrow a model: whatever a pass changes is put back, even if the pass is interrupted.

A pass over the data borrows the model for one batch at a time and returns it before the rows are
handed out, so a pass that is abandoned half-way leaves nothing behind. What can be looked up once
is looked up once: on a GPU a batch takes about a millisecond.

One thread at a time borrows a model: training mode, requires_grad and buffers belong to a module
that several Explainers may share, random state and torch's settings to the whole process.
"""

from __future__ import annotations

import pickle
import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

BORROWING = RLock()
"""Held while a model is borrowed, one batch at a time, and while its own state is read."""
SMALL_NETWORK = 60_000
"""Parameters up to which one CPU thread is faster than several, which mostly wait and spin."""
_Buffers = list[tuple[nn.Module, dict[str, Any]]]
"""Modules with their buffers, by name."""


@contextmanager
def _few_threads(parameters: int) -> Iterator[None]:
    """Use one CPU thread of torch for a network with so few parameters; restore the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if parameters <= SMALL_NETWORK else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ModelRestorer:
    """Puts a model back as it was found."""

    def __init__(self, model: nn.Module, selected: set[int] | None = None) -> None:
        self.modules = list(model.modules())
        self.parameters = list(model.parameters())
        on_cpu = all(p.device.type == "cpu" for p in self.parameters)
        self.size = sum(p.numel() for p in self.parameters) if on_cpu else SMALL_NETWORK + 1
        self.others = [p for p in self.parameters if selected is not None and id(p) not in selected]
        tables = [m for m in self.modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        # an embedding with max_norm rescales its rows whenever it is read
        self.rescaled: list[Tensor] = [m.weight for m in tables if m.max_norm is not None]
        self.recurrent = [m for m in self.modules if isinstance(m, nn.RNNBase)]
        self.buffered = [m for m in self.modules if m._buffers]
        self.copies: dict[int, tuple[Tensor, int, Tensor]] = {}
        self.draws = True
        """False once a survey has seen that the model draws no random numbers."""

    @contextmanager
    def borrowed(self, gradients: bool = True) -> Iterator[None]:
        """Put the model in evaluation mode, with gradients for the selected parameters only.

        Without `gradients`, the user's data may be read as well. Restored at the end: training mode
        of every submodule, requires_grad, .grad, backward hooks, buffers (values and objects), the
        number of threads, and the random state unless the model is known to draw nothing.
        """
        with BORROWING, _few_threads(self.size), self._put_back(gradients):
            yield

    @contextmanager
    def _put_back(self, gradients: bool) -> Iterator[None]:
        before: list[tuple[Any, str, Any]] = [(p, "grad", p.grad) for p in self.parameters]

        def change(owner: Any, name: str, value: Any) -> None:
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

        buffers = [(m, dict(m._buffers)) for m in self.buffered]
        self._copy(buffers)
        state = random_state() if self.draws or not gradients else None
        fast_attention = torch.backends.mha.get_fastpath_enabled()
        try:
            for module in self.modules:
                if module.training:  # not .eval(), which some modules use to fold weights together
                    change(module, "training", False)
            for module in self.recurrent:
                # cuDNN's recurrent layers have a backward pass in training mode only, from which
                # evaluation mode differs by nothing but dropout
                change(module, "training", True)
                change(module, "dropout", 0.0)
            # the fast path zeroes padded positions, which the path with gradients does not
            torch.backends.mha.set_fastpath_enabled(False)
            for p in self.others if gradients else ():
                if p.requires_grad:
                    change(p, "requires_grad", False)
            # backward hooks may change gradients, and are not part of the model
            for owner in (*self.modules, *self.parameters):
                for name in ("_backward_hooks", "_backward_pre_hooks"):
                    if getattr(owner, name, None):
                        change(owner, name, None if isinstance(owner, Tensor) else OrderedDict())
            _forget_casts()
            with torch.inference_mode(False), torch.enable_grad(), _graphs_of_checkpoints():
                yield
        finally:
            _forget_casts()
            torch.backends.mha.set_fastpath_enabled(fast_attention)
            for owner, name, value in reversed(before):
                if getattr(owner, name) is not value:
                    setattr(owner, name, value)
            self._restore(buffers)
            if state is not None:
                restore_random_state(state)

    def _held(self, buffers: _Buffers) -> list[Tensor]:
        """Return the tensors that a forward may write to."""
        return [t for _, held in buffers for t in held.values() if t is not None] + self.rescaled

    def _copy(self, buffers: _Buffers) -> None:
        """Copy every buffer; a copy is renewed only if the buffer was written to."""
        for tensor in self._held(buffers):
            known = self.copies.get(id(tensor))
            if known is None or known[0] is not tensor or known[1] != _version(tensor):
                self.copies[id(tensor)] = (tensor, _version(tensor), tensor.detach().clone())

    def _restore(self, buffers: _Buffers) -> None:
        for module, held in buffers:
            for name, tensor in held.items():
                if module._buffers.get(name) is not tensor:
                    module._buffers[name] = tensor
        for tensor in self._held(buffers):
            _, before, copy = self.copies[id(tensor)]
            if _version(tensor) != before:
                with torch.no_grad():
                    tensor.copy_(copy)
                self.copies[id(tensor)] = (tensor, _version(tensor), copy)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out whether the code inside draws random numbers."""
        before = pickle.dumps(random_state())
        yield
        self.draws = pickle.dumps(random_state()) != before


class _Unchecked:
    """Replaces torch's re-entrant checkpoint: the function runs once and keeps its graph."""

    @staticmethod
    def apply(function: Any, _: bool, *args: Any) -> Any:
        return function(*args)


@contextmanager
def _graphs_of_checkpoints() -> Iterator[None]:
    """Run re-entrant checkpoints without checkpointing.

    They hide their graph and cannot give gradients of a part. The newer kind
    (use_reentrant=False) is left as it is.
    """
    before: Any = checkpoint.CheckpointFunction
    checkpoint.CheckpointFunction = _Unchecked  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        checkpoint.CheckpointFunction = before  # type: ignore[misc]


def _forget_casts() -> None:
    """Clear autocast's cache of lowered weights, some of which may lack gradients."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


def _version(tensor: Tensor) -> int:
    """Return how often the tensor has been written to (−1 if torch does not count)."""
    return -1 if tensor.is_inference() else tensor._version


def random_state() -> dict[str, Any]:
    """Return the state of every global random generator."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the user's global generator
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Put back the states that `random_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
