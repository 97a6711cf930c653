"""A batch in the form in which the model takes it, and checks of its values.

A `Batch` holds arguments, labels and weights, all with samples on the first axis. `usable` turns
arrays into tensors that a network can compute with, or says why that is impossible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exempla.arrays import is_sparse, native, refuse_masked
from exempla.data import LARGEST_WEIGHT
from exempla.errors import ExemplaError

_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores but hardly computes with."""


@dataclass(frozen=True)
class Batch:
    """Some examples, collated and on the model's device.

    Attributes
    ----------
    positions : (n,) int64 array
        Positions of the examples in the data set.
    args, kwargs
        Arguments of the model's forward.
    labels, weights : tensors or None
    given
        The batch as the user's data provides it, for custom likelihoods.
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
        """Return some of the examples."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        picked = {
            name: tree_map(
                lambda t: t[index.to(t.device)] if self._has_samples(t) else t, getattr(self, name)
            )
            for name in ("args", "kwargs", "labels", "weights", "given")
        }
        return replace(self, positions=self.positions[np.asarray(rows)], **picked)

    def tensors(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Batch]]:
        """Return every tensor with one row per sample, and a function that replaces them."""
        fields = ("args", "kwargs", "labels", "given")
        found = {
            id(t): t for name in fields for t in leaves(getattr(self, name)) if self._has_samples(t)
        }

        def rebuild(values: list[Tensor]) -> Batch:
            new = dict(zip(found, values, strict=True))
            parts = {
                name: tree_map(lambda v: new.get(id(v), v), getattr(self, name)) for name in fields
            }
            return replace(self, positions=self.positions[: len(values[0])], **parts)

        return list(found.values()), rebuild

    def _has_samples(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == len(self)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply the function to every leaf of nested lists, tuples and dictionaries."""
    if hasattr(tree, "__array__"):
        return function(tree)
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        return {key: tree_map(function, tree[key]) for key in tree.keys()}  # noqa: SIM118
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, v) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, v) for v in tree)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves that `tree_map` visits, in order."""
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def copied(tree: Any) -> Any:
    """Copy every tensor, so that a forward that works in place changes no data of the caller."""
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def usable(value: Any) -> Any:
    """Return arrays and frames as tensors, and anything that is not an array unchanged.

    >>> usable(np.array([1, 2], dtype=">i4"))
    tensor([1, 2], dtype=torch.int32)
    """
    if is_sparse(value):
        raise ExemplaError("a sparse matrix cannot be given to a network: give X.toarray().")
    if isinstance(value, Tensor):
        return usable_tensor(value)
    if not hasattr(value, "__array__"):
        return value
    refuse_masked(value, "the data")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ExemplaError(
            f"an array of type {array.dtype} cannot be given to a network: encode it as numbers "
            "(class labels as 0, 1, 2, …; for raw texts give a pipeline, which has a tokenizer)."
        )
    if array.dtype.itemsize > 8:  # torch has no longer numbers
        array = array.astype(np.float64)
    array = forward_strides(native(array))
    return usable_tensor(torch.as_tensor(array if array.flags.writeable else array.copy()))


def forward_strides(value: Any) -> Any:
    """Copy an array with negative strides (`x[::-1]`), which torch cannot read."""
    if isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides):
        return value.copy()
    return value


def usable_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor in a type that networks compute with; refuse it if it has no real values.

    Raises
    ------
    ExemplaError
        If the tensor is on the meta device, sparse, nested, complex or quantized, or holds whole
        numbers above 2**63.
    """
    if tensor.is_meta:
        raise ExemplaError("a tensor on the meta device has no values: load the data first.")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise ExemplaError("a sparse or nested tensor cannot be read by rows: give a dense one.")
    if tensor.is_complex():
        raise ExemplaError("a complex tensor has no likelihood here: give real numbers.")
    if tensor.is_quantized:
        raise ExemplaError("a quantized tensor has no gradient: give tensor.dequantize().")
    if tensor.dtype in _WIDE_UNSIGNED:
        as_signed = tensor.to(torch.int64)
        if bool((as_signed < 0).any()):
            raise ExemplaError("whole numbers above 2**63 cannot be given to a network.")
        tensor = as_signed
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):  # autograd takes no tensor made in inference mode
        return tensor.clone()


def refuse_weights(weights: Any, positions: np.ndarray) -> None:
    """Raise unless there is one finite, nonnegative weight for each example."""
    shape = tuple(getattr(weights, "shape", ()))
    if not isinstance(weights, Tensor) or shape not in ((len(positions),), (len(positions), 1)):
        raise ExemplaError(
            f"weights of shape {shape} were given for {len(positions)} examples: give one number "
            "for each."
        )
    wrong = ~(weights.isfinite() & (weights >= 0))
    refuse_rows(wrong, positions, "have a weight that is negative, NaN or infinite")
    what = f"have a weight above {LARGEST_WEIGHT:g}, and sums of it overflow"
    refuse_rows(weights > LARGEST_WEIGHT, positions, what)


def refuse_rows(wrong: Tensor, positions: np.ndarray, what: str) -> None:
    """Raise if any entry is True, naming the examples of these rows by their positions."""
    rows = wrong.reshape(len(wrong), -1).any(1).nonzero()[:, 0].tolist()
    if rows:
        named = ", ".join(str(int(positions[i])) for i in rows[:5])
        more = "…" if len(rows) > 5 else ""
        raise ExemplaError(f"{len(rows)} examples {what} (rows {named}{more}): correct them.")
