"""Infer what each column is, and whether the label is a class or a number.

The first rule that matches decides (see `exempla.tables.columns`); the user can override it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.tables.columns import Facts, apply_rules, copies_label, date_of, decimal_of
from exempla.tables.table import LARGEST, Table, encoded, is_text, pc, show, to_numbers, to_strings

_MOST_INTEGERS = 50
_FEWEST_DECIMALS = 10
"""Up to this many distinct decimal numbers may be grades, such as 0.5, 1.0 … 5.0."""


def _label_column(table: Table, name: str, task: str = "auto") -> tuple[str, str]:
    """Return the label's task ("classes" or "regression") and the reason."""
    if task not in ("auto", "classes", "regression"):
        raise ExemplaError(f"The task must be 'auto', 'classes' or 'regression', not {task!r}.")
    present = table.column(name).filter(pa.array(~table.missing(name)))
    if not (is_text(present) or _simple(present.type)):
        raise ExemplaError(f"Column {name!r} has type {present.type}, which cannot be a label.")
    codes, words = encoded(present)
    if len(words) < 2:
        what = f"only the value {str(words[0])!r}" if words else "no value at all"
        raise ExemplaError(
            f"The label column {name!r} has {what}; give a column with at least two values."
        )
    decimal = _decimal_mark(table, present)
    numbers = np.array([np.nan])
    if not pa.types.is_boolean(present.type):
        numbers = to_numbers(present, decimal)
    numeric = bool(np.isfinite(numbers).mean() >= 0.99)
    if task == "regression":
        if not numeric:
            raise ExemplaError(
                f"The label column {name!r} has words, so it cannot be a regression; leave out "
                "--task."
            )
        if (vast := np.abs(numbers) > LARGEST).any():
            raise ExemplaError(
                f"The label column {name!r} has the value {numbers[vast][0]:g}, which is too large "
                "to compute with; correct that cell."
            )
        return "regression", "set by --task"
    whole = numeric and bool((numbers[np.isfinite(numbers)] % 1 == 0).all())
    if task == "auto" and numeric and not (whole and len(words) <= _MOST_INTEGERS):
        if len(words) > _FEWEST_DECIMALS and (not whole or _written_as_decimals(present, decimal)):
            comma = ", with a comma" if decimal == "," else ""
            return "regression", f"decimal numbers{comma}: {len(words):,} distinct values"
        raise ExemplaError(
            f"The label column {name!r} has {len(words):,} distinct numbers. Use --task regression "
            "to predict a number, or --task classes to predict classes (in Python: task=…)."
        )
    if len(words) > max(2, len(present) / 2):
        raise ExemplaError(
            f"The label column {name!r} has {len(words):,} different values in {len(present):,} "
            "rows, too many to learn from; is it an id or a text?"
        )
    counts = Counter(codes.tolist()).most_common(3)
    most = ", ".join(f"{words[code]} {count:,}" for code, count in counts)
    reason = "set by --task" if task == "classes" else ("integers" if numeric else "words")
    more = ", …" if len(words) > 3 else ""
    return "classes", f"{reason}: {len(words)} classes ({most}{more})"


def _decimal_mark(table: Table, column: Any) -> str:
    """Return "," if most labels are numbers only with a decimal comma, otherwise "."."""
    delimiter = getattr(getattr(table.source, "dialect", None), "delimiter", ",")
    if not is_text(column) or delimiter == ",":
        return "."
    plain, marked = (np.isfinite(to_numbers(column, mark)).mean() for mark in (".", ","))
    return "," if marked >= 0.99 > plain else "."


def _written_as_decimals(column: Any, decimal: str) -> bool:
    """Return True if whole numbers are written or stored as decimals (151.0)."""
    if not is_text(column):
        return pa.types.is_floating(column.type)
    return bool(pc.all(pc.match_substring(column, decimal)).as_py())


def _simple(kind: Any) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def label_values(table: Table, name: str, task: str, rows: np.ndarray) -> np.ndarray:
    """Return the labels of some rows: strings (stored types for Parquet and NPZ), or floats."""
    column = table.column(name).take(pa.array(rows))
    if task == "regression":
        return to_numbers(column, _decimal_mark(table, table.column(name).drop_null()))
    if is_text(column):
        codes, words = encoded(column)
        return np.asarray(words)[codes] if words else np.array([], dtype=str)
    if pa.types.is_floating(column.type):
        if not pc.all(pc.equal(pc.floor(column), column)).as_py():
            return np.asarray(to_strings(column))  # a class such as 1.5 is a name
        column = column.cast(pa.int64())  # integers became floats because some were missing
    return column.to_numpy()


def same_labels(test: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Return test labels in the spelling of the training file, which are known there, and a note.

    UCI's Adult has `<=50K` in one file and `<=50K.` in the other; other files differ in case or
    spaces. A CSV has the strings "1" and "true" where a Parquet file has numbers and booleans.

    >>> import numpy as np
    >>> same_labels(np.array(["no.", "yes."]), np.array(["no", "yes"]))[0].tolist()
    ['no', 'yes']
    >>> labels, known, _ = same_labels(np.array(["2", "x", "1.0"]), np.array([1, 2, 2]))
    >>> labels[known].tolist(), known.tolist()
    ([2, 1], [True, False, True])
    """
    own = np.unique(train)
    words = own.dtype.kind in "UO"
    spelt: dict[Any, Any] = {str(label) if words else label.item(): label for label in own}
    distinct, codes = np.unique(test.astype(str), return_inverse=True)
    said = ""
    found = [spelt.get(word if words else _value(word)) for word in distinct.tolist()]
    if words and all(label is None for label in found):
        bare = {_bare(word): label for word, label in spelt.items()}
        found = [bare.get(_bare(word)) for word in distinct.tolist()]
        if len(bare) < len(own) or None in found:
            found = [None] * len(found)
        else:
            pair = show([f"{distinct[codes[0]]} → {found[codes[0]]}"])
            said = f"Labels of the test file were matched to those of the training file ({pair})."
    known = np.array([label is not None for label in found], dtype=bool)[codes]
    if len(test) and not known.any():
        raise ExemplaError(
            f"None of the test file's labels ({show(distinct.tolist(), 4)}) occurs in the training "
            f"file ({show(own.tolist(), 4)}); is it the same column?"
        )
    # An unknown label needs some value; `known` says not to use it.
    labels = np.array([own[0] if label is None else label for label in found], dtype=own.dtype)
    return labels[codes], known, said


def _value(word: str) -> Any:
    """Parse a number or a boolean; return None if it is neither."""
    for read in (int, float, {"true": True, "false": False}.__getitem__):
        try:
            return read(word.strip().lower())
        except (KeyError, ValueError):
            continue
    return None


def _bare(label: str) -> str:
    return label.strip().rstrip(".").casefold()


FEATURES = ("number", "category", "text", "date")
"""The kinds that a model uses."""
KINDS = (*FEATURES, "id", "constant", "leak", "ignored", "label")


@dataclass(frozen=True)
class Column:
    """The kind of a column and the reason for it.

    `detail` is the format of a date, the decimal mark of numbers, or the task of the label
    ("classes" or "regression").
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
        Columns to treat as text.
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
        kind, reason = _label_column(table, target, task)
        answers = Facts.of(table, target, good)
    for name in table.names:
        if name == target:
            columns.append(Column(name, "label", reason, kind))  # pyright: ignore[reportPossiblyUnboundVariable]
            continue
        facts = Facts.of(table, name, good)
        if name in chosen:
            columns.append(_overridden(facts, chosen[name]))
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


def _overridden(facts: Facts, kind: str) -> Column:
    detail = ""
    if kind == "number":
        detail = decimal_of(facts) or "."
        if not np.isfinite(facts.numbers(detail)).any():
            raise ExemplaError(
                f"Column {facts.name!r} cannot be a number: none of its values is one."
            )
    if kind == "date" and facts.text:
        found = date_of(facts, share=0.5)
        if found is None:
            raise ExemplaError(
                f"Column {facts.name!r} cannot be a date: no known format fits half of its values."
            )
        detail = found[0]
    return Column(facts.name, kind, "set by --kind", detail)


def label_of(columns: Collection[Column]) -> Column:
    """Return the label column."""
    for column in columns:
        if column.kind == "label":
            return column
    raise ExemplaError(
        "No column is the label; give it with label=… (--label on the command line)."
    )


def kind_flag(column: Column) -> str:
    """Return the command-line flag that overrides the inferred kind.

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
    """Return a table of the columns: column | kind | reason | override.

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
    # A name from an untrusted file must not control the terminal.
    return "".join(c if c.isprintable() else "�" for c in text)
