"""What some rows of a table have in common that the other rows do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.sparse import csc_matrix

from exempla.report.views import rounded
from exempla.tables.infer import Column

_MIN_Z = 4.0
"""Standard errors by which a mean or a share must differ to be named."""
_MIN_ROWS = 3
_MAX_WORDS = 20_000


def in_common(
    frame: pd.DataFrame, columns: Sequence[Column], rows: Sequence[int] | np.ndarray, most: int = 5
) -> list[str]:
    """Describe what sets rows of a feature frame apart from all of them, the clearest first.

    Numbers are compared by their means, categories and words by the share of rows that have them.

    >>> import tempfile, pathlib
    >>> from exempla.tables import infer_columns, read_table
    >>> from exempla.tables.features import feature_frame
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> cells = "".join(f"{i % 7},{'red' if i < 10 else 'blue'},{i % 2}\\n" for i in range(100))
    >>> _ = path.write_text("size,colour,y\\n" + cells)
    >>> table = read_table(path)
    >>> columns = infer_columns(table, "y")
    >>> in_common(feature_frame(table, columns), columns, range(10))
    ["colour is 'red' in 100 % (in the pool: 10 %)"]
    """
    rows, found = np.asarray(rows), []
    for column in columns:
        if column.name not in frame:
            continue
        values = frame[column.name]
        if column.kind == "number":
            found += _number(column.name, values.to_numpy(dtype=float), rows)
        elif column.kind == "category":
            words = values.astype(str).to_numpy()
            for value in np.unique(words[rows]):
                found += _share(f"{column.name} is '{value}'", words == value, rows)
        elif column.kind == "text":
            found += _words(column.name, values.fillna("").astype(str).to_numpy(), rows)
    found.sort(key=lambda each: -each[0])
    return [sentence for _, sentence in found[:most]]


def _number(name: str, values: np.ndarray, rows: np.ndarray) -> list[tuple[float, str]]:
    known, some = values[np.isfinite(values)], values[rows][np.isfinite(values[rows])]
    spread = float(np.std(known)) if len(known) else 0.0
    if len(some) < _MIN_ROWS or spread == 0:
        return []
    z = (some.mean() - known.mean()) / (spread / np.sqrt(len(some)))
    if abs(z) < _MIN_Z:
        return []
    mean, usual = rounded(float(some.mean())), rounded(float(known.mean()))
    return [(abs(z), f"{name} is {mean} on average (in the pool: {usual})")]


def _share(what: str, has: Any, rows: np.ndarray) -> list[tuple[float, str]]:
    usual, count = float(np.mean(has)), int(np.sum(has[rows]))
    share = count / len(rows)
    z = (share - usual) / np.sqrt(max(usual * (1 - usual), 1 / len(has)) / len(rows))
    if count < _MIN_ROWS or z < _MIN_Z:
        return []
    return [(z, f"{what} in {100 * share:.0f} % (in the pool: {100 * usual:.0f} %)")]


def _words(name: str, texts: np.ndarray, rows: np.ndarray) -> list[tuple[float, str]]:
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(binary=True, max_features=_MAX_WORDS)
    try:
        occurs: Any = csc_matrix(cast(Any, counter.fit_transform(texts)))
    except ValueError:  # no words at all
        return []
    found: list[tuple[float, str]] = []
    common = np.flatnonzero(np.asarray(occurs[rows].sum(axis=0)).ravel() >= _MIN_ROWS)
    for place in common:
        has = np.zeros(len(texts), dtype=bool)
        has[occurs.indices[occurs.indptr[place] : occurs.indptr[place + 1]]] = True
        found += _share(f"{name} contains '{counter.get_feature_names_out()[place]}'", has, rows)
    return found
