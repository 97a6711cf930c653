"""The rows a model is given: a pandas frame with one typed column per feature column."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator, TransformerMixin

from exempla.errors import ExemplaError
from exempla.tables.columns.arrow import LARGEST, encoded, is_text, missing_mask, pc, to_numbers
from exempla.tables.columns.dates import to_dates
from exempla.tables.columns.infer import FEATURES, Column
from exempla.tables.table import Table, show

__all__ = ["DateParts", "feature_frame"]

MISSING_LEVEL = "missing"


def feature_frame(
    table: Table, columns: Collection[Column], rows: np.ndarray | None = None
) -> pd.DataFrame:
    """Typed features of some rows: floats, strings, dates; row numbers are the index.

    Numbers and dates keep their gaps (NaN, NaT), categories get the level "missing", text "".

    >>> import tempfile, pathlib
    >>> from exempla.tables import infer_columns, read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,colour,y\\n" + "3,red,a\\n4,,b\\n3,blue,a\\n" * 4)
    >>> table = read_table(path)
    >>> feature_frame(table, infer_columns(table, label="y")).loc[1, "colour"]
    'missing'
    """
    used = [column for column in columns if column.kind in FEATURES]
    if not used:
        left = show([f"{column.name} ({column.kind})" for column in columns])
        raise ExemplaError(f"No column is left to learn from: {left}; overrule one of them.")
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
    fill = "" if column.kind == "text" else MISSING_LEVEL
    words = values if is_text(values) else pc.cast(values, pa.string())
    codes, levels = encoded(words)
    filled = np.array([*levels, fill], dtype=object)[codes]
    filled[missing] = fill
    # Plain Python strings: every scikit-learn version and every user's model takes them.
    return pd.Series(filled, index=rows, dtype=object)


class DateParts(TransformerMixin, BaseEstimator):
    """Dates as numbers: days since 1970, twelve months and seven weekdays as indicators.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"when": pd.to_datetime(["1970-01-02"])})
    >>> DateParts().fit_transform(frame)[0, :3].tolist()
    [1.0, 1.0, 0.0]
    """

    def fit(self, X: pd.DataFrame, y: Any = None) -> DateParts:
        """Remember the names of the columns."""
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """(n, 20 × columns); a missing date has no days and no indicator."""
        blocks = []
        for name in X.columns:
            dates = pd.DatetimeIndex(X[name])
            days = dates.to_numpy().astype("datetime64[s]").astype(np.int64) / 86_400
            days = np.where(dates.isna(), np.nan, days)
            month = dates.month.to_numpy()[:, None] == np.arange(1, 13)
            weekday = dates.day_of_week.to_numpy()[:, None] == np.arange(7)
            blocks += [days[:, None], month.astype(float), weekday.astype(float)]
        return np.hstack(blocks)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """column_days, column_month_1, …, column_weekday_sun."""
        parts = ["days", *(f"month_{m}" for m in range(1, 13))]
        parts += [f"weekday_{d}" for d in ("mon", "tue", "wed", "thu", "fri", "sat", "sun")]
        return np.array(
            [f"{name}_{part}" for name in self.feature_names_in_ for part in parts], dtype=object
        )
