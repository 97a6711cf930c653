"""Does an explanation hold? Retrain without the selected examples, and look.

Three arms, each with several seeds: all training rows; without the selected ones; without as many
chosen by chance (another draw for every seed). Two sets are judged: the questioned predictions,
and predictions that were not questioned. Never look at the first alone.

The one way to retrain the caller's model: always from the start, always by a seed.

    scikit-learn     a clone: settings, and nothing that was learnt (with warm_start too)
    a torch module   a copy with freshly drawn parameters, given to the caller's `fit`
    anything else    a copy, given to `fit`: a recipe from which it builds the model

A model that still knew its last training would make "a model that has not seen this row" untrue.

A torch module without what it has learnt: every trainable parameter drawn anew.

A layer knows how it starts (`reset_parameters`). Whether all of them do is not taken on trust:
every trainable parameter is overwritten with NaN first, so that nothing learnt can survive, and
one that is still NaN afterwards was set by no layer and is refused by name.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from exempla.checks import check_seed, check_times
from exempla.data import arrays_of, listing, n_rows, take_examples, unpack
from exempla.errors import ExemplaError
from exempla.influence import CLASSES
from exempla.oracles import make_oracle
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.unwrap import is_fitted
from exempla.oracles.trees.oracle import keep_size
from exempla.results import Explanation, Question

_RESETS = ("reset_parameters", "_reset_parameters", "reset_running_stats")
"""What torch calls it: in most layers, in its attention and transformers, in norms without
weights."""


def redraw(module: Any) -> None:
    """Draw all that training changes anew, in place, from torch's random state.

    Frozen layers keep their weights and running statistics: pretrained features stay what they are.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2)
    >>> learnt = net.weight.detach().clone()
    >>> redraw(net)
    >>> torch.equal(net.weight, learnt)
    False
    """
    import torch

    layers = list(_children_first(module, frozen=False, seen=set()))
    frozen = [p for p in module.parameters() if not p.requires_grad]
    frozen += [b for layer, still in layers if still for b in layer.buffers(recurse=False)]
    with torch.no_grad():
        kept = [tensor.clone() for tensor in frozen]
        learnt = [p for p in module.parameters() if p.requires_grad and not _is_lazy(p)]
        for parameter in learnt:
            parameter.fill_(float("nan"))
            parameter.grad = None
        for layer, still in layers:
            own = list(layer.parameters(recurse=False))
            if not still and (not own or any(p.requires_grad for p in own)):
                _reset(layer)
        for tensor, before in zip(frozen, kept, strict=True):
            tensor.copy_(before)
    _refuse_unset(module)


def _children_first(module: Any, frozen: bool, seen: set[int]) -> Iterator[tuple[Any, bool]]:
    """Every layer and whether it is frozen, a network after its layers: its own way to start wins.

    A layer without parameters (a norm that only keeps statistics) is as frozen as its parent.
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
    for name in _RESETS:
        reset = getattr(layer, name, None)
        if callable(reset) and _needs_nothing(reset):
            reset()
            return


def _needs_nothing(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _is_lazy(parameter: Any) -> bool:
    """Whether its shape is not known before the first batch: then nothing was learnt yet."""
    from torch.nn.parameter import is_lazy

    return is_lazy(parameter)


def _refuse_unset(module: Any) -> None:
    unset = [
        name
        for name, p in module.named_parameters()
        if p.requires_grad and not _is_lazy(p) and bool(p.detach().isnan().any())
    ]
    if unset:
        more = f" and {len(unset) - 3} more" if len(unset) > 3 else ""
        raise ExemplaError(
            f"{type(module).__name__} cannot be trained afresh, because no reset_parameters() sets "
            f"its parameters {', '.join(unset[:3])}{more}: give the module that owns them such a "
            "method, or freeze them with requires_grad_(False)."
        )


Fit = Callable[[Any, Any, Any, np.ndarray | None], Any]
"""fit(module, X, y, sample_weight) -> fitted module."""


def check_fit(model: Any, fit: Fit | None) -> None:
    """Whether this model can be trained anew; raises with the remedy if not."""
    if fit is not None and not callable(fit):
        raise ExemplaError("fit must be a function fit(module, X, y, sample_weight) -> module.")
    if inspect.isclass(model):
        raise ExemplaError(f"{model.__name__} is a class: give an object, {model.__name__}().")
    if fit is None and not _is_estimator(model):
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


def _is_estimator(model: Any) -> bool:
    """Whether scikit-learn can clone and fit this."""
    return hasattr(model, "get_params") and hasattr(model, "fit") and not is_module(model)


def _has_frozen_model(model: Any) -> bool:
    """Whether a clone would still predict as it learnt to (frozen preprocessing is no harm)."""
    parts = [model, *model.get_params().values()]
    return any(type(p).__name__ == "FrozenEstimator" and hasattr(p, "predict") for p in parts)


def fitted(model: Any, train: Any, seed: int) -> Any:
    """The model itself if it has been fitted, else a copy fitted on the training data."""
    if not _is_estimator(model) or is_fitted(model):
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
    if _is_estimator(model):
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


_ARMS = ("nothing removed", "selected removed", "random removed")
_LARGEST = 1e100
"""Log-likelihoods up to here have a mean and a spread."""


@dataclass(frozen=True)
class Verification:
    """What happened after retraining.

    Attributes
    ----------
    runs : DataFrame
        One line per arm, seed and judged set: `accuracy` (NaN unless the model classifies) and
        `log_likelihood`, means over the set.
    removed : int
        How many training examples the two removal arms lacked.
    predicted : float
        What the explanation predicts for the first removal arm: the change of the questioned
        predictions' mean log-likelihood. NaN where it makes no prediction.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, model = scale(X), LogisticRegression()
    >>> model = model.fit(X[:300], y[:300])
    >>> found = exempla.explain_errors(model, (X[:300], y[:300]), (X[300:], y[300:]), k=5)
    >>> found.verify(seeds=2).table.columns[:3].tolist()
    ['judged', 'arm', 'accuracy']
    """

    runs: pd.DataFrame
    removed: int
    predicted: float = np.nan

    @property
    def retrained(self) -> float:
        """What became of the prediction: the same change, after training again."""
        with_all, without = (self.mean("questioned", arm, "log_likelihood") for arm in _ARMS[:2])
        return without - with_all

    @property
    def table(self) -> pd.DataFrame:
        """Mean of each arm on each set, with a 95% interval over the seeds."""
        lines = []
        for (judged, arm), part in self.runs.groupby(["judged", "arm"], sort=False):
            line: dict[str, Any] = {"judged": judged, "arm": arm}
            for name in ("accuracy", "log_likelihood"):
                values = part[name].to_numpy(dtype=np.float64)
                line[name], line[f"{name}_±"] = float(values.mean()), half_width(values)
            lines.append(line)
        return pd.DataFrame(lines)

    def mean(self, judged: str, arm: str, measure: str = "accuracy") -> float:
        """One number: the mean over seeds."""
        runs = self.runs
        return float(runs.loc[(runs.judged == judged) & (runs.arm == arm), measure].mean())

    def __str__(self) -> str:
        lines = [f"{self.removed} removed", self.table.to_string(index=False, float_format="%.4f")]
        if np.isfinite(self.predicted):
            lines.append(
                f"mean log-likelihood of the questioned predictions: predicted "
                f"{self.predicted:+.3g}, retrained {self.retrained:+.3g}"
            )
        return "\n".join(lines)


def half_width(values: np.ndarray) -> float:
    """Half a 95% interval of the mean (Student's t); zero for a single value."""
    from scipy.stats import t

    n = len(values)
    return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0


def verify(
    explanation: Explanation,
    fit: Fit | None = None,
    seeds: int = 5,
    holdout: Any = None,
    *,
    first_seed: int = 0,
) -> Verification:
    """Retrain without the explanation's examples and judge both what was asked and what was not.

    Parameters
    ----------
    explanation : Explanation
        From `explain_errors`, `clean`, or `explain` on arrays.
    fit : callable(module, X, y, sample_weight) -> module
        How a torch module is trained; scikit-learn models are cloned.
    seeds : int
        Trainings per arm. A deterministic model repeats itself in the arms without chance.
    holdout : (X, y)
        Predictions that were not questioned; by default the other rows of the test set.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, noisy = scale(X), y.copy()
    >>> noisy[:40] = 1 - noisy[:40]
    >>> model = LogisticRegression().fit(X[:300], noisy[:300])
    >>> test = (X[300:], y[300:])
    >>> harmful = exempla.clean(model, (X[:300], noisy[:300]), test, k=30, progress=False)
    >>> checked = harmful.verify(seeds=2)
    >>> better = checked.mean("questioned", "selected removed")
    >>> better > checked.mean("questioned", "random removed")
    True
    """
    question = explanation.question
    if question is None:
        raise ExemplaError(
            "this explanation does not hold its question: verify the result of explain, "
            "explain_errors or clean itself, not a copy that was saved or renumbered."
        )
    check_times("seeds", seeds)
    check_seed(first_seed)
    model = question.explainer.models[0]
    check_fit(model, fit)
    X, y, weights = arrays_of(question.explainer.train_data, "training data")
    judged = _judged_sets(question, holdout)
    likelihood = _scale_of(question)
    n, selected = n_rows(X), np.asarray(explanation.indices)
    lines = []
    for seed in range(first_seed, first_seed + int(seeds)):
        chance = np.random.default_rng(seed).choice(n, len(selected), replace=False)
        removals = (np.array([], dtype=np.int64), selected, chance)
        for arm, removed in zip(_ARMS, removals, strict=True):
            keep = np.setdiff1d(np.arange(n), removed)
            left = None if weights is None else weights[keep]
            learnt = (take_examples(X, keep), take_examples(y, keep))
            fitted = refit(model, *learnt, left, fit, seed)
            for name, data in judged.items():
                found = judge(fitted, data, likelihood, learnt)
                lines.append({"arm": arm, "seed": seed, "judged": name, **found})
    return Verification(pd.DataFrame(lines), len(selected), explanation.predicted_change)


def _judged_sets(question: Question, holdout: Any) -> dict[str, Any]:
    """The questioned predictions and those that were not."""
    test, positions = question.test, question.rows
    if positions is None:
        sets = {"questioned": test}
    else:
        sets = {"questioned": take_examples(test, positions)}
        rest = np.setdiff1d(np.arange(n_rows(arrays_of(test, "test data")[1])), positions)
        if holdout is None and len(rest):
            sets["not questioned"] = take_examples(test, rest)
    if holdout is not None:
        sets["not questioned"] = holdout
    for data in sets.values():
        arrays_of(data, "test data")
    return sets


def _scale_of(question: Question) -> Any:
    """The likelihood all arms are judged under: a regression's with the scale that the questioned
    model has on all training rows, or they could not be compared."""
    family = getattr(question.explainer.embeddings[0].oracle, "family", None)
    return family if isinstance(family, Likelihood) and not family.discrete else "auto"


def judge(model: Any, data: Any, likelihood: Any = "auto", learnt: Any = None) -> dict[str, float]:
    """Accuracy and mean log-likelihood of a model on labelled rows.

    A regression whose scale no likelihood gives (one of several outputs, of neighbours) takes it
    from the rows it has learnt.
    """
    oracle = make_oracle(model, likelihood)
    classifies = oracle.likelihood in CLASSES or (_is_estimator(model) and is_classifier(model))
    if learnt is not None and _is_estimator(model) and not classifies and likelihood == "auto":
        oracle.read(learnt, role="train")
    examples = oracle.read(data[:2], role="test")
    accuracy = np.nan
    if classifies and examples.labels is not None and examples.labels.ndim == 1:
        accuracy = float(np.mean(oracle.predict(examples) == examples.labels))
    likely = oracle.log_likelihood(examples)
    if not np.abs(likely).max() < _LARGEST:
        raise ExemplaError(
            "the log-likelihood of some test examples is beyond all bounds: check the inputs of "
            f"{listing(np.flatnonzero(~(np.abs(likely) < _LARGEST)))}."
        )
    return {"accuracy": accuracy, "log_likelihood": float(np.mean(likely))}
