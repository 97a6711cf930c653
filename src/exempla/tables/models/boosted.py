"""The boosted candidate for a table: columns nearly as they are, then histogram boosting."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OrdinalEncoder

from exempla.tables.columns.infer import Column, label_of
from exempla.tables.features import DateParts

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
    names = {kind: [c.name for c in columns if c.kind == kind] for kind in KINDS}
    steps: list[tuple[str, Any, Any]] = []
    if names["category"]:
        coded = OrdinalEncoder(
            handle_unknown="use_encoded_value",
            unknown_value=float("nan"),
            encoded_missing_value=float("nan"),
            max_categories=LEVELS,
        )
        steps.append(("category", coded, names["category"]))
    if names["number"]:
        steps.append(("number", "passthrough", names["number"]))
    if names["date"]:
        steps.append(("date", DateParts(), names["date"]))
    if not steps:
        return None
    classes = label_of(columns).detail == "classes"
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    # categories come first, so that their places are known before anything is fitted
    sets: Any = list(range(len(names["category"]))) or None
    model = kind(categorical_features=sets, random_state=seed)
    prepare = ColumnTransformer(steps, verbose_feature_names_out=len(steps) > 1)
    return Pipeline([("prepare", prepare), ("model", model)])


KINDS = ("category", "number", "date")
