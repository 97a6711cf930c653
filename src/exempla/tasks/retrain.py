"""Retrain the user's model: always from the start, always from a seed.

    scikit-learn     a clone: the settings, and nothing that was learned (even with warm_start)
    a torch module   a copy with freshly drawn parameters, passed to the user's `fit`
    anything else    a copy, passed to `fit`: a recipe from which it builds the model

A model that still remembered its last training would know rows that it must not know. So before a
torch module is redrawn, every trainable parameter is overwritten with NaN: a parameter that is
still NaN after all layers were reset has no `reset_parameters` and is refused by name.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from exempla.data import arrays_of, n_rows, take_examples, unpack
from exempla.errors import ExemplaError
from exempla.oracles import is_boosted, make_oracle
from exempla.oracles.base import CLASSES
from exempla.oracles.sklearn.base import is_fitted, unwrap_estimator
from exempla.quality import MAX_JUDGED, MIN_JUDGED, Judged

_PROBE_ROWS = 300
"""Rows of a first fit, which tells whether a larger one is quick enough."""
MAX_JUDGE_SECONDS = 2.0
"""Seconds that a fit may take only to judge the model."""

_RESETS = ("reset_parameters", "_reset_parameters", "reset_running_stats")
"""Names of torch's reset methods: of most layers, of attention and transformers, and of norms
without weights."""


def redraw(module: Any) -> None:
    """Reinitialise everything that training changes, in place, from torch's random state.

    Frozen layers keep their weights and running statistics, so pretrained features stay intact.
    """
    import torch
    from torch.nn.parameter import is_lazy  # of unknown shape: nothing was learned yet

    layers = list(_children_first(module, frozen=False, seen=set()))
    frozen = [p for p in module.parameters() if not p.requires_grad]
    frozen += [b for layer, still in layers if still for b in layer.buffers(recurse=False)]
    named = module.named_parameters()
    trained = {name: p for name, p in named if p.requires_grad and not is_lazy(p)}
    with torch.no_grad():
        kept = [tensor.clone() for tensor in frozen]
        for parameter in trained.values():
            parameter.fill_(float("nan"))
            parameter.grad = None
        for layer, still in layers:
            own = list(layer.parameters(recurse=False))
            if not still and (not own or any(p.requires_grad for p in own)):
                _reset(layer)
        for tensor, before in zip(frozen, kept, strict=True):
            tensor.copy_(before)
    unset = [name for name, p in trained.items() if bool(p.detach().isnan().any())]
    if unset:
        more = f" and {len(unset) - 3} more" if len(unset) > 3 else ""
        raise ExemplaError(
            f"{type(module).__name__} cannot be retrained from scratch, because no "
            f"reset_parameters() sets its parameters {', '.join(unset[:3])}{more}: add such a "
            "method to the module that owns them, or freeze them with requires_grad_(False)."
        )


def _children_first(module: Any, frozen: bool, seen: set[int]) -> Iterator[tuple[Any, bool]]:
    """Yield every layer and whether it is frozen, as its parent is if it has no parameters.

    A network follows its layers, so that its own reset method has the last word.
    """
    if id(module) in seen:
        return
    seen.add(id(module))
    parameters = list(module.parameters())
    if parameters:
        frozen = not any(p.requires_grad for p in parameters)
    for child in module.children():
        yield from _children_first(child, frozen, seen)
    yield module, frozen


def _reset(layer: Any) -> None:
    """Call the first reset method that needs no arguments."""
    for reset in filter(callable, (getattr(layer, name, None) for name in _RESETS)):
        try:
            inspect.signature(reset).bind()
        except TypeError:
            continue
        reset()
        return


Fit = Callable[[Any, Any, Any, np.ndarray | None], Any]
"""fit(module, X, y, sample_weight) -> fitted module."""


def check_fit(model: Any, fit: Fit | None) -> None:
    """Raise, and say what to do, if this model cannot be retrained."""
    if fit is not None and not callable(fit):
        raise ExemplaError("fit must be a function fit(module, X, y, sample_weight) -> module.")
    if inspect.isclass(model):
        raise ExemplaError(f"{model.__name__} is a class: give an object, {model.__name__}().")
    if fit is None and not is_estimator(model):
        raise ExemplaError(
            f"{type(model).__name__} cannot be retrained without a training function: "
            "give fit=callable(module, X, y, sample_weight) -> module."
        )
    if fit is None and _has_frozen_model(model):
        raise ExemplaError(
            "a FrozenEstimator keeps what it has learned and cannot be retrained: give the "
            "estimator inside it."
        )


def is_module(model: Any) -> bool:
    """Return True for a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def is_estimator(model: Any) -> bool:
    """Return True if scikit-learn can clone and fit this."""
    return hasattr(model, "get_params") and hasattr(model, "fit") and not is_module(model)


def _has_frozen_model(model: Any) -> bool:
    """Return True if a clone would still know what it learned (frozen preprocessing is fine)."""
    parts = [model, *model.get_params().values()]
    return any(type(p).__name__ == "FrozenEstimator" and hasattr(p, "predict") for p in parts)


def fitted(model: Any, train: Any, seed: int) -> Any:
    """Return the model itself if it is fitted, otherwise a copy fitted to the training data."""
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
    """Return the model trained on these rows from scratch; the caller's object is not changed.

    All random numbers follow from `seed`, and the caller's global random states are restored. The
    seed also replaces an estimator's `random_state`, unless `keep_random_state` is set. `quiet`
    hides convergence warnings: the caller's own fit has shown them.
    """
    with seeded(seed):
        fresh = _copy(model)
        if fit is not None:
            with naming(f"fit(module, X, y, sample_weight) failed on {describe(X)} with"):
                trained = fit(fresh, X, y, weights)
            if trained is None:
                raise ExemplaError("fit returned None: it must return the fitted module.")
            return trained
        if not keep_random_state:
            names = [n for n in fresh.get_params() if n.split("__")[-1] == "random_state"]
            fresh.set_params(**dict.fromkeys(names, seed))
        given = {} if weights is None else {weight_argument(fresh): weights}
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore", ConvergenceWarning)
            with naming(f"{type(fresh).__name__} could not be fitted to {describe(X)}:"):
                return fresh.fit(X, y, **given)


@contextmanager
def naming(failed: str) -> Iterator[None]:
    """Raise what goes wrong as an ExemplaError that starts with these words."""
    try:
        yield
    except (ExemplaError, MemoryError):
        raise
    except Exception as error:  # the model and `fit` may be the user's own and raise anything
        raise ExemplaError(f"{failed} {_error_line(error)}") from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random states of Python, NumPy and torch, and restore them afterwards."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  the user's code may draw from it
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
    """Return the model as it was before any training."""
    if not is_estimator(model):
        copied = copy.deepcopy(model)
        if is_module(copied):
            redraw(copied)
        return copied
    try:
        fresh = clone(model)
    except RuntimeError as error:
        # CatBoost copies its lists, such as `cat_features`, which `clone` takes for a change
        if type(model).__module__.partition(".")[0] != "catboost":
            raise ExemplaError(
                f"{type(model).__name__} cannot be retrained: {_error_line(error)} Its constructor "
                "must store every argument unchanged."
            ) from error
        fresh = type(model)(**copy.deepcopy(model.get_params()))
    _keep_size(fresh, model)
    return fresh


def _keep_size(fresh: Any, model: Any) -> None:
    """Give an unfitted copy of a boosted model the number of trees that the model stopped at.

    Early stopping uses validation rows that a refit does not have.
    """
    last, new = unwrap_estimator(model).model, unwrap_estimator(fresh).model
    kept = _stopped_at(last) if is_boosted(last) and hasattr(new, "set_params") else None
    if kept is None:
        return
    given = new.get_params()
    sizes = ("n_estimators", "iterations", "num_boost_round", "num_trees")
    size = next((name for name in sizes if name in given), sizes[0])
    off = {"early_stopping_rounds": None, "early_stopping_round": None, "use_best_model": False}
    new.set_params(**{size: kept}, **{name: off[name] for name in off if given.get(name)})


def _stopped_at(model: Any) -> int | None:
    """Return the rounds after which early stopping on the caller's validation rows ended training.

    scikit-learn's early stopping sets rows aside itself, in a refit as well.
    """
    library = type(model).__module__.partition(".")[0]
    if library == "lightgbm":
        best = model.best_iteration_ if model.__sklearn_is_fitted__() else None
        return int(best) if best else None
    if library == "xgboost" and getattr(model, "early_stopping_rounds", None) is not None:
        fitted = model.__sklearn_is_fitted__()
        best = model.get_booster().attr("best_iteration") if fitted else None
        return None if best is None else int(best) + 1
    if library == "catboost" and model.is_fitted() and model.get_best_iteration() is not None:
        return int(model.tree_count_)
    return None


def weight_argument(model: Any) -> str:
    """Return the name under which `fit` takes sample weights; in a Pipeline, of its last step."""
    if isinstance(model, Pipeline):
        name, last = model.steps[-1]
        return f"{name}__{weight_argument(last)}"
    if isinstance(model, GridSearchCV | RandomizedSearchCV):
        return weight_argument(model.estimator)
    takes = inspect.signature(model.fit).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in takes):
        raise ExemplaError(
            f"{type(model).__name__}.fit takes no sample_weight: leave the weights out, or use a "
            "model that accepts them."
        )
    return "sample_weight"


def describe(X: Any) -> str:
    """Describe the type, shape and dtype of some data."""
    shape = f" of shape {tuple(X.shape)}" if hasattr(X, "shape") else ""
    kind = f" ({X.dtype})" if hasattr(X, "dtype") else ""
    return f"{type(X).__name__}{shape}{kind}"


def _error_line(error: Exception) -> str:
    """Return the type and the first line of another library's error."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0].rstrip('.:') if said else 'no message'}."


def judge_held_out(model: Any, train: Any, likelihood: str) -> Judged | None:
    """Judge copies of a scikit-learn model on training rows held out from them.

    Copies are fitted to four fifths of at most `MAX_JUDGED` rows and judged on the others: on each
    fifth in turn if the rows are few, otherwise on the first. None if the model cannot be refitted,
    or if that would take more than MAX_JUDGE_SECONDS.
    """
    model = getattr(model, "best_estimator_", model)  # a search itself may take long
    if likelihood not in (*CLASSES, "gaussian"):
        return None
    try:
        check_fit(model, None)
        data = arrays_of(train, "training data")
        rows = np.random.default_rng(0).permutation(n_rows(data[0]))[:MAX_JUDGED]
        start = time.perf_counter()
        _on_fifth(model, data, rows[:_PROBE_ROWS], 0)
        if (time.perf_counter() - start) * (len(rows) / _PROBE_ROWS) ** 2 > MAX_JUDGE_SECONDS:
            return None
        fifths = range(1 if len(rows) > _PROBE_ROWS else 5)
        parts = [_on_fifth(model, data, rows, i) for i in fifths]
    except (ExemplaError, TypeError, ValueError):  # cannot be refitted
        return None
    predicted, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    if len(labels) < MIN_JUDGED:
        return None
    where = "training rows held out from a copy of it"
    return Judged(predicted, labels, likelihood in CLASSES, where)


def _on_fifth(model: Any, data: Any, rows: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions and labels of the i-th fifth, by a copy fitted to the other rows."""
    out, kept = rows[i::5], np.delete(rows, np.s_[i::5])
    oracle = make_oracle(refit(model, *take_examples(data, kept), fit=None, seed=0), "auto")
    read = oracle.read(take_examples(data[:2], out), role="test")
    predicted, labels = np.asarray(oracle.predict(read)), np.asarray(read.labels)
    if predicted.shape != labels.shape or labels.ndim != 1:
        raise ExemplaError("The model predicts more than one label per row.")
    return predicted, labels
