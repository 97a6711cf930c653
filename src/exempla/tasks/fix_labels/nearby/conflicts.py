"""Equal and nearly equal rows under different labels: one of the two must be wrong.

Equal rows are found by a hash of what they hold (texts without regard to case and spaces), nearly
equal ones among nearest neighbours; neither holds more than a number or a few per row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.tasks.fix_labels.nearby.neighbours import Neighbours

__all__ = ["Conflict", "conflicts"]

NEARLY = 0.995
"""Cosine from which rows are nearly equal,"""
COLUMNS = 30
"""if they have at least so many columns: fewer agree by chance."""
MOST = 1000
"""Pairs listed at most."""


@dataclass(frozen=True)
class Conflict:
    """Two training rows that are (nearly) the same and have different labels."""

    rows: tuple[int, int]
    labels: tuple[Any, Any]
    cosine: float
    """1.0 where they are equal."""


def conflicts(
    X: Any, labels: np.ndarray, near: Neighbours | None = None, columns: int = 0
) -> list[Conflict]:
    """Pairs of rows, equal ones first; `near` may know of further rows behind those of X.

    >>> import numpy as np
    >>> found = conflicts(["Buy now", "hello", "buy  NOW "], np.array(["spam", "ham", "ham"]))
    >>> found[0].rows, found[0].labels
    ((0, 2), ('spam', 'ham'))
    """
    pairs = _equal(X, labels)
    known = {pair for pair, _ in pairs}
    if near is not None and columns >= COLUMNS:
        pairs += [p for p in _nearly_equal(near, labels) if p[0] not in known]
    return [
        Conflict(pair, (_plain(labels[pair[0]]), _plain(labels[pair[1]])), cosine)
        for pair, cosine in pairs[:MOST]
    ]


def _equal(X: Any, labels: np.ndarray) -> list[tuple[tuple[int, int], float]]:
    """Each row and the first equal one with another label."""
    first: dict[bytes, dict[Any, int]] = {}
    pairs = []
    for row, key in enumerate(_keys(X, len(labels))):
        seen = first.setdefault(key, {})
        label = _plain(labels[row])
        other = next((r for named, r in seen.items() if named != label), None)
        if other is not None:
            pairs.append(((other, row), 1.0))
        seen.setdefault(label, row)
    return pairs


def _keys(X: Any, n: int) -> Any:
    """A digest of each row."""
    if is_tensor(X):
        X = to_numpy(X)
    if is_sparse(X):
        table = X.tocsr()
        table.sum_duplicates()
        for row in range(n):
            part = slice(table.indptr[row], table.indptr[row + 1])
            yield _digest(table.indices[part].tobytes() + table.data[part].tobytes())
    elif isinstance(X, pd.DataFrame):
        for key in pd.util.hash_pandas_object(X, index=False).to_numpy():
            yield int(key).to_bytes(8, "little")
    elif isinstance(X, np.ndarray) and X.dtype != object and X.dtype.kind != "U":
        rows = np.ascontiguousarray(X)
        for row in range(n):
            yield _digest(rows[row].tobytes())
    else:
        for value in X if not isinstance(X, pd.Series) else X.tolist():
            text = " ".join(value.split()).casefold() if isinstance(value, str) else repr(value)
            yield _digest(text.encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=12).digest()


def _nearly_equal(near: Neighbours, labels: np.ndarray) -> list[tuple[tuple[int, int], float]]:
    """Nearest neighbours of another label that are as good as the same, the closest first."""
    n = len(labels)
    rows, places = np.nonzero(near.cosines[:n] >= NEARLY)
    others = near.rows[rows, places]
    inside = others < n
    rows, others, places = rows[inside], others[inside], places[inside]
    apart = labels[rows] != labels[others]
    found: dict[tuple[int, int], float] = {}
    for a, b, place in zip(rows[apart], others[apart], places[apart]):
        found[(int(min(a, b)), int(max(a, b)))] = float(near.cosines[a, place])
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
