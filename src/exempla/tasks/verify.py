"""What happens if the rows of an explanation are removed: predicted, measured, and verified.

Where retraining takes no longer than the answer did, as for most scikit-learn models and boosted
trees, the effect is measured: the model is retrained without the rows, and without as many random
ones. Elsewhere it is predicted by one Newton step, which is right for linear models. A network
moves further than its linearisation, so the step is corrected by a factor and has a wide interval.
For trees no size is stated: removing rows changes their splits, and the effect after retraining is
5 to 100 times the predicted one (docs/experiments/sizes.csv).

`verify` has three arms, each with several seeds: all training rows, without the selected ones, and
without equally many random ones. Each is evaluated on the queried predictions and on others, which
a removal may harm.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student
from sklearn.base import is_classifier

from exempla.arrays import nbytes_of
from exempla.checks import check_seed, check_times
from exempla.data import absent_labels, arrays_of, listing, n_rows, take_examples
from exempla.errors import ExemplaError
from exempla.kernel.kernel import RemovalEffect
from exempla.memory import Forecast, explain_bytes
from exempla.oracles import is_checkpoint, make_oracle
from exempla.oracles.base import CLASSES
from exempla.oracles.likelihoods import Likelihood
from exempla.progress import waiting
from exempla.results import Explanation, Question
from exempla.tasks.retrain import Fit, check_fit, is_estimator, is_module, refit

REACH = 0.8
"""Share of the effect of the largest set considered that a smaller one must have."""
MAX_AUTO_ROWS, MIN_AUTO_ROWS, MAX_AUTO_SHARE = 200, 50, 0.05
"""Bounds of the largest set that k="auto" considers: rows, and share of the training set."""
_DIFFUSE_GAIN = 0.05
"""Gain in mean log-likelihood below which no small set of rows causes the errors."""
_DIFFUSE_FIXED = 0.05
"""Share of the errors that such a set may fix at most."""
_MIN_SECONDS = {"linear": 2.0, "network": 5.0, "trees": 30.0}
"""Seconds that retraining may always take. Only a measurement tells the size for trees."""
_PROBE_ROWS = 300
_MAX_SEEDS, _RANDOM_DRAWS = 6, 3
_LEVEL = 0.9
"""Level of all intervals."""
ARMS = ("nothing removed", "selected removed", "random removed")
_MAX_LOG_LIKELIHOOD = 1e100
"""Largest absolute log-likelihood whose mean and spread can be computed."""


class Size(NamedTuple):
    """Correction of a predicted size; see `SIZE`."""

    factor: float
    low: float
    high: float


SIZE = {
    "linear": Size(1.0, 0.9, 1.25),
    "network": Size(1.5, 0.5, 2.5),
    "trees": Size(7.0, 0.0, np.inf),
}
"""A factor on the change in log-odds, and the quotient of retrained and corrected effect at both
ends of a 90 % interval, estimated on the settings marked `choose` in benchmarks/sizes_settings.csv.
"""


def kind_of(explainer: Any) -> str:
    """Return "linear", "trees" or "network": what decides how a removal is predicted."""
    oracle = explainer.embeddings[0].oracle
    if oracle.trees:
        return "trees"
    return "network" if len(oracle.layers) > 1 else "linear"


def auto_limit(n: int) -> int:
    """Return the most training rows that k="auto" considers."""
    most = min(MAX_AUTO_ROWS, max(MIN_AUTO_ROWS, round(MAX_AUTO_SHARE * n)))
    return max(1, min(most, n // 2))


def smallest_set(effects: np.ndarray) -> int:
    """Return the length of the shortest prefix with REACH of the largest cumulative effect."""
    total = np.cumsum(effects)
    return int(np.argmax(total >= REACH * total.max())) + 1 if total.max() > 0 else 1


def is_diffuse(explainer: Any, rows: np.ndarray, query: Any, weights: Any) -> bool:
    """Return True if removing even these rows hardly changes the queried predictions."""
    factor = SIZE[kind_of(explainer)].factor
    effect = explainer.removal_effect(rows, query, query.labels, weights, scale=factor)
    few = _DIFFUSE_FIXED * len(query)
    return effect.log_likelihood < _DIFFUSE_GAIN and (effect.n_fixed or 0) < few


def memory_forecast(model: Any, train: Any, fit: Any, whitened: bool = True) -> Forecast:
    """Return the memory forecast, with a copy of the inputs if the model may be retrained.

    A pipeline makes another. Most models are retrained without the examples found; a network only
    if `fit` says how.
    """
    retrained = isinstance(train, tuple) and (fit is not None or not is_module(model))
    copies = 2 if hasattr(model, "steps") else 1
    inputs = copies * nbytes_of(train[0]) if retrained else 0
    return partial(explain_bytes, inputs=inputs, whitened=whitened)


def with_removal(found: Explanation, query: Any, fit: Any, elapsed: float) -> Explanation:
    """Return the explanation with the effect of its removal, measured if that is quick.

    `query` holds the queried examples, and `elapsed` is how many seconds the explanation has taken:
    retraining may take as long again.
    """
    question = found.question
    assert question is not None
    explainer = question.explainer
    if not len(found):
        return replace(found, removal=asdict(RemovalEffect(0, 0.0, 0.0, 0.0)))
    size, removed = SIZE[kind_of(explainer)], found.removed
    asked: Any = (query, found.labels, question.shares)
    predicted = asdict(explainer.removal_effect(removed, *asked, scale=size.factor))
    change = predicted["log_likelihood"]
    ends: Any = sorted((change * size.low, change * size.high))
    if not np.isfinite(size.high):
        ends = None, None  # JSON knows no infinity
    effect = {**predicted, "measured": False, "low": ends[0], "high": ends[1]}
    models = [m for m in explainer.models[1:] if not is_checkpoint(m)]
    if not models and found.labels == "true" and question.examples.labels is not None:
        seconds = max(_MIN_SECONDS[kind_of(explainer)], elapsed)
        with suppress(ExemplaError, TypeError, ValueError):  # what cannot be retrained is predicted
            trainer = _Retrainer(question, fit)
            if trainer.is_quick(removed, seconds):
                with waiting("measuring the effect of the removal"):
                    effect |= trainer.measure(removed, seconds) | {"predicted": change}
    return replace(found, removal=effect)


class _Retrainer:
    """Retrains the model of a question without some rows."""

    def __init__(self, question: Question, fit: Fit | None) -> None:
        self._model, self._fit, self._question = question.explainer.models[0], fit, question
        check_fit(self._model, fit)
        self._data = arrays_of(question.explainer.train_data, "training data")
        self.n = n_rows(self._data[0])
        # a regression keeps the scale of the model that was asked about: arms can be compared
        family = getattr(question.explainer.embeddings[0].oracle, "family", None)
        keep = isinstance(family, Likelihood) and not family.discrete
        self._likelihood = family if keep else "auto"

    def judged(self, removed: np.ndarray, seed: int, *sets: Any) -> list[tuple[np.ndarray, Any]]:
        """Return log-likelihood and correctness of the rows of each set after retraining."""
        kept = take_examples(self._data, np.setdiff1d(np.arange(self.n), removed))
        model = refit(self._model, *kept, fit=self._fit, seed=seed)
        return [judge_rows(model, data, self._likelihood, kept[:2]) for data in sets]

    def is_quick(self, removed: np.ndarray, seconds: float) -> bool:
        """Return True if all retrainings fit into the time; a small fit is timed first."""
        y = np.asarray(self._data[1])
        keep = np.setdiff1d(np.arange(self.n), removed)
        if y.dtype.kind != "f" and len(absent_labels(y, y[keep])):
            return False  # a class would be lost
        order = np.random.default_rng(0).permutation(self.n)
        for rows in (order[:_PROBE_ROWS], order[: max(_PROBE_ROWS, self.n // 4)]):
            start = time.perf_counter()
            refit(self._model, *take_examples(self._data, rows), fit=self._fit, seed=0)
            took = 3 * (time.perf_counter() - start)  # all rows, without these, without random ones
            if took * self.n / len(rows) <= seconds or took > seconds:
                return took <= seconds
        return False

    def measure(self, removed: np.ndarray, seconds: float) -> dict[str, Any]:
        """Return the measured effect, averaged over seeds if training is random."""
        query, shares = queried(self._question), self._question.shares
        rng, start = np.random.default_rng(0), time.perf_counter()
        befores, changes, draws, flips = [], [], [], []

        def change(rows: np.ndarray, seed: int, before: Any) -> tuple[float, Any]:
            ((after, right),) = self.judged(rows, seed, query)
            return float(np.average(after - before, weights=shares)), right

        for seed in range(_MAX_SEEDS):
            ((before, was),) = self.judged(removed[:0], seed, query)
            if befores and np.allclose(before, befores[-1], rtol=1e-6, atol=1e-9):
                break  # training is deterministic
            befores.append(before)
            effect, now = change(removed, seed, before)
            changes.append(effect)
            if was is not None and now is not None:
                flips.append((np.sum(~was & now), np.sum(was & ~now)))
            if time.perf_counter() - start > seconds and len(changes) >= 3:
                break
        for draw in range(_RANDOM_DRAWS):  # however long it takes, or the answer would vary
            some, seed = (
                rng.choice(self.n, len(removed), replace=False),
                min(draw, len(befores) - 1),
            )
            draws.append(change(some, seed, befores[seed])[0])
        value, half = float(np.mean(changes)), half_width(changes, _LEVEL)
        fixed, broken = (round(x) for x in np.mean(flips, axis=0)) if flips else (None, None)
        return {
            "measured": True,
            "log_likelihood": value,
            "low": value - half,
            "high": value + half,
            "random_baseline": float(np.mean(draws)),
            "random_sd": float(np.std(draws, ddof=1)),
            "n_fixed": fixed,
            "n_broken": broken,
        }


def half_width(values: Any, level: float = 0.95) -> float:
    """Return half the width of an interval of the mean (Student's t); 0 for one value."""
    n = len(values)
    if n < 2:
        return 0.0
    return float(student.ppf((1 + level) / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def queried(question: Question) -> Any:
    """Return the test data of the queried predictions."""
    test, rows = question.test, question.rows
    return test if rows is None else take_examples(test, rows)


@dataclass(frozen=True)
class Verification:
    """What retraining shows about an explanation.

    Attributes
    ----------
    runs : DataFrame
        One row per arm, seed and judged set: `accuracy` (NaN unless the model classifies) and
        `log_likelihood`, means over the set.
    removed : int
        Number of training examples that the two removal arms lack.
    predicted : float
        The explanation's own figure for the change of the queried predictions' mean
        log-likelihood; NaN if it has none.

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
        """The change of the queried predictions' mean log-likelihood after retraining."""
        with_all, without = (self.mean("queried", arm, "log_likelihood") for arm in ARMS[:2])
        return without - with_all

    @property
    def table(self) -> pd.DataFrame:
        """Mean of each arm on each set, with a 95 % interval over the seeds."""
        return arm_table(self.runs, ["judged", "arm"], ("accuracy", "log_likelihood"))

    def mean(self, judged: str, arm: str, measure: str = "accuracy") -> float:
        """Return the mean of one measure over the seeds."""
        runs = self.runs
        return float(runs.loc[(runs.judged == judged) & (runs.arm == arm), measure].mean())

    def __str__(self) -> str:
        lines = [
            f"Retrained without {self.removed} training examples:",
            self.table.to_string(index=False, float_format="%.4f"),
        ]
        if np.isfinite(self.predicted):
            lines.append(
                f"Change of the queried predictions' mean log-likelihood: predicted "
                f"{self.predicted:+.3g}, retrained {self.retrained:+.3g}."
            )
        return "\n".join(lines)


def arm_table(runs: pd.DataFrame, by: list[str], measures: tuple[str, ...]) -> pd.DataFrame:
    """Return mean and half a 95 % interval (Student's t) of each measure, one row per group."""
    groups = runs.groupby(by, sort=False)
    columns = {}
    for name in measures:
        columns[name] = groups[name].mean()
        columns[f"{name}_±"] = groups[name].apply(half_width)
    return pd.DataFrame(columns).reset_index()


def verify(
    explanation: Explanation,
    fit: Fit | None = None,
    seeds: int = 5,
    holdout: Any = None,
    *,
    first_seed: int = 0,
) -> Verification:
    """Retrain without the examples of an explanation and judge queried and other predictions.

    Parameters
    ----------
    explanation : Explanation
        From `explain`, `explain_errors` or `clean`, with data given as arrays.
    fit : callable(module, X, y, sample_weight) -> module
        How to train a torch module; scikit-learn models are cloned.
    seeds : int
        Trainings per arm. Without randomness in the training all seeds agree in the first two arms.
    holdout : (X, y)
        Predictions that were not queried; by default the other rows of the test set.

    Returns
    -------
    Verification

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
    >>> better = checked.mean("queried", "selected removed")
    >>> better > checked.mean("queried", "random removed")
    True
    """
    question = explanation.question
    if question is None:
        raise ExemplaError(
            "this explanation does not hold its question: verify the result of explain, "
            "explain_errors or clean itself, not a copy that was saved or renumbered."
        )
    seeds, first_seed = check_times("seeds", seeds), check_seed(first_seed)
    trainer, selected, lines = _Retrainer(question, fit), explanation.removed, []
    sets = {"queried": queried(question)}
    if holdout is None and question.rows is not None:
        n = n_rows(arrays_of(question.test, "test data")[1])
        rest = np.setdiff1d(np.arange(n), question.rows)
        holdout = take_examples(question.test, rest) if len(rest) else None
    if holdout is not None:
        sets["not queried"] = holdout
    for data in sets.values():
        arrays_of(data, "test data")
    for seed in range(first_seed, first_seed + int(seeds)):
        chance = np.random.default_rng(seed).choice(trainer.n, len(selected), replace=False)
        for arm, removed in zip(ARMS, (selected[:0], selected, chance), strict=True):
            results = trainer.judged(removed, seed, *sets.values())
            for name, (values, right) in zip(sets, results, strict=True):
                accuracy = np.nan if right is None else float(right.mean())
                found = {"accuracy": accuracy, "log_likelihood": float(values.mean())}
                lines.append({"arm": arm, "seed": seed, "judged": name, **found})
    return Verification(pd.DataFrame(lines), len(selected), explanation.predicted_change)


def judge_rows(
    model: Any, data: Any, likelihood: Any = "auto", learned: Any = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the log-likelihood of each labelled row, and whether its prediction is right.

    A regression without a likelihood of its own (several outputs, neighbours) takes its scale from
    the rows it has `learned`. Correctness is None unless the model classifies.
    """
    oracle = make_oracle(model, likelihood)
    classifies = oracle.likelihood in CLASSES or (is_estimator(model) and is_classifier(model))
    if learned is not None and is_estimator(model) and not classifies and likelihood == "auto":
        oracle.read(learned, role="train")
    examples = oracle.read(data[:2], role="test")
    right = None
    if classifies and examples.labels is not None and examples.labels.ndim == 1:
        right = np.asarray(oracle.predict(examples) == examples.labels)
    values = oracle.log_likelihood(examples)
    if not np.abs(values).max() < _MAX_LOG_LIKELIHOOD:
        raise ExemplaError(
            "the log-likelihood of some test examples is not finite: check the inputs of "
            f"{listing(np.flatnonzero(~(np.abs(values) < _MAX_LOG_LIKELIHOOD)))}."
        )
    return values, right
