"""The one way to retrain the caller's model: always from the start, always by a seed.

    scikit-learn     a clone: settings, and nothing that was learnt (with warm_start too)
    a torch module   a copy with freshly drawn parameters, given to the caller's `fit`
    anything else    a copy, given to `fit`: a recipe from which it builds the model

A model that still knew its last training would make "a model that has not seen this row" untrue.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from exempla.data import unpack
from exempla.errors import ExemplaError
from exempla.oracles.sklearn.unwrap import is_fitted
from exempla.oracles.trees.refit import keep_size
from exempla.tasks.fresh import redraw

__all__ = ["Fit", "check_fit", "fitted", "in_words", "is_module", "named", "refit"]

Fit = Callable[[Any, Any, Any, np.ndarray | None], Any]
"""fit(module, X, y, sample_weight) -> fitted module."""


def check_fit(model: Any, fit: Fit | None) -> None:
    """Whether this model can be trained anew; raises with the remedy if not."""
    if fit is not None and not callable(fit):
        raise ExemplaError("fit must be a function fit(module, X, y, sample_weight) -> module.")
    if inspect.isclass(model):
        raise ExemplaError(f"{model.__name__} is a class: give an object, {model.__name__}().")
    if fit is None and not is_estimator(model):
        raise ExemplaError(
            f"{type(model).__name__} does not say how it is trained: "
            "give fit=callable(module, X, y, sample_weight) -> module."
        )
    if fit is None and _has_frozen_model(model):
        raise ExemplaError(
            "a FrozenEstimator keeps what it has learnt and cannot be trained anew: give the "
            "estimator inside it."
        )


def is_module(model: Any) -> bool:
    """Whether this is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def is_estimator(model: Any) -> bool:
    """Whether scikit-learn can clone and fit this."""
    return hasattr(model, "get_params") and hasattr(model, "fit") and not is_module(model)


def _has_frozen_model(model: Any) -> bool:
    """Whether a clone would still predict as it learnt to (frozen preprocessing is no harm)."""
    parts = [model, *model.get_params().values()]
    return any(type(p).__name__ == "FrozenEstimator" and hasattr(p, "predict") for p in parts)


def fitted(model: Any, train: Any, seed: int) -> Any:
    """The model itself if it has been fitted, else a copy fitted on the training data."""
    if not is_estimator(model) or is_fitted(model):
        return model
    given = unpack(train, [])
    return refit(model, given.X, given.y, given.weights, None, seed)


def refit(
    model: Any,
    X: Any,
    y: Any,
    weights: np.ndarray | None,
    fit: Fit | None,
    seed: int,
    *,
    keep_random_state: bool = False,
    quiet: bool = True,
) -> Any:
    """The model trained on these rows from the start; the caller's object is not touched.

    All random numbers follow from `seed`, and the caller's global random states are put back. An
    estimator's `random_state` becomes the seed too, unless it is to be kept: what it draws is then
    as its owner said, and only what it draws from the global state follows from `seed`.

    >>> from sklearn.linear_model import SGDClassifier
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> trained = SGDClassifier(warm_start=True).fit(X, y)
    >>> once, again = (refit(trained, X, y, None, None, seed=3) for _ in range(2))
    >>> bool((once.coef_ == again.coef_).all()), once.random_state
    (True, 3)
    """
    with seeded(seed):
        if fit is not None:
            return _fit_by(fit, _copy(model), X, y, weights)
        fresh = _copy(model)
        if not keep_random_state:
            names = [n for n in fresh.get_params() if n.split("__")[-1] == "random_state"]
            fresh.set_params(**dict.fromkeys(names, seed))
        return _fit(fresh, X, y, weights, quiet)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's global random states set by a seed, and put back afterwards."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  callers' code draws from it
    forked: Any = nullcontext()
    if torch is not None:
        count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
        forked = torch.random.fork_rng(devices=range(count))
    try:
        with forked:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            if torch is not None:
                torch.manual_seed(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def _copy(model: Any) -> Any:
    """The model as it was before any training."""
    if is_estimator(model):
        fresh = clone(model)
        keep_size(fresh, model)
        return fresh
    copied = copy.deepcopy(model)
    if is_module(copied):
        redraw(copied)
    return copied


def _fit_by(fit: Fit, model: Any, X: Any, y: Any, weights: np.ndarray | None) -> Any:
    try:
        trained = fit(model, X, y, weights)
    except (ExemplaError, MemoryError):
        raise
    except Exception as error:  # whatever it is, it is the caller's code that raised it
        raise ExemplaError(
            f"fit(module, X, y, sample_weight) failed on {in_words(X)} with {named(error)}"
        ) from error
    if trained is None:
        raise ExemplaError("fit returned None: it must return the fitted module.")
    return trained


def _fit(model: Any, X: Any, y: Any, weights: np.ndarray | None, quiet: bool) -> Any:
    given = {} if weights is None else {_weight_argument(model): weights}
    with warnings.catch_warnings():
        if quiet:  # the caller's own fit has said it, and there are many of these
            warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            return model.fit(X, y, **given)
        except (ExemplaError, MemoryError):
            raise
        except Exception as error:  # the model may be the caller's own, and raise anything
            raise ExemplaError(
                f"{type(model).__name__} could not be fitted to {in_words(X)}: {named(error)}"
            ) from error


def _weight_argument(model: Any) -> str:
    """What `fit` calls the sample weights: in a Pipeline they are those of its last step."""
    if isinstance(model, Pipeline):
        name, last = model.steps[-1]
        return f"{name}__{_weight_argument(last)}"
    if isinstance(model, GridSearchCV | RandomizedSearchCV):
        return _weight_argument(model.estimator)
    takes = inspect.signature(model.fit).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in takes):
        raise ExemplaError(
            f"{type(model).__name__}.fit takes no sample_weight: leave the weights out, or use a "
            "model that takes them."
        )
    return "sample_weight"


def in_words(X: Any) -> str:
    """What kind of data these are."""
    shape = f" of shape {tuple(X.shape)}" if hasattr(X, "shape") else ""
    kind = f" ({X.dtype})" if hasattr(X, "dtype") else ""
    return f"{type(X).__name__}{shape}{kind}"


def named(error: Exception) -> str:
    """What another library's error is called and says, in short.

    >>> named(KeyError("age")), named(ValueError("Input X contains NaN.\\nAnd more"))
    ("KeyError: 'age'.", 'ValueError: Input X contains NaN.')
    """
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0].rstrip('.:') if said else 'no message'}."
