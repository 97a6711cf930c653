"""Features of rows: a pandas frame with typed columns, and their preparation for trees."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

from exempla.errors import ExemplaError
from exempla.tables.infer import FEATURES, Column, to_dates
from exempla.tables.table import (
    LARGEST,
    Table,
    encoded,
    is_text,
    missing_mask,
    pc,
    show,
    to_numbers,
)

_MISSING_LEVEL = "missing"


def feature_frame(
    table: Table, columns: Collection[Column], rows: np.ndarray | None = None
) -> pd.DataFrame:
    """Return typed features of some rows: floats, strings, dates; the index has the row numbers.

    Missing numbers and dates stay NaN and NaT; missing categories become "missing", text "".
    """
    used = [column for column in columns if column.kind in FEATURES]
    if not used:
        left = show([f"{column.name} ({column.kind})" for column in columns])
        raise ExemplaError(
            f"No usable feature column: {left}. Set the kind of one with --kind COLUMN=KIND."
        )
    rows = np.arange(len(table)) if rows is None else np.asarray(rows)
    data = {column.name: _typed(table, column, rows) for column in used}
    return pd.DataFrame(data, index=rows, copy=False)


def _typed(table: Table, column: Column, rows: np.ndarray) -> Any:
    values = table.column(column.name)
    if not np.array_equal(rows, np.arange(len(table))):
        values = values.take(pa.array(rows))
    if column.kind == "date":
        return to_dates(values, column.detail or None)
    missing = missing_mask(values)
    if column.kind == "number":
        if pa.types.is_integer(values.type) and not missing.any():
            return values.to_numpy()
        numbers = to_numbers(values, column.detail or ".")
        return np.where(np.abs(numbers) > LARGEST, np.nan, numbers)
    fill = "" if column.kind == "text" else _MISSING_LEVEL
    words = values if is_text(values) else pc.cast(values, pa.string())
    codes, levels = encoded(words)
    filled = np.array([*levels, fill], dtype=object)[codes]
    filled[missing] = fill
    # Plain Python strings work with every version of scikit-learn and every model.
    return pd.Series(filled, index=rows, dtype=object)


def _encode_dates(X: pd.DataFrame) -> np.ndarray:
    """Return (n, 20 × columns); a missing date has no days and no indicator."""
    blocks = []
    for name in X.columns:
        dates = pd.DatetimeIndex(X[name])
        days = dates.to_numpy().astype("datetime64[s]").astype(np.int64) / 86_400
        missing = dates.isna()
        days = np.where(missing, 0.0 if missing.all() else np.nan, days)
        month = dates.month.to_numpy()[:, None] == np.arange(1, 13)
        weekday = dates.day_of_week.to_numpy()[:, None] == np.arange(7)
        blocks += [days[:, None], month.astype(float), weekday.astype(float)]
    return np.hstack(blocks)


def _date_names(_: Any, columns: Any) -> list[str]:
    """Return column_days, column_month_1, …, column_weekday_sun."""
    parts = ["days", *(f"month_{m}" for m in range(1, 13))]
    parts += [f"weekday_{d}" for d in ("mon", "tue", "wed", "thu", "fri", "sat", "sun")]
    return [f"{name}_{part}" for name in columns for part in parts]


def date_parts() -> FunctionTransformer:
    """Return an encoder of dates: days since 1970 and indicators of month and weekday."""
    return FunctionTransformer(_encode_dates, feature_names_out=_date_names)


class _KnownNumbers(TransformerMixin, BaseEstimator):
    """Keep missing numbers; fill only columns without any value, which trees cannot bin."""

    def fit(self, X: Any, y: Any = None) -> _KnownNumbers:
        self.n_features_in_ = np.shape(X)[1]
        self.feature_names_in_ = np.asarray(getattr(X, "columns", range(self.n_features_in_)))
        self.empty_ = np.isnan(np.asarray(X, dtype=np.float64)).all(axis=0)
        return self

    def transform(self, X: Any) -> np.ndarray:
        return np.where(self.empty_, 0.0, np.asarray(X, dtype=np.float64))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.asarray(self.feature_names_in_, dtype=object)


_WORDS = 300
"""Words of a text column that trees may split on; each is a dense column."""


def with_tree_columns(model: Any, columns: Collection[Column]) -> Pipeline:
    """Return a pipeline that prepares `feature_frame(table, columns)` for a tree model."""
    return Pipeline([("prepare", tree_columns(columns, words=True)), ("model", model)])


def tree_columns(
    columns: Collection[Column], words: bool, levels: int | None = None
) -> ColumnTransformer | None:
    """Return the preparation for trees, or None if there is no column for it.

    Numbers are neither scaled nor imputed, because trees handle both. Categories come first, so
    that their positions are known before fitting; at most `levels` of each get their own code.
    """
    names = {kind: [c.name for c in columns if c.kind == kind] for kind in FEATURES}
    numbered = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=levels,
    )
    steps: list[tuple[str, Any, Any]] = [
        ("category", numbered, names["category"]),
        ("number", _KnownNumbers(), names["number"]),
        ("date", date_parts(), names["date"]),
    ]
    steps = [step for step in steps if step[2]]
    for place, name in enumerate(names["text"] if words else []):
        # with a single column name (no list), the vectoriser gets strings, not a frame
        counts = TfidfVectorizer(max_features=_WORDS, sublinear_tf=True)
        steps.append((f"text_{place}", counts, name))
    if not steps:
        return None
    return ColumnTransformer(steps, sparse_threshold=0.0, verbose_feature_names_out=len(steps) > 1)
