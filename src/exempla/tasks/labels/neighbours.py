"""Rows that are close together: how they vote on a label, and duplicates with different labels.

Rows are compared by the cosine of what the last step of a Pipeline sees, or of the inputs as
numbers. The last layer of a network is not used: it has learned the labels under suspicion and
draws a row to its given label, so neighbours found there agree with wrong labels.

Votes: each of the ten nearest other rows counts for its given label, by its cosine, and two votes
go to the classes by their sizes. A row never votes for itself.

Conflicts: equal rows are found by a hash of what they hold (texts without regard to case and
spaces), nearly equal ones among the nearest neighbours. One of the two labels must be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.tasks.copies import row_hashes
from exempla.tasks.labels.crossfit import Columns

_COUNT = 10
_MAX_SEARCHED_ROWS = 10_000
"""Rows that are looked through for neighbours: beyond, a sample of this size."""
_BLOCK = 4096
_PRIOR = 2.0
_FAINT = 1e-3


class Neighbours(NamedTuple):
    """The nearest others of each row, (n, k)."""

    rows: np.ndarray
    cosines: np.ndarray

    def log_votes(self, codes: np.ndarray, columns: Columns) -> np.ndarray:
        """Return log p(c | x) by votes, for the classes in `columns`."""
        weight = np.maximum(self.cosines, _FAINT)
        weight = weight / weight.mean(axis=1, keepdims=True)
        weight[self.cosines.max(axis=1) <= _FAINT] = 0.0  # nothing is near: class shares alone
        shares = np.bincount(codes, minlength=columns.n_classes) / len(codes)
        votes = _PRIOR * shares[columns.codes]
        total = _PRIOR + weight.sum(axis=1, keepdims=True)
        for place in range(self.rows.shape[1]):
            same = columns.codes == codes[self.rows[:, place]][:, None]
            votes += weight[:, place, None] * same
        return np.log(np.maximum(votes / total, 1e-12))


def nearest(Z: Any, seed: int, count: int = _COUNT) -> Neighbours | None:
    """Return the nearest others of every unit row; None if there are too few."""
    n = Z.shape[0]
    # a row without any word is like no other, yet as far from each as unlike rows are: left out
    blank = np.asarray(abs(Z).sum(axis=1)).ravel() == 0
    among = np.flatnonzero(~blank)
    if len(among) > _MAX_SEARCHED_ROWS:
        among = np.sort(
            np.random.default_rng(seed).choice(among, _MAX_SEARCHED_ROWS, replace=False)
        )
    count = min(count, len(among) - 1)
    if count < 1:
        return None
    # of unit rows the nearest are those of the largest cosine: ‖x − y‖² = 2 − 2·cos
    search = NearestNeighbors(n_neighbors=count + 1, algorithm="brute").fit(Z[among])
    rows = np.empty((n, count), dtype=np.int64)
    cosines = np.empty((n, count), dtype=np.float32)
    for start in range(0, n, _BLOCK):
        here = np.arange(start, min(start + _BLOCK, n))
        far, found = search.kneighbors(Z[here])
        found = among[found]
        own = found == here[:, None]
        own[~own.any(axis=1), -1] = True  # not among them: then the last is one too many
        rows[here] = found[~own].reshape(len(here), count)
        cosines[here] = 1.0 - far[~own].reshape(len(here), count) ** 2 / 2.0
    cosines[blank] = 0.0
    return Neighbours(rows, cosines)


_NEARLY = 0.995
"""Cosine from which rows are nearly equal,"""
_COLUMNS = 30
"""if they have at least so many columns: fewer agree by chance."""
_MAX_PAIRS = 1000
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
    """Return pairs of rows, equal ones first; `near` may know of further rows behind those of X."""
    names = np.asarray(labels).tolist()
    pairs: dict[tuple[int, int], float] = {}
    if isinstance(X, pd.Series | list) and all(isinstance(value, str) for value in X):
        X = [" ".join(value.split()).casefold() for value in X]
    keys, first = row_hashes(X), defaultdict[int, dict[Any, int]](dict)
    for row, key in enumerate([] if keys is None else keys.tolist()):
        seen = first[key]  # of equal rows the first with each label
        others = [other for name, other in seen.items() if name != names[row]]
        if others:
            pairs[others[0], row] = 1.0
        seen.setdefault(names[row], row)
    if near is not None and columns >= _COLUMNS:
        close: dict[tuple[int, int], float] = {}
        for a, place in zip(*np.nonzero(near.cosines[: len(names)] >= _NEARLY), strict=True):
            b = near.rows[a, place]
            if b < len(names) and names[a] != names[b]:
                close[int(min(a, b)), int(max(a, b))] = float(near.cosines[a, place])
        for pair in sorted(close, key=lambda pair: (-close[pair], pair)):
            pairs.setdefault(pair, close[pair])
    found = [Conflict(pair, (names[pair[0]], names[pair[1]]), at) for pair, at in pairs.items()]
    return found[:_MAX_PAIRS]


_WIDE = 256
"""Dense rows of more columns are projected at random: cosines stay as they are, give or take."""
_UNEVEN = 20.0
"""Columns whose spreads differ by more than this are in different units."""


def comparable(X: Any, seed: int) -> Any:
    """Return unit rows, dense or sparse, whose products are cosines; None if X are no numbers."""
    if is_sparse(X):
        return normalize(X.tocsr().astype(np.float64)) if X.shape[1] else None
    if is_tensor(X):
        X = to_numpy(X)
    if isinstance(X, pd.DataFrame):
        X = X.select_dtypes("number")
    table = np.asarray(X)
    if table.dtype.kind not in "biuf" or table.ndim < 2 or table.size == 0:
        return None
    Z = table.reshape(len(table), -1).astype(np.float64)
    if not np.isfinite(Z).all():
        return None
    Z -= Z.mean(axis=0)
    spread = Z.std(axis=0)
    usual = np.median(spread[spread > 0]) if (spread > 0).any() else 0.0
    if usual > 0 and (spread.max() > _UNEVEN * usual or usual > _UNEVEN * spread[spread > 0].min()):
        Z = Z / np.where(spread > 0, spread, 1.0)
    if Z.shape[1] > _WIDE:
        rng = np.random.default_rng(seed)
        Z = Z @ (rng.normal(size=(Z.shape[1], _WIDE)) / np.sqrt(_WIDE))
    return normalize(Z)
