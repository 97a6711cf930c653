"""Which test rows the question is about, and how to show them.

--export of fix-labels: the suspects of the review folder, written for other tools.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.console import Console
from exempla.cli.userfile import RowView, UserFile, decisive, row_view
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.report.views import rounded
from exempla.tables import Split, Table
from exempla.tables.formats.encoding import named_format
from exempla.tasks.mistakes import ONE_CONFUSION, confused

_WORDS = ("errors", "all")
"""What --ask may say instead of naming rows."""
_CONTAINS = re.compile(r"(?P<column>.+?)\s+contains\s+(?P<text>.+)", re.DOTALL)
ROWS = re.compile(r"\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*")
_FORMS = (
    "errors, all, errors:TRUE->SAID, row numbers such as 3,17 or 5-9, 'COLUMN contains TEXT', or a "
    "file of new rows"
)
"""All that --ask understands."""
_WORST = 0.1
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

    def limited_to(self, positions: np.ndarray) -> Asked:
        """Return the question about these test rows alone."""
        return replace(self, positions=np.asarray(positions))

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


def asked_file(options: Namespace) -> Namespace:
    """The options with a file of new rows, where --ask names one, as the test file."""
    if options.ask in _WORDS or options.ask.startswith(ONE_CONFUSION):
        return options
    looks_like_a_file = Path(options.ask).exists() or _named_like_a_file(options.ask)
    if not looks_like_a_file:
        return options
    if options.test:
        raise ExemplaError(
            f"Both --test {options.test} and --ask {options.ask} name a file; give one of them."
        )
    return Namespace(**{**vars(options), "test": options.ask, "ask": "all"})


def _named_like_a_file(ask: str) -> bool:
    """Whether this can only be meant as the name of a file: its absence is then said as such."""
    return bool(named_format(ask)) and not _CONTAINS.fullmatch(ask)


def held_out(ask: str, table: Table) -> np.ndarray | None:
    """The rows of the file that `--ask` names; None where it names none."""
    if ask in _WORDS or ask.startswith(ONE_CONFUSION):
        return None
    return _named(ask, table)


def _named(ask: str, table: Table) -> np.ndarray:
    if ROWS.fullmatch(ask.strip()):
        return _numbered(ask, table)
    found = _CONTAINS.fullmatch(ask.strip())
    if found is None:
        raise ExemplaError(f"--ask {ask} is not understood; write {_FORMS}.")
    name, text = found["column"].strip(), found["text"].strip().strip("'\"")
    rows = _containing(table, name, text.casefold())
    if not len(rows):
        raise ExemplaError(f"No row of {table.path.name} has {text!r} in column {name!r}.")
    return rows


def _containing(table: Table, name: str, wanted: str) -> np.ndarray:
    """Rows with this text in a column; in any of them, where `text` is not the name of one."""
    anywhere = name == "text" and "text" not in table.names
    names = table.names if anywhere else [table.names[table.position(name)]]
    found = np.zeros(len(table), dtype=bool)
    for each in names:
        found |= [bool(v) and wanted in v.casefold() for v in table.strings(each)]
    return np.flatnonzero(found)


def _numbered(ask: str, table: Table) -> np.ndarray:
    rows: list[int] = []
    for piece in ask.split(","):
        first, _, last = piece.strip().partition("-")
        rows += range(int(first), int(last or first) + 1)
    absent = [row for row in rows if row >= len(table)]
    if absent:
        raise ExemplaError(
            f"Row {absent[0]} does not exist: {table.path.name} has rows 0 to {len(table) - 1}."
        )
    if not rows:
        raise ExemplaError(f"--ask {ask} names no row; write the smaller number first, as in 5-9.")
    return np.unique(rows)


def refuse_question(ask: str, parts: Split) -> None:
    """Raise if `--ask` means no rows, before a model is trained for it."""
    if parts.X_test is None:
        raise ExemplaError("There are no test rows to ask about; give --test or --test-size.")
    if ask.startswith(ONE_CONFUSION):
        if parts.y_test is None or parts.y_train.dtype.kind == "f":
            raise ExemplaError("There are no classes to confuse here; ask about errors or rows.")
        names = np.unique(parts.y_train)
        confused(ask, names.repeat(len(names)), np.tile(names, len(names)))
    elif ask not in _WORDS and parts.test_table is not None:
        _named_among(ask, parts)


def _named_among(ask: str, parts: Split) -> np.ndarray:
    """Positions among the test rows of those that `--ask` names."""
    if parts.test_table is None:
        assert parts.asked is not None, "rows that are named were held out"
        rows = parts.asked
    else:
        rows = _named(ask, parts.test_table)
    absent = np.setdiff1d(rows, parts.test)
    if len(absent):
        raise ExemplaError(
            f"Row {absent[0]} of the test file was left out (see the notes above), so it cannot be "
            "asked about."
        )
    return np.flatnonzero(np.isin(parts.test, rows))


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
    elif ask.startswith(ONE_CONFUSION):
        assert parts.y_test is not None, "refused above"
        positions, noun = confused(ask, parts.y_test, predicted), "errors"
    elif ask in _WORDS:
        positions = np.arange(n)
        if ask == "errors" and wrong is not None:
            notes.append("There is no error to explain: rows that support the answers are shown.")
            side = side or "proponents"
    else:
        positions = _named_among(ask, parts)
        notes.append(_answers(given, positions, predicted))
    return Asked(given, positions, side or "opponents", noun, predicted, error_share, tuple(notes))


def _answers(given: UserFile, positions: np.ndarray, predicted: np.ndarray) -> str:
    """What the model says of rows that were asked about by name."""
    parts = given.parts
    rows, said = parts.test[positions], predicted[positions]
    were = "was" if len(rows) == 1 else "were"
    held = "" if parts.test_table is not None else f", which {were} held out of the training,"
    if parts.y_test is None:
        return f"Asked about {len(rows):,} row(s)."
    true = parts.y_test[positions]
    if len(rows) > 1:
        right = (
            ""
            if given.regression
            else (f": {int(np.sum(true.astype(str) == said.astype(str))):,} are predicted rightly")
        )
        return f"Asked about {len(rows):,} rows{held.rstrip(',')}{right}."
    answer = rounded(float(said[0])) if given.regression else str(said[0])
    return f"Asked about row {rows[0]}{held} labelled {true[0]}; the model says {answer}."


def _wrong(given: UserFile, predicted: np.ndarray) -> np.ndarray | None:
    """Positions of the errors; for numbers, of the worst tenth; None without labels."""
    y = given.parts.y_test
    if y is None:
        return None
    if not given.regression:
        return np.flatnonzero(predicted.astype(str) != y.astype(str))
    order = np.argsort(-np.abs(predicted - y), kind="stable")
    return np.sort(order[: max(1, round(_WORST * len(y)))])


TOOLS = ("label-studio", "fiftyone", "cleanlab", "spotlight")


def tools(text: str) -> tuple[str, ...]:
    """Names of tools, separated by commas.

    >>> tools("label-studio, cleanlab")
    ('label-studio', 'cleanlab')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in TOOLS]
    if unknown or not names:
        what = repr(unknown[0]) if unknown else "nothing"
        raise ArgumentTypeError(f"{what} is no tool; give some of {', '.join(TOOLS)}")
    return names


def export_for_tools(console: Console, options: Namespace, folder: Path) -> None:
    """Write what was asked for, and say where it is."""
    if not options.export:
        return
    from exempla.review import read_review
    from exempla.review.integrations import export_review_items

    for tool, path in export_review_items(read_review(folder), folder, options.export).items():
        console.say(f"  {path}  the suspects, for {tool}")
