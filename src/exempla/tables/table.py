"""A user's file in memory: its columns, and a source that can write the file back.

Columns of text formats are strings as read. Columns of Parquet and NPZ files keep their type.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute

from exempla.errors import ExemplaError

pc: Any = pyarrow.compute
"""pyarrow creates these functions when it is imported, so type checkers do not know them."""

LARGEST = 1e100
"""Larger numbers count as missing in features: their squares would overflow."""
MISSING = frozenset({"", "NA", "NaN", "nan", "NAN", "null", "NULL", "Null"})
"""Text cells that count as missing. `None` is a word, not a missing value."""


def is_text(column: Any) -> bool:
    """Return True if an Arrow column has strings."""
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def missing_mask(column: Any) -> np.ndarray:
    """Return which values are missing: null, NaN, or one of `MISSING`, ignoring spaces."""
    mask = pc.is_null(column, nan_is_null=True)
    if is_text(column):
        words = pa.array(sorted(MISSING), type=column.type)
        mask = pc.or_(mask, pc.is_in(pc.utf8_trim_whitespace(column), value_set=words))
    return mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy()


def to_numbers(column: Any, decimal: str = ".") -> np.ndarray:
    """Return the values as float64; everything but finite numbers becomes NaN.

    Thousands separators are accepted where they cannot be mistaken for the decimal mark.
    """
    if not is_text(column):
        # Integers above 2⁵³ are rounded, which does not matter to a model.
        numbers = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    else:
        codes, words = encoded(column)
        words = [_without_thousands(word, decimal) for word in words]
        parsed = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
        numbers = np.append(parsed.to_numpy(np.float64), np.nan)[codes]
    return np.where(np.isfinite(numbers), numbers, np.nan)


_THOUSANDS = {
    ".": re.compile(r"[-+]?\d{1,3}(,\d{3})+\.\d+|[-+]?\d{1,3}(,\d{3}){2,}"),
    ",": re.compile(r"[-+]?\d{1,3}(\.\d{3})+(,\d+)?"),
}
"""Numbers with thousands separators, by their decimal mark."""


def _without_thousands(word: str, decimal: str) -> str:
    """Rewrite a number with this decimal mark so that Python can parse it."""
    other = "," if decimal == "." else "."
    if other in word and _THOUSANDS[decimal].fullmatch(word.strip()):
        word = word.replace(other, "")
    return word if decimal == "." else word.replace(".", "x").replace(decimal, ".")


def encoded(column: Any) -> tuple[np.ndarray, list[Any]]:
    """Return the codes and the distinct values of a column; null has the code −1."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # text of more than 2 GiB stays chunked
            column = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in column.chunks])
    dictionary = column.dictionary_encode()
    codes = dictionary.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), dictionary.dictionary.to_pylist()


def to_strings(column: Any) -> list[str | None]:
    """Return the values as strings; null becomes None."""
    if is_text(column):
        return column.to_pylist()
    return [None if value is None else str(value) for value in column.to_pylist()]


class Edits(NamedTuple):
    """Changes of a file: new values by row and column position, and rows to remove."""

    cells: Mapping[int, Mapping[int, str]] = {}
    removed: Collection[int] = frozenset()
    excel_safe: bool = False
    """Put an apostrophe before cells that a spreadsheet would evaluate (CSV and TSV)."""

    @property
    def rows(self) -> set[int]:
        """The rows that change."""
        return {*self.cells, *self.removed}


class Source(Protocol):
    """Writes a file back; bytes that no decision affects stay unchanged."""

    def original(self) -> bytes:
        """Return the file as it was read."""
        ...

    def rewrite(self, edits: Edits) -> bytes:
        """Return the edited file."""
        ...


@dataclass(frozen=True)
class Table:
    """Rows and columns of a file; row numbers are 0-based data rows of that file."""

    path: Path
    format: str
    """csv, tsv, jsonl, parquet, xlsx, npz, images or conll."""
    data: pa.Table
    """The columns: strings for text formats, the stored types for Parquet and NPZ."""
    source: Source = field(repr=False)
    notes: tuple[str, ...] = ()
    """What was detected while reading (encoding, delimiter, header …), in sentences."""
    ragged: tuple[int, ...] = ()
    """Rows with the wrong number of cells; all their values count as missing."""
    header: bool = True
    index: tuple[str, ...] = ()
    """Columns that name the rows (an index that pandas wrote, an untitled first column)."""
    images: np.ndarray | None = field(default=None, repr=False)
    """(n, h, w[, c]) pixels, if an NPZ file has them."""
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The encoding and delimiter that the user gave, if any."""

    def __len__(self) -> int:
        return int(self.data.num_rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in file order."""
        return tuple(self.data.column_names)

    @property
    def is_images(self) -> bool:
        """Whether the rows are images."""
        return self.format == "images" or self.images is not None

    def reading_options(self) -> dict[str, Any]:
        """Return the options of `read_table` that read this file again in the same way."""
        if self.format not in ("csv", "tsv", "jsonl"):
            return {}
        how = dict(self.given)
        if self.format != "jsonl":
            how["header"] = self.header
            if not self.header:
                how["names"] = list(self.names)  # they may come from the test file
        return how

    def column(self, name: str) -> Any:
        """Return a column as an Arrow array."""
        return self.data.column(self.position(name))

    def missing(self, name: str) -> np.ndarray:
        """Return which rows have no value in this column."""
        return missing_mask(self.column(name))

    def strings(self, name: str, rows: Any = None) -> list[str | None]:
        """Return the values as strings, of all rows or of some."""
        column = self.column(name)
        return to_strings(column if rows is None else column.take(pa.array(np.asarray(rows))))

    def frame(self, rows: np.ndarray) -> pd.DataFrame:
        """Return some rows with all columns of the file, and their row numbers first."""
        frame = self.data.take(rows).to_pandas()
        frame.insert(0, "row", rows, allow_duplicates=True)
        return frame

    def row(self, number: int) -> dict[str, str | None]:
        """Return one row as strings, by column."""
        if not 0 <= number < len(self):
            raise ExemplaError(
                f"Row {number} does not exist: {self.path.name} has rows 0 to {len(self) - 1}."
            )
        piece = self.data.slice(number, 1)
        return {name: to_strings(piece.column(i))[0] for i, name in enumerate(self.names)}

    def position(self, name: str | int) -> int:
        """Return the position of a column (from 0), given its name or its number (from 1).

        Negative numbers count from the end. A column whose name is that number takes precedence.
        """
        name = str(name)
        if name in self.names:
            return self.names.index(name)
        bare = [place for place, own in enumerate(self.names) if own.strip() == name.strip()]
        if len(bare) == 1:  # spaces around a title are rarely intended
            return bare[0]
        number = int(name) if re.fullmatch(r"\s*[-+]?[0-9]{1,9}\s*", name) else 0
        if number and abs(number) <= len(self.names):
            return number - 1 if number > 0 else len(self.names) + number
        raise ExemplaError(self._absent(name))

    def _absent(self, name: str) -> str:
        folded = {other.strip().casefold(): other for other in self.names}
        near = difflib.get_close_matches(name.strip().casefold(), folded, n=3, cutoff=0.5)
        where = f"{self.path.name} has no column {name!r}"
        if near:
            return f"{where}; did you mean {' or '.join(repr(folded[n]) for n in near)}?"
        if len(self.names) == 1:
            return f"{where}, only {self.names[0]!r}; is the delimiter right?"
        return f"{where}; its columns are {show(self.names)}."


def show(items: Collection[Any], most: int = 8) -> str:
    """Return a list for a sentence: the first items, and how many more there are."""
    # The repr of a NumPy string would be np.str_('a').
    listed = [repr(str(item)) if isinstance(item, str) else str(item) for item in items]
    if len(listed) <= most:
        return ", ".join(listed)
    return f"{', '.join(listed[:most])} and {len(listed) - most:,} more"


def column_names(cells: list[str], width: int) -> tuple[list[str], list[str]]:
    """Return distinct names for the columns, and notes about those that were changed."""
    given = [cell.strip() for cell in cells] + [""] * (width - len(cells))
    names: list[str] = []
    unnamed: list[str] = []
    repeated: list[str] = []
    for place, title in enumerate(given[:width]):
        wanted, number = title or f"column_{place + 1}", 1
        name = wanted
        while name in names or (number > 1 and name in given):
            number += 1
            name = f"{wanted}_{number}"
        if number > 1 or not title:
            (repeated if number > 1 else unnamed).append(name)
        names.append(name)
    notes = []
    if unnamed:
        notes.append(f"Unnamed columns are called {show(unnamed)}.")
    if repeated:
        notes.append(f"Repeated column names were numbered: {show(repeated)}.")
    return names, notes
