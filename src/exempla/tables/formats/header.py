"""Does the first record name the columns, or is it data already?"""

from __future__ import annotations

from collections import Counter

from exempla.tables.columns.arrow import MISSING
from exempla.tables.table import show

__all__ = ["column_names", "looks_like_data", "preamble"]


def preamble(rows: list[list[str]]) -> int:
    """How many lines stand above the table: single cells before rows of several.

    >>> preamble([["|1x3 Cross validator"], ["a", "b"], ["1", "2"], ["3", "4"]])
    1
    """
    width = Counter(len(row) for row in rows[:200]).most_common(1)[0][0]
    above = next((i for i, row in enumerate(rows) if len(row) != 1), 0)
    return above if width > 1 and above <= 20 else 0


def looks_like_data(rows: list[list[str]]) -> str:
    """Why the first row is no header, or "" if it may be one.

    It is data if it has a number in a column of numbers, or a value that the rows below repeat;
    a word above a column of numbers speaks for a header and settles it.

    >>> looks_like_data([["39", "State-gov"], ["50", "Private"], ["38", "Private"]])
    "'39' is a number in a column of numbers"
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if [cell.strip() for cell in first] in (
        [str(i + k) for i in range(len(first))] for k in (0, 1)
    ):
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
    """Distinct names for the columns, and what had to be said about them.

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
