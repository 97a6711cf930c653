"""Dates: one format for a whole column, found by trying the usual ones.

Libraries read each value by itself, days first here and months first there; a column has one way.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from exempla.tables.columns.arrow import encoded

__all__ = ["FORMATS", "find_format", "to_dates"]

_DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y", "%a, %d %b %Y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S.%f")
_ZONES = ("", "Z", "%z", " %z", " UTC")
FORMATS = tuple(
    day + time + zone for day in _DAYS for time in _TIMES for zone in (_ZONES if time else ("",))
)


def find_format(column: Any, share: float = 0.95) -> tuple[str, str | None] | None:
    """The one format that reads at least `share` of the present values, or None.

    The second entry is another format that reads them as well (day or month first?).

    >>> import pyarrow as pa
    >>> find_format(pa.array(["2024-01-31", "2024-02-01"]))
    ('%Y-%m-%d', None)
    >>> find_format(pa.array(["01/02/2024", "03/04/2024"]))
    ('%d/%m/%Y', '%m/%d/%Y')
    """
    codes, words = encoded(column)
    few = [word for word in words[:100] if word]
    if not few or sum(any(c.isdigit() for c in word) for word in few) < share * len(few):
        return None
    fitting = [each for each in FORMATS if _read_share(few, each) >= share]
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    found = []
    for each in fitting:
        read = pd.to_datetime(
            pd.Series(words, dtype=object), format=each, errors="coerce", utc=True
        )
        if counts[read.notna().to_numpy()].sum() >= share * counts.sum():
            found.append(each)
    return (found[0], found[1] if len(found) > 1 else None) if found else None


def _read_share(words: list[str], style: str) -> float:
    # A few words first, cheaply: nearly every format fails there.
    if not any(_reads(word, style) for word in words[:3]):
        return 0.0
    read = pd.to_datetime(pd.Series(words, dtype=object), format=style, errors="coerce", utc=True)
    return float(read.notna().mean())


def _reads(word: str, style: str) -> bool:
    return _pattern(style).fullmatch(word.strip()) is not None


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
    """The values as datetime64[s]; what does not read is NaT. Without a style: Arrow's own dates.

    >>> import pyarrow as pa
    >>> to_dates(pa.array(["2024-01-31", "x"]), "%Y-%m-%d").astype(str).tolist()
    ['2024-01-31T00:00:00', 'NaT']
    """
    if style is None:
        values = pd.to_datetime(
            pd.Series(column.to_pylist(), dtype=object), errors="coerce", utc=True
        )
        return values.dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    codes, words = encoded(column)
    read = pd.to_datetime(pd.Series(words, dtype=object), format=style, errors="coerce", utc=True)
    dates = read.dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    return np.append(dates, np.datetime64("NaT"))[codes]
