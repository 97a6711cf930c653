"""Verify an explanation: retrain without the selected examples and compare.

There are three arms, each with several seeds: all training rows, without the selected ones, and
without as many random ones (drawn anew for every seed). Each is judged on the queried predictions
and on other predictions. Look at both: removal repairs what was queried, and may harm the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from exempla.checks import check_seed, check_times
from exempla.data import arrays_of, listing, n_rows, take_examples
from exempla.errors import ExemplaError
from exempla.influence import CLASSES
from exempla.oracles import make_oracle
from exempla.oracles.likelihoods import Likelihood
from exempla.results import Explanation, Question
from exempla.tasks.retrain import Fit, check_fit, is_estimator, refit

ARMS = ("nothing removed", "selected removed", "random removed")
_MAX_LOG_LIKELIHOOD = 1e100
"""Largest absolute log-likelihood whose mean and spread can be computed."""


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
    from scipy.stats import t

    def half_width(values: pd.Series) -> float:
        n = len(values)
        return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0

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
    model = question.explainer.models[0]
    check_fit(model, fit)
    X, y, weights = arrays_of(question.explainer.train_data, "training data")
    judged = _judged_sets(question, holdout)
    likelihood = likelihood_of(question)
    n, selected = n_rows(X), explanation.removed
    lines = []
    for seed in range(first_seed, first_seed + int(seeds)):
        chance = np.random.default_rng(seed).choice(n, len(selected), replace=False)
        removals = (np.array([], dtype=np.int64), selected, chance)
        for arm, removed in zip(ARMS, removals, strict=True):
            keep = np.setdiff1d(np.arange(n), removed)
            left = None if weights is None else weights[keep]
            learned = (take_examples(X, keep), take_examples(y, keep))
            fitted = refit(model, *learned, left, fit, seed)
            for name, data in judged.items():
                values, right = judge_rows(fitted, data, likelihood, learned)
                accuracy = np.nan if right is None else float(right.mean())
                found = {"accuracy": accuracy, "log_likelihood": float(values.mean())}
                lines.append({"arm": arm, "seed": seed, "judged": name, **found})
    return Verification(pd.DataFrame(lines), len(selected), explanation.predicted_change)


def _judged_sets(question: Question, holdout: Any) -> dict[str, Any]:
    """Return the queried predictions and those that were not queried."""
    test, positions = question.test, question.rows
    sets = {"queried": test if positions is None else take_examples(test, positions)}
    if holdout is not None:
        sets["not queried"] = holdout
    elif positions is not None:
        rest = np.setdiff1d(np.arange(n_rows(arrays_of(test, "test data")[1])), positions)
        if len(rest):
            sets["not queried"] = take_examples(test, rest)
    for data in sets.values():
        arrays_of(data, "test data")
    return sets


def likelihood_of(question: Question) -> Any:
    """Return the likelihood under which all arms are judged.

    A regression keeps the scale of the model that was asked about, so that arms can be compared.
    """
    family = getattr(question.explainer.embeddings[0].oracle, "family", None)
    return family if isinstance(family, Likelihood) and not family.discrete else "auto"


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
