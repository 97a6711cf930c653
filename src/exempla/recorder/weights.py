"""What a Recorder copies of a model, and how that becomes a file: one way for each framework."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exempla.errors import UnsupportedModelError

__all__ = ["ENTRY", "Weights", "weights_of"]

ENTRY = 512
"""Bytes that a file takes for one array beside its name and numbers, at most."""


@dataclass(frozen=True)
class Weights:
    """How the weights of one kind of model are copied and written."""

    kind: str
    suffix: str
    copied: Callable[[Any], Any]
    """A copy in main memory that later steps do not change."""
    encoded: Callable[[Any], bytes]
    """The copy as the bytes of a file."""
    nbytes: Callable[[Any], int]
    """Bytes that its file takes, or a few more."""
    learning_rate: Callable[[Any], float | None]
    """What the model itself says of its learning rate."""


def weights_of(model: Any) -> Weights:
    """How to copy this model's weights.

    >>> from sklearn.neural_network import MLPClassifier
    >>> weights_of(MLPClassifier()).kind
    'scikit-learn'
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from exempla.recorder.torch_weights import WEIGHTS

        return WEIGHTS
    if hasattr(model, "partial_fit"):
        from exempla.recorder.sklearn_weights import WEIGHTS

        return WEIGHTS
    raise UnsupportedModelError(
        f"{type(model).__name__} is not trained step by step, so there is nothing to record: give "
        "a torch.nn.Module, or a scikit-learn model with partial_fit (of a Pipeline its last step)."
    )
