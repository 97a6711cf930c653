"""Candidate rows, wherever they are: the interface and its implementation for arrays.

`Rows` holds the features of all candidates: a NumPy or torch array or files on disk (`ArrayRows`),
the same read by compiled passes (`numba_rows`), or several parts of any of these (`shards`).
`scores` follows the candidates of the greedy loop where the rows are.

Ties go to the lowest index. Another BLAS, number of threads or block size adds up products in a
different order. The effect is bounded: a product f·r changes by at most ROUNDING·‖f‖·‖μ‖ (r is a
difference of vectors as long as μ) and n by ROUNDING·‖f‖². Rows whose scores differ by less than
these bounds count as equal, so that no pick depends on the last bit of a sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import array_api_compat
import numpy as np

from exempla.arrays import Array

if TYPE_CHECKING:
    from exempla.selection.scores import CandidateScores

MIN_ROW_NORM = 1e-60
"""Rows with a smaller norm count as zero: squares of their products would underflow."""
RELATIVE_TIE = 1e-12
"""Scores within this relative distance of the best are equal; the lowest index wins."""
ROUNDING = 1e-14
"""Upper bound on the rounding error of a float64 product of unit vectors."""
SWEEP_ROWS = 4096
"""Rows that a lookahead pass follows at a time on a CPU: their scores stay in the cache."""
_BLOCK_BYTES = {"cpu": 1 << 20, "gpu": 1 << 28}
"""Size of the float64 copies of blocks of rows: on a CPU a block stays in the cache."""

T = TypeVar("T")


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

        c is known up to slack_c·‖f‖ and n up to slack_n·‖f‖².
        """
        size, error_c, error_n = np.abs(c), slack_c * np.sqrt(norms2), slack_n * norms2
        if self is Rule.PURSUIT:
            n, error_n = norms2 + noise, 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            lowest = np.maximum(size - error_c, 0.0) ** 2 / (n + error_n)
            return lowest, (size + error_c) ** 2 / (n - error_n)


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

    def run_on_device(
        self, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
    ) -> None:
        """Let an accelerator make as many picks as it can; the host loop continues from there."""
        return

    @abstractmethod
    def scores(
        self, candidates: np.ndarray, target_norms: np.ndarray, noise: float, rule: Rule
    ) -> CandidateScores:
        """Return the scores of the candidates, (T, t) bool; call `refresh` first."""


class ArrayRows(Rows):
    """Rows of one (t, p) float32 or float64 array, or of `exempla.store.StoredRows`.

    `tolerance` may be that of another dtype. All sums are in float64.
    """

    error = 0.0
    """Bound on the error of `multiply` in units of ‖f‖, where it sums in float32."""
    readings = 0
    """Passes over stored rows so far."""

    def __init__(self, array: Any, tolerance: float | None = None) -> None:
        self.array = array
        self.is_stored = hasattr(array, "stream")
        some = array[:0]
        self.xp, self.device = array_api_compat.array_namespace(some), array_api_compat.device(some)
        self.t, self.p = (int(size) for size in array.shape)
        self.single = some.dtype == self.xp.float32
        self.tolerance = tolerance or (1e-5 if self.single else 1e-11)
        self.on_cpu = isinstance(some, np.ndarray)
        place = "cpu" if self.on_cpu else "gpu"
        self.block_rows = max(1, _BLOCK_BYTES[place] // (8 * max(1, self.p)))
        self.sweep_rows = SWEEP_ROWS if self.on_cpu else self.block_rows
        self._last: tuple[bytes, np.ndarray] | None = None
        with np.errstate(over="ignore", invalid="ignore"):  # `select` reports such rows
            norms2 = self._squares()
        norms2[norms2 < MIN_ROW_NORM**2] = 0.0
        self.norms2_here = norms2
        self.norms2 = self.host(norms2)

    def here(self, values: np.ndarray) -> Array:
        """Return a host array on the device of the rows."""
        return self.xp.asarray(values, device=self.device)

    def host(self, values: Array) -> np.ndarray:
        """Return an array of the rows' library as a NumPy array."""
        return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()

    def pieces(self) -> Iterator[tuple[slice, Array]]:
        """Yield all rows in order, in as many arrays as they are read in."""
        if not self.is_stored:
            yield slice(0, self.t), self.array
            return
        self.readings += 1
        yield from self.array.stream(SWEEP_ROWS)

    def blocks(self, n_vectors: int = 1) -> Iterator[tuple[slice, Array]]:
        """Yield the rows in float64, in blocks large enough for products with `n_vectors`."""
        step = max(self.block_rows, min(1024, 8 * n_vectors))
        for here, rows in self.pieces():
            for start in range(0, len(rows), step):
                block = self.xp.astype(rows[start : start + step], self.xp.float64, copy=False)
                yield slice(here.start + start, here.start + start + len(block)), block

    def over_blocks(self, work: Callable[[slice, Array], T]) -> list[T]:
        """Call work(part, rows) on blocks of `sweep_rows` rows; return the results in order."""
        return [
            found
            for here, rows in self.pieces()
            for found in self._over_part(work, here.start, rows, 0, len(rows))
        ]

    def _over_part(
        self, work: Callable[[slice, Array], T], first: int, rows: Array, start: int, stop: int
    ) -> list[T]:
        bounds = [*range(start, stop, self.sweep_rows), stop]
        return [work(slice(first + a, first + b), rows[a:b]) for a, b in pairwise(bounds)]

    def _squares(self) -> Array:
        """Return the squared norms, where the rows are."""
        out = self.xp.empty(self.t, dtype=self.xp.float64, device=self.device)
        for part, block in self.blocks():
            out[part] = self.xp.sum(block * block, axis=1)
        return out

    def products(self, vectors: Array) -> Array:
        """Return the (m, t) float64 products with the vectors (m, p), where the rows are."""
        out = self.xp.empty((vectors.shape[0], self.t), dtype=self.xp.float64, device=self.device)
        for part, block in self.blocks(len(vectors)):
            out[:, part] = vectors @ block.T
        return out

    def directions(self, directions: np.ndarray, exact: bool) -> Array:
        """Return directions (b, p) in the form that `multiply` takes; `exact` asks for float64."""
        return self.here(directions)

    def multiply(self, rows: Array, directions: Array) -> Array:
        """Return the (b, m) products of rows (m, p) with directions."""
        return directions @ self.xp.astype(rows, self.xp.float64, copy=False).T

    def follow(
        self,
        V: Array,
        c: Array,
        n: Array,
        slack: Array,
        coefs: np.ndarray,
        thresholds: np.ndarray,
        n_decreases: bool,
    ) -> Array:
        """Return which rows of a block have (|c| + slack)² ≥ threshold·n after any step.

        Step s subtracts coef·V[s] from c, and V[s]² from n if `n_decreases`; both are changed.
        """
        reach = self.xp.zeros_like(c, dtype=self.xp.bool)
        products = self.xp.astype(V, self.xp.float64)
        with np.errstate(invalid="ignore"):  # 0 · inf for removed rows
            for v, coef, threshold in zip(products, coefs.tolist(), thresholds.tolist()):
                c -= coef * v
                if n_decreases:
                    n -= v * v
                if threshold < np.inf:
                    reach |= (abs(c) + slack) ** 2 >= threshold * n
        return reach

    def project(self, vectors: np.ndarray) -> np.ndarray:
        # The problem, the scores and the certificate all need z: do not read stored rows again.
        key = vectors.tobytes() if self.is_stored else b""
        if not key or self._last is None or self._last[0] != key:
            self._last = key, self.host(self.products(self.here(vectors)))
        return self._last[1]

    def energy(self, directions: np.ndarray) -> np.ndarray:
        out = self.xp.zeros(self.t, dtype=self.xp.float64, device=self.device)
        Q = self.here(directions).T
        for part, block in self.blocks():
            inside = block @ Q
            out[part] = self.xp.sum(inside * inside, axis=1)
        return self.host(out)

    def features(self, indices: np.ndarray) -> np.ndarray:
        """Return (m, p) rows on the host, in their own precision."""
        return self.host(self.array[self.here(np.asarray(indices, dtype=np.int64))])

    def take(self, indices: np.ndarray) -> np.ndarray:
        return self.features(indices).astype(np.float64)

    def split(self, bounds: list[int]) -> list[Rows]:
        """Return consecutive parts, cut at the bounds 0 = b_0 < b_1 < … = t."""
        cut = self.array.part if self.is_stored else lambda start, stop: self.array[start:stop]
        return [type(self)(cut(*part), self.tolerance) for part in pairwise(bounds)]

    def run_on_device(
        self, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
    ) -> None:
        if self.single and not self.on_cpu:
            from exempla.selection.device import run_on_device

            run_on_device(self, candidates, runs, k, noise, rule)

    def scores(
        self, candidates: np.ndarray, target_norms: np.ndarray, noise: float, rule: Rule
    ) -> CandidateScores:
        from exempla.selection.scores import ArrayCandidates

        return ArrayCandidates(self, candidates, target_norms, noise, rule)
