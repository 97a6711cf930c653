"""The boosted candidate for a table: columns nearly as they are, then histogram boosting."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline

from exempla.tables.columns.infer import Column, label_of
from exempla.tables.tree_columns import tree_columns

__all__ = ["boosted_model"]

LEVELS = 254
"""Levels of a category that get a code of their own: histograms have 255 bins."""


def boosted_model(columns: Collection[Column], seed: int = 0) -> Pipeline | None:
    """An unfitted Pipeline for `feature_frame(table, columns)`; None where only text is left.

    Numbers keep their gaps, which trees can split on; categories are coded and split as sets; text
    is left out.

    >>> columns = [Column("size", "number", ""), Column("y", "label", "", "classes")]
    >>> list(boosted_model(columns).named_steps)
    ['prepare', 'model']
    """
    prepare = tree_columns(columns, words=False, levels=LEVELS)
    if prepare is None:
        return None
    classes = label_of(columns).detail == "classes"
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    sets = list(range(sum(column.kind == "category" for column in columns))) or None
    model = kind(categorical_features=cast(Any, sets), random_state=seed)
    return Pipeline([("prepare", prepare), ("model", model)])
