"""The dialect of a delimited file, and edits of single cells in it.

`sniff_*` and `preamble` find the delimiter, the quotes, spaces after delimiters and lines above the
table; `looks_like_data` tells whether the first record is a header. `replace_cell` writes a new
value into a record; records without a decision are copied unchanged.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from exempla.errors import ExemplaError
from exempla.tables.formats.encoding import check_limit, limit
from exempla.tables.table import MISSING, show

_SAMPLE = 1_000_000
"""Characters at the beginning of a file from which its dialect is inferred."""
_DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}


@dataclass(frozen=True)
class Dialect:
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


def lines(text: str, mark: list[int]) -> Iterator[str]:
    """Yield lines with their line ends; `mark[0]` is the end of the line yielded last.

    `str.splitlines` would also split at form feeds and U+2028, which belong to the cells.
    """
    most = limit("line")
    if text.count("\r") == text.count("\r\n"):
        start = 0
        while (end := text.find("\n", start) + 1) > 0:
            if end - start > most:
                check_limit("line", None, "The file")
            mark[0] = end
            yield text[start:end]
            start = end
        if len(text) - start > most:
            check_limit("line", None, "The file")
        if start < len(text):
            mark[0] = len(text)
            yield text[start:]
        return
    for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text):
        if match.end() - match.start() > most:
            check_limit("line", None, "The file")
        mark[0] = match.end()
        yield match.group()


@contextmanager
def _long_cells() -> Iterator[None]:
    # E-mails exceed the default limit of csv, which is global and therefore restored.
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def records(text: str, dialect: Dialect) -> Iterator[tuple[list[str], int, int]]:
    """Yield the cells of each record with its start and end in the text; skip blank lines.

    >>> list(records("a,b\\n\\n1,2", Dialect(",")))
    [(['a', 'b'], 0, 4), (['1', '2'], 5, 8)]
    """
    mark, start = [0], 0
    with _long_cells():
        for cells in dialect.reader(lines(text, mark)):
            if cells:
                yield cells, start, mark[0]
            start = mark[0]


def sample(text: str, dialect: Dialect, most: int = 1000) -> list[list[str]]:
    """Return the first records, without one that the end of the sample may have cut."""
    found: list[list[str]] = []
    size = _SAMPLE
    while len(found) < min(most, 2):  # records longer than the sample need a larger one
        piece, found = text[:size], []
        try:
            for cells, _, end in records(piece, dialect):
                if end == len(piece) < len(text):
                    break
                found.append(cells)
                if len(found) == most:
                    break
        except csv.Error:
            pass
        if size >= len(text):
            break
        size *= 8
    return found


def sniff_delimiter(text: str, wanted: str | None, suffix: str, name: str) -> str:
    """Return the delimiter with which most records have the same number of cells, above one.

    >>> sniff_delimiter("a;b\\n1,5;2\\n2,5;3\\n", None, ".csv", "a.csv")
    ';'
    """
    scores = {each: _agreement(text, each, suffix) for each in _DELIMITERS}
    best = max(scores, key=lambda each: scores[each])
    if wanted is None:
        return best if scores[best][0] > 0 else ("\t" if suffix == ".tsv" else ",")
    wanted = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(
        wanted, wanted
    )
    if len(wanted) != 1 or wanted in '\r\n"':
        raise ExemplaError(f"The delimiter must be one character such as ',', not {wanted!r}.")
    if all(len(cells) == 1 for cells in sample(text, Dialect(wanted))) and scores[best][0] > 0.9:
        raise ExemplaError(
            f"With the delimiter {wanted!r} every row of {name} is a single cell. The file looks "
            f"{_DELIMITERS[best]}-separated: give {best!r}, or leave the delimiter out."
        )
    return wanted


def sniff_quotes(text: str, dialect: Dialect) -> bool:
    """Return True if quotation marks enclose cells: in pairs, with rows of equal length.

    >>> sniff_quotes('x\\ty\\n"a\\t1\\nb\\t0\\n', Dialect("\\t"))
    False
    """
    if '"' not in text:
        return True
    plain = _straight(sample(text, replace(dialect, quotes=False)))
    enclosing = _straight(sample(text, dialect))
    if plain > enclosing:
        return False
    piece = text[:_SAMPLE]
    try:
        for _, _, end in records(piece, replace(dialect, strict=True)):
            if end == len(piece):
                break
    except csv.Error:
        return plain < enclosing or len(piece) < len(text)
    return True


def _straight(rows: list[list[str]]) -> float:
    return Counter(map(len, rows)).most_common(1)[0][1] / len(rows) if rows else 0.0


def _agreement(text: str, delimiter: str, suffix: str) -> tuple[float, bool, int]:
    way = Dialect(delimiter, quotes=sniff_quotes(text[:100_000], Dialect(delimiter)))
    rows = [len(cells) for cells in sample(text, way, 200)]
    if not rows:
        return 0.0, False, 0
    width, count = Counter(rows).most_common(1)[0]
    usual = delimiter == {".csv": ",", ".tsv": "\t"}.get(suffix)
    return (count / len(rows), usual, width) if width > 1 else (0.0, usual, 0)


def sniff_spaces(text: str, delimiter: str) -> bool:
    """Return True if a space follows every delimiter ("39, State-gov, 77516")."""
    if delimiter == "\t":
        return False
    rows = sample(text, Dialect(delimiter), 200)
    width = Counter(len(cells) for cells in rows).most_common(1)[0][0] if rows else 0
    cells = [cell for row in rows if len(row) == width for cell in row[1:]]
    return bool(cells) and all(cell.startswith(" ") for cell in cells)


def preamble(rows: list[list[str]]) -> int:
    """Return the number of lines above the table: single cells before rows of several.

    >>> preamble([["|1x3 Cross validator"], ["a", "b"], ["1", "2"], ["3", "4"]])
    1
    """
    width = Counter(len(row) for row in rows[:200]).most_common(1)[0][0]
    above = next((i for i, row in enumerate(rows) if len(row) != 1), 0)
    return above if width > 1 and above <= 20 else 0


_TEXT_WORDS = 4
"""Mean number of words from which a column counts as text in `looks_like_data`."""


def looks_like_data(rows: list[list[str]], expected: Collection[str] = ()) -> str:
    """Explain why the first row is not a header; return "" if it may be one.

    The first row is data if it has a number in a column of numbers or a value that the rows below
    repeat. It is a header if it contains one of the `expected` column names, a word above a column
    of numbers, or a single word above a column of text.

    >>> looks_like_data([["39", "State-gov"], ["50", "Private"], ["38", "Private"]])
    "'39' is a number in a column of numbers"
    >>> looks_like_data([["text", "spam"], ["a", "ham"], ["b", "spam"]], expected=["spam"])
    ''
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


def column_names(cells: list[str], width: int) -> tuple[list[str], list[str]]:
    """Return distinct names for the columns, and notes about those that were changed.

    >>> column_names(["a", "", "a"], 3)
    (['a', 'column_2', 'a_2'], ["Unnamed columns are called 'column_2'.", "Repeated column names \
were numbered: 'a_2'."])
    """
    names: list[str] = []
    unnamed: list[str] = []
    repeated: list[str] = []
    taken = {cell.strip() for cell in cells}
    for place in range(width):
        name = cells[place].strip() if place < len(cells) else ""
        wanted, number = name or f"column_{place + 1}", 1
        name = wanted
        while name in names or (number > 1 and name in taken):
            number += 1
            name = f"{wanted}_{number}"
        if number > 1:
            repeated.append(name)
        elif place >= len(cells) or not cells[place].strip():
            unnamed.append(name)
        names.append(name)
    notes = []
    if unnamed:
        notes.append(f"Unnamed columns are called {show(unnamed)}.")
    if repeated:
        notes.append(f"Repeated column names were numbered: {show(repeated)}.")
    return names, notes


def _cell_spans(record: str, dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Yield the start and end of every cell of a record, with quotes, without extra spaces.

    >>> list(_cell_spans('7,"a,b",c\\n', Dialect(",")))
    [(0, 1), (2, 7), (8, 9)]
    """
    last = _content_end(record)
    start = 0
    while True:
        while dialect.spaces and start < last and record[start] == " ":
            start += 1
        search = start
        if dialect.quotes and record.startswith('"', start):
            search = _closing_quote(record, start) + 1
        end = record.find(dialect.delimiter, search, last)
        yield start, (last if end < 0 else end)
        if end < 0:
            return
        start = end + 1


def _content_end(record: str) -> int:
    # Only the last line end closes the record; a quoted cell may contain others.
    if record.endswith("\r\n"):
        return len(record) - 2
    return len(record) - 1 if record.endswith(("\n", "\r")) else len(record)


def _closing_quote(record: str, start: int) -> int:
    at = record.find('"', start + 1)
    while at >= 0 and record.startswith('""', at):
        at = record.find('"', at + 2)
    return at if at >= 0 else len(record) - 1


def replace_cell(record: str, place: int, value: str, dialect: Dialect) -> str:
    """Return the record with one cell changed, in that cell's own quoting style.

    >>> replace_cell('1,"ham"\\r\\n', 1, "spam", Dialect(","))
    '1,"spam"\\r\\n'
    """
    start, end = list(_cell_spans(record, dialect))[place]
    changed = record[:start] + _written(value, record[start:end], dialect) + record[end:]
    # Reading the result must give the new value here and the old ones elsewhere.
    before, after = _read(record, dialect), _read(changed, dialect)
    if after != [*before[:place], value, *before[place + 1 :]]:
        raise ExemplaError(
            f"The label {value!r} cannot be written into this file without changing other cells; "
            "choose a label without delimiters and line breaks."
        )
    return changed


def _read(record: str, dialect: Dialect) -> list[str]:
    found = list(records(record, dialect))
    return found[0][0] if len(found) == 1 else []


def _written(value: str, old: str, dialect: Dialect) -> str:
    if not dialect.quotes:
        return value
    special = (dialect.delimiter, "\r", "\n")
    needed = any(mark in value for mark in special) or value.startswith('"')
    needed = needed or (dialect.spaces and value.startswith(" "))
    if old.startswith('"') or needed:
        return '"' + value.replace('"', '""') + '"'
    return value


def excel_safe_record(record: str, dialect: Dialect) -> str:
    """Return the record with an apostrophe before cells that a spreadsheet would evaluate.

    >>> excel_safe_record("=1+1,-5,@x\\n", Dialect(","))
    "'=1+1,-5,'@x\\n"
    """
    places = [i for i, cell in enumerate(_read(record, dialect)) if _is_formula(cell)]
    for place in places:
        cell = _read(record, dialect)[place]
        record = replace_cell(record, place, "'" + cell, dialect)
    return record


def _is_formula(cell: str) -> bool:
    if not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False
