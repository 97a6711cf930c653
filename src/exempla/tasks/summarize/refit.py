"""Fit the user's model again on a weighted few, leaving the user's own object alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV

from exempla.data import plain_labels, take_rows, unpack
from exempla.errors import ExemplaError
from exempla.oracles import make_oracle
from exempla.oracles.sklearn.unwrap import open_up
from exempla.tasks.retrain import is_module, refit

__all__ = ["Refit", "refitter"]

Refit = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(picked rows, weights, other rows) → log-likelihood of the others after a refit."""


def refitter(
    model: Any, train: Any, likelihood: Any, fit: Any, device: Any, seed: int = 0
) -> Refit:
    """How well a fit on some weighted training rows predicts others."""
    given = unpack(train, []) if isinstance(train, tuple) else None
    if given is None or given.y is None:
        raise ExemplaError(
            "total='auto' refits the model, for which the training data must be (X, y): give "
            "arrays, or choose total='k' or total='n'."
        )
    if fit is None and is_module(model):
        raise ExemplaError(
            "total='auto' refits the model, and a torch module does not know how: give "
            "fit=callable(module, X, y, sample_weight), or choose total='k' or total='n'."
        )
    if fit is not None:
        # as the user gave them: tensors stay tensors
        return _by_callable(model, train[0], train[1], likelihood, fit, device, seed)
    return _by_estimator(model, given, likelihood, seed)


def _by_callable(
    model: Any, X: Any, y: Any, likelihood: Any, fit: Any, device: Any, seed: int
) -> Refit:
    def evaluate(picked: np.ndarray, weights: np.ndarray, others: np.ndarray) -> np.ndarray:
        fitted = refit(model, take_rows(X, picked), take_rows(y, picked), weights, fit, seed)
        oracle = make_oracle(fitted, likelihood, None, device)
        test = (take_rows(X, others), take_rows(y, others))
        return oracle.log_likelihood(oracle.read(test, role="test"))

    return evaluate


def _by_estimator(model: Any, given: Any, likelihood: Any, seed: int) -> Refit:
    """Steps before the last one stay as they were fitted on all the data."""
    opened = open_up(model)
    transform, last = opened.transform, without_search(opened.last)
    if "sample_weight" not in inspect.signature(last.fit).parameters:
        raise ExemplaError(
            f"{type(last).__name__}.fit takes no sample_weight in this scikit-learn, so a weighted "
            "summary cannot be fitted: use a model that takes them, such as LogisticRegression or "
            "Ridge."
        )
    inputs = given.X if transform is None else transform(given.X)
    y = given.y if opened.labels is None else opened.labels.inside(plain_labels(given.y))

    def evaluate(picked: np.ndarray, weights: np.ndarray, others: np.ndarray) -> np.ndarray:
        some = (take_rows(inputs, picked), take_rows(y, picked), weights)
        # quiet: a total under which the fit does not converge is not chosen for its likelihood
        oracle = make_oracle(refit(last, *some, None, seed, keep_random_state=True), likelihood)
        oracle.read(some, role="train")  # a Gaussian's variance is that of the summary
        test = (take_rows(inputs, others), take_rows(y, others))
        return oracle.log_likelihood(oracle.read(test, role="test"))

    return evaluate


def without_search(last: Any) -> Any:
    """A model that searches its own penalty, with the penalty it found."""
    if isinstance(last, LogisticRegressionCV):
        C = float(np.exp(np.mean(np.log(last.C_))))
        kept = {
            name: value
            for name, value in last.get_params().items()
            if name in LogisticRegression().get_params() and name not in ("l1_ratio", "penalty")
        }
        return LogisticRegression(**{**kept, "C": C})
    if isinstance(last, RidgeCV):
        alpha: Any = last.alpha_
        return Ridge(alpha=alpha, fit_intercept=last.fit_intercept)
    return last
