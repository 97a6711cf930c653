"""Where one cell stands inside one record, and how a new value is written there.

Only the records a decision touches come here; the rest of the file is copied as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from exempla.errors import ExemplaError
from exempla.tables.formats.dialect import Dialect, records

__all__ = ["cell_spans", "excel_safe_record", "json_spans", "json_token", "replace_cell"]


def cell_spans(record: str, dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Start and end of every cell of a record, quotes included, decorative spaces not.

    >>> list(cell_spans('7,"a,b",c\\n', Dialect(",")))
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
    # The line end that closes the record is the last one; a cell may hold others in quotes.
    if record.endswith("\r\n"):
        return len(record) - 2
    return len(record) - 1 if record.endswith(("\n", "\r")) else len(record)


def _closing_quote(record: str, start: int) -> int:
    at = record.find('"', start + 1)
    while at >= 0 and record.startswith('""', at):
        at = record.find('"', at + 2)
    return at if at >= 0 else len(record) - 1


def replace_cell(record: str, place: int, value: str, dialect: Dialect) -> str:
    """The record with one cell changed, written in that cell's own quoting style.

    >>> replace_cell('1,"ham"\\r\\n', 1, "spam", Dialect(","))
    '1,"spam"\\r\\n'
    """
    start, end = list(cell_spans(record, dialect))[place]
    changed = record[:start] + _written(value, record[start:end], dialect) + record[end:]
    # The reader must see the new value here and the old ones elsewhere; anything else is refused.
    before, after = _read(record, dialect), _read(changed, dialect)
    if after != [*before[:place], value, *before[place + 1 :]]:
        raise ExemplaError(
            f"The label {value!r} cannot be written into this file without harming its row; "
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
    """The record with an apostrophe before every cell a spreadsheet would run as a formula.

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


def json_spans(line: str) -> dict[str, tuple[int, int]]:
    """Where each value of a one-line JSON object stands.

    >>> json_spans('{"a": 1, "b": "x"}')
    {'a': (6, 7), 'b': (14, 17)}
    """
    decoder, spans = json.JSONDecoder(), {}
    at = _past_space(line, line.index("{") + 1)
    while line[at] != "}":
        key, at = decoder.raw_decode(line, at)
        at = _past_space(line, _past_space(line, at) + 1)
        _, end = decoder.raw_decode(line, at)
        spans[key] = (at, end)
        at = _past_space(line, end)
        if line[at] == ",":
            at = _past_space(line, at + 1)
    return spans


def _past_space(line: str, at: int) -> int:
    while line[at] in " \t\r\n":
        at += 1
    return at


def json_token(value: str, old: str) -> str:
    """A new value in the old one's style: a string stays a string, a number a number.

    >>> json_token("1", "0"), json_token("1", '"0"'), json_token("spam", "0")
    ('1', '"1"', '"spam"')
    """
    if not old.startswith('"'):
        try:
            if isinstance(json.loads(value), (int, float, bool)):
                return value
        except ValueError:
            pass
    # Other letters than ASCII are escaped only if the old value escaped them.
    return json.dumps(value, ensure_ascii="\\u" in old)
