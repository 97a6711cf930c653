"""What the greedy loop asks of a set of rows, whatever holds them.

`Rows` are the candidates' features: one array in memory, on a GPU, or in several places. A `Race`
is the running comparison of all candidates for T targets at once: for every target and row it
keeps c = f·r and n = ‖f‖² + σ² − ‖Qᵀf‖² where the rows are, and only ever hands out the leaders.
A new place to keep rows (a cluster, say) implements these two classes and nothing else changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from exempla.selection.ties import without_noise

__all__ = ["SHORTEST", "Leaders", "Pool", "Race", "Rows", "Rule", "Steps", "Swept"]

SHORTEST = 1e-60
"""Rows below this length count as zero: squares of their products would vanish."""


class Rule(IntEnum):
    """How a candidate is scored from its c and n."""

    GAIN = 0
    """c²/n: the fall of the posterior variance. Exact SBQ."""
    PURSUIT = 1
    """c²/(‖f‖² + σ²): row-normalised matching pursuit."""
    COSINE = 2
    """c/‖f‖: the largest positive correlation."""
    PLAIN = 3
    """c itself. Herding."""

    def scale(self, norms2: np.ndarray, noise: float) -> np.ndarray:
        """What a row's c or c² is multiplied by (GAIN divides by n instead)."""
        with np.errstate(divide="ignore"):
            if self is Rule.PURSUIT:
                return np.where(norms2 > 0, 1.0 / (norms2 + noise), 0.0)
            if self is Rule.COSINE:
                return np.where(norms2 > 0, 1.0 / np.sqrt(norms2), 0.0)
        return np.ones_like(norms2)

    def score(self, c: np.ndarray, n: np.ndarray, norms2: np.ndarray, noise: float) -> np.ndarray:
        """Scores from exact c and n."""
        if self is Rule.GAIN:
            with np.errstate(divide="ignore", invalid="ignore"):
                return c * c / n
        scale = self.scale(norms2, noise)
        return c * c * scale if self is Rule.PURSUIT else c * scale

    def bounds(
        self,
        c: np.ndarray,
        n: np.ndarray,
        norms2: np.ndarray,
        noise: float,
        slack_c: float,
        slack_n: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What c² scores are at least and at most, if c is off by up to slack_c·‖f‖ and n by up
        to slack_n·‖f‖²."""
        size, error_c, error_n = np.abs(c), slack_c * np.sqrt(norms2), slack_n * norms2
        lowest = self.score(np.maximum(size - error_c, 0.0), n + error_n, norms2, noise)
        return lowest, self.score(size + error_c, n - error_n, norms2, noise)


@dataclass(frozen=True)
class Leaders:
    """For each target: the best score and the row that has it (−inf and −1: no row is left)."""

    scores: np.ndarray
    rows: np.ndarray
    certain: bool = False
    """Whether close calls are settled already, in float64."""


@dataclass
class Pool:
    """A few rows of a single target's race, with their c and n."""

    rows: np.ndarray
    """(m,) which, ascending."""
    features: np.ndarray
    """(m, p), in the precision of the rows."""
    c: np.ndarray
    n: np.ndarray
    floor: np.ndarray
    scale: np.ndarray
    """What a row's n must exceed, and `Rule.scale`."""
    rule: Rule

    def step(self, j: int, direction: np.ndarray, coef: float) -> int:
        """Take a step, row j out of the pool: the best row after it, −1 if none is left."""
        at = int(np.searchsorted(self.rows, j))
        if at < len(self.rows) and self.rows[at] == j:
            self.n[at] = -np.inf
        best = self._advance(direction.astype(self.features.dtype), coef)
        return int(self.rows[best]) if best >= 0 else -1

    def _advance(self, q: np.ndarray, coef: float) -> int:
        """c −= coef·v and n −= v²; the place of the best row, −1 if none is left."""
        v = np.vecdot(self.features, q).astype(np.float64)
        self.c, self.n = self.c - coef * v, self.n - v * v
        left = np.flatnonzero(self.n > self.floor)
        c, n, scale = self.c[left], self.n[left], self.scale[left]
        scores = c * c / n if self.rule is Rule.GAIN else c * c * scale
        return int(left[np.argmax(scores)]) if len(left) else -1


@dataclass(frozen=True)
class Steps:
    """Consecutive updates of a single target's race, one a line, and what to look for after each.

    c −= coef·v and n −= v² for v = F q. After it, rows are wanted whose score may reach `bars`,
    given the slacks (as in `Race.firsts`).
    """

    directions: np.ndarray
    """(b, p)."""
    coefs: np.ndarray
    bars: np.ndarray
    """+inf: nothing is wanted."""
    slack_c: np.ndarray
    slack_n: np.ndarray

    def __len__(self) -> int:
        return len(self.coefs)


@dataclass(frozen=True)
class Swept:
    """What a sweep found."""

    near: list[np.ndarray | None]
    """After each step, the rows that may reach its bar, ascending; None if there are too many."""
    hopeful: np.ndarray
    """Rows that came up to a share of a bar after some step."""


class Race(ABC):
    """All candidates of T targets, compared pick after pick."""

    error: float
    """Bound on the error of one product f·q, in units of ‖f‖; 0 where sums are in float64."""
    most_ahead: int = 1
    """How many steps of a single target's race one reading of the rows can take (`sweep`)."""
    panel: int = 1
    """Steps that cost as much as one: the width in which they are computed."""
    pools: tuple[int, int] = (1024, 8192)
    """Rows to guess the next steps among: a share of all, within these bounds. Of 512, 1024, 2048,
    4096 and more rows for 20 k × 1024 and 100 k to 400 k × 256 Gaussian rows, these gave the fewest
    readings a pick."""

    @abstractmethod
    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        """Recompute c = F r (float64 sums) for these targets; return all leaders."""

    @abstractmethod
    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        """One pass, v = F q for each target's q (T, p): c −= coef·v, n −= v²."""

    @abstractmethod
    def firsts(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        """(T,) the lowest row of each target whose score may reach its threshold, or −1.

        The slacks bound the errors of c (in units of ‖f‖) and of n (in units of ‖f‖²).
        """

    @abstractmethod
    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        """The first `limit` rows, ascending, whose score for one target may reach the threshold."""

    @abstractmethod
    def deflate(self, target: int, energy: np.ndarray) -> None:
        """Set n = ‖f‖² + σ² − energy for rows still in the race."""

    @abstractmethod
    def drop(self, targets: list[int], rows: list[int]) -> None:
        """Take these rows out of the races of these targets, pair by pair."""

    @abstractmethod
    def sharpen(self) -> None:
        """From now on sum products in float64 (`error` becomes 0)."""

    def sweep(self, steps: Steps, limit: int, share: float) -> Swept:
        """Try these steps in one reading; c and n stay as they are.

        Looks for rows that may reach the bars, up to `limit` after each step, and for those that
        reach `share` of one. Where `most_ahead` > 1.
        """
        raise NotImplementedError

    def keep(self, count: int) -> None:
        """Take the first so many steps of the last sweep in, without a reading. Once a sweep."""
        raise NotImplementedError

    def pool(self, rows: np.ndarray) -> Pool:
        """These rows, ascending, with their c and n. Where `most_ahead` > 1."""
        raise NotImplementedError

    def features(self, rows: np.ndarray) -> np.ndarray:
        """These rows in their own precision, on the host. Where `most_ahead` > 1."""
        raise NotImplementedError

    def standing(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """c and n of these rows, on the host. Where `most_ahead` > 1."""
        raise NotImplementedError

    def leaders(self) -> Leaders:
        """All leaders, from c and n as they are. Where `most_ahead` > 1."""
        raise NotImplementedError

    def best(self, count: int) -> np.ndarray:
        """So many rows of the highest scores, or all that are left. Where `most_ahead` > 1."""
        raise NotImplementedError


class Rows(ABC):
    """Candidate rows f_1 … f_t."""

    t: int
    p: int
    tolerance: float
    """A candidate is alive iff n > tolerance·‖f‖²; 1e-5 for float32 rows, 1e-11 for float64."""
    norms2: np.ndarray
    """(t,) squared norms, float64, on the host; 0 below SHORTEST²."""

    @abstractmethod
    def project(self, vectors: np.ndarray) -> np.ndarray:
        """(m, t) products of every row with each vector (m, p), summed in float64."""

    def align(self, targets: np.ndarray) -> np.ndarray:
        """(T, t): z_j = f_j·μ; 0 where it is nothing but rounding."""
        lengths = np.vecdot(targets, targets)[:, None]
        return without_noise(self.project(targets), self.norms2, lengths)

    @abstractmethod
    def energy(self, directions: np.ndarray) -> np.ndarray:
        """(t,) Σ_l (f·q_l)², without keeping a (t, m) matrix."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """(m, p) rows in float64, on the host."""

    @abstractmethod
    def split(self, bounds: list[int]) -> list[Rows]:
        """Consecutive parts, cut at the bounds 0 = b_0 < b_1 < … = t."""

    def run_on_device(
        self, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
    ) -> None:
        """Let these runs make as many picks as they can where the rows are, if they are on a device
        of their own; the loop on the host goes on from there."""
        return

    @abstractmethod
    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        """A race among the candidates, (T, t) bool; call `refresh` first."""
