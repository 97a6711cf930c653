"""How a copy of the caller's model is fitted, and what it then believes of each label."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline

from exempla.data import n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle

__all__ = ["Fit", "Learner"]

Fit = Callable[[Any, Any, np.ndarray, np.ndarray | None], Any]
"""fit(module, X, y, sample_weight) -> fitted module."""

FLOOR = 1e-12
"""Smallest probability a signal distinguishes from zero."""


@dataclass(frozen=True)
class Learner:
    """The caller's model as a recipe: every fit starts from a fresh copy."""

    model: Any
    classes: np.ndarray
    fit: Fit | None = None

    def fitted(
        self, X: Any, y: np.ndarray, weights: np.ndarray | None = None, quiet: bool = True
    ) -> Any:
        """A copy of the model, fitted to labels in the user's vocabulary."""
        if self.fit is not None:
            model = self.fit(copy.deepcopy(self.model), X, y, weights)
            if model is None:
                raise ExemplaError("fit returned None: it must return the fitted module.")
            return model
        if len(np.unique(y)) < 2:
            raise ExemplaError(
                "the labels cannot be judged: with a few rows set aside only one class is left to "
                "learn from; give more rows of every class."
            )
        model: Any = clone(self.model)
        with warnings.catch_warnings():
            if quiet:  # one message from the fit on all rows is enough
                warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y, **_weight_argument(model, weights))
        return model

    def log_proba(self, fitted: Any, X: Any) -> np.ndarray:
        """log p(c | x) for every class c the training data know, (n, C), never below log FLOOR."""
        out = np.full((n_rows(X), len(self.classes)), np.log(FLOOR))
        if self.fit is None:
            at = np.searchsorted(self.classes, fitted.classes_)  # a fold may miss a class
            out[:, at] = np.log(np.maximum(fitted.predict_proba(X), FLOOR))
            return out
        oracle = make_oracle(fitted)
        for code, label in enumerate(self.classes):
            labels = np.full(len(out), label)
            out[:, code] = oracle.log_likelihood(oracle.read((X, labels), role="test"))
        return np.maximum(out, np.log(FLOOR))


def make_learner(model: Any, classes: np.ndarray, fit: Fit | None) -> Learner:
    """Check that this model can be refitted and gives probabilities."""
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(model, torch.nn.Module)
    if fit is not None and not callable(fit):
        raise ExemplaError("fit must be a function fit(module, X, y, sample_weight) -> module.")
    if is_module and fit is None:
        raise ExemplaError(
            "a torch module does not say how it is trained: "
            "give fit=callable(module, X, y, sample_weight) -> module."
        )
    if inspect.isclass(model):
        raise ExemplaError(f"{model.__name__} is a class: give an object, {model.__name__}().")
    if not is_module and fit is None and not _gives_probabilities(model):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no class probabilities, which finding wrong labels "
            "needs: use a classifier with predict_proba, such as LogisticRegression."
        )
    return Learner(model, classes, fit)


def _gives_probabilities(model: Any) -> bool:
    return hasattr(model, "fit") and hasattr(model, "predict_proba")


def _weight_argument(model: Any, weights: np.ndarray | None) -> dict[str, np.ndarray]:
    if weights is None:
        return {}
    if isinstance(model, Pipeline):
        return {f"{model.steps[-1][0]}__sample_weight": weights}
    return {"sample_weight": weights}
