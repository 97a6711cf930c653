"""What each column is: the first rule that matches wins, and every answer can be overruled."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.tables.columns.label import label_column
from exempla.tables.columns.rules import Facts, apply_rules, copies_label, date_of, decimal_of
from exempla.tables.table import Table, show

__all__ = ["Column", "FEATURES", "KINDS", "infer_columns", "kind_flag", "label_of", "show_columns"]

FEATURES = ("number", "category", "text", "date")
"""The kinds a model is given."""
KINDS = (*FEATURES, "id", "constant", "leak", "ignored", "label")


@dataclass(frozen=True)
class Column:
    """What one column is, and why.

    `detail` is the date's format, the decimal mark of numbers, or the label's task ("classes" or
    "regression").
    """

    name: str
    kind: str
    reason: str
    detail: str = ""


def infer_columns(
    table: Table,
    label: str | int | None = None,
    text: str | Collection[str] = (),
    overrides: Mapping[str, str] | None = None,
    task: str = "auto",
) -> list[Column]:
    """Infer the kind of every column.

    Parameters
    ----------
    label
        The column to predict (name, or number counted from 1).
    text
        Columns to read as text, whatever the rules say.
    overrides
        ``{column: kind}`` with kinds number, category, text, date, id, ignored.
    task
        "classes", "regression", or "auto": words and up to 50 distinct integers are classes,
        decimal numbers a regression.

    >>> import tempfile, pathlib
    >>> from exempla.tables import read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("id,zip,age,y\\n" + "".join(f"{i},0{i % 7},{i % 9},{i % 2}\\n"
    ...                                                 for i in range(99)))
    >>> [(c.name, c.kind) for c in infer_columns(read_table(path), label="y")]
    [('id', 'id'), ('zip', 'category'), ('age', 'number'), ('y', 'label')]
    """
    target = None if label is None else table.names[table.position(label)]
    chosen = _chosen(table, target, text, overrides or {})
    good = np.setdiff1d(np.arange(len(table)), np.asarray(table.ragged, dtype=np.int64))
    columns: list[Column] = []
    answers = None
    if target is not None:
        kind, reason = label_column(table, target, task)
        answers = Facts.of(table, target, good)
    for name in table.names:
        if name == target:
            columns.append(Column(name, "label", reason, kind))  # pyright: ignore[reportPossiblyUnboundVariable]
            continue
        facts = Facts.of(table, name, good)
        if name in chosen:
            columns.append(_overruled(facts, chosen[name]))
        elif name in table.index and facts.unique:
            columns.append(Column(name, "id", "the index of the table"))
        elif answers is not None and (why := copies_label(facts, answers)):
            columns.append(Column(name, "leak", why))
        else:
            columns.append(Column(name, *apply_rules(facts)))
    return columns


def _chosen(
    table: Table, target: str | None, text: str | Collection[str], overrides: Mapping[str, str]
) -> dict[str, str]:
    words = [text] if isinstance(text, str) else list(text)
    chosen = {table.names[table.position(name)]: "text" for name in words}
    for name, kind in overrides.items():
        allowed = (*FEATURES, "id", "ignored")
        if kind not in allowed:
            raise ExemplaError(f"There is no column kind {kind!r}; choose one of {show(allowed)}.")
        chosen[table.names[table.position(name)]] = kind
    if target in chosen:
        raise ExemplaError(f"Column {target!r} is the label; it cannot also be {chosen[target]}.")
    return chosen


def _overruled(facts: Facts, kind: str) -> Column:
    detail = ""
    if kind == "number":
        detail = decimal_of(facts) or "."
        if not np.isfinite(facts.numbers(detail)).any():
            raise ExemplaError(f"Column {facts.name!r} cannot be a number: no value reads as one.")
    if kind == "date" and facts.text:
        found = date_of(facts, share=0.5)
        if found is None:
            raise ExemplaError(
                f"Column {facts.name!r} cannot be a date: no usual format reads half of its values."
            )
        detail = found[0]
    return Column(facts.name, kind, "as told", detail)


def label_of(columns: Collection[Column]) -> Column:
    """The label among the columns."""
    for column in columns:
        if column.kind == "label":
            return column
    raise ExemplaError(
        "No column is the label; name it with label=… (--label on the command line)."
    )


def kind_flag(column: Column) -> str:
    """The command-line flag that would overrule this answer.

    >>> kind_flag(Column("post code", "number", "…"))
    "--kind 'post code=category'"
    """
    if column.kind == "label":
        return "--label" if not column.detail else f"--task {_other_task(column.detail)}"
    other = {"number": "category", "category": "text", "text": "ignored", "date": "category"}
    return "--kind " + shlex.quote(f"{column.name}={other.get(column.kind, 'category')}")


def _other_task(task: str) -> str:
    return "regression" if task == "classes" else "classes"


def show_columns(columns: Collection[Column]) -> str:
    """The table a user checks before anything is trusted: column | kind | reason | override.

    >>> print(show_columns([Column("age", "number", "all 9 values are numbers")]))
    column | kind   | reason                   | override
    age    | number | all 9 values are numbers | --kind age=category
    """
    lines: list[tuple[Any, ...]] = [("column", "kind", "reason", "override")]
    lines += [(_plain(c.name), c.kind, _plain(c.reason), _plain(kind_flag(c))) for c in columns]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join(
        " | ".join([*(cell.ljust(w) for cell, w in zip(line, widths)), line[3]]) for line in lines
    )


def _plain(text: str) -> str:
    # A name from a stranger's file must not move the cursor or recolour the terminal.
    return "".join(c if c.isprintable() else "�" for c in text)
