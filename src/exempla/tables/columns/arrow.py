"""Arrow columns: what counts as missing, and strings read as numbers.

Columns of text formats are strings as read; columns of Parquet and NPZ keep their type, so that
half a million numbers never become half a million Python strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute

__all__ = ["LARGEST", "MISSING", "is_text", "missing_mask", "pc", "to_numbers", "to_strings"]

pc: Any = pyarrow.compute
"""pyarrow makes its functions while it is imported, where type checkers cannot see them."""

LARGEST = 1e100
"""Numbers beyond it are no measurements, and their squares would overflow; as features they count
as missing."""
MISSING = frozenset({"", "NA", "NaN", "nan", "NAN", "null", "NULL", "Null"})
"""What a text cell holds when it holds nothing. `None` is a word, not a missing value."""


def is_text(column: Any) -> bool:
    """Whether an Arrow column holds strings."""
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def missing_mask(column: Any) -> np.ndarray:
    """Which values are missing: null, NaN, or one of `MISSING` (spaces around it do not count).

    >>> import pyarrow as pa
    >>> missing_mask(pa.array(["a", " ", "NA", None, "None"])).tolist()
    [False, True, True, True, False]
    """
    mask = pc.is_null(column, nan_is_null=True)
    if is_text(column):
        words = pa.array(sorted(MISSING), type=column.type)
        mask = pc.or_(mask, pc.is_in(pc.utf8_trim_whitespace(column), value_set=words))
    return mask.to_numpy(zero_copy_only=False) if isinstance(mask, pa.Array) else mask.to_numpy()


def to_numbers(column: Any, decimal: str = ".") -> np.ndarray:
    """The values as float64; what is no finite number becomes NaN.

    Each distinct string is parsed once.

    >>> import pyarrow as pa
    >>> to_numbers(pa.array(["7", "1e2", "x", None])).tolist()
    [7.0, 100.0, nan, nan]
    """
    if not is_text(column):
        # Whole numbers beyond 2⁵³ are rounded: to a model a count is a measurement.
        numbers = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    else:
        codes, words = encoded(column)
        if decimal != ".":
            words = [word.replace(".", "x").replace(decimal, ".") for word in words]
        parsed = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
        numbers = np.append(parsed.to_numpy(np.float64), np.nan)[codes]
    return np.where(np.isfinite(numbers), numbers, np.nan)


def encoded(column: Any) -> tuple[np.ndarray, list[Any]]:
    """Codes and distinct values of a column; a null has code −1."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # more than 2 GiB of text stays in pieces
            column = pa.concat_arrays(
                [
                    chunk.cast(pa.large_string()) if is_text(chunk) else chunk
                    for chunk in column.chunks
                ]
            )
    dictionary = column.dictionary_encode()
    codes = dictionary.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), dictionary.dictionary.to_pylist()


def to_strings(column: Any) -> list[str | None]:
    """The values as the strings a person would see; null stays None.

    >>> import pyarrow as pa
    >>> to_strings(pa.array([1, None]))
    ['1', None]
    """
    if is_text(column):
        return column.to_pylist()
    return [None if value is None else str(value) for value in column.to_pylist()]
