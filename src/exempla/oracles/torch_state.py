"""The model is only borrowed: whatever a pass changes is put back, also when it is interrupted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["borrowed"]


@contextmanager
def borrowed(model: nn.Module, selected: set[int] | None = None) -> Iterator[None]:
    """The model in evaluation mode, with gradients on for the selected parameters (ids) only.

    Put back at the end: training mode of every submodule, requires_grad, .grad, buffers (their
    values and the objects themselves), and the random state of Python, NumPy and torch.
    """
    modules = list(model.modules())
    modes = [m.training for m in modules]
    parameters = list(model.parameters())
    flags = [p.requires_grad for p in parameters]
    gradients = [p.grad for p in parameters]
    buffers = [(m, dict(m._buffers)) for m in modules if m._buffers]
    # an embedding with max_norm rescales its rows whenever it is read
    tables = [m for m in modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    rescaled: list[Tensor] = [m.weight for m in tables if m.max_norm is not None]
    values: list[Tensor] = [
        t for _, held in buffers for t in held.values() if t is not None
    ] + rescaled
    copies = [t.detach().clone() for t in values]
    versions = [version(t) for t in values]
    randomness = random_state()
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        # the fast path zeroes padded positions, which the path with gradients does not
        torch.backends.mha.set_fastpath_enabled(False)
        if selected is not None:
            for p in parameters:
                if p.requires_grad and id(p) not in selected:
                    p.requires_grad_(False)
        forget_casts()
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        forget_casts()
        torch.backends.mha.set_fastpath_enabled(fast_attention)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for p, flag, gradient in zip(parameters, flags, gradients, strict=True):
            if p.requires_grad != flag:
                p.requires_grad_(flag)
            if p.grad is not gradient:
                p.grad = gradient
        for module, held in buffers:
            for name, tensor in held.items():
                if module._buffers.get(name) is not tensor:
                    module._buffers[name] = tensor
        with torch.no_grad():
            for tensor, copy, before in zip(values, copies, versions, strict=True):
                if version(tensor) != before:
                    tensor.copy_(copy)
        restore_random_state(randomness)


def forget_casts() -> None:
    """Autocast keeps lowered weights, also those made without gradients: not to be mixed."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


def version(tensor: Tensor) -> int:
    """How often the tensor has been written to (−1 where torch does not count)."""
    return -1 if tensor.is_inference() else tensor._version


def random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the user's global generator
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
