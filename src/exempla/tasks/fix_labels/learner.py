"""How a fresh copy of the caller's model is fitted, and what it then says of each label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.data import n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.tasks.retrain import Fit, check_fit, in_words, named, refit

__all__ = ["Learner", "make_learner"]

FLOOR = 1e-12
"""Smallest probability a signal distinguishes from zero."""


@dataclass(frozen=True)
class Learner:
    """The caller's model as a recipe: every fit starts afresh."""

    model: Any
    classes: np.ndarray
    fit: Fit | None = None

    def fitted(
        self, X: Any, y: np.ndarray, weights: np.ndarray | None, seed: int, quiet: bool = True
    ) -> Any:
        """The model fitted to labels in the user's vocabulary.

        An estimator keeps the `random_state` its owner gave it.
        """
        if len(np.unique(y)) < 2:
            raise ExemplaError(
                "the labels cannot be judged: with a few rows set aside only one class is left to "
                "learn from; give more rows of every class."
            )
        return refit(self.model, X, y, weights, self.fit, seed, keep_random_state=True, quiet=quiet)

    def log_proba(self, fitted: Any, X: Any) -> np.ndarray:
        """log p(c | x) for every class c the training data know, (n, C), never below log FLOOR."""
        try:
            return self._log_proba(fitted, X)
        except (ExemplaError, MemoryError):
            raise
        except Exception as error:  # the model may be the caller's own, and raise anything
            raise ExemplaError(
                f"the fitted {type(fitted).__name__} cannot predict {in_words(X)}: {named(error)}"
            ) from error

    def _log_proba(self, fitted: Any, X: Any) -> np.ndarray:
        out = np.full((n_rows(X), len(self.classes)), np.log(FLOOR))
        if self.fit is None and not hasattr(fitted, "classes_"):
            raise UnsupportedModelError(
                f"{type(fitted).__name__} tells no classes apart, so it cannot judge labels: use a "
                "classifier with predict_proba, such as LogisticRegression."
            )
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
    check_fit(model, fit)
    if fit is None and not hasattr(model, "predict_proba"):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no class probabilities, which finding wrong labels "
            "needs: use a classifier with predict_proba, such as LogisticRegression."
        )
    return Learner(model, classes, fit)
