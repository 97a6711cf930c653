"""Which test rows the question is about (`--ask`), and how to show them."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.fitted import Fitted, decisive
from exempla.cli.output import write_results
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.report import About
from exempla.report.views import rounded
from exempla.tables import Split, Table
from exempla.tables.dataset import RowView
from exempla.tables.formats.encoding import named_format
from exempla.tasks.question import ONE_CONFUSION, confused

_CONTAINS = re.compile(r"(?P<column>.+?)\s+contains\s+(?P<text>.+)", re.DOTALL)
_ROWS = re.compile(r"\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*")
_FORMS = (
    "errors, all, errors:TRUE->SAID, row numbers such as 3,17 or 5-9, 'COLUMN contains TEXT', or a "
    "file of new rows"
)
"""Everything --ask understands."""
_WORST_SHARE = 0.1
"""Share of the test rows that count as errors where a number is predicted."""


@dataclass(frozen=True)
class QueryRows:
    """The test rows of a user's file that the query is about."""

    given: Fitted
    positions: np.ndarray
    """Positions among the test rows."""
    side: Any
    noun: str
    predicted: np.ndarray
    error_share: float
    notes: tuple[str, ...]

    @property
    def rows(self) -> np.ndarray:
        """Row numbers in the test file, or in the main file if there is none."""
        return self.given.parts.test[self.positions]

    def test_view(self) -> RowView:
        """Return the view of these rows, by position in the query."""
        given, parts = self.given, self.given.parts
        labels = None if parts.y_test is None else parts.y_test[self.positions]
        predicted = self.predicted[self.positions]
        X, known = take_rows(parts.X_test, self.positions), predicted if labels is None else labels
        why = decisive(given.model, X, known, range(len(self.positions)))
        return given.dataset.view(
            parts.test_table, rows=self.rows, labels=labels, predicted=predicted, **why
        )

    def answered(
        self, answer_from: Callable[..., Any], explainer: Explainer, k: Any, **options: Any
    ) -> tuple[Any, QueryRows]:
        """Answer the query with `explain_from` or `clean_from`.

        Return the answer and the rows it is about, without errors that are wrong test labels.
        """
        started, parts = time.perf_counter(), self.given.parts
        found = answer_from(
            explainer.fit(self.given.train),
            parts.X_test if parts.y_test is None else (parts.X_test, parts.y_test),
            k if k == "auto" else min(k, len(parts.train)),
            ask=self.positions,
            errors=self.noun == "errors",
            started=started,
            **options,
        )
        return found, replace(self, positions=np.asarray(found.question.rows))

    def write(self, stage: Path, answer: Any, about: About, **report: Any) -> dict[str, Path]:
        """Write the results, showing the training rows and these rows (see `write_results`)."""
        views = {
            "train_view": self.given.view(answer.indices, why=True),
            "test_view": self.test_view(),
        }
        return write_results(stage, answer, about=about, **views, **report)


def ask_about_file(options: Namespace) -> Namespace:
    """Return the options with the file of new rows that --ask names as the test file."""
    if _is_keyword(options.ask):
        return options
    # A name with a data format's ending can only mean a file; if it is absent, reading says so.
    is_file_name = bool(named_format(options.ask)) and not _CONTAINS.fullmatch(options.ask)
    if not Path(options.ask).exists() and not is_file_name:
        return options
    if options.test:
        raise ExemplaError(
            f"Both --test {options.test} and --ask {options.ask} name a file; give one of them."
        )
    return Namespace(**{**vars(options), "test": options.ask, "ask": "all"})


def held_out(ask: str, table: Table) -> np.ndarray | None:
    """Return the rows of the file that --ask names; None if it names none."""
    return None if _is_keyword(ask) else _named(ask, table)


def _is_keyword(ask: str) -> bool:
    return ask in ("errors", "all") or ask.startswith(ONE_CONFUSION)


def _named(ask: str, table: Table) -> np.ndarray:
    if _ROWS.fullmatch(ask.strip()):
        return _numbered(ask, table)
    found = _CONTAINS.fullmatch(ask.strip())
    if found is None:
        raise ExemplaError(f"--ask {ask} is not understood; write {_FORMS}.")
    name, text = found["column"].strip(), found["text"].strip().strip("'\"")
    # "text contains …" searches all columns if none is called "text".
    names = table.names if name == "text" and name not in table.names else [name]
    rows = zip(*(table.strings(each) for each in names), strict=True)
    has_text = [any(text.casefold() in (cell or "").casefold() for cell in row) for row in rows]
    if not any(has_text):
        raise ExemplaError(f"No row of {table.path.name} has {text!r} in column {name!r}.")
    return np.flatnonzero(has_text)


def _numbered(ask: str, table: Table) -> np.ndarray:
    rows: set[int] = set()
    for piece in ask.split(","):
        first, _, last = piece.strip().partition("-")
        low, high = int(first), int(last or first)
        if high >= len(table):
            raise ExemplaError(
                f"Row {max(low, len(table))} does not exist: {table.path.name} has rows 0 to "
                f"{len(table) - 1}."
            )
        rows.update(range(low, high + 1))
    if not rows:
        raise ExemplaError(f"--ask {ask} names no row; write the smaller number first, as in 5-9.")
    return np.array(sorted(rows))


def check_query(ask: str, parts: Split) -> None:
    """Raise if --ask means no rows, before a model is trained for it."""
    if parts.X_test is None:
        raise ExemplaError("There are no test rows to ask about; give --test or --test-size.")
    if ask.startswith(ONE_CONFUSION):
        if parts.y_test is None or parts.y_train.dtype.kind == "f":
            raise ExemplaError("There are no classes to confuse here; ask about errors or rows.")
        names = np.unique(parts.y_train)
        confused(ask, names.repeat(len(names)), np.tile(names, len(names)))
    elif not _is_keyword(ask) and parts.test_table is not None:
        _positions(ask, parts)


def _positions(ask: str, parts: Split) -> np.ndarray:
    """Return the positions among the test rows of those that --ask names."""
    if parts.test_table is None:
        assert parts.asked is not None, "rows that are named were held out"
        rows = parts.asked
    else:
        rows = _named(ask, parts.test_table)
    absent = np.setdiff1d(rows, parts.test)
    if len(absent):
        raise ExemplaError(
            f"Row {absent[0]} of the test file was left out (see the notes above), so you cannot "
            "ask about it."
        )
    return np.flatnonzero(np.isin(parts.test, rows))


def choose_query(given: Fitted, ask: str, side: str | None) -> QueryRows:
    """Return the test rows that --ask means."""
    parts = given.parts
    check_query(ask, parts)
    predicted = np.asarray(given.model.predict(parts.X_test))
    n, wrong = len(predicted), _wrong(given, predicted)
    error_share, notes = 0.0, []
    if wrong is not None and not given.regression:
        error_share = len(wrong) / n
        notes.append(
            f"On {n:,} test rows the model makes {len(wrong):,} errors ({error_share:.1%})."
        )
    positions, noun = np.arange(n), "predictions"
    if ask == "errors" and wrong is not None and len(wrong):
        positions, noun = wrong, "worst predictions" if given.regression else "errors"
    elif ask.startswith(ONE_CONFUSION):
        assert parts.y_test is not None, "refused by check_query"
        positions, noun = confused(ask, parts.y_test, predicted), "errors"
    elif ask == "errors" and wrong is not None:
        notes.append("There is no error to explain; rows that support the predictions are shown.")
        side = side or "proponents"
    elif not _is_keyword(ask):
        positions = _positions(ask, parts)
        notes.append(_answers(given, positions, predicted))
    return QueryRows(
        given, positions, side or "opponents", noun, predicted, error_share, tuple(notes)
    )


def _answers(given: Fitted, positions: np.ndarray, predicted: np.ndarray) -> str:
    """Return what the model predicts for rows that the query names."""
    parts = given.parts
    rows, said = parts.test[positions], predicted[positions]
    held = "" if parts.test_table is not None else ", held out of training"
    if parts.y_test is None:
        return f"Asked about {len(rows):,} row(s)."
    true = parts.y_test[positions]
    if len(rows) == 1:
        answer = rounded(float(said[0])) if given.regression else str(said[0])
        return f"Asked about row {rows[0]}{held}: labelled {true[0]}; the model predicts {answer}."
    right = int(np.sum(true.astype(str) == said.astype(str)))
    correct = "" if given.regression else f": {right:,} are predicted correctly"
    return f"Asked about {len(rows):,} rows{held}{correct}."


def _wrong(given: Fitted, predicted: np.ndarray) -> np.ndarray | None:
    """Return the positions of the errors; for numbers, of the worst tenth; None without labels."""
    y = given.parts.y_test
    if y is None:
        return None
    if not given.regression:
        return np.flatnonzero(predicted.astype(str) != y.astype(str))
    order = np.argsort(-np.abs(predicted - y), kind="stable")
    return np.sort(order[: max(1, round(_WORST_SHARE * len(y)))])
