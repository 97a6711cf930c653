"""Which test rows the question is about, and how to show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.cli.shared.rows import RowView, decisive, row_view
from exempla.cli.shared.userfile import UserFile
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.tables import Split

__all__ = ["Asked", "choose_questions", "refuse_question"]

WORDS = ("errors", "all")
"""What --ask may say instead of row numbers."""
WORST = 0.1
"""Share of the test rows that count as errors where a number is predicted."""


@dataclass(frozen=True)
class Asked:
    """The questioned rows of a user's file."""

    given: UserFile
    positions: np.ndarray
    """Among the test rows."""
    side: Any
    noun: str
    predicted: np.ndarray
    error_share: float
    notes: tuple[str, ...]

    @property
    def rows(self) -> np.ndarray:
        """Row numbers in the test file (or in the one file)."""
        return self.given.parts.test[self.positions]

    @property
    def test(self) -> Any:
        """The questioned rows as the Explainer takes them."""
        y = self.given.parts.y_test
        return self.given.data(self.features, None if y is None else y[self.positions])

    @property
    def features(self) -> Any:
        """The questioned rows."""
        return take_rows(self.given.parts.X_test, self.positions)

    def test_view(self) -> RowView:
        """How to show a questioned row, by its position in the question."""
        given, parts = self.given, self.given.parts
        labels = None if parts.y_test is None else parts.y_test[self.positions]
        predicted = self.predicted[self.positions]
        known = predicted if labels is None else labels
        return row_view(
            parts.test_table or given.table,
            given.columns,
            rows=self.rows,
            labels=labels,
            predicted=predicted,
            **decisive(given.model, self.features, known, range(len(self.positions))),
        )


def refuse_question(ask: str, parts: Split) -> None:
    """Raise if `--ask` means no rows, before a model is trained for it."""
    if parts.X_test is None:
        raise ExemplaError("There are no test rows to ask about; give --test or --test-size.")
    if ask not in WORDS:
        _chosen(ask, parts.test)


def choose_questions(given: UserFile, ask: str, side: str | None) -> Asked:
    """The rows that `--ask` means."""
    parts = given.parts
    refuse_question(ask, parts)
    predicted = np.asarray(given.model.predict(parts.X_test))
    n = len(predicted)
    wrong = _wrong(given, predicted)
    error_share = 0.0 if wrong is None or given.regression else len(wrong) / n
    notes: list[str] = []
    noun = "predictions"
    if wrong is not None and not given.regression:
        notes.append(
            f"On {n:,} test rows the model makes {len(wrong):,} errors ({error_share:.1%})."
        )
    if ask == "errors" and wrong is not None and len(wrong):
        positions, noun = wrong, "worst predictions" if given.regression else "errors"
    elif ask in WORDS:
        positions = np.arange(n)
        if ask == "errors" and wrong is not None:
            notes.append("There is no error to explain: rows that support the answers are shown.")
            side = side or "proponents"
    else:
        positions = _chosen(ask, parts.test)
    return Asked(given, positions, side or "opponents", noun, predicted, error_share, tuple(notes))


def _wrong(given: UserFile, predicted: np.ndarray) -> np.ndarray | None:
    """Positions of the errors; for numbers, of the worst tenth; None without labels."""
    y = given.parts.y_test
    if y is None:
        return None
    if not given.regression:
        return np.flatnonzero(predicted.astype(str) != y.astype(str))
    order = np.argsort(-np.abs(predicted - y), kind="stable")
    return np.sort(order[: max(1, round(WORST * len(y)))])


def _chosen(ask: str, test: np.ndarray) -> np.ndarray:
    try:
        rows = [int(piece) for piece in ask.split(",")]
    except ValueError:
        raise ExemplaError(
            f"--ask {ask} is not understood; write errors, all, or row numbers such as 3,17."
        ) from None
    absent = [row for row in rows if row not in test]
    if absent:
        raise ExemplaError(
            f"Row {absent[0]} is not among the {len(test):,} test rows; give rows of the --test "
            "file, or see explanation.json for those that were held out."
        )
    return np.array([int(np.flatnonzero(test == row)[0]) for row in rows])
