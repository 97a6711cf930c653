"""Scores of candidates for T targets: the interface, and what it takes and returns.

`CandidateScores` holds c = f·r and n = ‖f‖² + σ² − ‖Qᵀf‖² of every candidate, where the rows are,
and returns only the leaders to the greedy loop in `engine`. `rows` implements it for arrays,
`sharded` for parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from exempla.arrays import in_parts


class Leaders(NamedTuple):
    """The best row of each target by upper bounds on the scores, each an array (T,)."""

    rows: np.ndarray
    """Row of the leader, −1 if none is left."""
    upper: np.ndarray
    """Upper bound of its score; −inf if no row is left."""
    lower: np.ndarray
    """Lower bound of its score; −inf if the row may add nothing."""
    rivals: np.ndarray
    """Largest upper bound among the other rows; +inf if it is unknown."""

    @staticmethod
    def merged(found: list[Leaders]) -> Leaders:
        """Return the leaders among those of consecutive parts of the rows."""
        rows, upper, lower, rivals = map(np.stack, zip(*found))
        first = np.argmax(upper, axis=0)[None]  # the first part of ties: the lowest index
        row, most, least = (np.take_along_axis(x, first, 0)[0] for x in (rows, upper, lower))
        np.put_along_axis(upper, first, -np.inf, axis=0)
        return Leaders(row, most, least, np.maximum(upper, rivals).max(axis=0))


@dataclass
class LookaheadPool:
    """A few candidates of a single target with their c and n, used to guess the next picks."""

    rows: np.ndarray
    """(m,) row numbers, ascending."""
    features: np.ndarray
    """(m, p), in the precision of the rows."""
    c: np.ndarray
    n: np.ndarray
    floor: np.ndarray
    """n below this value means that the row adds nothing new."""
    whole: np.ndarray | None
    """‖f‖² + σ² if scores are divided by it; None if they are divided by n."""

    def position(self, j: int) -> int:
        """Return the position of row j, −1 if it is not in the pool."""
        at = int(np.searchsorted(self.rows, j))
        return at if at < len(self.rows) and self.rows[at] == j else -1

    def step(self, j: int, direction: np.ndarray, coef: float) -> int:
        """Apply one pick, remove row j, and return the best remaining row (−1 if none)."""
        at = self.position(j)
        if at >= 0:
            self.n[at] = -np.inf
        q, v = direction.astype(self.features.dtype), np.empty(len(self.rows))

        def multiply(start: int, stop: int) -> None:
            v[start:stop] = self.features[start:stop] @ q

        in_parts(multiply, len(v), self.features.shape[1], 256)
        self.c -= coef * v
        self.n -= v * v
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = self.c * self.c / (self.n if self.whole is None else self.whole)
        scores[~(self.n > self.floor)] = -np.inf
        best = int(np.argmax(scores)) if len(scores) else -1
        return int(self.rows[best]) if best >= 0 and scores[best] > -np.inf else -1


class Steps(NamedTuple):
    """Consecutive guessed picks of a single target, one per entry, and the threshold after each.

    Step s updates c −= coef·v and n −= v² for v = F q. Afterwards the next guess is right unless
    the score of another row may reach its threshold, given the slacks (see
    `CandidateScores.ties`).
    """

    directions: np.ndarray
    """(b, p)."""
    coefs: np.ndarray
    thresholds: np.ndarray
    """Lower bound on the score of the next guess; +inf if there is no next guess."""
    slack_c: np.ndarray
    slack_n: np.ndarray


class Swept(NamedTuple):
    """The result of `CandidateScores.sweep`."""

    near: list[np.ndarray | None]
    """After each step the rows that may reach its threshold, ascending; None if too many do."""
    promising: np.ndarray
    """Rows that reached a given fraction of a threshold after some step."""


class CandidateScores(ABC):
    """c and n of all candidates of T targets, updated pick after pick.

    `sweep`, `commit`, `pool` and `best` are for a single target.
    """

    error: float
    """Bound on the error of one product f·q, in units of ‖f‖; 0 if sums are in float64."""
    max_lookahead: int
    """Picks that one pass over the rows can check (`sweep`)."""
    lookahead_batch: int = 8
    """Checking this many picks costs hardly more than checking one."""
    pool_sizes: tuple[int, int] = (1024, 8192)
    """Smallest and largest number of rows to guess among. Chosen among 512 … 8192 rows as the
    fewest passes per pick on Gaussian rows of 20 k × 1024 and 100 k to 400 k × 256."""

    @abstractmethod
    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        """Recompute c = F r with float64 sums for these targets; return all leaders."""

    @abstractmethod
    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        """Apply one pick per target in one pass: c −= coef·v and n −= v² with v = F q, q (T, p)."""

    @abstractmethod
    def leaders(self) -> Leaders:
        """Return all leaders from the current c and n."""

    @abstractmethod
    def ties(self, targets: list[int], slacks: np.ndarray, limit: int) -> list[np.ndarray]:
        """Return, for each of these targets, the first `limit` rows that may be the best.

        The slacks, (targets, 2), bound the errors of c in units of ‖f‖ and of n in units of ‖f‖².
        """

    @abstractmethod
    def deflate(self, target: int, energy: np.ndarray) -> None:
        """Set n = ‖f‖² + σ² − energy for all remaining rows."""

    @abstractmethod
    def drop(self, targets: list[int], rows: list[int]) -> None:
        """Remove rows from the candidates of targets, pair by pair."""

    @abstractmethod
    def to_float64(self) -> None:
        """Compute products in float64 from now on (`error` becomes 0)."""

    @abstractmethod
    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        """Try guessed steps in one pass without changing c and n.

        Find the rows that may reach the threshold after each step (at most `limit`), and those
        that reach `fraction` of it.
        """

    @abstractmethod
    def commit(self, count: int) -> None:
        """Apply the first `count` steps of the last sweep to c and n without another pass."""

    @abstractmethod
    def pool(self, rows: np.ndarray) -> LookaheadPool:
        """Return these rows (ascending) with their c and n."""

    @abstractmethod
    def best(self, count: int) -> np.ndarray:
        """Return the `count` rows of highest score, or all that are left, ascending."""
