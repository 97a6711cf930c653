"""How a delimited file is written: delimiter, quotes, spaces after delimiters, lines above."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from exempla.errors import ExemplaError
from exempla.tables.formats.limits import check_limit, limit

__all__ = [
    "DELIMITERS",
    "Dialect",
    "lines",
    "records",
    "sniff_delimiter",
    "sniff_quotes",
    "sniff_spaces",
]

SAMPLE = 1_000_000
"""Characters at the head of a file from which its dialect is judged."""
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}


@dataclass(frozen=True)
class Dialect:
    """One way to write a row.

    `spaces` means that a space after the delimiter is decoration ("39, State-gov"); without
    `quotes` a quotation mark is a character like any other.
    """

    delimiter: str
    quotes: bool = True
    spaces: bool = False
    strict: bool = False

    def __str__(self) -> str:
        name = DELIMITERS.get(self.delimiter, repr(self.delimiter))
        return f"{name} and space" if self.spaces else name

    def reader(self, source: Iterator[str]) -> Iterator[list[str]]:
        """Python's own CSV reader, told about this dialect."""
        return csv.reader(
            source,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
            skipinitialspace=self.spaces,
            strict=self.strict,
        )


def lines(text: str, mark: list[int]) -> Iterator[str]:
    """Lines with their ends; `mark[0]` is always the end of the line handed out last.

    `str.splitlines` would also break at form feeds and U+2028, which belong to the cells.
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
    # An e-mail is longer than csv's default limit; the limit is global, so it is put back.
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def records(text: str, dialect: Dialect) -> Iterator[tuple[list[str], int, int]]:
    """Each record's cells and where it starts and ends in the text; blank lines are passed over.

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
    """The first records; one that the sample's end may have cut is left out."""
    found: list[list[str]] = []
    size = SAMPLE
    while len(found) < min(most, 2):  # records longer than the whole sample ask for a larger one
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
    """The delimiter under which most records have the same number of cells, above one.

    >>> sniff_delimiter("a;b\\n1,5;2\\n2,5;3\\n", None, ".csv", "a.csv")
    ';'
    """
    scores = {each: _agreement(text, each, suffix) for each in DELIMITERS}
    best = max(scores, key=lambda each: scores[each])
    if wanted is None:
        return best if scores[best][0] > 0 else ("\t" if suffix == ".tsv" else ",")
    wanted = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(
        wanted, wanted
    )
    if len(wanted) != 1 or wanted in '\r\n"':
        raise ExemplaError(f"The delimiter must be one character, such as ',' or ';': {wanted!r}.")
    if all(len(cells) == 1 for cells in sample(text, Dialect(wanted))) and scores[best][0] > 0.9:
        raise ExemplaError(
            f"With the delimiter {wanted!r} every row of {name} is a single cell; the file looks "
            f"{DELIMITERS[best]}-separated: pass {best!r}, or no delimiter to have it detected."
        )
    return wanted


def sniff_quotes(text: str, dialect: Dialect) -> bool:
    """Whether quotation marks enclose cells: they come in pairs and keep the rows straight.

    >>> sniff_quotes('x\\ty\\n"a\\t1\\nb\\t0\\n', Dialect("\\t"))
    False
    """
    if '"' not in text:
        return True
    plain = _straight(sample(text, replace(dialect, quotes=False)))
    enclosing = _straight(sample(text, dialect))
    if plain > enclosing:
        return False
    piece = text[:SAMPLE]
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
    """Whether a space follows every delimiter ("39, State-gov, 77516")."""
    if delimiter == "\t":
        return False
    rows = sample(text, Dialect(delimiter), 200)
    width = Counter(len(cells) for cells in rows).most_common(1)[0][0] if rows else 0
    cells = [cell for row in rows if len(row) == width for cell in row[1:]]
    return bool(cells) and all(cell.startswith(" ") for cell in cells)
