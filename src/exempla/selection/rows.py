"""Candidate rows and their running scores: the interface that every array backend implements.

`Rows` holds the features of all candidates: a NumPy or torch array (`ArrayRows`), an array read by
compiled passes (`numba_rows`), files on disk (`stored`) or several parts of any of these
(`shards`). `CandidateScores` holds, for T targets at once, c = f·r and n = ‖f‖² + σ² − ‖Qᵀf‖² of
every candidate, where the rows are, and returns only the leaders to the greedy loop in `engine`.

Ties go to the lowest index. Another BLAS, number of threads or block size adds up products in a
different order. The effect is bounded: a product f·r changes by at most ROUNDING·‖f‖·‖μ‖ (r is a
difference of vectors as long as μ) and n by ROUNDING·‖f‖². Rows whose scores differ by less than
these bounds count as equal, so that no pick depends on the last bit of a sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

import array_api_compat
import numpy as np

from exempla.arrays import Array

MIN_ROW_NORM = 1e-60
"""Rows with a smaller norm count as zero: squares of their products would underflow."""
FLOAT32_ERROR = 8 * 2.0**-24
"""Bound on |fl(f·q) − f·q|/‖f‖ for a vectorised float32 product. The largest error measured for
rows of 8 to 4096 entries, all-positive ones included, was 2.3 · 2⁻²⁴."""
RELATIVE_TIE = 1e-12
"""Scores within this relative distance of the best are equal; the lowest index wins."""
ROUNDING = 1e-14
"""Upper bound on the rounding error of a float64 product of unit vectors."""
_BLOCK_BYTES = {"cpu": 1 << 20, "gpu": 1 << 28}
"""Size of the float64 copies of blocks of rows: on a CPU a block stays in the cache."""


def tie_threshold(scores: np.ndarray | float) -> np.ndarray:
    """Return the lowest score that counts as equal to each of `scores`."""
    scores = np.asarray(scores)
    finite = np.where(np.isfinite(scores), scores, 0.0)
    return scores - RELATIVE_TIE * np.abs(finite)


def first_of_best(lowest: np.ndarray, highest: np.ndarray) -> int:
    """Return the first entry that may be the best, given bounds on each; −1 if there is none.

    >>> first_of_best(np.array([1.0, 1.9, 2.0]), np.array([1.2, 2.1, 2.1]))
    1
    """
    best = lowest.max(initial=-np.inf)
    return int(np.argmax(highest >= tie_threshold(best))) if best > -np.inf else -1


def descending(values: np.ndarray) -> np.ndarray:
    """Return positions in descending order of value; ties are in ascending order of position.

    >>> descending(np.array([1.0, 3.0 - 1e-15, 3.0]))
    array([1, 2, 0])
    """
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    group = np.concatenate([[0], np.cumsum(ranked[1:] < tie_threshold(ranked[:-1]))])
    return order[np.lexsort((order, group))]


def zero_rounding(z: np.ndarray, norms2: np.ndarray, target_norm2: Any) -> np.ndarray:
    """Set products f·μ that cannot be told from rounding to 0: such a row is on neither side."""
    return np.where(np.abs(z) <= ROUNDING * np.sqrt(norms2 * target_norm2), 0.0, z)


class Rule(IntEnum):
    """How a candidate is scored from its c and n."""

    GAIN = 0
    """c²/n: the decrease of the posterior variance. Exact SBQ."""
    PURSUIT = 1
    """c²/(‖f‖² + σ²): row-normalised matching pursuit."""
    COSINE = 2
    """c/‖f‖: the largest positive correlation."""
    PLAIN = 3
    """c itself. Herding."""

    def scale(self, norms2: np.ndarray, noise: float) -> np.ndarray:
        """Return the factor that c or c² of each row is multiplied by (1 for GAIN and PLAIN)."""
        with np.errstate(divide="ignore"):
            if self is Rule.PURSUIT:
                return np.where(norms2 > 0, 1.0 / (norms2 + noise), 0.0)
            if self is Rule.COSINE:
                return np.where(norms2 > 0, 1.0 / np.sqrt(norms2), 0.0)
        return np.ones_like(norms2)

    def score(self, c: np.ndarray, n: np.ndarray, norms2: np.ndarray, noise: float) -> np.ndarray:
        """Return scores from exact c and n."""
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
        """Return lower and upper bounds on the score.

        c is known up to slack_c·‖f‖ and n up to slack_n·‖f‖². Only for scores that use c².
        """
        size, error_c, error_n = np.abs(c), slack_c * np.sqrt(norms2), slack_n * norms2
        lowest = self.score(np.maximum(size - error_c, 0.0), n + error_n, norms2, noise)
        return lowest, self.score(size + error_c, n - error_n, norms2, noise)


@dataclass(frozen=True)
class Leaders:
    """The best score of each target and the row that has it (−inf and −1 if no row is left)."""

    scores: np.ndarray
    rows: np.ndarray
    certain: bool = False
    """True if ties have already been settled in float64."""


@dataclass
class Pool:
    """A few candidates of a single target with their c and n, used to guess the next picks."""

    rows: np.ndarray
    """(m,) row numbers, ascending."""
    features: np.ndarray
    """(m, p), in the precision of the rows."""
    c: np.ndarray
    n: np.ndarray
    floor: np.ndarray
    """n below this value means that the row adds nothing new."""
    scale: np.ndarray
    """`Rule.scale` of each row."""
    rule: Rule

    def step(self, j: int, direction: np.ndarray, coef: float) -> int:
        """Apply one pick, remove row j, and return the best remaining row (−1 if none)."""
        at = int(np.searchsorted(self.rows, j))
        if at < len(self.rows) and self.rows[at] == j:
            self.n[at] = -np.inf
        best = self._advance(direction.astype(self.features.dtype), coef)
        return int(self.rows[best]) if best >= 0 else -1

    def _advance(self, q: np.ndarray, coef: float) -> int:
        """Update c −= coef·v and n −= v², v = F q; return the position of the best row or −1."""
        v = np.vecdot(self.features, q).astype(np.float64)
        self.c, self.n = self.c - coef * v, self.n - v * v
        left = np.flatnonzero(self.n > self.floor)
        c, n, scale = self.c[left], self.n[left], self.scale[left]
        scores = c * c / n if self.rule is Rule.GAIN else c * c * scale
        return int(left[np.argmax(scores)]) if len(left) else -1


@dataclass(frozen=True)
class Steps:
    """Consecutive guessed picks of a single target, one per entry, and the threshold after each.

    Step s updates c −= coef·v and n −= v² for v = F q. Afterwards the next guess is right unless
    the score of another row may reach its threshold, given the slacks (see
    `CandidateScores.first_above`).
    """

    directions: np.ndarray
    """(b, p)."""
    coefs: np.ndarray
    thresholds: np.ndarray
    """Lower bound on the score of the next guess; +inf if there is no next guess."""
    slack_c: np.ndarray
    slack_n: np.ndarray

    def __len__(self) -> int:
        return len(self.coefs)


@dataclass(frozen=True)
class Swept:
    """The result of `CandidateScores.sweep`."""

    near: list[np.ndarray | None]
    """After each step the rows that may reach its threshold, ascending; None if too many do."""
    promising: np.ndarray
    """Rows that reached a given fraction of a threshold after some step."""


class CandidateScores(ABC):
    """c and n of all candidates of T targets, updated pick after pick.

    A backend that sets `max_lookahead` above 1 also implements the methods from `sweep` on.
    """

    error: float
    """Bound on the error of one product f·q, in units of ‖f‖; 0 if sums are in float64."""
    max_lookahead: int = 1
    """Picks of a single target that one pass over the rows can check (`sweep`)."""
    lookahead_batch: int = 1
    """Checking this many picks costs as much as checking one."""
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
    def first_above(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        """Return, per target, the lowest row whose score may reach its threshold, or −1.

        The slacks bound the errors of c (in units of ‖f‖) and of n (in units of ‖f‖²).
        """

    @abstractmethod
    def ties(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        """Return the first `limit` rows whose score for a target may reach the threshold."""

    @abstractmethod
    def deflate(self, target: int, energy: np.ndarray) -> None:
        """Set n = ‖f‖² + σ² − energy for all remaining rows."""

    @abstractmethod
    def drop(self, targets: list[int], rows: list[int]) -> None:
        """Remove rows from the candidates of targets, pair by pair."""

    @abstractmethod
    def to_float64(self) -> None:
        """Compute products in float64 from now on (`error` becomes 0)."""

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        """Try guessed steps in one pass without changing c and n.

        Find the rows that may reach the threshold after each step (at most `limit`), and those
        that reach `fraction` of it.
        """
        raise NotImplementedError

    def commit(self, count: int) -> None:
        """Apply the first `count` steps of the last sweep to c and n without another pass."""
        raise NotImplementedError

    def pool(self, rows: np.ndarray) -> Pool:
        """Return these rows (ascending) with their c and n."""
        raise NotImplementedError

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows on the host, in their own precision."""
        raise NotImplementedError

    def values(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return c and n of these rows on the host."""
        raise NotImplementedError

    def leaders(self) -> Leaders:
        """Return all leaders from the current c and n."""
        raise NotImplementedError

    def best(self, count: int) -> np.ndarray:
        """Return the `count` rows of highest score, or all that are left, ascending."""
        raise NotImplementedError


class Rows(ABC):
    """Candidate rows f_1 … f_t."""

    t: int
    p: int
    tolerance: float
    """A row adds something new if n > tolerance·‖f‖²; 1e-5 for float32 rows, 1e-11 for float64."""
    norms2: np.ndarray
    """(t,) squared norms on the host, float64; 0 below MIN_ROW_NORM²."""

    @abstractmethod
    def project(self, vectors: np.ndarray) -> np.ndarray:
        """Return the (m, t) products of every row with each vector (m, p), summed in float64."""

    def align(self, targets: np.ndarray) -> np.ndarray:
        """Return z_j = f_j·μ for every target, (T, t); 0 where z is nothing but rounding."""
        lengths = np.vecdot(targets, targets)[:, None]
        return zero_rounding(self.project(targets), self.norms2, lengths)

    @abstractmethod
    def energy(self, directions: np.ndarray) -> np.ndarray:
        """Return Σ_l (f·q_l)² of every row without keeping a (t, m) matrix."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return (m, p) rows in float64, on the host."""

    @abstractmethod
    def split(self, bounds: list[int]) -> list[Rows]:
        """Return consecutive parts, cut at the bounds 0 = b_0 < b_1 < … = t."""

    def run_on_device(
        self, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
    ) -> None:
        """Let an accelerator make as many picks as it can; the host loop continues from there."""
        return

    @abstractmethod
    def scores(self, candidates: np.ndarray, noise: float, rule: Rule) -> CandidateScores:
        """Return the scores of the candidates, (T, t) bool; call `refresh` first."""


class ArrayRows(Rows):
    """Rows of one (t, p) float32 or float64 array; `tolerance` may be that of another dtype."""

    def __init__(self, array: Array, tolerance: float | None = None) -> None:
        self.array = array
        self._set_device(array[:0])
        self.t, self.p = (int(size) for size in array.shape)
        self.single = array.dtype == self.xp.float32
        self.tolerance = tolerance or (1e-5 if self.single else 1e-11)
        place = "cpu" if array_api_compat.is_numpy_array(array[:0]) else "gpu"
        self.block_rows = max(1, _BLOCK_BYTES[place] // (8 * max(1, self.p)))
        with np.errstate(over="ignore", invalid="ignore"):  # `select` reports such rows
            norms2 = self.squares()
        norms2[norms2 < MIN_ROW_NORM**2] = 0.0
        self.norms2_here = norms2
        self.norms2 = self.host(norms2)

    def _set_device(self, like: Array) -> None:
        self.xp = array_api_compat.array_namespace(like)
        self.device = array_api_compat.device(like)

    def squares(self) -> Array:
        """Return the squared norms, summed in float64 where the rows are."""
        out = self.xp.empty(self.t, dtype=self.xp.float64, device=self.device)
        for part, block in self.blocks():
            out[part] = self.xp.sum(block * block, axis=1)
        return out

    def blocks(self, n_vectors: int = 1) -> Iterator[tuple[slice, Array]]:
        """Yield the rows in float64, in blocks large enough for products with `n_vectors`."""
        step = max(self.block_rows, min(1024, 8 * n_vectors))
        for start in range(0, self.t, step):
            part = slice(start, min(start + step, self.t))
            yield part, self.xp.astype(self.array[part], self.xp.float64, copy=False)

    def here(self, values: np.ndarray) -> Array:
        """Return a host array on the device of the rows."""
        return self.xp.asarray(values, device=self.device)

    def host(self, values: Array) -> np.ndarray:
        """Return an array of the rows' library as a NumPy array."""
        if isinstance(values, np.ndarray):
            return values
        return values.detach().cpu().numpy()

    def products(self, vectors: Array) -> Array:
        """Return the (m, t) float64 products with the vectors (m, p), where the rows are."""
        out = self.xp.empty((vectors.shape[0], self.t), dtype=self.xp.float64, device=self.device)
        for part, block in self.blocks(len(vectors)):
            out[:, part] = vectors @ block.T
        return out

    def rough_products(self, q: Array) -> Array:
        """Return the (t,) products with one vector in the precision of the rows."""
        if isinstance(self.array, np.ndarray):
            # A dot product per row is three times faster here than the matrix-vector product.
            return np.vecdot(self.array, q)
        return self.array @ q

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return self.host(self.products(self.here(vectors)))

    def energy(self, directions: np.ndarray) -> np.ndarray:
        out = self.xp.zeros(self.t, dtype=self.xp.float64, device=self.device)
        Q = self.here(directions).T
        for part, block in self.blocks():
            inside = block @ Q
            out[part] = self.xp.sum(inside * inside, axis=1)
        return self.host(out)

    def take(self, indices: np.ndarray) -> np.ndarray:
        picked = self.array[self.here(np.asarray(indices, dtype=np.int64))]
        return self.host(picked).astype(np.float64)

    def split(self, bounds: list[int]) -> list[Rows]:
        cuts = pairwise(bounds)
        return [type(self)(self.array[start:stop], self.tolerance) for start, stop in cuts]

    def run_on_device(
        self, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
    ) -> None:
        if isinstance(self.array, np.ndarray) or not self.single:
            return
        from exempla.selection.device import run_on_device

        run_on_device(self, candidates, runs, k, noise, rule)

    def scores(self, candidates: np.ndarray, noise: float, rule: Rule) -> CandidateScores:
        return ArrayCandidates(self, candidates, noise, rule)


class ArrayCandidates(CandidateScores):
    """c and n are (T, t) float64 arrays beside the rows; a removed row has n = −inf."""

    def __init__(self, rows: ArrayRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        self.rows, self.noise, self.rule, self.xp = rows, noise, rule, rows.xp
        # Zero rows explain nothing, and 0/0 must never win.
        kept = candidates & (rows.norms2 > 0)
        self.n = rows.here(np.where(kept, rows.norms2 + noise, -np.inf))
        self.c = self.xp.zeros_like(self.n)
        self.scale = rows.here(rule.scale(rows.norms2, noise))
        self.lengths = rows.here(np.sqrt(rows.norms2))
        self.floor = rows.norms2_here * rows.tolerance
        # Many targets are one matrix product, which is computed in float64 throughout.
        self.error = FLOAT32_ERROR if rows.single and len(candidates) == 1 else 0.0
        self._swept: tuple[list[float], list[Array]] = [], []
        """Coefficients and products of the last sweep."""

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        fresh = self.rows.products(self.rows.here(residuals))
        for i, c in zip(targets, fresh):
            self.c[i] = c
        return self.leaders()

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        if len(directions) == 1:
            self._apply(slice(None), self._product(directions[0])[None], self.rows.here(coefs))
        else:
            Q, b = self.rows.here(directions), self.rows.here(coefs)
            for part, block in self.rows.blocks(len(Q)):
                self._apply(part, Q @ block.T, b)
        return self.leaders()

    def _product(self, direction: np.ndarray) -> Array:
        rows, xp = self.rows, self.xp
        if rows.single and self.error == 0.0:
            return rows.products(rows.here(direction[None]))[0]
        q = xp.astype(rows.here(direction), rows.array.dtype)
        return xp.astype(rows.rough_products(q), xp.float64)

    def _apply(self, part: slice, v: Array, coefs: Array) -> None:
        self.c[:, part] -= coefs[:, None] * v
        self.n[:, part] -= v * v

    def leaders(self) -> Leaders:
        best, rows = [], []
        for targets in self._groups():
            scores = self._upper_bounds(targets)
            at = self.xp.argmax(scores, axis=1)
            best.append(self.rows.host(self.xp.take_along_axis(scores, at[:, None], axis=1)[:, 0]))
            rows.append(self.rows.host(at))
        scores = np.concatenate(best)
        return Leaders(scores, np.where(scores > -np.inf, np.concatenate(rows), -1))

    def first_above(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        found = []
        for part in self._groups():
            wanted, more_c, less_n = (
                self.rows.here(values[part])[:, None] for values in (thresholds, slack_c, slack_n)
            )
            scores = self._upper_bounds(part, more_c, less_n)
            reach = self.xp.astype((scores >= wanted) & (scores > -np.inf), self.xp.int8)
            rows = self.rows.host(self.xp.argmax(reach, axis=1))
            found.append(np.where(self.rows.host(self.xp.any(reach, axis=1)), rows, -1))
        return np.concatenate(found)

    def _groups(self) -> list[slice]:
        """Return the targets to score together: all on a GPU, where launches are the cost."""
        if isinstance(self.c, np.ndarray):
            return [slice(i, i + 1) for i in range(len(self.c))]
        return [slice(0, len(self.c))]

    def ties(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        scores = self._upper_bounds(slice(target, target + 1), slack_c, slack_n)[0]
        reach = (scores >= threshold) & (scores > -np.inf)
        return self.rows.host(self.xp.nonzero(reach)[0][:limit])

    def _upper_bounds(self, targets: slice, slack_c: Any = None, slack_n: Any = None) -> Array:
        """Return upper bounds on the scores; −inf for removed rows and rows with nothing new.

        Without slacks these are the scores themselves.
        """
        xp, c, n = self.xp, self.c[targets], self.n[targets]
        squared = self.rule in (Rule.GAIN, Rule.PURSUIT)
        alive = n > self.floor
        if slack_c is not None and slack_n is not None:
            c = (xp.abs(c) if squared else c) + slack_c * self.lengths
            error = slack_n * self.rows.norms2_here
            n, alive = n - error, n + error > self.floor
        scores = c * c if squared else c
        if self.rule is Rule.GAIN:
            positive = n > 0  # otherwise n could be zero, and the score anything
            scores = scores / xp.where(positive, n, xp.ones_like(n))
            scores = xp.where(positive, scores, xp.full_like(n, np.inf))
        else:
            scores = scores * self.scale
        return xp.where(alive, scores, xp.full_like(scores, -np.inf))

    # Lookahead: used by `shards`, where a message costs more than a pass.

    def pool(self, rows: np.ndarray) -> Pool:
        here, host = self.rows.here(rows), self.rows.host
        floor, scale = host(self.floor[here]), host(self.scale[here])
        return Pool(rows, self.features(rows), *self.values(rows), floor, scale, self.rule)

    def features(self, rows: np.ndarray) -> np.ndarray:
        return self.rows.host(self.rows.array[self.rows.here(rows)])

    def values(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        here = self.rows.here(rows)
        return self.rows.host(self.c[0][here]), self.rows.host(self.n[0][here])

    def best(self, count: int) -> np.ndarray:
        scores = self.rows.host(self._upper_bounds(slice(0, 1))[0])
        rows = np.arange(len(scores))
        if count < len(scores):
            rows = np.sort(np.argpartition(scores, len(scores) - count)[-count:])
        return rows[scores[rows] > -np.inf]

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        xp, before = self.xp, (self.c, self.n)
        self._swept = steps.coefs.tolist(), []
        near: list[np.ndarray | None] = []
        promising = xp.zeros(self.rows.t, dtype=xp.bool, device=self.rows.device)
        for s in range(len(steps)):
            v = self._product(steps.directions[s])[None]
            self._swept[1].append(v)
            self.c, self.n = self.c - self._swept[0][s] * v, self.n - v * v
            threshold = float(steps.thresholds[s])
            if threshold == np.inf:
                near.append(np.zeros(0, np.int64))
                continue
            slacks = float(steps.slack_c[s]), float(steps.slack_n[s])
            upper = self._upper_bounds(slice(0, 1), *slacks)[0]
            alive = upper > -np.inf
            promising = promising | (alive & (upper >= fraction * threshold))
            found = self.rows.host(xp.nonzero(alive & (upper >= threshold))[0])
            near.append(None if len(found) > limit else found)
        self.c, self.n = before
        return Swept(near, self.rows.host(xp.nonzero(promising)[0]))

    def commit(self, count: int) -> None:
        for coef, v in list(zip(*self._swept))[:count]:
            self.c, self.n = self.c - coef * v, self.n - v * v

    def deflate(self, target: int, energy: np.ndarray) -> None:
        n = self.rows.norms2_here + self.noise - self.rows.here(energy)
        out = self.n[target] == -np.inf
        self.n[target] = self.xp.where(out, self.n[target], n)

    def drop(self, targets: list[int], rows: list[int]) -> None:
        where = tuple(self.rows.here(np.array(which, dtype=np.int64)) for which in (targets, rows))
        self.n[where] = -np.inf

    def to_float64(self) -> None:
        self.error = 0.0
