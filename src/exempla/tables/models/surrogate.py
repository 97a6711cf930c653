"""A model that can be explained, in place of one that cannot: fitted to its predictions.

How often the two agree on rows the surrogate was not fitted to is measured and comes first: an
explanation of the surrogate says something about the model only as far as they do.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from exempla.arrays import is_sparse
from exempla.checks import check_seed
from exempla.data import from_arrow, is_polars, n_rows, take_rows
from exempla.errors import ExemplaError
from exempla.tables.infer import Column
from exempla.tables.models.choose import (
    Candidate,
    Compared,
    CrossValidation,
    boosted_model,
    can_explain,
    compare,
    numbers_ready,
    preparation,
)

__all__ = ["Surrogate", "surrogate"]

COMPARED = 10_000
"""Rows on which candidates are compared, at most."""
CLOSE = 0.9
"""Agreement below which the sentence is a warning."""
_WORDS = 5
"""Words on average from which a column of strings is text."""


@dataclass(frozen=True)
class Surrogate:
    """A fitted model that can be explained, and how far it agrees with the one it stands for.

    >>> agreement = CrossValidation(0.95, 0.01, 0.6)
    >>> print(Surrogate(None, "a linear model", "TabPFNClassifier", agreement).sentence[:59])
    A surrogate, a linear model, stands in for TabPFNClassifier
    """

    model: Any
    name: str
    """What kind of model it is."""
    of: str
    """Whose predictions it was fitted to."""
    agreement: CrossValidation
    """Share of rows left out on which the two say the same (of numbers: R²), its standard error,
    and what always giving the commonest answer would reach."""
    regression: bool = False
    compared: tuple[Compared, ...] = field(default=(), repr=False)

    @property
    def sentence(self) -> str:
        """How far the two agree, in one sentence."""
        at = self.agreement
        if self.regression:
            how = f"follows its predictions with R² {at.mean:.3f} ± {at.se:.3f}"
        else:
            how = (
                f"gives the same answer in {at.mean:.1%} ± {at.se:.1%} of cases (the commonest "
                f"answer alone: {at.majority:.1%})"
            )
        doubt = ""
        if at.mean < CLOSE:
            doubt = "; where they differ, what follows says nothing about the model"
        return (
            f"A surrogate, {self.name}, stands in for {self.of}: on rows it was not fitted to it "
            f"{how}{doubt}."
        )


def surrogate(
    model: Any, X: Any, y: Any = None, *, candidates: Any = None, seed: int = 0
) -> Surrogate:
    """Fit a supported model to the predictions of one that has no scores.

    Then explain `surrogate(model, X).model` with the training data as they are: the surrogate is
    where the model is, as nearly as it can be, and training rows are scored there under their own
    labels. Read `.sentence` first.

    Parameters
    ----------
    model : anything with `predict`
        Fitted.
    X : array, sparse matrix, data frame or list of texts
        Its training rows, or others like them.
    y : array
        Their own labels: a class that the model never answers is learnt from these, so that rows
        of it can be scored. Everything else is learnt from the model's answers.
    candidates : list of unfitted models
        What to choose from by cross-validation; by default a linear model, a perceptron and, where
        its scores are known, gradient boosting.
    seed : int
        The seed of every random choice.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import IsolationForest
    >>> X, y = load_iris(return_X_y=True)
    >>> stands_in = surrogate(IsolationForest(random_state=0).fit(X), X)
    >>> bool(stands_in.agreement.mean > 0.8), stands_in.of
    (True, 'IsolationForest')
    """
    if not hasattr(model, "predict"):
        raise ExemplaError(
            f"{type(model).__name__} has no predict, so nothing can be fitted to it: give its "
            "gradient as exempla.ScoreModel."
        )
    check_seed(seed)
    X = from_arrow(X)
    said = np.asarray(model.predict(X))
    if said.ndim == 2 and said.shape[1] == 1:
        said = said[:, 0]
    if said.ndim != 1 or len(said) != n_rows(X):
        raise ExemplaError(
            f"{type(model).__name__}.predict gives shape {said.shape} for {n_rows(X)} rows: a "
            "surrogate needs one answer a row."
        )
    regression = said.dtype.kind == "f" and not classifies(model)
    if len(np.unique(said)) < 2:
        raise ExemplaError(
            f"{type(model).__name__} gives every one of these rows the same answer, so there is "
            "nothing to stand in for: give rows on which it differs."
        )
    if y is not None and not regression:
        said = _with_every_class(said, np.asarray(y))
    tried = _default_candidates(X, regression, seed) if candidates is None else named(candidates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the comparison judges what came out
        found = compare(tried, X, said, max_rows=COMPARED, seed=seed)
        best = min(found, key=lambda one: one.loss)
        fitted = best.model.fit(X, said)
    return Surrogate(
        fitted, best.name, type(model).__name__, best.accuracy, regression, tuple(found)
    )


def _with_every_class(said: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The answers, with rows of a class that is never answered under their own label.

    >>> _with_every_class(np.array(["a", "a", "b"]), np.array(["a", "c", "b"])).tolist()
    ['a', 'c', 'b']
    """
    never = np.setdiff1d(y, said)
    return np.where(np.isin(y, never), y, said) if len(never) else said


def classifies(model: Any) -> bool:
    """Whether the model's answers are classes."""
    try:
        return bool(is_classifier(model)) or hasattr(model, "predict_proba")
    except AttributeError:  # it tells scikit-learn nothing about itself
        return hasattr(model, "predict_proba")


def named(candidates: Any) -> list[Candidate]:
    """The caller's own candidates, each with scores."""
    models = list(candidates)
    lacking = [type(model).__name__ for model in models if not can_explain(model)]
    if lacking or not models:
        raise ExemplaError(
            f"candidates must be models that can be explained, and {', '.join(lacking) or 'none'} "
            "can: give LogisticRegression, MLPClassifier, or their like."
        )
    return [Candidate(type(model).__name__, model) for model in models]


def _default_candidates(X: Any, regression: bool, seed: int) -> list[Candidate]:
    """A linear model, a perceptron, and boosting if it can be explained."""
    prepare, boosted = _prepared(X, regression, seed)
    line: Any = Ridge() if regression else LogisticRegression(max_iter=1000)
    shape = {"hidden_layer_sizes": (64,), "random_state": seed}
    net: Any = MLPRegressor(**shape) if regression else MLPClassifier(**shape)
    found = [
        Candidate("a linear model", Pipeline([("prepare", prepare), ("model", line)])),
        Candidate("a perceptron", Pipeline([("prepare", prepare), ("model", net)])),
    ]
    if boosted is not None and can_explain(boosted):
        found.append(Candidate("histogram gradient boosting", boosted))
    return found


def _prepared(X: Any, regression: bool, seed: int) -> tuple[Any, Any]:
    """What X goes through before a linear model, and a boosted model for it (None: none)."""
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    if is_polars(X) or hasattr(X, "iloc"):
        frame = X.to_pandas() if is_polars(X) else X
        columns = _by_type(pd.DataFrame(frame), regression)
        return preparation(columns, frame), boosted_model(columns, seed)
    if is_sparse(X):
        return StandardScaler(with_mean=False), None
    if not hasattr(X, "shape") and isinstance(take_rows(X, np.arange(1))[0], str):
        return TfidfVectorizer(sublinear_tf=True), None
    return numbers_ready(), make_pipeline(kind(random_state=seed))


def _by_type(frame: pd.DataFrame, regression: bool) -> list[Column]:
    """Columns of a frame by their values: numbers, dates, text, and categories for the rest."""
    columns = []
    for name, values in frame.items():
        kind = "category"
        if pd.api.types.is_numeric_dtype(values):
            kind = "number"
        elif pd.api.types.is_datetime64_any_dtype(values):
            kind = "date"
        elif np.mean([len(str(value).split()) for value in values[:1000]] or [0]) >= _WORDS:
            kind = "text"
        columns.append(Column(str(name), kind, "by its values"))
    label = "regression" if regression else "classes"
    return [*columns, Column("", "label", "the model's answer", label)]
