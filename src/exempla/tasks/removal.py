"""What happens if the named training rows are removed, and how many rows to name.

Where retraining takes no longer than the answer did, as for most scikit-learn models and boosted
trees, the effect is measured: the model is retrained without the rows, and without as many random
ones. Elsewhere it is predicted by one Newton step, which is right for linear models. A network
moves further than its linearisation, so the step is corrected by a factor and has a wide interval.
For trees no size is stated: removing rows changes their splits, and the effect after retraining is
5 to 100 times the predicted one. `SIZE` was estimated on the settings marked `choose` in
benchmarks/sizes_settings.csv; docs/experiments/sizes.csv has the figures of the others.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from exempla.arrays import nbytes_of
from exempla.data import absent_labels, arrays_of, n_rows, take_examples
from exempla.errors import ExemplaError
from exempla.memory import Forecast, explain_bytes
from exempla.oracles import is_checkpoint
from exempla.progress import waiting
from exempla.results import Explanation
from exempla.tasks.retrain import check_fit, is_module, refit
from exempla.tasks.verify import judge_rows, likelihood_of

REACH = 0.8
"""Share of the effect of the largest set considered that a smaller one must have."""
MAX_AUTO_ROWS, MIN_AUTO_ROWS, MAX_AUTO_SHARE = 200, 50, 0.05
"""Bounds of the largest set that k="auto" considers: rows, and share of the training set."""
DIFFUSE_GAIN = 0.05
"""Gain in mean log-likelihood below which no small set of rows causes the errors."""
DIFFUSE_FIXED = 0.05
"""Share of the errors that such a set may fix at most."""
MIN_SECONDS = {"linear": 2.0, "network": 5.0, "trees": 30.0}
"""Seconds that retraining may always take. Only a measurement tells the size for trees."""
_PROBE_ROWS = 300
_MAX_SEEDS, _RANDOM_DRAWS = 6, 3
LEVEL = 0.9
"""Level of all intervals."""


class Size(NamedTuple):
    """Correction of a predicted size: a factor on the change in log-odds, and the quotient of
    retrained and corrected effect at the lower and upper end of a 90 % interval."""

    factor: float
    low: float
    high: float


SIZE = {
    "linear": Size(1.0, 0.9, 1.25),
    "network": Size(1.5, 0.5, 2.5),
    "trees": Size(7.0, 0.0, np.inf),
}


def kind_of(explainer: Any) -> str:
    """Return "linear", "trees" or "network": what decides how a removal is predicted."""
    oracle = explainer.embeddings[0].oracle
    if oracle.trees:
        return "trees"
    return "network" if len(oracle.layers) > 1 else "linear"


def auto_limit(n: int) -> int:
    """Return the most training rows that k="auto" considers.

    >>> [auto_limit(n) for n in (10, 400, 2_000, 1_000_000)]
    [5, 50, 100, 200]
    """
    most = min(MAX_AUTO_ROWS, max(MIN_AUTO_ROWS, round(MAX_AUTO_SHARE * n)))
    return max(1, min(most, n // 2))


def smallest_set(effects: np.ndarray) -> int:
    """Return the length of the shortest prefix with REACH of the largest cumulative effect.

    >>> smallest_set(np.array([5.0, 4.0, 0.5, 0.25, 0.25]))
    2
    """
    total = np.cumsum(effects)
    return int(np.argmax(total >= REACH * total.max())) + 1 if total.max() > 0 else 1


def is_diffuse(explainer: Any, rows: np.ndarray, test: Any, labels: Any, weights: Any) -> bool:
    """Return True if removing even these rows hardly changes the queried predictions."""
    factor = SIZE[kind_of(explainer)].factor
    effect = explainer.removal_effect(rows, test, labels, weights, scale=factor)
    n = len(explainer.embeddings[0].oracle.read(test, role="test"))
    return effect.log_likelihood < DIFFUSE_GAIN and (effect.n_fixed or 0) < DIFFUSE_FIXED * n


def memory_forecast(model: Any, train: Any, fit: Any, whitened: bool = True) -> Forecast:
    """Return the memory forecast, with a copy of the inputs if the model may be retrained.

    Most models are retrained without the examples found; a network only if `fit` says how.
    """
    retrained = isinstance(train, tuple) and (fit is not None or not is_module(model))
    inputs = nbytes_of(train[0]) if retrained else 0
    return partial(explain_bytes, inputs=inputs, whitened=whitened)


def with_removal(found: Explanation, fit: Any, elapsed: float) -> Explanation:
    """Return the explanation with the effect of its removal, measured if that is quick.

    `elapsed` is how many seconds the explanation has taken: retraining may take as long again.
    """
    question = found.question
    assert question is not None
    explainer = question.explainer
    if not len(found):
        return found
    size = SIZE[kind_of(explainer)]
    some = question.test if question.rows is None else take_examples(question.test, question.rows)
    predicted = asdict(
        explainer.removal_effect(
            found.removed, some, found.labels, question.shares, scale=size.factor
        )
    )
    change = predicted["log_likelihood"]
    ends = sorted((change * size.low, change * size.high))
    effect = {**predicted, "measured": False, "low": ends[0], "high": ends[1]}
    if not np.isfinite(size.high):
        effect |= {"low": None, "high": None}  # JSON knows no infinity
    measured = measure(found, fit, max(MIN_SECONDS[kind_of(explainer)], elapsed))
    if measured is not None:
        effect = {**effect, **measured, "predicted": change}
    return replace(found, removal=effect)


def measure(found: Explanation, fit: Any, seconds: float) -> dict[str, Any] | None:
    """Retrain without the rows of an explanation, and without random ones, if time allows.

    Returns the fields of `removal` that were measured, or None: the model cannot be retrained, the
    training data are no arrays, or training would take longer than `seconds`.
    """
    question = found.question
    assert question is not None
    models = question.explainer.models
    others = [m for m in models[1:] if not is_checkpoint(m)]
    if others or found.labels != "true" or question.examples.labels is None:
        return None
    try:
        check_fit(models[0], fit)
        data = arrays_of(question.explainer.train_data, "training data")
        trainer = _Trainer(models[0], data, fit, question)
        if not trainer.is_quick(found.removed, seconds):
            return None
        with waiting("measuring the effect of the removal"):
            return trainer.measure(found.removed, seconds)
    except (ExemplaError, TypeError, ValueError):  # what cannot be retrained is predicted
        return None


class _Trainer:
    """Retrains a model without some rows and looks at the queried predictions."""

    def __init__(self, model: Any, data: Any, fit: Any, question: Any) -> None:
        self._model, self._data, self._fit = model, data, fit
        test, rows = question.test, question.rows
        self._query = test if rows is None else take_examples(test, rows)
        self._likelihood = likelihood_of(question)
        n = len(question.examples)
        self._shares = np.full(n, 1.0 / n) if question.shares is None else question.shares
        self.n, self.fit_seconds = n_rows(data[0]), 0.0

    def _train(self, rows: np.ndarray, seed: int) -> tuple[Any, Any]:
        X, y, weights = self._data
        learnt = take_examples(X, rows), take_examples(y, rows)
        some = None if weights is None else weights[rows]
        return refit(self._model, *learnt, some, self._fit, seed), learnt

    def _judged(self, removed: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return log-likelihood and correctness of each queried prediction after retraining."""
        keep = np.setdiff1d(np.arange(self.n), removed)
        model, learnt = self._train(keep, seed)
        return judge_rows(model, self._query, self._likelihood, learnt)

    def is_quick(self, removed: np.ndarray, seconds: float) -> bool:
        """Return True if all retrainings fit into the time; a small fit is timed first."""
        y = np.asarray(self._data[1])
        keep = np.setdiff1d(np.arange(self.n), removed)
        if y.dtype.kind != "f" and len(absent_labels(y, y[keep])):
            return False  # a class would be lost
        fits = 3  # all rows, without the named ones, without random ones
        order = np.random.default_rng(0).permutation(self.n)
        for size in (_PROBE_ROWS, max(_PROBE_ROWS, self.n // 4)):
            rows = order[:size]
            start = time.perf_counter()
            self._train(rows, 0)
            took = time.perf_counter() - start
            self.fit_seconds = took * self.n / len(rows)
            if fits * self.fit_seconds <= seconds:
                return True
            if took * fits > seconds:
                return False
        return False

    def measure(self, removed: np.ndarray, seconds: float) -> dict[str, Any]:
        """Return the measured effect, averaged over seeds if training is random."""
        start = time.perf_counter()
        nothing = np.empty(0, dtype=np.int64)
        changes: list[float] = []
        fixed: list[int] = []
        broken: list[int] = []
        draws: list[float] = []
        rng = np.random.default_rng(0)
        first: np.ndarray | None = None
        for seed in range(_MAX_SEEDS):
            before, right = self._judged(nothing, seed)
            if first is not None and np.allclose(before, first, rtol=1e-6, atol=1e-9):
                break  # training is deterministic
            first = before
            after, now = self._judged(removed, seed)
            changes.append(float(self._shares @ (after - before)))
            if right is not None and now is not None:
                fixed.append(int(np.sum(~right & now)))
                broken.append(int(np.sum(right & ~now)))
            if len(draws) < _RANDOM_DRAWS:
                chance = rng.choice(self.n, len(removed), replace=False)
                draws.append(float(self._shares @ (self._judged(chance, seed)[0] - before)))
            if time.perf_counter() - start > seconds and len(changes) >= 3:
                break
        while len(draws) < _RANDOM_DRAWS:  # however long it takes, or the answer would vary
            chance = rng.choice(self.n, len(removed), replace=False)
            draws.append(float(self._shares @ (self._judged(chance, 0)[0] - first)))
        value = float(np.mean(changes))
        half = 0.0
        if len(changes) > 1:
            spread = float(np.std(changes, ddof=1))
            half = float(student.ppf((1 + LEVEL) / 2, len(changes) - 1)) * spread
            half /= np.sqrt(len(changes))
        return {
            "measured": True,
            "log_likelihood": value,
            "low": value - half,
            "high": value + half,
            "random_baseline": float(np.mean(draws)),
            "random_sd": float(np.std(draws, ddof=1)),
            "n_fixed": round(np.mean(fixed)) if fixed else None,
            "n_broken": round(np.mean(broken)) if broken else None,
        }
