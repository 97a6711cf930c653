"""Which model a file gets when none is given: chosen by cross-validation, by a rule fixed before.

The candidates, simplest first: L2 regression (with TF-IDF for text), histogram gradient boosting.
Each is fitted to the same folds and judged by its loss on the rows left out (−log p of the label,
or the squared error). **The simplest one within one standard error of the best is taken.** Only
models whose scores are known take part: what cannot be explained is not chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline
from threadpoolctl import threadpool_limits

from exempla.errors import UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.progress import say
from exempla.tables.columns.infer import Column, label_of
from exempla.tables.models.boosted import boosted_model
from exempla.tables.models.crossval import CrossValidation, cross_validated
from exempla.tables.models.tabular import default_model, preparation
from exempla.tables.table import Table
from exempla.tasks.label_jobs.kinds import MANY
from exempla.tasks.label_jobs.softmax import SoftmaxRegression

__all__ = ["Candidate", "Chosen", "Compared", "can_explain", "choose_model", "compare", "simplest"]

MOST_ROWS, FEWEST_ROWS = 20_000, 1_000
CELLS = 2_000_000
"""Rows × columns × classes that a comparison may cost: of larger files a sample is compared."""
FOLDS = 5


class Candidate(NamedTuple):
    """A model that may be chosen, in words and unfitted."""

    name: str
    model: Any


@dataclass(frozen=True)
class Compared:
    """A candidate and how it did."""

    name: str
    model: Any
    accuracy: CrossValidation
    loss: float
    se: float
    """Standard error of the mean loss."""

    def to_dict(self) -> dict[str, Any]:
        """For a result file."""
        return {
            "model": self.name,
            "loss": self.loss,
            "loss_se": self.se,
            "score": self.accuracy.mean,
        }


@dataclass(frozen=True)
class Chosen:
    """The model to use; with what it was compared, if it was."""

    model: Any
    compared: tuple[Compared, ...] = ()
    place: int = 0
    rows: int = 0
    """Rows that were compared on."""
    regression: bool = False

    @property
    def accuracy(self) -> CrossValidation | None:
        """The chosen model's; None where nothing was compared."""
        return self.compared[self.place].accuracy if self.compared else None

    def table(self) -> str:
        """The scores, the rule and the winner, for a person."""
        name, unit = ("squared error", "R²") if self.regression else ("log loss", "accuracy")
        width = max(len(one.name) for one in self.compared)
        lines = [
            f"{len(self.compared)} models, {FOLDS}-fold cross-validation on {self.rows:,} rows:",
            f"  {'model':{width}}  {name:>18}  {unit:>8}",
        ]
        for place, one in enumerate(self.compared):
            score = f"{one.accuracy.mean:.3f}" if self.regression else f"{one.accuracy.mean:.1%}"
            loss = f"{one.loss:.4g} ± {one.se:.2g}"
            mark = "  <- chosen" if place == self.place else ""
            lines.append(f"  {one.name:{width}}  {loss:>18}  {score:>8}{mark}")
        lines.append("The simplest within one standard error of the best is taken.")
        return "\n".join(lines)


def choose_model(
    table: Table,
    columns: Collection[Column],
    X: pd.DataFrame,
    y: np.ndarray,
    *,
    rows: np.ndarray,
    seed: int = 0,
    linear: bool = False,
) -> Chosen:
    """The model for these training rows; `linear` leaves only regressions to choose from.

    >>> import tempfile, pathlib
    >>> from exempla.tables import infer_columns, read_table, split
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,y\\n" + "1,a\\n2,b\\n3,b\\n2,a\\n" * 9)
    >>> table = read_table(path)
    >>> columns = infer_columns(table, label="y")
    >>> parts = split(table, columns)
    >>> found = choose_model(table, columns, parts.X_train, parts.y_train, rows=parts.train)
    >>> type(found.model[-1]).__name__
    'LogisticRegression'
    """
    regression = label_of(columns).detail == "regression"
    if not regression and len(np.unique(y)) >= MANY:
        # a search over thousands of classes would take hours and (rows × classes) of memory
        few = Pipeline([("prepare", preparation(columns, X)), ("model", SoftmaxRegression())])
        return Chosen(few)
    first = default_model(table, columns, rows=rows, seed=seed)
    candidates = [Candidate("ridge regression" if regression else "logistic regression", first)]
    size = compared_rows(X, y, regression)
    boosted = None if linear or size is None else boosted_model(columns, seed)
    if boosted is not None and can_explain(boosted):
        candidates.append(Candidate("histogram gradient boosting", boosted))
    if len(candidates) == 1 or size is None:
        return Chosen(first, regression=regression)
    found = compare(candidates, X, y, max_rows=size, seed=seed)
    place = simplest(found)
    used = min(size, len(y))
    return Chosen(found[place].model, tuple(found), place, used, regression)


def compared_rows(X: pd.DataFrame, y: np.ndarray, regression: bool) -> int | None:
    """Rows a comparison may use; None where even a small one would cost too much, or cannot be."""
    _, counts = np.unique(y, return_counts=True)
    if len(y) < FOLDS or (not regression and counts.max() < 2):
        return None
    outputs = 1 if regression or len(counts) == 2 else len(counts)
    affordable = CELLS // max(1, X.shape[1] * outputs)
    return None if affordable < FEWEST_ROWS else min(affordable, MOST_ROWS)


def can_explain(model: Any) -> bool:
    """Whether there are scores for this model, fitted or not.

    >>> from sklearn.linear_model import Ridge, RidgeClassifier
    >>> can_explain(Ridge()), can_explain(RidgeClassifier())
    (True, False)
    """
    try:
        make_oracle(model)
    except UnsupportedModelError:
        return False
    return True


def compare(
    candidates: Sequence[Candidate], X: Any, y: Any, *, max_rows: int = MOST_ROWS, seed: int = 0
) -> list[Compared]:
    """Every candidate on the same folds."""
    rows, trainings = min(len(y), max_rows), FOLDS * len(candidates)
    say(f"comparing {len(candidates)} models on {rows:,} rows: {trainings} trainings")
    found = []
    for name, model in candidates:
        # trees of so few rows are grown faster by one thread; on a busy machine, many times so
        with threadpool_limits(1, user_api="openmp"):
            accuracy, losses = cross_validated(
                model, X, y, folds=FOLDS, max_rows=max_rows, seed=seed, what=name
            )
        se = float(losses.std(ddof=1) / np.sqrt(len(losses)))
        found.append(Compared(name, model, accuracy, float(losses.mean()), se))
    return found


def simplest(compared: Sequence[Compared]) -> int:
    """The first whose loss is within one standard error of the best one's."""
    best = min(compared, key=lambda one: one.loss)
    return next(i for i, one in enumerate(compared) if one.loss <= best.loss + best.se)
