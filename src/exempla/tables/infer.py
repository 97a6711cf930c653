"""Infer what each column is, and whether the label is a class or a number.

Type inference of libraries finds how a column is stored. It does not find that a column is an id, a
copy of the label or a code with leading zeros, and it gives no reason that a user could check. The
first rule that matches decides (`_kind`); the user can override it. A date column has one format,
found by trying the usual ones; libraries parse each value by itself and may mix days and months.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.tables.table import (
    LARGEST,
    Table,
    encoded,
    is_text,
    missing_mask,
    pc,
    show,
    to_numbers,
    to_strings,
)

FEATURES = ("number", "category", "text", "date")
"""The kinds that a model uses."""
_MOST_INTEGERS = 50
_FEWEST_DECIMALS = 10
"""Up to this many distinct decimal numbers may be grades, such as 0.5, 1.0 … 5.0."""


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
    target_column = None if target is None else _label_column(table, target, task)
    labels = None if target is None else _Facts.of(table, target, good)
    columns: list[Column] = []
    for name in table.names:
        facts = _Facts.of(table, name, good)
        if target_column is not None and name == target:
            columns.append(target_column)
        elif name in chosen:
            columns.append(_overridden(facts, chosen[name]))
        elif name in table.index and facts.unique:
            columns.append(Column(name, "id", "the index of the table"))
        elif labels is not None and (why := _copies_label(facts, labels)):
            columns.append(Column(name, "leak", why))
        else:
            columns.append(Column(name, *_kind(facts)))
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


def _overridden(facts: _Facts, kind: str) -> Column:
    detail = ""
    if kind == "number":
        detail = facts.decimal or "."
        if not np.isfinite(facts.numbers(detail)).any():
            raise ExemplaError(f"Column {facts.name!r} cannot be a number: no value is one.")
    if kind == "date" and facts.text:
        found = _find_format(facts.present, share=0.5)
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


def _kind_flag(column: Column) -> str:
    """Return the command-line flag that overrides the inferred kind."""
    if column.kind == "label":
        other_task = {"classes": "regression", "regression": "classes"}.get(column.detail)
        return f"--task {other_task}" if other_task else "--label"
    other = {"number": "category", "category": "text", "text": "ignored", "date": "category"}
    return "--kind " + shlex.quote(f"{column.name}={other.get(column.kind, 'category')}")


def show_columns(columns: Collection[Column]) -> str:
    """Return a table of the columns: column | kind | reason | override."""
    lines: list[tuple[Any, ...]] = [("column", "kind", "reason", "override")]
    lines += [(_plain(c.name), c.kind, _plain(c.reason), _plain(_kind_flag(c))) for c in columns]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join(
        " | ".join([*(cell.ljust(w) for cell, w in zip(line, widths)), line[3]]) for line in lines
    )


def _plain(text: str) -> str:
    # A name from an untrusted file must not control the terminal.
    return "".join(c if c.isprintable() else "�" for c in text)


def _label_column(table: Table, name: str, task: str = "auto") -> Column:
    """Return the label column with its task ("classes" or "regression") and the reason."""
    if task not in ("auto", "classes", "regression"):
        raise ExemplaError(f"The task must be 'auto', 'classes' or 'regression', not {task!r}.")
    present = table.column(name).filter(pa.array(~table.missing(name)))
    kind = present.type
    usable = is_text(present) or pa.types.is_boolean(kind) or _numeric(kind)
    if not usable or pa.types.is_decimal(kind):
        raise ExemplaError(f"Column {name!r} has type {kind}, which cannot be a label.")
    codes, words = encoded(present)
    if len(words) < 2:
        what = f"only the value {str(words[0])!r}" if words else "no value at all"
        raise ExemplaError(
            f"The label column {name!r} has {what}; give a column with at least two values."
        )
    decimal = _decimal_mark(table, present)
    numbers = np.array([np.nan]) if pa.types.is_boolean(kind) else to_numbers(present, decimal)
    numeric = bool(np.isfinite(numbers).mean() >= 0.99)
    if task == "regression":
        return _regression_label(name, numbers, numeric)
    whole = numeric and bool((numbers[np.isfinite(numbers)] % 1 == 0).all())
    if task == "auto" and numeric and not (whole and len(words) <= _MOST_INTEGERS):
        if len(words) > _FEWEST_DECIMALS and (not whole or _written_as_decimals(present, decimal)):
            comma = ", with a comma" if decimal == "," else ""
            why = f"decimal numbers{comma}: {len(words):,} distinct values"
            return Column(name, "label", why, "regression")
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
    more = ", …" if len(words) > 3 else ""
    reason = "set by --task" if task == "classes" else ("integers" if numeric else "words")
    return Column(name, "label", f"{reason}: {len(words)} classes ({most}{more})", "classes")


def _regression_label(name: str, numbers: np.ndarray, numeric: bool) -> Column:
    """Return the label column of a regression that the user asked for."""
    if not numeric:
        raise ExemplaError(
            f"The label column {name!r} has words, so it cannot be a regression; leave out --task."
        )
    if (vast := np.abs(numbers) > LARGEST).any():
        raise ExemplaError(
            f"The label column {name!r} has the value {numbers[vast][0]:g}, which is too large to "
            "compute with; correct that cell."
        )
    return Column(name, "label", "set by --task", "regression")


def _decimal_mark(table: Table, column: Any) -> str:
    """Return "," if most labels are numbers only with a decimal comma, otherwise "."."""
    return _Facts("", column, missing_mask(column), _decimal_comma(table)).decimal or "."


def _written_as_decimals(column: Any, decimal: str) -> bool:
    """Return True if whole numbers are written or stored as decimals (151.0)."""
    if not is_text(column):
        return pa.types.is_floating(column.type)
    return bool(pc.all(pc.match_substring(column, decimal)).as_py())


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
        with suppress(KeyError, ValueError):
            return read(word.strip().lower())
    return None


def _bare(label: str) -> str:
    return label.strip().rstrip(".").casefold()


_NUMBER_SHARE, _DATE_SHARE = 0.99, 0.95
_TEXT_DISTINCT, _TEXT_WORDS = 50, 5
_NEARLY = 0.95
"""Share of distinct values from which short strings count as ids."""
_UUID = r"^\{?[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\}?$"
_GERMAN = r"^\s*[-+]?\d{1,3}(\.\d{3})+,\d+\s*$"
"""Thousands separated by points and a decimal comma."""
_HASH = r"^(0x)?[0-9a-fA-F]{16,128}$"
_ID_NAME = re.compile(r"(^|_)(id|key|index)(_|$)")
_LEAK_ROWS = 20
"""With fewer rows than this, two columns may be one-to-one by chance."""


@dataclass(frozen=True)
class _Facts:
    """The values of a column, and properties of them that the rules use."""

    name: str
    values: Any
    missing: np.ndarray
    decimal_comma: bool
    """Whether "1,5" may be a number, because the file's delimiter is not a comma."""
    json: bool = False
    """Whether a value may be the JSON text of a list or an object."""

    @classmethod
    def of(cls, table: Table, name: str, rows: np.ndarray) -> _Facts:
        values = table.column(name)
        values = values if len(rows) == len(table) else values.take(pa.array(rows))
        missing = missing_mask(values)
        return cls(name, values, missing, _decimal_comma(table), table.format == "jsonl")

    @cached_property
    def present(self) -> Any:
        return self.values.filter(pa.array(~self.missing)) if self.missing.any() else self.values

    @cached_property
    def distinct(self) -> int:
        return int(pc.count_distinct(self.present).as_py())

    @property
    def text(self) -> bool:
        return is_text(self.values)

    @cached_property
    def unique(self) -> bool:
        return not self.missing.any() and self.distinct == len(self.values) > 1

    @cached_property
    def words(self) -> float:
        return float(pc.mean(pc.count_substring_regex(self.present, r"\S+")).as_py() or 0.0)

    def numbers(self, decimal: str = ".") -> np.ndarray:
        if not self.text and not _numeric(self.values.type):
            return np.full(len(self.present), np.nan)
        return to_numbers(self.present, decimal)

    @cached_property
    def decimal(self) -> str | None:
        """The decimal mark with which at least 99 % of the values are numbers, or None."""
        if np.isfinite(self.numbers()).mean() >= _NUMBER_SHARE:
            return "."
        if not self.text:
            return None
        # In a comma-separated file "1,5" may be two cells; "1.597,50" can only be a number.
        german = pc.any(pc.match_substring_regex(self.present, _GERMAN)).as_py()
        if not (self.decimal_comma or german):
            return None
        return "," if np.isfinite(self.numbers(",")).mean() >= _NUMBER_SHARE else None

    @cached_property
    def date(self) -> tuple[str, str | None] | None:
        return _find_format(self.present) if self.text else None

    @property
    def gaps(self) -> str:
        count = int(self.missing.sum())
        return f", {count:,} missing" if count else ""

    def matches(self, pattern: str) -> bool:
        """Return True if every present value matches."""
        return bool(pc.all(pc.match_substring_regex(self.present, pattern)).as_py())


def _kind(facts: _Facts) -> tuple[str, str, str]:
    """Return kind, reason and detail by the first rule that matches."""
    kind, present = facts.values.type, facts.present
    if not (facts.text or _numeric(kind) or _dated(kind) or pa.types.is_boolean(kind)):
        return "ignored", f"type {kind}, which the default model cannot use", ""
    if facts.json and len(present) and facts.matches(r"^[\[{]"):
        return "ignored", "nested lists or objects", ""
    if len(present) == 0:
        return "constant", "every value is missing", ""
    if facts.distinct == 1 and not facts.missing.any():
        return "constant", f"every value is {str(present[0].as_py())[:40]!r}", ""
    if why := _identifier(facts):
        return "id", why, ""
    zeros: Any = ()
    if facts.text:
        zeros = present.filter(pc.match_substring_regex(present, r"^\s*0\d+\s*$"))
    if len(zeros):
        first = zeros[0].as_py().strip()[:20]
        return "category", f"numbers with leading zeros such as {first!r} are codes", ""
    if facts.decimal is not None:
        return _number(facts, facts.decimal)
    if _dated(kind):
        return "date", f"stored as {kind}{facts.gaps}", ""
    if facts.date is not None:
        style, rival = facts.date
        doubt = f"; {rival} fits as well" if rival else ""
        return "date", f"written as {style}{doubt}{facts.gaps}", style
    if facts.text and facts.distinct > _TEXT_DISTINCT and facts.words >= _TEXT_WORDS:
        words = f"{facts.words:.0f} words on average"
        return "text", f"{facts.distinct:,} distinct values of {words}", ""
    return "category", f"{facts.distinct:,} distinct values{facts.gaps}", ""


def _number(facts: _Facts, decimal: str) -> tuple[str, str, str]:
    numbers = facts.numbers(decimal)
    odd, vast = int((~np.isfinite(numbers)).sum()), int((np.abs(numbers) > LARGEST).sum())
    if vast + odd == len(numbers):
        return "ignored", f"every number exceeds ±{LARGEST:g}, too large to compute with", ""
    share = f"{1 - odd / len(numbers):.1%} of the" if odd else f"all {len(numbers):,}"
    comma = " (decimal comma)" if decimal == "," else ""
    beyond = f", {vast:,} too large to compute with" if vast else ""
    return "number", f"{share} values are numbers{comma}{beyond}{facts.gaps}", decimal


def _identifier(facts: _Facts) -> str:
    """Return why the values are ids, or ""."""
    if not facts.unique or _dated(facts.values.type):
        return _nearly_unique(facts)
    numbers, numeric = facts.numbers(), facts.decimal is not None
    whole = bool(np.isfinite(numbers).all() and (numbers % 1 == 0).all())
    if whole:
        span = numbers.max() - numbers.min()
        if pa.types.is_integer(facts.values.type):  # 64-bit keys may differ where floats are equal
            ends = pc.min_max(facts.present).as_py()
            span = ends["max"] - ends["min"]
        if span == len(numbers) - 1:
            return "unique, consecutive integers"
    if facts.text and facts.matches(_UUID):
        return "unique UUIDs"
    if facts.text and facts.matches(_HASH) and not numeric:
        return "unique hashes"
    # customerID, Customer-Id and customer id are all customer_id.
    snake = re.sub(r"[^0-9a-z]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", facts.name).lower())
    # A measurement such as heat_index = 71.5 is not a key.
    if _ID_NAME.search(snake) and (whole or not numeric):
        return "unique, and named like an id"
    if facts.text and not numeric and facts.words < _TEXT_WORDS and facts.date is None:
        return f"unique strings of fewer than {_TEXT_WORDS} words"
    return ""


def _nearly_unique(facts: _Facts) -> str:
    """Names and codes that are rarely repeated: a value seen once teaches a model nothing."""
    count = len(facts.present)
    if not facts.text or count < _LEAK_ROWS or facts.distinct < _NEARLY * count:
        return ""
    if facts.words >= _TEXT_WORDS or facts.decimal is not None or facts.date is not None:
        return ""
    return f"nearly unique strings ({facts.distinct:,} of {count:,} differ)"


def _copies_label(facts: _Facts, label: _Facts) -> str:
    """Return why a column reveals the label (a copy of it, or one-to-one with it), or ""."""
    if not (facts.text or _numeric(facts.values.type) or pa.types.is_boolean(facts.values.type)):
        return ""
    known = ~label.missing
    if facts.missing[known].any() or label.distinct < 2:
        return ""
    own, own_words = encoded(facts.values.filter(pa.array(known)))
    key, key_words = encoded(label.values.filter(pa.array(known)))
    if len(own_words) != len(key_words):
        return ""
    # One-to-one: as many pairs as values. A column that is unique in every row is an id.
    pairs = len(np.unique(own * len(key_words) + key))
    if pairs != len(key_words):
        return ""
    if [str(word) for word in own_words] == [str(word) for word in key_words]:
        return f"a copy of the label {label.name!r}"
    if len(own) >= max(_LEAK_ROWS, 2 * len(key_words)):
        return f"one-to-one with the label {label.name!r}"
    return ""


def _numeric(kind: Any) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _dated(kind: Any) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _decimal_comma(table: Table) -> bool:
    """Return True if "1,5" may be a number, because the file's delimiter is not a comma."""
    return getattr(getattr(table.source, "dialect", None), "delimiter", ",") != ","


_DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y", "%a, %d %b %Y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S.%f")
_ZONES = ("", "Z", "%z", " %z", " UTC")
_FORMATS = tuple(
    day + time + zone for day in _DAYS for time in _TIMES for zone in (_ZONES if time else ("",))
)


def _find_format(column: Any, share: float = _DATE_SHARE) -> tuple[str, str | None] | None:
    """Return the format that parses at least `share` of the values, or None.

    The second entry is another format that reads them as well (day or month first?).
    """
    codes, words = encoded(column)
    few = [word for word in words[:100] if word]
    if not few or sum(any(c.isdigit() for c in word) for word in few) < share * len(few):
        return None
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    found: list[str] = []
    for each in _FORMATS:
        # A few words first, cheaply: nearly every format fails there.
        if not any(_pattern(each).fullmatch(word.strip()) for word in few[:3]):
            continue
        if _parsed(few, each).notna().mean() < share:
            continue
        if counts[_parsed(words, each).notna().to_numpy()].sum() >= share * counts.sum():
            found.append(each)
    return (found[0], found[1] if len(found) > 1 else None) if found else None


def _parsed(words: list[Any], style: str | None) -> pd.Series:
    """Return words as dates without a time zone; NaT if they cannot be parsed."""
    values = pd.Series(words, dtype=object)
    return pd.to_datetime(values, format=style, errors="coerce", utc=True).dt.tz_localize(None)


@cache
def _pattern(style: str) -> re.Pattern[str]:
    parts = {"%Y": r"\d{4}", "%b": r"[^\W\d]{3,4}", "%B": r"[^\W\d]+", "%a": r"[^\W\d]{3}"}
    parts |= {"%f": r"\d+", "%z": r"[-+]\d\d:?\d\d"}
    return re.compile(
        "".join(
            parts.get(piece, r"\d{1,2}") if piece.startswith("%") else re.escape(piece)
            for piece in re.split(r"(%[a-zA-Z])", style)
        )
    )


def to_dates(column: Any, style: str | None) -> np.ndarray:
    """Return the values as datetime64[s]; NaT if they cannot be parsed. No style: Arrow dates."""
    if style is None:
        return _parsed(column.to_pylist(), None).to_numpy().astype("datetime64[s]")
    codes, words = encoded(column)
    dates = _parsed(words, style).to_numpy().astype("datetime64[s]")
    return np.append(dates, np.datetime64("NaT"))[codes]
