"""Columns as trees take them: numbers with their gaps, categories by number, words as counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OrdinalEncoder

from exempla.tables.columns.infer import FEATURES, Column
from exempla.tables.features import DateParts

__all__ = ["tree_columns", "with_tree_columns"]

WORDS = 300
"""Words of a text column that trees may split on: every one is a dense column."""


def with_tree_columns(model: Any, columns: Collection[Column]) -> Pipeline:
    """The model behind a preparation of `feature_frame(table, columns)` that trees can split.

    Nothing is scaled or filled in: a split asks for order alone, and a gap goes its own way. A
    category never seen is a gap.

    >>> import pandas as pd
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> columns = [Column("size", "number", ""), Column("colour", "category", "")]
    >>> model = with_tree_columns(HistGradientBoostingClassifier(max_iter=2), columns)
    >>> X = pd.DataFrame({"size": [1.0, None] * 30, "colour": ["red", "blue"] * 30})
    >>> model.fit(X, ["yes", "no"] * 30).predict(X[:2]).tolist()
    ['yes', 'no']
    """
    prepare = tree_columns(columns, words=True)
    assert prepare is not None, "a table has columns"
    return Pipeline([("prepare", prepare), ("model", model)])


def tree_columns(
    columns: Collection[Column], words: bool, levels: int | None = None
) -> ColumnTransformer | None:
    """The preparation alone, categories first, so that their places are known before anything is
    fitted; None where nothing is left. `levels` of a category at most have a number of their own.
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
        ("number", "passthrough", names["number"]),
        ("date", DateParts(), names["date"]),
    ]
    steps = [step for step in steps if step[2]]
    for place, name in enumerate(names["text"] if words else []):
        # a single column name (no list) hands the vectoriser strings, not a frame
        counts = TfidfVectorizer(max_features=WORDS, sublinear_tf=True)
        steps.append((f"text_{place}", counts, name))
    if not steps:
        return None
    return ColumnTransformer(steps, sparse_threshold=0.0, verbose_feature_names_out=len(steps) > 1)
