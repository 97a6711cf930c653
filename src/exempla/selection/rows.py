"""Candidate rows and their running scores: the interface and its implementation for arrays.

`Rows` holds the features of all candidates: a NumPy or torch array or files on disk (`ArrayRows`),
or several parts of these (`sharded`).
`CandidateScores` holds, for T targets at once, c = f·r and n = ‖f‖² + σ² − ‖Qᵀf‖² of every
candidate, where the rows are, and returns only the leaders to the greedy loop in `engine`.

Ties go to the lowest index. Another BLAS, number of threads or block size adds up products in a
different order. The effect is bounded: a product f·r changes by at most ROUNDING·‖f‖·‖μ‖ (r is a
difference of vectors as long as μ) and n by ROUNDING·‖f‖². Rows whose scores differ by less than
these bounds count as equal, so that no pick depends on the last bit of a sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import pairwise
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from exempla.arrays import Array, in_parts
from exempla.selection.candidate_scores import (
    CandidateScores,
    Leaders,
    LookaheadPool,
    Steps,
    Swept,
)

MIN_ROW_NORM = 1e-60
"""Rows with a smaller norm count as zero: squares of their products would underflow."""
RELATIVE_TIE = 1e-12
"""Scores within this relative distance of the best are equal; the lowest index wins."""
ROUNDING = 1e-14
"""Upper bound on the rounding error of a float64 product of unit vectors."""
_SWEEP_ROWS, _SWEEP_ENTRIES = 1 << 16, 1 << 24
"""Most rows, and most entries, that a lookahead pass follows at a time on a CPU. Shorter blocks
stay in the cache, but their many short NumPy calls make threads wait for the interpreter lock."""
_MIN_TILE, _MAX_TILE = 512, 4096
"""The parts of the threads and the pieces of stored rows begin at multiples of a tile: the smallest
tile, and the largest number of rows of a product."""
_MIN_PRODUCT_ROWS = 256
"""Rows that are multiplied at a time however wide they are."""
_BLOCK_BYTES = 1 << 28, 1 << 22
"""Size of the float64 copies of blocks of rows on a GPU, and on a CPU."""
_STRETCH = 256
"""Coordinates that are summed in float32 before the sum moves to float64."""
_CACHED_ENTRIES = 1 << 18
"""Entries of the rows that are multiplied at a time on a CPU: they stay in the cache."""
_SCORED_ENTRIES = 1 << 16
"""Scores that are compared at a time: they stay in the cache."""
_MAX_LOOKAHEAD = 32
"""Picks that one pass checks at most."""
_FLOAT32_RANGE = 1e-8, 1e8
"""Squared norms whose products and ratios keep their precision in float32."""
_FOLLOW_ROUNDING = 8 * _MAX_LOOKAHEAD * 2.0**-24
"""Bound on the rounding of c, in units of ‖f‖‖μ‖, and of n, in units of ‖f‖² + σ², that follow so
many steps in float32. A step rounds c up to four times and n up to five (coefficient, product,
square, difference), each time by 2⁻²⁴ of a number below these units; a factor of 8 leaves room."""
_PRODUCT_RANGE = 1e-72, 1e74
"""Squared norms of float32 rows whose products neither underflow nor overflow in float32."""

T = TypeVar("T")


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`, at least 1."""
    return 1 << max(number, 1).bit_length() - 1


def tie_threshold(scores: np.ndarray | float) -> np.ndarray:
    """Return the lowest score that counts as equal to each of `scores`."""
    scores = np.asarray(scores)
    finite = np.where(np.isfinite(scores), scores, 0.0)
    return scores - RELATIVE_TIE * np.abs(finite)


def first_of_best(lowest: np.ndarray, highest: np.ndarray) -> int:
    """Return the first entry that may be the best, given bounds on each; −1 if there is none."""
    best = lowest.max(initial=-np.inf)
    return int(np.argmax(highest >= tie_threshold(best))) if best > -np.inf else -1


def descending(values: np.ndarray) -> np.ndarray:
    """Return positions in descending order of value; ties are in ascending order of position."""
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    group = np.concatenate([[0], np.cumsum(ranked[1:] < tie_threshold(ranked[:-1]))])
    return order[np.lexsort((order, group))]


def zero_rounding(z: Array, norms2: Array, target_norm2: Any) -> Any:
    """Set products f·μ that cannot be told from rounding to 0: such a row is on neither side."""
    return z * (abs(z) > ROUNDING * (norms2 * target_norm2) ** 0.5)


class Rule(IntEnum):
    """How a candidate is scored from its c and n."""

    GAIN = 0
    """c²/n: the decrease of the posterior variance. Exact SBQ."""
    PURSUIT = 1
    """c²/(‖f‖² + σ²): row-normalised matching pursuit."""

    def bounds(
        self, c: Array, n: Array, norms2: Array, noise: float, slack_c: Array, slack_n: float
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


class StateLostError(Exception):
    """A place that held scores was restarted without them; the greedy loop opens them again."""


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

    def approximate(self, vectors: np.ndarray) -> tuple[np.ndarray, float]:
        """Return products as `project` does, perhaps in float32, and a bound on their error.

        The bound is in units of ‖f‖ and of the length of the vector.
        """
        return self.project(vectors), 0.0

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
    def scores(
        self, candidates: np.ndarray, target_norms: np.ndarray, noise: float, rule: Rule
    ) -> CandidateScores:
        """Return the scores of the candidates, (T, t) bool; call `refresh` first."""


class ArrayRows(Rows):
    """Rows of one (t, p) float32 or float64 array, or of `exempla.store.StoredRows`.

    `tolerance` may be that of another dtype. On a CPU, `multiply` sums float32 rows in float32,
    `_STRETCH` terms at a time, up to `error`; other sums are in float64.
    """

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
        stretch = (min(self.p, _STRETCH) + 2) * 2.0**-24
        self.error = stretch if self.single and self.on_cpu else 0.0
        """Bound on the error of `multiply` in units of ‖f‖: of float32 sums of up to _STRETCH terms
        in any order, and of the rounding of the direction."""
        self.product_dtype = np.float32 if self.p <= _STRETCH else np.float64
        self.block_rows = max(1, _BLOCK_BYTES[self.on_cpu] // (8 * max(1, self.p)))
        self.sweep_rows = self.block_rows
        if self.on_cpu:
            # Powers of two: a product's bits depend on the block it is in, which then begins at the
            # same row for any number of threads.
            cached, swept = (each // max(1, self.p) for each in (_CACHED_ENTRIES, _SWEEP_ENTRIES))
            self.block_rows = _power_of_two(min(self.block_rows, _MAX_TILE))
            self.product_rows = _power_of_two(min(max(cached, _MIN_PRODUCT_ROWS), _MAX_TILE))
            self.tile = max(_MIN_TILE, self.product_rows, self.block_rows)
            self.sweep_rows = _power_of_two(min(max(swept, self.tile), _SWEEP_ROWS))
        self._last: tuple[bytes, np.ndarray] | None = None
        norms2 = self.xp.empty(self.t, dtype=self.xp.float64, device=self.device)

        def square(part: slice, rows: Array) -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # `select` reports such rows
                for here, block in self._cut(part, rows, 1):
                    norms2[here] = self.xp.vecdot(block, block)

        self.over_blocks(square)
        norms2[norms2 < MIN_ROW_NORM**2] = 0.0
        self.norms2_here, self.norms2 = norms2, self.host(norms2)
        nonzero = self.norms2[self.norms2 > 0]
        low, high = _PRODUCT_RANGE
        self.in_range = bool(low < nonzero.min(initial=1.0) and nonzero.max(initial=1.0) < high)
        """Whether products of single-precision numbers keep their precision."""
        if not self.in_range:
            self.error = 0.0

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
        yield from self.array.stream(self.tile)

    def blocks(self, n_vectors: int = 1) -> Iterator[tuple[slice, Array]]:
        """Yield the rows in float64, in blocks large enough for products with `n_vectors`."""
        for here, rows in self.pieces():
            yield from self._cut(here, rows, n_vectors)

    def _cut(self, here: slice, rows: Array, n_vectors: int) -> Iterator[tuple[slice, Array]]:
        step = max(self.block_rows, _power_of_two(min(_MIN_TILE, 8 * n_vectors)))
        for start in range(0, len(rows), step):
            block = self.xp.astype(rows[start : start + step], self.xp.float64, copy=False)
            yield slice(here.start + start, here.start + start + len(block)), block

    def over_blocks(self, work: Callable[[slice, Array], T]) -> list[T]:
        """Call work(part, rows) on blocks of `sweep_rows` rows; return the results in order."""
        found: list[T] = []
        for here, rows in self.pieces():

            def each(start: int, stop: int, first: int = here.start, rows: Array = rows) -> list[T]:
                cuts = pairwise([*range(start, stop, self.sweep_rows), stop])
                return [work(slice(first + a, first + b), rows[a:b]) for a, b in cuts]

            threaded = self.on_cpu and in_parts(each, len(rows), self.p, self.tile)
            for some in threaded or [each(0, len(rows))]:
                found += some
        return found

    def products(self, vectors: Array) -> Array:
        """Return the (m, t) float64 products with the vectors (m, p), where the rows are."""
        out = self.xp.empty((vectors.shape[0], self.t), dtype=self.xp.float64, device=self.device)

        def fill(here: slice, rows: Array) -> None:
            self.multiply(rows, vectors, out[:, here])

        self.over_blocks(fill)
        return out

    def directions(self, directions: np.ndarray, exact: bool) -> Array:
        """Return directions (b, p) in the form that `multiply` takes; `exact` asks for float64."""
        return self.here(directions if exact or not self.error else directions.astype(np.float32))

    def multiply(self, rows: Array, directions: Array, out: Array | None = None) -> Array:
        """Return the (b, m) products of rows (m, p) with directions, in `out` if it is given.

        float32 directions are multiplied in float32; sums move to float64 every _STRETCH terms.
        """
        exact = directions.dtype == self.xp.float64
        if out is None:
            shape = len(directions), len(rows)
            dtype = self.xp.float64 if exact else self.product_dtype
            out = self.xp.empty(shape, dtype=dtype, device=self.device)
        made: Any = out
        if exact:
            for here, block in self._cut(slice(0, len(rows)), rows, len(directions)):
                made[:, here] = directions @ block.T
            return made
        step = self.product_rows
        for here in (slice(start, start + step) for start in range(0, len(rows), step)):
            block = rows[here]
            block.max()  # reads the block in order; the product alone reads it several times slower
            made[:, here] = (block[:, :_STRETCH] @ directions[:, :_STRETCH].T).T
            for part in (slice(i, i + _STRETCH) for i in range(_STRETCH, self.p, _STRETCH)):
                made[:, here] += (block[:, part] @ directions[:, part].T).T
        return made

    def approximate(self, vectors: np.ndarray) -> tuple[np.ndarray, float]:
        if not self.error:
            return super().approximate(vectors)
        lengths = np.linalg.norm(vectors, axis=1)[:, None]  # may be beyond the range of float32
        Q = self.directions(vectors / np.where(lengths > 0, lengths, 1.0), exact=False)
        found = self.over_blocks(lambda _, rows: self.multiply(rows, Q))
        return np.concatenate(found, axis=1) * lengths, self.error

    def follow(
        self, V: Array, c: Array, n: Array, slack: Array, steps: np.ndarray, n_decreases: bool
    ) -> Array:
        """Return which rows of a block have (|c| + slack)² ≥ threshold·n after any step.

        `steps` holds coefficients and thresholds. Step s subtracts coef·V[s] from c, and V[s]² from
        n if `n_decreases`; both are changed, in their precision.
        """
        reach = self.xp.zeros_like(c, dtype=self.xp.bool)
        products = self.xp.astype(V, c.dtype, copy=False)
        with np.errstate(invalid="ignore"):  # 0 · inf for removed rows
            for v, coef, threshold in zip(products, *steps.tolist()):
                c -= coef * v
                if n_decreases:
                    n -= v * v
                if threshold < np.inf:
                    excess = abs(c)
                    excess += slack
                    excess *= excess
                    excess -= threshold * n
                    reach |= excess >= 0
        return reach

    def project(self, vectors: np.ndarray) -> np.ndarray:
        if self._last is not None and self._last[0] == vectors.tobytes():
            return self._last[1]
        return self.host(self.products(self.here(vectors)))

    def align(self, targets: np.ndarray) -> np.ndarray:
        if self.on_cpu:
            z = super().align(targets)
            self._last = targets.tobytes(), z  # the scores and the certificate begin with it, too
            return z
        lengths = self.here(np.vecdot(targets, targets)[:, None])
        z = self.products(self.here(targets))
        return self.host(zero_rounding(z, self.norms2_here, lengths))

    def energy(self, directions: np.ndarray) -> np.ndarray:
        out = self.xp.zeros(self.t, dtype=self.xp.float64, device=self.device)
        Q = self.here(directions).T

        def fill(here: slice, rows: Array) -> None:
            for part, block in self._cut(here, rows, 1):
                inside = block @ Q
                out[part] = self.xp.sum(inside * inside, axis=1)

        self.over_blocks(fill)
        return self.host(out)

    def features(self, indices: np.ndarray) -> np.ndarray:
        """Return (m, p) rows on the host, in their own precision."""
        return self.host(self.array[self.here(np.asarray(indices, dtype=np.int64))])

    def take(self, indices: np.ndarray) -> np.ndarray:
        return self.features(indices).astype(np.float64)

    def scores(
        self, candidates: np.ndarray, target_norms: np.ndarray, noise: float, rule: Rule
    ) -> CandidateScores:
        return ArrayCandidates(self, candidates, target_norms, noise, rule)


class ArrayCandidates(CandidateScores):
    """c and n are (T, t) float64 arrays beside the rows; a removed row has n = −inf."""

    def __init__(
        self, rows: ArrayRows, candidates: Array, target_norms: Array, noise: float, rule: Rule
    ) -> None:
        self.rows, self.noise, self.rule, self.xp = rows, noise, rule, rows.xp
        # Zero rows explain nothing, and 0/0 must never win.
        kept = candidates & (rows.norms2 > 0)
        self.n = rows.here(np.where(kept, rows.norms2 + noise, -np.inf))
        self.c = self.xp.zeros_like(self.n)
        self.norms2 = rows.norms2_here
        self.lengths = self.xp.sqrt(self.norms2)
        self.floor = self.norms2 * rows.tolerance
        self.whole = None if rule is Rule.GAIN else self.norms2 + noise
        self._slack_c = ROUNDING * target_norms
        self._norm = float(target_norms.max())
        norms2, (low, high) = rows.norms2[kept.any(axis=0)], _FLOAT32_RANGE
        sizes = self._norm**2, norms2.min(initial=1.0), norms2.max(initial=1.0) + noise
        self._narrow = bool(low < min(sizes) and max(sizes) < high)
        """Whether steps are followed in float32, as products are, under a bound on its rounding."""
        # Many targets are one matrix product, which is computed in float64 throughout.
        self.error = rows.error if len(candidates) == 1 else 0.0
        # The products of a sweep then take at most a quarter of the memory of rows of p ≥ 32.
        self.max_lookahead = int(np.clip(rows.p // 8, self.lookahead_batch, _MAX_LOOKAHEAD))
        self._products = np.empty((0, rows.t), rows.product_dtype)
        self._swept: tuple[Steps, list[tuple[slice, Array]]]
        """The steps of the last sweep and their products with blocks of rows."""

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        for i, c in zip(targets, self.rows.here(self.rows.project(residuals))):
            self.c[i] = c
        return self.leaders()

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        Q, b = self.rows.here(directions), self.rows.here(coefs)[:, None]

        def updated() -> Iterator[slice]:
            for part, block in self.rows.blocks(len(Q)):
                v = Q @ block.T
                self.c[:, part] -= b * v
                self.n[:, part] -= v * v
                yield part

        return self._leaders(updated())

    def leaders(self) -> Leaders:
        step = max(self.rows.block_rows, _SCORED_ENTRIES // len(self.c))
        starts = range(0, self.rows.t, step)
        return self._leaders(slice(start, min(start + step, self.rows.t)) for start in starts)

    def _leaders(self, parts: Iterable[slice]) -> Leaders:
        """Return the leaders by bounds that allow for rounding alone."""
        xp, host, found = self.xp, self.rows.host, []
        every, rounding = np.arange(len(self.c)), self.rows.here(self._slack_c)[:, None]
        for part in parts:
            c, n, norms2 = self.c[:, part], self.n[:, part], self.norms2[part]
            upper = xp.abs(c) + rounding * self.lengths[part]
            divisor = n - ROUNDING * norms2 if self.whole is None else self.whole[part]
            # Rows that are alive have n far above rounding: the tolerance is 1000 times larger.
            alive = n > self.floor[part] - ROUNDING * norms2
            with np.errstate(divide="ignore", invalid="ignore"):
                upper = xp.where(alive, upper * upper / divisor, -np.inf)
            at = xp.argmax(upper, axis=1)
            here = self.rows.here(every), at
            best, rows = host(upper[here]), np.array(host(at) + part.start)
            rows[best == -np.inf] = -1
            upper[here] = -np.inf
            rivals = np.full_like(best, np.inf) if self.error else host(xp.max(upper, axis=1))
            found.append(Leaders(rows, best, best, rivals))
        leaders = Leaders.merged(found)
        here, norms2 = self.rows.here(leaders.rows), self.rows.norms2[leaders.rows]
        c, n = (host(values[self.rows.here(every), here]) for values in (self.c, self.n))
        lower, _ = self.rule.bounds(c, n, norms2, self.noise, self._slack_c, ROUNDING)
        adds = n > (self.rows.tolerance + ROUNDING) * norms2
        return leaders._replace(lower=np.where(adds, lower, -np.inf))

    def ties(self, targets: list[int], slacks: np.ndarray, limit: int) -> list[np.ndarray]:
        found = []
        for i, (slack_c, slack_n) in zip(targets, slacks.tolist()):
            size, more = self.xp.abs(self.c[i]), slack_c * self.lengths
            n, error = self.n[i], slack_n * self.norms2
            highest, smallest = (n + error, n - error) if self.whole is None else (self.whole,) * 2
            with np.errstate(divide="ignore", invalid="ignore"):  # 0 · inf for removed rows
                lower = self.xp.clip(size - more, 0.0, None) ** 2 / highest
                best = float(self.xp.max(self.xp.where(n - error > self.floor, lower, 0.0)))
                reach = (size + more) ** 2 >= float(tie_threshold(best)) * smallest
            reach = reach & (n + error > self.floor)
            found.append(self.rows.host(self.xp.nonzero(reach)[0][:limit]))
        return found

    def deflate(self, target: int, energy: np.ndarray) -> None:
        n = self.norms2 + self.noise - self.rows.here(energy)
        out = self.n[target] == -np.inf
        self.n[target] = self.xp.where(out, self.n[target], n)

    def drop(self, targets: list[int], rows: list[int]) -> None:
        where = tuple(self.rows.here(np.array(which, dtype=np.int64)) for which in (targets, rows))
        self.n[where] = -np.inf

    def to_float64(self) -> None:
        self.error = 0.0

    def sweep(self, steps: Steps, limit: int, fraction: float) -> Swept:
        Q = self.rows.directions(steps.directions, exact=self.error == 0.0)
        if self.error and len(Q) > len(self._products):
            shape = max(len(Q), self.max_lookahead), self.rows.t
            self._products = np.empty(shape, self.rows.product_dtype)
        found = self.rows.over_blocks(
            lambda part, rows: self._check(part, rows, Q, steps, fraction)
        )
        self._swept = steps, [(part, V) for part, V, *_ in found]
        rows = np.concatenate([some for *_, some, _ in found])
        v = np.concatenate([products for *_, products in found], axis=1).astype(np.float64)
        # Follow these few rows through the steps again, with the slacks of each step.
        (c, n), norms2 = self.values(rows), self.rows.norms2[rows]
        c = c - np.cumsum(steps.coefs[:, None] * v, axis=0)
        n = n - np.cumsum(v * v, axis=0)
        error = steps.slack_n[:, None] * norms2
        upper = (np.abs(c) + steps.slack_c[:, None] * np.sqrt(norms2)) ** 2
        divisor = n - error if self.whole is None else norms2 + self.noise
        asked = steps.thresholds[:, None] < np.inf
        thresholds = np.where(asked, steps.thresholds[:, None], 0.0)
        alive = (n + error > norms2 * self.rows.tolerance) & asked
        reach = alive & (upper >= thresholds * divisor)
        near = [None if np.count_nonzero(one) > limit else rows[one] for one in reach]
        promising = alive & (upper >= fraction * thresholds * divisor)
        return Swept(near, rows[promising.any(axis=0)])

    def _check(
        self, part: slice, rows: Array, Q: Array, steps: Steps, fraction: float
    ) -> tuple[slice, Array, np.ndarray, np.ndarray]:
        """Follow a block of rows through the steps.

        Returns the products, the rows that may reach a fraction of a threshold, and theirs.
        """
        xp, out = self.xp, self._products[: len(Q), part] if self.error else None
        V = self.rows.multiply(rows, Q, out)
        c, n, norms2 = self.c[0, part], self.n[0, part], self.norms2[part]
        # The slacks grow from step to step: here the last ones stand for all.
        slack_c, slack_n = float(steps.slack_c.max()), float(steps.slack_n.max())
        alive = n > norms2 * (self.rows.tolerance - slack_n)  # n never increases
        narrow = self._narrow and self.error > 0
        rounding, dtype = (_FOLLOW_ROUNDING, xp.float32) if narrow else (0.0, xp.float64)
        slack = self.lengths[part] * (slack_c + rounding * self._norm)
        if self.whole is None:
            n = n - norms2 * (slack_n + rounding)
        else:
            n = self.whole[part] - norms2 * rounding
        n -= rounding * self.noise
        c, n, slack = (xp.astype(values, dtype) for values in (c, n, slack))
        bars = np.stack([steps.coefs, fraction * steps.thresholds])
        reach = self.rows.follow(V, c, n, slack, bars, n_decreases=self.whole is None)
        some, host = xp.nonzero(reach & alive)[0], self.rows.host
        return part, V, part.start + host(some), host(V[: len(steps.coefs), some])

    def commit(self, count: int) -> None:
        if not count:
            return
        xp, (steps, products) = self.xp, self._swept
        coefs = self.rows.here(steps.coefs[:count])

        def apply(start: int, stop: int) -> None:
            for part, V in products[start:stop]:
                v = xp.astype(V[:count], xp.float64)
                self.c[0, part] -= coefs @ v
                v *= v
                self.n[0, part] -= xp.sum(v, axis=0)

        in_parts(apply, len(products), count * self.rows.sweep_rows, 1)

    def pool(self, rows: np.ndarray) -> LookaheadPool:
        whole = None if self.whole is None else self.rows.norms2[rows] + self.noise
        floor = self.rows.norms2[rows] * self.rows.tolerance
        features = np.empty((len(rows), self.rows.p), np.float32 if self.rows.single else float)

        def fill(start: int, stop: int) -> None:
            features[start:stop] = self.rows.features(rows[start:stop])

        in_parts(fill, len(rows), self.rows.p, 256)
        return LookaheadPool(rows, features, *self.values(rows), floor, whole)

    def values(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return c and n of these rows on the host."""
        here = self.rows.here(rows)
        return self.rows.host(self.c[0][here]), self.rows.host(self.n[0][here])

    def best(self, count: int) -> np.ndarray:
        c, n = self.c[0], self.n[0]
        divisor = n if self.whole is None else self.whole
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = self.rows.host(self.xp.where(n > self.floor, c * c / divisor, -np.inf))
        rows = np.arange(len(scores))
        if count < len(scores):
            rows = np.sort(np.argpartition(scores, len(scores) - count)[-count:])
        return rows[scores[rows] > -np.inf]
