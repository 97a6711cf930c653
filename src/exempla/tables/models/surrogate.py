"""Surrogates: a supported model fitted to the predictions of an unsupported one.

The cross-validated agreement of the two is reported first, because an explanation of the surrogate
holds for the model only as far as they agree.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
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
    Compared,
    CrossValidation,
    boosted_model,
    can_explain,
    compare,
    numbers_ready,
    preparation,
)

_COMPARED = 10_000
"""Largest number of rows for the comparison of candidates."""
CLOSE = 0.9
"""Below this agreement, the sentence is a warning."""
_WORDS = 5
"""Mean number of words from which a column of strings is text."""


@dataclass(frozen=True)
class Surrogate:
    """A fitted surrogate, and how well it agrees with the model it replaces.

    >>> agreement = CrossValidation(0.95, 0.01, 0.6)
    >>> print(Surrogate(None, "a linear model", "TabPFNClassifier", agreement).sentence[:59])
    A surrogate, a linear model, is explained instead of TabPFN
    """

    model: Any
    name: str
    of: str
    """The class of the model it replaces."""
    agreement: CrossValidation
    """Cross-validated share of equal predictions (R² for numbers)."""
    regression: bool = False
    compared: tuple[Compared, ...] = field(default=(), repr=False)

    @property
    def sentence(self) -> str:
        """How well the two agree, in one sentence."""
        at = self.agreement
        if self.regression:
            how = f"predicts its output with R² {at.mean:.3f} ± {at.se:.3f}"
        else:
            how = (
                f"gives the same prediction for {at.mean:.1%} ± {at.se:.1%} of the rows "
                f"(majority-class baseline: {at.majority:.1%})"
            )
        doubt = ""
        if at.mean < CLOSE:
            doubt = "; where they differ, the explanation says nothing about your model"
        return (
            f"A surrogate, {self.name}, is explained instead of {self.of}: on held-out rows it "
            f"{how}{doubt}."
        )


def surrogate(
    model: Any, X: Any, y: Any = None, *, candidates: Any = None, seed: int = 0
) -> Surrogate:
    """Fit a supported model to the predictions of an unsupported one.

    Explain `surrogate(model, X).model` with the unchanged training data: training rows are scored
    under their own labels. Read `.sentence` first.

    Parameters
    ----------
    model : anything with `predict`
        The fitted model.
    X : array, sparse matrix, data frame or list of texts
        Its training rows, or similar ones.
    y : array
        Their labels. A class that the model never predicts is learned from them, so that its rows
        can be scored; everything else is learned from the predictions.
    candidates : list of unfitted models
        Candidates for cross-validation; by default a linear model, a multilayer perceptron and, if
        it is supported, gradient boosting.
    seed : int
        Seed of all random choices.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import IsolationForest
    >>> X, y = load_iris(return_X_y=True)
    >>> stands_in = surrogate(IsolationForest(random_state=0).fit(X), X)
    >>> bool(stands_in.agreement.mean > 0.8), stands_in.of
    (True, 'IsolationForest')
    """
    name = type(model).__name__
    if not hasattr(model, "predict"):
        raise ExemplaError(
            f"{name} has no predict method, so no surrogate can be fitted to it; give its "
            "gradients as exempla.ScoreModel."
        )
    check_seed(seed)
    X = from_arrow(X)
    said = np.asarray(model.predict(X))
    said = said[:, 0] if said.ndim == 2 and said.shape[1] == 1 else said
    if said.ndim != 1 or len(said) != n_rows(X):
        raise ExemplaError(
            f"{name}.predict returns shape {said.shape} for {n_rows(X)} rows; a surrogate needs "
            "one prediction per row."
        )
    regression = said.dtype.kind == "f" and not _classifies(model)
    if len(np.unique(said)) < 2:
        raise ExemplaError(
            f"{name} predicts the same for every row, so there is nothing to fit a surrogate to; "
            "give rows with different predictions."
        )
    if y is not None and not regression:
        # A class that the model never predicts is learned from the labels.
        never = np.setdiff1d(y, said)
        said = np.where(np.isin(y, never), np.asarray(y), said) if len(never) else said
    tried = _default_candidates(X, regression, seed) if candidates is None else _named(candidates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the comparison uses the result
        found = compare(tried, X, said, max_rows=_COMPARED, seed=seed)
        best = min(found, key=lambda one: one.loss)
        fitted = best.model.fit(X, said)
    return Surrogate(fitted, best.name, name, best.accuracy, regression, tuple(found))


def _classifies(model: Any) -> bool:
    with suppress(AttributeError):  # a model without scikit-learn tags
        if is_classifier(model):
            return True
    return hasattr(model, "predict_proba")


def _named(candidates: Any) -> list[tuple[str, Any]]:
    """Return the caller's candidates; all must be supported."""
    models = list(candidates)
    lacking = [type(model).__name__ for model in models if not can_explain(model)]
    if lacking or not models:
        raise ExemplaError(
            f"Candidates must be supported models ({', '.join(lacking) or 'none was given'}); give "
            "LogisticRegression or MLPClassifier, for example."
        )
    return [(type(model).__name__, model) for model in models]


def _default_candidates(X: Any, regression: bool, seed: int) -> list[tuple[str, Any]]:
    """Return a linear model, a perceptron, and boosting if it is supported."""
    prepare, boosted = _prepared(X, regression, seed)
    line: Any = Ridge() if regression else LogisticRegression(max_iter=1000)
    shape = {"hidden_layer_sizes": (64,), "random_state": seed}
    net: Any = MLPRegressor(**shape) if regression else MLPClassifier(**shape)
    found: list[tuple[str, Any]] = [
        ("a linear model", Pipeline([("prepare", prepare), ("model", line)])),
        ("a perceptron", Pipeline([("prepare", prepare), ("model", net)])),
    ]
    if boosted is not None and can_explain(boosted):
        found.append(("histogram gradient boosting", boosted))
    return found


def _prepared(X: Any, regression: bool, seed: int) -> tuple[Any, Any]:
    """Return the preparation of X for a linear model, and a boosted model for X or None."""
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
    """Return the columns of a frame by their values: number, date, text or category."""
    columns = []
    for name, values in frame.items():
        kind = "category"
        if pd.api.types.is_numeric_dtype(values):
            kind = "number"
        elif pd.api.types.is_datetime64_any_dtype(values):
            kind = "date"
        elif np.mean([len(str(value).split()) for value in values[:1000]] or [0]) >= _WORDS:
            kind = "text"
        columns.append(Column(str(name), kind, "inferred from its values"))
    label = "regression" if regression else "classes"
    return [*columns, Column("", "label", "the model's prediction", label)]
