"""What can be given to a network: real numbers that are there, and weights that weigh."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from exempla.arrays import is_sparse, native, refuse_masked
from exempla.data import LARGEST_WEIGHT
from exempla.errors import ExemplaError

__all__ = ["refuse_rows", "refuse_weights", "usable", "usable_tensor"]

WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores and hardly computes with."""


def usable(value: Any) -> Any:
    """Arrays and frames as tensors; anything that is no array as it is.

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
    array = native(array)
    return usable_tensor(torch.as_tensor(array if array.flags.writeable else array.copy()))


def usable_tensor(tensor: Tensor) -> Tensor:
    """The tensor, in a type that networks compute with; refused if it holds no real numbers."""
    if tensor.is_meta:
        raise ExemplaError("a tensor on the meta device has no values: load the data first.")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise ExemplaError("a sparse or nested tensor cannot be read by rows: give a dense one.")
    if tensor.is_complex():
        raise ExemplaError("a complex tensor has no likelihood here: give real numbers.")
    if tensor.is_quantized:
        raise ExemplaError("a quantized tensor has no gradient: give tensor.dequantize().")
    if tensor.dtype in WIDE_UNSIGNED:
        as_signed = tensor.to(torch.int64)
        if bool((as_signed < 0).any()):
            raise ExemplaError("whole numbers above 2**63 cannot be given to a network.")
        tensor = as_signed
    # one made in inference mode cannot take part in a backward pass
    return tensor.clone() if tensor.is_inference() else tensor


def refuse_weights(weights: Any, positions: np.ndarray) -> None:
    """Raise unless there is one weight for each example, finite and not negative."""
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
    """Raise, naming the examples by their positions, if any entry of their rows is wrong."""
    rows = wrong.reshape(len(wrong), -1).any(1).nonzero()[:, 0].tolist()
    if rows:
        named = ", ".join(str(int(positions[i])) for i in rows[:5])
        more = "…" if len(rows) > 5 else ""
        raise ExemplaError(f"{len(rows)} examples {what} (rows {named}{more}): correct them.")
