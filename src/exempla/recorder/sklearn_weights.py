"""Weights of scikit-learn models that are trained step by step, as plain arrays in an NPZ file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from exempla.errors import ExemplaError, UnfittedModelError
from exempla.recorder.weights import ENTRY, Weights

__all__ = ["WEIGHTS", "arrays_of", "place", "read_arrays"]

LISTS = ("coefs_", "intercepts_")
"""Of a perceptron: one array per layer."""
SINGLE = ("coef_", "intercept_")
"""Of a linear model."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Copies of the fitted weights by name.

    >>> from sklearn.linear_model import SGDClassifier
    >>> sorted(arrays_of(SGDClassifier().partial_fit([[0.0], [1.0]], [0, 1], [0, 1])))
    ['coef_', 'intercept_']
    """
    if hasattr(model, LISTS[0]):
        pairs = [(f"{name}.{i}", a) for name in LISTS for i, a in enumerate(getattr(model, name))]
    elif hasattr(model, SINGLE[0]):
        pairs = [(name, getattr(model, name)) for name in SINGLE]
    else:
        raise UnfittedModelError(
            f"{type(model).__name__} has no weights (coefs_ or coef_) to record yet: call "
            "record.step() after partial_fit."
        )
    return {name: np.array(a) for name, a in pairs}


def place(model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Give the model these weights instead of its own, which must have the same shapes."""
    own = arrays_of(model)
    if {n: a.shape for n, a in own.items()} != {n: a.shape for n, a in arrays.items()}:
        raise ExemplaError(
            f"these weights are of another model than this {type(model).__name__}: their shapes "
            "differ."
        )
    if LISTS[0] in "".join(own):
        for name in LISTS:
            setattr(model, name, [arrays[f"{name}.{i}"] for i in range(len(getattr(model, name)))])
    else:
        for name in SINGLE:
            setattr(model, name, arrays[name])


def encoded(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as an NPZ file."""
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    return out.getvalue()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file; it cannot run code."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise ExemplaError(f"there is no file {path}.") from None
    except Exception as problem:  # a file may hold anything
        raise ExemplaError(f"{path} is not a snapshot ({type(problem).__name__}).") from None


def _learning_rate(model: Any) -> float | None:
    """The rate that was asked for: what a schedule makes of it is the model's own affair."""
    if hasattr(model, "learning_rate_init"):
        return float(model.learning_rate_init)
    return float(model.eta0) if getattr(model, "learning_rate", None) == "constant" else None


WEIGHTS = Weights(
    kind="scikit-learn",
    suffix=".npz",
    copied=arrays_of,
    encoded=encoded,
    nbytes=lambda arrays: ENTRY + sum(a.nbytes + ENTRY for a in arrays.values()),
    learning_rate=_learning_rate,
)
