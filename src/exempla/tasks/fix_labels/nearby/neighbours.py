"""The nearest rows by cosine, and how they vote on a label.

log p(c | x) by votes: each of the ten nearest other rows counts for its given label, by its
cosine, and two votes go to the classes by their sizes. A row never votes for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

__all__ = ["Neighbours", "nearest"]

COUNT = 10
MOST = 10_000
"""Rows that are looked through for neighbours: beyond, a sample of this size."""
BLOCK = 4096
PRIOR = 2.0
FAINT = 1e-3


@dataclass(frozen=True)
class Neighbours:
    """Of each row its nearest others."""

    rows: np.ndarray
    """(n, k)."""
    cosines: np.ndarray
    """(n, k)."""

    def log_votes(self, codes: np.ndarray, classes: int) -> np.ndarray:
        """log p(c | x), (n, C)."""
        weight = np.maximum(self.cosines, FAINT)
        weight = weight / weight.mean(axis=1, keepdims=True)
        weight[self.cosines.max(axis=1) <= FAINT] = 0.0  # nothing is near: the class sizes alone
        votes = PRIOR * np.bincount(codes, minlength=classes) / len(codes)
        votes = np.tile(votes, (len(self.rows), 1))
        for place in range(self.rows.shape[1]):
            votes[np.arange(len(votes)), codes[self.rows[:, place]]] += weight[:, place]
        return np.log(np.maximum(votes / votes.sum(axis=1, keepdims=True), 1e-12))


def nearest(Z: Any, seed: int, count: int = COUNT) -> Neighbours | None:
    """The nearest others of every unit row; None if there are too few.

    >>> import numpy as np
    >>> Z = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.6, 0.8]])
    >>> nearest(Z, seed=0, count=1).rows.ravel().tolist()
    [2, 3, 3, 2]
    """
    n = Z.shape[0]
    # a row without any word is like no other, yet as far from each as unlike rows are: left out
    blank = np.asarray(abs(Z).sum(axis=1)).ravel() == 0
    among = np.flatnonzero(~blank)
    if len(among) > MOST:
        among = np.sort(np.random.default_rng(seed).choice(among, MOST, replace=False))
    count = min(count, len(among) - 1)
    if count < 1:
        return None
    # of unit rows the nearest are those of the largest cosine: ‖x − y‖² = 2 − 2·cos
    search = NearestNeighbors(n_neighbors=count + 1, algorithm="brute").fit(Z[among])
    rows = np.empty((n, count), dtype=np.int64)
    cosines = np.empty((n, count), dtype=np.float32)
    for start in range(0, n, BLOCK):
        here = np.arange(start, min(start + BLOCK, n))
        far, found = search.kneighbors(Z[here])
        found = among[found]
        own = found == here[:, None]
        own[~own.any(axis=1), -1] = True  # not among them: then the last is one too many
        rows[here] = found[~own].reshape(len(here), count)
        cosines[here] = 1.0 - far[~own].reshape(len(here), count) ** 2 / 2.0
    cosines[blank] = 0.0
    return Neighbours(rows, cosines)
