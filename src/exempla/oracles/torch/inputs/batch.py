"""A batch as the model takes it: arguments, labels and weights, all with samples first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Batch", "tree_map"]


@dataclass(frozen=True)
class Batch:
    """Some examples, collated and on the model's device.

    Attributes
    ----------
    positions : (n,) int64 array
        Where the examples stand in the data set.
    args, kwargs
        What the model is called with.
    labels, weights : tensors or None
    given
        The batch as the user's data gave it, for likelihoods of the user's own.
    """

    positions: np.ndarray
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Any
    weights: Tensor | None
    given: Any

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: Any) -> Batch:
        """Some of the examples."""
        n, index = len(self), torch.as_tensor(np.asarray(rows, dtype=np.int64))

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == n:
                return value[index.to(value.device)]
            return value

        fields = ("args", "kwargs", "labels", "weights", "given")
        picked = {name: tree_map(pick, getattr(self, name)) for name in fields}
        return replace(self, positions=self.positions[np.asarray(rows)], **picked)

    def tensors(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Batch]]:
        """Every tensor that has one row per sample, and how to put others in their place."""
        n = len(self)
        found: dict[int, Tensor] = {}

        def collect(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == n:
                found.setdefault(id(value), value)
            return value

        fields = ("args", "kwargs", "labels", "given")
        for name in fields:
            tree_map(collect, getattr(self, name))
        order = list(found)

        def rebuild(values: list[Tensor]) -> Batch:
            new = dict(zip(order, values, strict=True))
            parts = {
                name: tree_map(lambda v: new.get(id(v), v), getattr(self, name)) for name in fields
            }
            return replace(self, positions=self.positions[: len(values[0])], **parts)

        return list(found.values()), rebuild


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The function applied to every leaf of nested lists, tuples and dictionaries."""
    if hasattr(tree, "__array__"):
        return function(tree)
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        return {key: tree_map(function, tree[key]) for key in tree.keys()}  # noqa: SIM118
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, v) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, v) for v in tree)
    return function(tree)
