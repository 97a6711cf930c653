"""The default model for a table: one preparation per kind of column, then L2 regression."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.base import clone as _clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from exempla.progress import track
from exempla.tables.columns.infer import FEATURES, Column, label_of
from exempla.tables.columns.label import label_values
from exempla.tables.features import DateParts, feature_frame
from exempla.tables.models.crossval import make_folds
from exempla.tables.table import Table

__all__ = ["default_model", "numbers_ready", "preparation"]

clone: Any = _clone
"""Typed by its authors as any collection; here it always gives back an estimator."""

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""C of logistic regression, tried in this order; 1/α of ridge regression."""
SEARCH_ROWS = 10_000
"""Rows the search for C uses. C is the prior variance of a coefficient, so the best value for a
sample serves the whole: unlike 1/(C·n), it does not change with n."""
FULL_HESSIAN, HESSIAN_WORK = 600, 2e10
TEXT_FEATURES = 50_000
TOP_LEVELS = 1_000


def default_model(
    table: Table,
    columns: Collection[Column],
    label: str | None = None,
    *,
    rows: np.ndarray | None = None,
    seed: int = 0,
) -> Pipeline:
    """An unfitted Pipeline for `feature_frame(table, columns)`, its C chosen by cross-validation.

    Parameters
    ----------
    rows
        Training rows: only they are looked at when C is chosen (default: all labelled rows).

    >>> import tempfile, pathlib
    >>> from exempla.tables import infer_columns, read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,y\\n" + "1,a\\n2,b\\n3,b\\n2,a\\n" * 9)
    >>> table = read_table(path)
    >>> model = default_model(table, infer_columns(table, label="y"))
    >>> list(model.named_steps)
    ['prepare', 'model']
    """
    target = label_of(columns)
    labelled = np.flatnonzero(~table.missing(label or target.name))
    rows = labelled if rows is None else np.intersect1d(rows, labelled)
    few = np.random.default_rng(seed).permutation(rows)[:SEARCH_ROWS]
    X = feature_frame(table, columns, few)
    y = label_values(table, target.name, target.detail, few)
    prepare = preparation(columns, X)
    ready = clone(prepare).fit_transform(X)
    start: Any = Ridge()
    if target.detail == "classes":
        solver, tol = _solver(ready, len(np.unique(y)), len(rows))
        start = LogisticRegression(solver=solver, tol=tol, max_iter=1000)
    return Pipeline([("prepare", prepare), ("model", _best(start, prepare, X, y, seed))])


def _solver(X: Any, classes: int, rows: int) -> tuple[Any, float]:
    """Newton with the full Hessian while that is cheap; matrix-free Newton for wide sparse rows.

    L-BFGS took 20 times as long as Newton-CG on 16,000 sentences × 33,000 n-grams. The tolerance
    bounds the mean gradient: it must lie below the penalty's share w/(C·n), and for hundreds of
    thousands of rows well below the gradient's own standard error, about 1/√n.
    """
    size = X.shape[1] * (1 if classes == 2 else classes)
    if size <= FULL_HESSIAN and rows * size**2 <= HESSIAN_WORK:
        return "newton-cholesky", 1e-6
    return ("newton-cg", 1e-6) if issparse(X) else ("lbfgs", 1e-4 if rows > 100_000 else 1e-5)


def preparation(columns: Collection[Column], X: pd.DataFrame) -> ColumnTransformer:
    """The ColumnTransformer by kind of column."""
    names = {kind: [c.name for c in columns if c.kind == kind] for kind in FEATURES}
    steps: list[tuple[str, Any, Any]] = []
    if names["number"]:
        steps.append(("number", numbers_ready(), names["number"]))
    if names["category"]:
        steps.append(("category", _categories(), names["category"]))
    if names["date"]:
        steps.append(
            ("date", Pipeline([("parts", DateParts()), *numbers_ready().steps]), names["date"])
        )
    for place, name in enumerate(names["text"]):
        # A single column name (no list) hands the vectoriser strings, not a frame.
        steps.append((f"text_{place}", _text(X[name], len(names["text"])), name))
    return ColumnTransformer(steps, verbose_feature_names_out=len(steps) > 1)


def numbers_ready() -> Pipeline:
    """Numbers without gaps (filled, and marked), scaled."""
    impute = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    return Pipeline([("impute", impute), ("scale", StandardScaler())])


def _categories() -> OneHotEncoder:
    return OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=2, max_categories=TOP_LEVELS + 1
    )


def _text(values: pd.Series, columns: int) -> TfidfVectorizer:
    made = TfidfVectorizer(
        ngram_range=(1, 2), min_df=2, max_features=TEXT_FEATURES // columns, sublinear_tf=True
    )
    if len(values) >= 1000:
        return made
    # In a handful of rows no word may come twice; then every word has to do.
    seen = pd.Series([w for text in values for w in set(made.build_analyzer()(text))], dtype=object)
    if (seen.value_counts() >= 2).sum() < 20:
        made.set_params(min_df=1)
    if seen.empty:
        made.set_params(min_df=1, analyzer="char", ngram_range=(1, 2))
    return made


def _best(model: Any, prepare: ColumnTransformer, X: pd.DataFrame, y: np.ndarray, seed: int) -> Any:
    """The model with the strength of least cross-validated loss."""
    losses, classes = np.zeros(len(STRENGTHS)), isinstance(model, LogisticRegression)
    folds = make_folds(y, 3, classes=classes, seed=seed)
    for train, test in track(folds, "choosing the model's strength", len(folds)):
        if classes and len(np.unique(y[test])) < 2:
            continue  # only one class has rows enough to be tested: that tells nothing about C
        ready = clone(prepare)
        inside, outside = ready.fit_transform(X.iloc[train]), ready.transform(X.iloc[test])
        trial = clone(model)
        for place, strength in enumerate(STRENGTHS):
            trial.set_params(**_strength(model, strength)).fit(inside, y[train])
            losses[place] += _loss(trial, outside, y[test])
    # Ties go to the middle: with perfect folds every strength is as good.
    order = sorted(range(len(STRENGTHS)), key=lambda i: abs(i - len(STRENGTHS) // 2))
    best = min(order, key=lambda i: round(losses[i], 9))
    return clone(model).set_params(**_strength(model, STRENGTHS[best]))


def _strength(model: Any, strength: float) -> dict[str, float]:
    return {"C": strength} if isinstance(model, LogisticRegression) else {"alpha": 1 / strength}


def _loss(model: Any, X: Any, y: np.ndarray) -> float:
    if isinstance(model, Ridge):
        return float(np.mean((model.predict(X) - y) ** 2))
    chosen = np.searchsorted(model.classes_, y)
    sure = model.predict_proba(X)[np.arange(len(y)), chosen]
    return -float(np.log(sure.clip(min=1e-13)).mean())
