"""Copies of training rows count once.

Two training rows are copies of each other if their inputs and labels are equal, or if their score
directions are: the cosine of their Fisher kernel is at least MIN_COSINE. In a space of few
dimensions unrelated rows reach such cosines too, so the cosine is used only if fewer than
MAX_CHANCE_SHARE of random pairs of training rows do.

Nothing t × t is computed. Equal rows are found by a hash of their inputs, near copies by products
of all rows with the few picks, in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.data import from_arrow, is_polars, n_rows

MIN_COSINE = 0.99
"""Cosine of the Fisher kernel from which on two rows count as near copies."""
MAX_CHANCE_SHARE = 1e-4
"""Share of random pairs above MIN_COSINE beyond which the cosine says nothing about copies."""
_SAMPLED_ROWS = 512
"""Random training rows that the chance share is estimated from."""
_BLOCK_ROWS = 8192


def row_hashes(X: Any) -> np.ndarray | None:
    """Return one hash per row of X; equal rows have equal hashes. None for data without rows."""
    try:
        digests = b"".join(blake2b(row, digest_size=8).digest() for row in _row_bytes(X))
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
    except (AttributeError, TypeError, ValueError):
        return None


def _row_bytes(X: Any) -> Iterator[bytes]:
    X = from_arrow(X)
    if is_polars(X):
        X = X.to_pandas()
    if hasattr(X, "iloc"):
        frame = X.to_frame() if getattr(X, "ndim", 2) == 1 else X
        for row in frame.itertuples(index=False, name=None):
            yield repr(row).encode()
        return
    if is_sparse(X):
        X = X.tocsr().sorted_indices()
        for i in range(X.shape[0]):
            part = slice(X.indptr[i], X.indptr[i + 1])
            stored = X.data[part] != 0
            yield X.indices[part][stored].tobytes() + X.data[part][stored].tobytes()
        return
    X = to_numpy(X) if is_tensor(X) else X
    for i in range(n_rows(X)):
        row: Any = X[i]
        if getattr(getattr(row, "dtype", None), "kind", "") == "f":
            row = row + 0.0  # -0.0 and 0.0 are equal
        yield row.tobytes() if isinstance(row, np.ndarray) else repr(row).encode()


def _labelled_hashes(data: Any) -> np.ndarray | None:
    """Return the hashes of inputs and labels together, for data given as (X, y)."""
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        return None
    inputs = row_hashes(data[0])
    y = to_numpy(data[1]) if is_tensor(data[1]) else np.asarray(data[1])
    if inputs is None or y.ndim != 1 or len(y) != len(inputs):
        return None
    _, codes = np.unique(y.astype(str), return_inverse=True)
    # a multiplicative mix keeps different (input, label) pairs apart
    return inputs ^ (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


class Copies:
    """Finds the copies of picked training rows.

    `take(positions or slice)` returns whitened rows, of which only the directions count. Equal rows
    are found if the training data are (X, y).
    """

    def __init__(self, take: Callable[[Any], Any], n_train: int, train: Any) -> None:
        self._take, self._t, self._hashes = take, n_train, _labelled_hashes(train)
        self._by_cosine = self._cosine_is_specific()

    def _cosine_is_specific(self) -> bool:
        """Return True if unrelated rows hardly ever reach MIN_COSINE."""
        chosen = np.sort(np.random.default_rng(0).permutation(self._t)[:_SAMPLED_ROWS])
        some = self._unit_rows(chosen)
        if self._hashes is not None:  # equal rows are no evidence about unrelated ones
            some = some[np.unique(self._hashes[chosen], return_index=True)[1]]
        n = len(some)
        if n < 2:
            return False
        above = (np.sum(some @ some.T >= MIN_COSINE) - n) / 2
        return bool(above <= MAX_CHANCE_SHARE * n * (n - 1) / 2)

    def _unit_rows(self, positions: Any) -> np.ndarray:
        rows = np.asarray(to_numpy(self._take(positions)))
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1.0)

    def group(self, picks: np.ndarray) -> np.ndarray:
        """Return for each pick the position, among the picks, of the first one it is a copy of."""
        first = np.arange(len(picks))
        near = np.zeros((len(picks), len(picks)), dtype=bool)
        if self._by_cosine and len(picks):
            unit = self._unit_rows(picks)
            near |= unit @ unit.T >= MIN_COSINE
        if self._hashes is not None:
            own = self._hashes[picks]
            near |= own[:, None] == own
        for i in range(1, len(picks)):
            leaders = np.flatnonzero(near[i, :i] & (first[:i] == np.arange(i)))
            if len(leaders):
                first[i] = leaders[0]
        return first

    def members(self, leaders: np.ndarray) -> list[np.ndarray]:
        """Return all training rows that are copies of each leader, itself included.

        A row that is near several leaders belongs to the first of them.
        """
        owner = np.full(self._t, -1)
        if self._by_cosine and len(leaders):
            few = self._unit_rows(leaders).T
            for start in range(0, self._t, _BLOCK_ROWS):
                block = slice(start, min(start + _BLOCK_ROWS, self._t))
                near = self._unit_rows(block) @ few >= MIN_COSINE
                owner[block] = np.where(near.any(axis=1), near.argmax(axis=1), -1)
        if self._hashes is not None and len(leaders):
            own, first = np.unique(self._hashes[leaders], return_index=True)
            at = np.searchsorted(own, self._hashes).clip(max=len(own) - 1)
            equal = own[at] == self._hashes
            owner[equal] = first[at][equal]
        owner[leaders] = np.arange(len(leaders))
        return [np.flatnonzero(owner == i) for i in range(len(leaders))]


def overlap_sentence(train: Any, test: Any, rows: np.ndarray | None) -> str:
    """Return a warning if queried test rows are also training rows; "" otherwise.

    Only inputs are compared: a copy under another label is a leak, too.
    """
    if not isinstance(train, tuple) or not isinstance(test, tuple):
        return ""  # reading a data set row by row only for this may cost more than the answer
    hashes = [row_hashes(data[0]) for data in (train, test)]
    if hashes[0] is None or hashes[1] is None:
        return ""
    queried = hashes[1] if rows is None else hashes[1][rows]
    n = int(np.isin(queried, hashes[0]).sum())
    if not n:
        return ""
    are = "is also a training row" if n == 1 else "are also training rows"
    return (
        f"{n:,} of the {len(queried):,} test rows in question {are}, with the same features: the "
        "test set is not independent of the training set. Split the file by groups of copies."
    )
