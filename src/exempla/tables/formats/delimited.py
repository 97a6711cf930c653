"""CSV, TSV and similar files: every cell is a string, and the position of each row is kept."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.tables.formats.dialect import (
    Dialect,
    column_names,
    excel_safe_record,
    looks_like_data,
    preamble,
    records,
    replace_cell,
    sample,
    sniff_delimiter,
    sniff_quotes,
    sniff_spaces,
)
from exempla.tables.formats.encoding import (
    TextSource,
    check_limit,
    named_format,
    sniff_encoding,
    unpack,
)
from exempla.tables.table import Table, show

CHUNK = 20_000
_UNTITLED = ("", "Unnamed: 0")
"""Titles of a first column that holds row names, as pandas and R write it."""
_RAGGED_SHARE = 0.01
"""If more rows than this have another number of cells, the delimiter is probably wrong."""


@dataclass(frozen=True)
class _DelimitedSource(TextSource):
    """Changes single cells in their own quoting style."""

    dialect: Dialect

    def rewrite(
        self,
        column: int,
        changes: Mapping[int, str],
        removed: Collection[int],
        *,
        excel_safe: bool = False,
    ) -> bytes:
        def edit(row: int, record: str) -> str:
            if row in removed:
                return ""
            if row in changes:
                record = replace_cell(record, column, changes[row], self.dialect)
            return excel_safe_record(record, self.dialect) if excel_safe else record

        return self.edited(range(len(self.starts)) if excel_safe else {*changes, *removed}, edit)


@dataclass(frozen=True)
class _Parsed:
    columns: list[pa.ChunkedArray]
    starts: np.ndarray
    ends: np.ndarray
    ragged: tuple[int, ...]
    numbers: tuple[int, ...]
    """Line numbers of the ragged rows, for the message."""


def read_delimited(
    path: Path,
    raw: bytes,
    *,
    encoding: str | None,
    delimiter: str | None,
    header: bool | None,
    names: Sequence[str] | None,
    expected: Collection[str] = (),
) -> Table:
    """Read one delimited file; see `read_table` for the options."""
    content, packing = unpack(raw, path.name)
    inside = packing.removeprefix("zip:") if packing.startswith("zip:") else path
    found, text = sniff_encoding(content, encoding, path.name)
    del content
    if not text.strip():
        raise ExemplaError(f"{path.name} is empty: it needs a header and at least one row.")
    cut = sniff_delimiter(text, delimiter, named_format(inside), path.name)
    dialect = Dialect(cut, spaces=sniff_spaces(text, cut))
    dialect = replace(dialect, quotes=sniff_quotes(text, dialect))
    notes = [f"Read {path.name} as {found}, {dialect}-separated.", *found.notes]

    first = sample(text, dialect)
    check_limit("columns", max(map(len, first), default=0), path.name)
    above = preamble(first)
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
        notes.append(_ragged_note(parsed, path.name))
    return Table(
        path=path,
        format="tsv" if cut == "\t" else "csv",
        data=pa.table(parsed.columns, names=titles),
        source=_DelimitedSource(raw, found, packing, parsed.starts, parsed.ends, dialect),
        notes=tuple(notes),
        ragged=parsed.ragged,
        header=bool(has_header),
        index=(titles[0],) if has_header and first[0][0].strip() in _UNTITLED else (),
    )


def _has_header(
    rows: list[list[str]], wanted: bool | None, expected: Collection[str], name: str
) -> tuple[bool, str]:
    why = looks_like_data(rows, expected)
    if wanted is None:
        if not why:
            return True, ""
        return False, (
            f"The first row of {name} is data, not a header ({why}), so the columns are called "
            "column_1, column_2 …; if that is wrong, use --header yes (in Python: header=True)."
        )
    if wanted and why:
        return True, f"Used the first row as the header, although {why}."
    return wanted, "" if wanted else "No header: the columns are called column_1, column_2 …"


def _parse(
    text: str, dialect: Dialect, first: list[list[str]], skip: int
) -> tuple[_Parsed, Dialect]:
    """Parse with quotes; if they are not in pairs, treat them as ordinary characters."""
    width = Counter(len(row) for row in first[1:] or first).most_common(1)[0][0]
    ways = [replace(dialect, strict=dialect.quotes)]
    if '"' in text and dialect.quotes:
        ways += [replace(dialect, quotes=False), dialect]
    best: tuple[_Parsed, Dialect] | None = None
    for way in ways:
        try:
            parsed = _parse_as(text, way, width, skip)
        except csv.Error:
            continue
        if not parsed.ragged:
            return parsed, replace(way, strict=False)
        if best is None or len(parsed.ragged) < len(best[0].ragged):
            best = parsed, replace(way, strict=False)
    if best is None:
        raise ExemplaError(
            "The file cannot be read as a table: it has stray line ends or NUL characters; save it "
            "again as UTF-8 CSV."
        )
    return best


def _parse_as(text: str, dialect: Dialect, width: int, skip: int) -> _Parsed:
    starts: list[int] = []
    ends: list[int] = []
    ragged: list[int] = []
    rows: list[list[str | None]] = []
    chunks: list[list[pa.Array]] = [[] for _ in range(width)]

    def flush() -> None:
        for column, values in zip(chunks, zip(*rows, strict=True), strict=True):
            column.append(pa.array(values, type=pa.string()))
        rows.clear()

    for number, (cells, start, end) in enumerate(records(text, dialect)):
        if number < skip:
            continue
        if len(cells) != width:
            ragged.append(len(starts))
            cells = [None] * width
        rows.append(cells)  # pyright: ignore[reportArgumentType]
        starts.append(start)
        ends.append(end)
        if len(rows) == CHUNK:
            flush()
    if rows:
        flush()
    columns = [pa.chunked_array(column, type=pa.string()) for column in chunks]
    lines = [text.count("\n", 0, starts[row]) + 1 for row in ragged[:5]]
    return _Parsed(columns, np.array(starts), np.array(ends), tuple(ragged), tuple(lines))


def _titles(
    cells: list[str], names: Sequence[str] | None, parsed: _Parsed, name: str
) -> tuple[list[str], list[str]]:
    width = len(parsed.columns)
    if not len(parsed.starts):
        raise ExemplaError(f"{name} has a header but no rows; give a file with data.")
    if names is not None:
        if len(names) != width:
            raise ExemplaError(
                f"{len(names)} column names were given, but {name} has {width} columns."
            )
        return column_names(list(names), width)
    if not cells:
        return [f"column_{place + 1}" for place in range(width)], []
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


def _ragged_note(parsed: _Parsed, name: str) -> str:
    count, total = len(parsed.ragged), len(parsed.starts)
    where = f"line(s) {show(parsed.numbers)}{' …' if count > len(parsed.numbers) else ''}"
    width = len(parsed.columns)
    if count > max(1, _RAGGED_SHARE * total):
        raise ExemplaError(
            f"{count:,} of {total:,} rows of {name} do not have {width} cells ({where}); is the "
            "delimiter right, or is a delimiter inside a cell without quotes?"
        )
    return (
        f"{count} row(s) do not have {width} cells ({where}): not used for training, exported "
        "unchanged."
    )
