"""CSV, TSV and similar files: every cell is a string, and the position of each row is kept.

The dialect (delimiter, quotes, spaces after delimiters, lines above the table, header) is inferred
from the beginning of the file. An export writes new values into single cells, in their own quoting
style, and copies records without a decision unchanged.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.tables.formats.encoding import (
    TextFile,
    TextSource,
    check_limit,
    lines,
    named_format,
)
from exempla.tables.table import MISSING, Edits, Table, column_names, show

_CHUNK = 20_000
"""Rows that are parsed before they become Arrow arrays."""
_SAMPLE = 1_000_000
"""Characters at the beginning of a file from which its dialect is inferred."""
_DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}
_UNTITLED = ("", "Unnamed: 0")
"""Titles of a first column that holds row names, as pandas and R write it."""
_RAGGED_SHARE = 0.01
"""If more rows than this have another number of cells, the delimiter is probably wrong."""


@dataclass(frozen=True)
class _Dialect:
    """How rows are written.

    With `spaces`, a space after the delimiter is not part of the cell ("39, State-gov"). Without
    `quotes`, a quotation mark is an ordinary character.
    """

    delimiter: str
    quotes: bool = True
    spaces: bool = False
    strict: bool = False

    def __str__(self) -> str:
        name = _DELIMITERS.get(self.delimiter, repr(self.delimiter))
        return f"{name} and space" if self.spaces else name

    def reader(self, source: Iterator[str]) -> Iterator[list[str]]:
        """Return Python's CSV reader for this dialect."""
        return csv.reader(
            source,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
            skipinitialspace=self.spaces,
            strict=self.strict,
        )


@dataclass(frozen=True)
class _DelimitedSource(TextSource):
    """Changes single cells in their own quoting style."""

    dialect: _Dialect

    def rewrite(self, edits: Edits) -> bytes:
        def edit(row: int, record: str) -> str:
            if row in edits.removed:
                return ""
            for column, value in edits.cells.get(row, {}).items():
                record = _replace_cell(record, column, value, self.dialect)
            return _excel_safe_record(record, self.dialect) if edits.excel_safe else record

        return self.edited(range(len(self.starts)) if edits.excel_safe else edits.rows, edit)


class _Parsed(NamedTuple):
    """The columns of a file, where each row starts and ends, and the ragged rows."""

    columns: list[pa.ChunkedArray]
    starts: np.ndarray
    ends: np.ndarray
    ragged: tuple[int, ...]


def read_delimited(
    path: Path,
    file: TextFile,
    text: str,
    *,
    delimiter: str | None,
    header: bool | None,
    names: Sequence[str] | None,
    expected: Collection[str],
) -> Table:
    """Read one delimited file; see `read_table` for the options."""
    dialect = _sniff_dialect(text, delimiter, named_format(file.name), path.name)
    notes = [f"Read {path.name} as {file.encoding}, {dialect}-separated.", *file.encoding.notes]
    first = _sample(text, dialect)
    check_limit("columns", max(map(len, first), default=0), path.name)
    above = _preamble(first)
    if above:
        notes.append(f"Skipped {above} line(s) above the table, the first {first[0][0]!r}.")
    first = first[above:]
    has_header, why = _has_header(first, header, expected, path.name)
    notes += [why] if why else []
    parsed, dialect = _parse(text, dialect, first, above + has_header)
    if not dialect.quotes and '"' in text:
        notes.append("Quotation marks are ordinary characters in this file.")
    titles, said = _titles(first[0] if has_header else [], names, parsed, path.name)
    notes += said
    if parsed.ragged:
        notes.append(_ragged_note(parsed, text, path.name))
    return Table(
        path=path,
        format="tsv" if dialect.delimiter == "\t" else "csv",
        data=pa.table(parsed.columns, names=titles),
        source=_DelimitedSource(file, parsed.starts, parsed.ends, dialect),
        notes=tuple(notes),
        ragged=parsed.ragged,
        header=bool(has_header),
        index=(titles[0],) if has_header and first[0][0].strip() in _UNTITLED else (),
    )


def _has_header(
    rows: list[list[str]], wanted: bool | None, expected: Collection[str], name: str
) -> tuple[bool, str]:
    if wanted is not None:
        return wanted, "" if wanted else "No header: the columns are called column_1, column_2 …"
    why = _looks_like_data(rows, expected)
    if not why:
        return True, ""
    return False, (
        f"The first row of {name} is data, not a header ({why}), so the columns are called "
        "column_1, column_2 …; if that is wrong, use --header yes (in Python: header=True)."
    )


def _parse(
    text: str, dialect: _Dialect, first: list[list[str]], skip: int
) -> tuple[_Parsed, _Dialect]:
    """Parse with quotes; if they are not in pairs, treat them as ordinary characters."""
    width = _usual_width(first[1:] or first)[0]
    ways = [replace(dialect, strict=dialect.quotes)]
    if '"' in text and dialect.quotes:
        ways += [replace(dialect, quotes=False), dialect]
    found: list[tuple[_Parsed, _Dialect]] = []
    for way in ways:
        try:
            parsed = _parse_as(text, way, width, skip)
        except csv.Error:
            continue
        found.append((parsed, replace(way, strict=False)))
        if not parsed.ragged:
            break
    if not found:
        raise ExemplaError(
            "The file cannot be read as a table: it has stray line ends or NUL characters; save it "
            "again as UTF-8 CSV."
        )
    return min(found, key=lambda each: len(each[0].ragged))


def _parse_as(text: str, dialect: _Dialect, width: int, skip: int) -> _Parsed:
    starts: list[int] = []
    ends: list[int] = []
    ragged: list[int] = []
    rows: list[list[str | None]] = []
    chunks: list[list[pa.Array]] = [[] for _ in range(width)]

    def flush() -> None:
        for column, values in zip(chunks, zip(*rows, strict=True), strict=True):
            column.append(pa.array(values, type=pa.string()))
        rows.clear()

    for number, (cells, start, end) in enumerate(_records(text, dialect)):
        if number < skip:
            continue
        if len(cells) != width:
            ragged.append(len(starts))
            cells = [None] * width
        rows.append(cells)  # pyright: ignore[reportArgumentType]
        starts.append(start)
        ends.append(end)
        if len(rows) == _CHUNK:
            flush()
    if rows:
        flush()
    columns = [pa.chunked_array(column, type=pa.string()) for column in chunks]
    return _Parsed(columns, np.array(starts), np.array(ends), tuple(ragged))


def _titles(
    cells: list[str], names: Sequence[str] | None, parsed: _Parsed, name: str
) -> tuple[list[str], list[str]]:
    width = len(parsed.columns)
    if not len(parsed.starts):
        raise ExemplaError(f"{name} has a header but no rows; give a file with data.")
    if names is not None and len(names) != width:
        raise ExemplaError(f"{len(names)} column names were given, but {name} has {width} columns.")
    if names is not None:
        return column_names(list(names), width)
    if not cells:
        return column_names([], width)[0], []
    if len(cells) == width - 1:
        # R gives the column of row names no title; other programs end each row with a delimiter.
        trailing = not any(value for value in parsed.columns[-1].to_pylist())
        return column_names([*cells, ""] if trailing else ["", *cells], width)
    if len(cells) != width:
        raise ExemplaError(
            f"The header of {name} has {len(cells)} names but its rows have {width} cells; "
            "is the delimiter right, or is a delimiter inside a cell without quotes?"
        )
    return column_names(cells, width)


def _ragged_note(parsed: _Parsed, text: str, name: str) -> str:
    count, total, width = len(parsed.ragged), len(parsed.starts), len(parsed.columns)
    first = [text.count("\n", 0, parsed.starts[row]) + 1 for row in parsed.ragged[:5]]
    where = f"line(s) {show(first)}{' …' if count > len(first) else ''}"
    if count > max(1, _RAGGED_SHARE * total):
        raise ExemplaError(
            f"{count:,} of {total:,} rows of {name} do not have {width} cells ({where}); is the "
            "delimiter right, or is a delimiter inside a cell without quotes?"
        )
    return (
        f"{count} row(s) do not have {width} cells ({where}): not used for training, exported "
        "unchanged."
    )


def _records(text: str, dialect: _Dialect) -> Iterator[tuple[list[str], int, int]]:
    """Yield the cells of each record with its start and end in the text; skip blank lines."""
    mark, start = [0], 0
    before = csv.field_size_limit(sys.maxsize)  # e-mails exceed the limit, which is global
    try:
        for cells in dialect.reader(lines(text, mark)):
            if cells:
                yield cells, start, mark[0]
            start = mark[0]
    finally:
        csv.field_size_limit(before)


def _sample(text: str, dialect: _Dialect, most: int = 1000) -> list[list[str]]:
    """Return the first records, without one that the end of the sample may have cut."""
    size = _SAMPLE
    while True:
        piece, found = text[:size], []
        with suppress(csv.Error):
            for cells, _, end in islice(_records(piece, dialect), most):
                if end == len(piece) < len(text):
                    break
                found.append(cells)
        if len(found) > 1 or size >= len(text):
            return found
        size *= 8  # records longer than the sample need a larger one


def _sniff_dialect(text: str, wanted: str | None, suffix: str, name: str) -> _Dialect:
    """Return the delimiter and the quotes with which most records have the same number of cells."""
    scores = {}
    for dialect in (_Dialect(mark, quotes) for mark in _DELIMITERS for quotes in (True, False)):
        if dialect.quotes or '"' in text:
            width, share = _usual_width(_sample(text, dialect))
            usual = dialect.delimiter == {".csv": ",", ".tsv": "\t"}.get(suffix)
            scores[dialect] = (share if width > 1 else 0.0, usual, dialect.quotes, width)
    best = max(scores, key=lambda each: scores[each])
    if wanted is None:
        if not scores[best][0]:
            best = _Dialect("\t" if suffix == ".tsv" else ",")
        return _with_spaces(text, best)
    wanted = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(
        wanted, wanted
    )
    if len(wanted) != 1 or wanted in '\r\n"':
        raise ExemplaError(f"The delimiter must be one character such as ',', not {wanted!r}.")
    quoted, plain = (_sample(text, _Dialect(wanted, quotes)) for quotes in (True, False))
    if all(len(cells) == 1 for cells in quoted) and scores[best][0] > 0.9:
        raise ExemplaError(
            f"With the delimiter {wanted!r} every row of {name} is a single cell. The file looks "
            f"{_DELIMITERS[best.delimiter]}-separated: give {best.delimiter!r}, or leave the "
            "delimiter out."
        )
    return _with_spaces(text, _Dialect(wanted, _usual_width(quoted)[1] >= _usual_width(plain)[1]))


def _usual_width(rows: list[list[str]]) -> tuple[int, float]:
    """Return the most frequent number of cells and the share of the rows that have it."""
    if not rows:
        return 0, 0.0
    width, count = Counter(map(len, rows)).most_common(1)[0]
    return width, count / len(rows)


def _with_spaces(text: str, dialect: _Dialect) -> _Dialect:
    """Return the dialect; note if a space follows every delimiter ("39, State-gov, 77516")."""
    rows = _sample(text, dialect, 200)
    width = _usual_width(rows)[0]
    cells = [cell for row in rows if len(row) == width for cell in row[1:]]
    spaced = bool(cells) and all(cell.startswith(" ") for cell in cells)
    return replace(dialect, spaces=spaced and dialect.delimiter != "\t")


def _preamble(rows: list[list[str]]) -> int:
    """Return the number of lines above the table: single cells before rows of several."""
    width = _usual_width(rows[:200])[0]
    above = next((i for i, row in enumerate(rows) if len(row) != 1), 0)
    return above if width > 1 and above <= 20 else 0


_TEXT_WORDS = 4
"""Mean number of words from which a column counts as text in `looks_like_data`."""


def _looks_like_data(rows: list[list[str]], expected: Collection[str] = ()) -> str:
    """Explain why the first row is not a header; return "" if it may be one.

    The first row is data if it has a number in a column of numbers or a value that the rows below
    repeat. It is a header if it contains one of the `expected` column names, a word above a column
    of numbers, or a single word above a column of text.
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    titles = [cell.strip() for cell in first]
    if any(name.strip() in titles for name in expected if not _number(name)):
        return ""
    if titles in ([str(i + k) for i in range(len(first))] for k in (0, 1)):
        return ""  # 0, 1, 2 …: how pandas writes a frame without names
    why = ""
    for place, cell in enumerate(first):
        below = [row[place].strip() for row in rest if row[place].strip() not in MISSING]
        if not below or cell.strip() in MISSING:
            continue
        if sum(map(_number, below)) >= 0.99 * len(below):
            if any(letter.isalpha() for letter in cell) and not _number(cell):
                return ""  # a word above numbers names them
            if _number(cell):
                why = why or f"{cell.strip()!r} is a number in a column of numbers"
            continue
        words = sum(len(text.split()) for text in below) / len(below)
        if words >= _TEXT_WORDS and len(cell.split()) == 1 and cell.strip().isidentifier():
            return ""  # a single word above sentences names them
        levels = set(below)
        few = len(levels) <= 50 and len(levels) <= len(below) / 2
        if few and cell.strip() in levels:
            why = why or f"{cell.strip()!r} is a value of the rows below"
    return why


def _number(cell: str) -> bool:
    try:
        float(cell.strip().replace(",", ".", 1))
    except ValueError:
        return False
    return True


def _cell_spans(record: str, dialect: _Dialect) -> list[tuple[int, int]]:
    """Return the start and end of every cell of a record, with quotes, without extra spaces."""
    # Only the last line end closes the record; a quoted cell may contain others.
    last = len(record.removesuffix("\n").removesuffix("\r"))
    mark = re.escape(dialect.delimiter)
    quoted = '(?:"[^"]*(?:""[^"]*)*(?:"|$))?' if dialect.quotes else ""
    cell = re.compile(f"(?:^|{mark}){' *' if dialect.spaces else ''}({quoted}[^{mark}]*)")
    return [found.span(1) for found in cell.finditer(record, 0, last)]


def _replace_cell(record: str, place: int, value: str, dialect: _Dialect) -> str:
    """Return the record with one cell changed, in that cell's own quoting style."""
    start, end = _cell_spans(record, dialect)[place]
    changed = record[:start] + _written(value, record[start:end], dialect) + record[end:]
    # Reading the result must give the new value here and the old ones elsewhere.
    before, after = _read(record, dialect), _read(changed, dialect)
    if after != [*before[:place], value, *before[place + 1 :]]:
        raise ExemplaError(
            f"The label {value!r} cannot be written into this file without changing other cells; "
            "choose a label without delimiters and line breaks."
        )
    return changed


def _read(record: str, dialect: _Dialect) -> list[str]:
    found = list(_records(record, dialect))
    return found[0][0] if len(found) == 1 else []


def _written(value: str, old: str, dialect: _Dialect) -> str:
    if not dialect.quotes:
        return value
    special = (dialect.delimiter, "\r", "\n")
    needed = any(mark in value for mark in special) or value.startswith('"')
    needed = needed or (dialect.spaces and value.startswith(" "))
    if old.startswith('"') or needed:
        return '"' + value.replace('"', '""') + '"'
    return value


def _excel_safe_record(record: str, dialect: _Dialect) -> str:
    """Return the record with an apostrophe before cells that a spreadsheet would evaluate."""
    for place, cell in enumerate(_read(record, dialect)):
        starts = cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        if starts and not _number(cell):
            record = _replace_cell(record, place, "'" + cell, dialect)
    return record
