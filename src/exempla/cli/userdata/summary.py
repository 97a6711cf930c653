"""A summary of the user's file: judged, shown, and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exempla.cli.userdata.images import ImageClassifier
from exempla.cli.userdata.userfile import UserFile
from exempla.data import take_rows
from exempla.results import Selection
from exempla.tasks.retrain import refit
from exempla.tasks.summarize import Summary

__all__ = ["FILES", "judged", "write_rows"]


def judged(given: UserFile, picked: Summary) -> tuple[float | None, float | None]:
    """Scores on the test rows: of the model of all rows, and of one of the summary alone."""
    parts = given.parts
    if parts.X_test is None or parts.y_test is None:
        return None, None
    if isinstance(given.model, ImageClassifier) or not hasattr(given.model, "score"):
        return None, None
    X, y = take_rows(parts.X_train, picked.indices), parts.y_train[picked.indices]
    small = refit(
        given.model, X, y, picked.weights, None, picked.seed, keep_random_state=True, quiet=False
    )
    whole: Any = given.model
    return float(whole.score(parts.X_test, parts.y_test)), float(
        small.score(parts.X_test, parts.y_test)
    )


FILES = ("summary.csv", "summary.parquet")


def write_rows(stage: Path, given: UserFile, found: Selection) -> Path:
    """The rows themselves, with their weights, as Parquet or CSV."""
    rows = given.table.data.take(found.indices).to_pandas()
    name = "weight"
    while name in rows.columns:
        name = f"exempla_{name}"
    rows.insert(0, "row", found.indices, allow_duplicates=True)
    rows.insert(1, name, found.weights)
    if given.table.format == "parquet":
        rows.columns = [str(column) for column in rows.columns]
        rows.to_parquet(stage / "summary.parquet", index=False)
        return stage / "summary.parquet"
    rows.to_csv(stage / "summary.csv", index=False)
    return stage / "summary.csv"
