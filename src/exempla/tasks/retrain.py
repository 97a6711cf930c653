"""A fresh copy of the caller's model, trained anew: scikit-learn by clone, torch by `fit`."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from exempla.data import unpack
from exempla.errors import ExemplaError
from exempla.oracles.sklearn.unwrap import is_fitted
from exempla.tasks.fix_labels.learner import _weight_argument

__all__ = ["Fit", "check_fit", "fitted", "refit"]

Fit = Callable[[Any, Any, Any, np.ndarray | None], Any]
"""fit(module, X, y, sample_weight) -> fitted module."""


def check_fit(model: Any, fit: Fit | None) -> None:
    """Whether this model can be trained anew; raises with the remedy if not."""
    if fit is not None and not callable(fit):
        raise ExemplaError("fit must be a function fit(module, X, y, sample_weight) -> module.")
    if fit is None and (is_module(model) or not hasattr(model, "get_params")):
        raise ExemplaError(
            f"{type(model).__name__} does not say how it is trained: "
            "give fit=callable(module, X, y, sample_weight) -> module."
        )


def is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def fitted(model: Any, train: Any, seed: int) -> Any:
    """The model itself if it has been fitted, else a copy fitted on the training data."""
    if is_module(model) or not hasattr(model, "get_params") or is_fitted(model):
        return model
    given = unpack(train, [])
    return refit(model, given.X, given.y, given.weights, None, seed)


def refit(
    model: Any, X: Any, y: Any, weights: np.ndarray | None, fit: Fit | None, seed: int
) -> Any:
    """The model trained on these rows; the caller's object is not touched.

    A torch module reaches `fit` with freshly drawn trainable parameters (`reset_parameters` of
    its layers; frozen layers keep theirs), so that what it had learnt from removed rows is gone.
    """
    if fit is None:
        fresh: Any = clone(model)
        seeded = {
            name: seed for name in fresh.get_params() if name.split("__")[-1] == "random_state"
        }
        fresh.set_params(**seeded)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fresh.fit(X, y, **_weight_argument(fresh, weights))
        return fresh
    copied = copy.deepcopy(model)
    np.random.seed(seed)  # noqa: NPY002  what a caller's own fit may draw from
    if is_module(copied):
        import torch

        torch.manual_seed(seed)
        for layer in copied.modules():
            own = list(layer.parameters(recurse=False))
            if hasattr(layer, "reset_parameters") and any(p.requires_grad for p in own):
                layer.reset_parameters()
    fitted = fit(copied, X, y, weights)
    if fitted is None:
        raise ExemplaError("fit returned None: it must return the fitted module.")
    return fitted
