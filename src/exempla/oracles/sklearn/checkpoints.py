"""Earlier weights of a scikit-learn model: recorded snapshots stand for copies of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.oracles.sklearn.unwrap import require_fitted, unwrap
from exempla.recorder.sklearn_weights import arrays_of, place, read_arrays

__all__ = ["has_weights", "with_checkpoints"]


def with_checkpoints(models: list[Any]) -> list[Any]:
    """The list with every snapshot's file turned into a model."""
    base = next((m for m in models if not isinstance(m, str | Path)), None)
    return [loaded(base, m) if isinstance(m, str | Path) else m for m in models]


def loaded(base: Any, path: str | Path) -> Any:
    """A copy of the base model with other weights; what stands before its last step stays."""
    if base is None:
        raise ExemplaError("a list of snapshots needs the model they belong to: put it first.")
    arrays = read_arrays(Path(path))
    require_fitted(base)
    model = copy.deepcopy(base)
    try:
        place(unwrap(model)[1], arrays)
    except ExemplaError as problem:
        raise ExemplaError(f"{path} does not fit {type(base).__name__}: {problem}") from None
    return model


def has_weights(model: Any, path: Path) -> bool:
    """Whether the file holds the very weights that the model has."""
    require_fitted(model)
    own, found = arrays_of(unwrap(model)[1]), read_arrays(path)
    return set(own) == set(found) and all(np.array_equal(own[name], found[name]) for name in own)
