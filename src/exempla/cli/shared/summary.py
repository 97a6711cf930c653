"""A summary of the user's file: judged, shown, and written."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from exempla.cli.shared.images import ImageClassifier
from exempla.cli.shared.userfile import UserFile
from exempla.data import take_rows
from exempla.results import Explanation, Selection
from exempla.version import __version__

__all__ = ["as_explanation", "judged", "write_rows"]


def judged(given: UserFile, picked: Selection) -> tuple[float | None, float | None]:
    """Scores on the test rows: of the model of all rows, and of one of the summary alone."""
    parts = given.parts
    if parts.X_test is None or parts.y_test is None:
        return None, None
    if isinstance(given.model, ImageClassifier) or not hasattr(given.model, "score"):
        return None, None
    small: Any = clone(given.model)
    X, y = take_rows(parts.X_train, picked.indices), parts.y_train[picked.indices]
    small.fit(X, y, **_weights(small, picked.weights))
    whole: Any = given.model
    return float(whole.score(parts.X_test, parts.y_test)), float(
        small.score(parts.X_test, parts.y_test)
    )


def _weights(model: Any, weights: np.ndarray) -> dict[str, Any]:
    """The weights under the name that the model's fit takes them by."""
    if hasattr(model, "steps"):
        return {f"{model.steps[-1][0]}__sample_weight": weights}
    return {"sample_weight": weights}


def as_explanation(given: UserFile, picked: Selection, options: Namespace) -> Explanation:
    """The summary in the form every command leaves behind, with rows of the file."""
    n = len(given.parts.train)
    return Explanation(
        indices=given.parts.train[picked.indices],
        weights=picked.weights,
        side=picked.side,
        gains=picked.gains,
        explained=picked.explained,
        variance=picked.variance,
        mmd2=picked.mmd2,
        rank=picked.rank,
        k=options.k,
        damping=0.0,
        damping_rule="none: the posterior around the fitted model takes its place",
        share=1.0,
        selector=picked.selector,
        noise=picked.noise,
        labels="true",
        alignment=np.abs(picked.weights),
        n_train=n,
        n_test=n,
        seed=options.seed,
        version=__version__,
    )


def write_rows(folder: Path, given: UserFile, found: Explanation) -> Path:
    """The rows themselves, with their weights, as Parquet or CSV."""
    rows = given.table.data.take(found.indices).to_pandas()
    name = "weight"
    while name in rows.columns:
        name = f"exempla_{name}"
    rows.insert(0, "row", found.indices, allow_duplicates=True)
    rows.insert(1, name, found.weights)
    if given.table.format == "parquet":
        rows.columns = [str(column) for column in rows.columns]
        rows.to_parquet(folder / "summary.parquet", index=False)
        return folder / "summary.parquet"
    rows.to_csv(folder / "summary.csv", index=False)
    return folder / "summary.csv"
