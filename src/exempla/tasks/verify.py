"""Does an explanation hold? Retrain without the selected examples, and look.

Three arms, each with several seeds: all training rows; without the selected ones; without as many
chosen by chance (another draw for every seed). Two sets are judged: the questioned predictions,
and predictions that were not questioned. Never look at the first alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from exempla.checks import check_seed, check_times
from exempla.data import arrays_of, listing, n_rows, take_examples
from exempla.effect import CLASSES
from exempla.errors import ExemplaError
from exempla.likelihoods import Likelihood
from exempla.oracles import make_oracle
from exempla.results import Explanation, Question
from exempla.tasks.retrain import Fit, check_fit, is_estimator, refit

__all__ = ["Verification", "verify"]

ARMS = ("nothing removed", "selected removed", "random removed")
LARGEST = 1e100
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
        with_all, without = (self.mean("questioned", arm, "log_likelihood") for arm in ARMS[:2])
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
    judged = judged_sets(question, holdout)
    likelihood = scale_of(question)
    n, selected = n_rows(X), np.asarray(explanation.indices)
    lines = []
    for seed in range(first_seed, first_seed + int(seeds)):
        chance = np.random.default_rng(seed).choice(n, len(selected), replace=False)
        removals = (np.array([], dtype=np.int64), selected, chance)
        for arm, removed in zip(ARMS, removals, strict=True):
            keep = np.setdiff1d(np.arange(n), removed)
            left = None if weights is None else weights[keep]
            learnt = (take_examples(X, keep), take_examples(y, keep))
            fitted = refit(model, *learnt, left, fit, seed)
            for name, data in judged.items():
                found = judge(fitted, data, likelihood, learnt)
                lines.append({"arm": arm, "seed": seed, "judged": name, **found})
    return Verification(pd.DataFrame(lines), len(selected), explanation.predicted_change)


def judged_sets(question: Question, holdout: Any) -> dict[str, Any]:
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


def scale_of(question: Question) -> Any:
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
    classifies = oracle.likelihood in CLASSES or (is_estimator(model) and is_classifier(model))
    if learnt is not None and is_estimator(model) and not classifies and likelihood == "auto":
        oracle.read(learnt, role="train")
    examples = oracle.read(data[:2], role="test")
    accuracy = np.nan
    if classifies and examples.labels is not None and examples.labels.ndim == 1:
        accuracy = float(np.mean(oracle.predict(examples) == examples.labels))
    likely = oracle.log_likelihood(examples)
    if not np.abs(likely).max() < LARGEST:
        raise ExemplaError(
            "the log-likelihood of some test examples is beyond all bounds: check the inputs of "
            f"{listing(np.flatnonzero(~(np.abs(likely) < LARGEST)))}."
        )
    return {"accuracy": accuracy, "log_likelihood": float(np.mean(likely))}
