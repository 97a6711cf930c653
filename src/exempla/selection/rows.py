"""Where the rows live while they are chosen among: NumPy, torch, fused numba passes.

Imports: arrays, errors.

What the greedy loop asks of a set of rows, whatever holds them.

`Rows` are the candidates' features: one array in memory, on a GPU, or in several places. A `Race`
is the running comparison of all candidates for T targets at once: for every target and row it
keeps c = f·r and n = ‖f‖² + σ² − ‖Qᵀf‖² where the rows are, and only ever hands out the leaders.
A new place to keep rows (a cluster, say) implements these two classes and nothing else changes.

Rows in one array: NumPy, or torch on its own device, through the array API.
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
from exempla.selection.basis import without_noise

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


FLOAT32_ERROR = 8 * 2.0**-24
"""Bound used for |fl(f·q) − f·q|/‖f‖ of a vectorised float32 product. The largest seen over rows
of 8 to 4096 entries, same-signed ones included, was 2.3 · 2⁻²⁴."""

_CHUNK_BYTES = {"cpu": 1 << 20, "gpu": 1 << 28}
"""Float64 copies of this many bytes of rows are made at a time: on a CPU they stay in cache."""


def _height(vectors: Array) -> int:
    """Rows of a block for a product with so many vectors, which are read again for each block."""
    return min(1024, 8 * len(vectors))


class ArrayRows(Rows):
    """Rows of one (t, p) float32 or float64 array; `tolerance` may be that of another dtype."""

    def __init__(self, array: Array, tolerance: float | None = None) -> None:
        self.array = array
        self._place(array[:0])
        self.t, self.p = (int(size) for size in array.shape)
        self.single = array.dtype == self.xp.float32
        self.tolerance = tolerance or (1e-5 if self.single else 1e-11)
        place = "cpu" if array_api_compat.is_numpy_array(array[:0]) else "gpu"
        self.step = max(1, _CHUNK_BYTES[place] // (8 * max(1, self.p)))
        with np.errstate(over="ignore", invalid="ignore"):  # `inputs` names such rows
            norms2 = self.squares()
        norms2[norms2 < SHORTEST**2] = 0.0
        self.norms2_here = norms2
        self.norms2 = self.host(norms2)

    def _place(self, like: Array) -> None:
        """Compute where such an array is, in its own library."""
        self.xp = array_api_compat.array_namespace(like)
        self.device = array_api_compat.device(like)

    def squares(self) -> Array:
        """(t,) squared norms, where the rows are, summed in float64."""
        out = self.xp.empty(self.t, dtype=self.xp.float64, device=self.device)
        for part, block in self.blocks():
            out[part] = self.xp.sum(block * block, axis=1)
        return out

    def blocks(self, at_least: int = 1) -> Iterator[tuple[slice, Array]]:
        """The rows in float64, a block at a time, of so many rows at least."""
        step = max(self.step, at_least)
        for start in range(0, self.t, step):
            part = slice(start, min(start + step, self.t))
            yield part, self.xp.astype(self.array[part], self.xp.float64, copy=False)

    def here(self, values: np.ndarray) -> Array:
        """A host array, where the rows are."""
        return self.xp.asarray(values, device=self.device)

    def host(self, values: Array) -> np.ndarray:
        if isinstance(values, np.ndarray):
            return values
        return values.detach().cpu().numpy()

    def products(self, vectors: Array) -> Array:
        """(m, t) products with the vectors (m, p), where the rows are, summed in float64."""
        out = self.xp.empty((vectors.shape[0], self.t), dtype=self.xp.float64, device=self.device)
        for part, block in self.blocks(_height(vectors)):
            out[:, part] = vectors @ block.T
        return out

    def rough_products(self, q: Array) -> Array:
        """(t,) products with one vector, in the precision of the rows."""
        if isinstance(self.array, np.ndarray):
            # A dot product per row: three times faster here than the matrix-vector product.
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
        from exempla.selection.device import run_runs

        run_runs(self, candidates, runs, k, noise, rule)

    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        return ArrayRace(self, candidates, noise, rule)


class ArrayRace(Race):
    """c and n are (T, t) float64 arrays beside the rows; a row out of the race has n = −inf."""

    def __init__(self, rows: ArrayRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        self.rows, self.noise, self.rule, self.xp = rows, noise, rule, rows.xp
        # Zero rows can explain nothing, and 0/0 must never win.
        kept = candidates & (rows.norms2 > 0)
        self.n = rows.here(np.where(kept, rows.norms2 + noise, -np.inf))
        self.c = self.xp.zeros_like(self.n)
        self.scale = rows.here(rule.scale(rows.norms2, noise))
        self.lengths = rows.here(np.sqrt(rows.norms2))
        self.floor = rows.norms2_here * rows.tolerance
        # Many targets are one matrix product, which is done in float64 throughout.
        self.error = FLOAT32_ERROR if rows.single and len(candidates) == 1 else 0.0
        self.tried: tuple[list[float], list[Array]] = [], []
        """Coefficients and products of the last sweep's steps."""

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
            for part, block in self.rows.blocks(_height(Q)):
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
        best = [self._leaders(part) for part in self._groups()]
        scores, rows = (np.concatenate(values) for values in zip(*best))
        return Leaders(scores, np.where(scores > -np.inf, rows, -1))

    def _leaders(self, targets: slice) -> tuple[np.ndarray, np.ndarray]:
        scores = self._scores(targets)
        rows = self.xp.argmax(scores, axis=1)
        best = self.xp.take_along_axis(scores, rows[:, None], axis=1)[:, 0]
        return self.rows.host(best), self.rows.host(rows)

    def firsts(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        found = []
        for part in self._groups():
            wanted, more_c, less_n = (
                self.rows.here(values[part])[:, None] for values in (thresholds, slack_c, slack_n)
            )
            scores = self._scores(part, more_c, less_n)
            reach = self.xp.astype((scores >= wanted) & (scores > -np.inf), self.xp.int8)
            rows = self.rows.host(self.xp.argmax(reach, axis=1))
            found.append(np.where(self.rows.host(self.xp.any(reach, axis=1)), rows, -1))
        return np.concatenate(found)

    def _groups(self) -> list[slice]:
        """Targets to score together: all of them on a GPU, where launches are what costs."""
        if isinstance(self.c, np.ndarray):
            return [slice(i, i + 1) for i in range(len(self.c))]
        return [slice(0, len(self.c))]

    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        scores = self._scores(slice(target, target + 1), slack_c, slack_n)[0]
        reach = (scores >= threshold) & (scores > -np.inf)
        return self.rows.host(self.xp.nonzero(reach)[0][:limit])

    def _scores(self, targets: slice, slack_c: Any = None, slack_n: Any = None) -> Array:
        """Scores, at most, given the slacks; −inf for rows that are out or have nothing new."""
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

    # -- several steps at a time: for `shards`, where an exchange costs more than a pass --------

    def pool(self, rows: np.ndarray) -> Pool:
        here, host = self.rows.here(rows), self.rows.host
        floor, scale = host(self.floor[here]), host(self.scale[here])
        return Pool(rows, self.features(rows), *self.standing(rows), floor, scale, self.rule)

    def features(self, rows: np.ndarray) -> np.ndarray:
        return self.rows.host(self.rows.array[self.rows.here(rows)])

    def standing(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        here = self.rows.here(rows)
        return self.rows.host(self.c[0][here]), self.rows.host(self.n[0][here])

    def best(self, count: int) -> np.ndarray:
        scores = self.rows.host(self._scores(slice(0, 1))[0])
        rows = np.arange(len(scores))
        if count < len(scores):
            rows = np.sort(np.argpartition(scores, len(scores) - count)[-count:])
        return rows[scores[rows] > -np.inf]

    def sweep(self, steps: Steps, limit: int, share: float) -> Swept:
        """A product a step, each as in `update`."""
        xp, before = self.xp, (self.c, self.n)
        self.tried = steps.coefs.tolist(), []
        near: list[np.ndarray | None] = []
        hope = xp.zeros(self.rows.t, dtype=xp.bool, device=self.rows.device)
        for s in range(len(steps)):
            v = self._product(steps.directions[s])[None]
            self.tried[1].append(v)
            self.c, self.n = self.c - self.tried[0][s] * v, self.n - v * v
            bar = float(steps.bars[s])
            if bar == np.inf:
                near.append(np.zeros(0, np.int64))
                continue
            most = self._scores(slice(0, 1), float(steps.slack_c[s]), float(steps.slack_n[s]))[0]
            alive = most > -np.inf
            hope = hope | (alive & (most >= share * bar))
            found = self.rows.host(xp.nonzero(alive & (most >= bar))[0])
            near.append(None if len(found) > limit else found)
        self.c, self.n = before
        return Swept(near, self.rows.host(xp.nonzero(hope)[0]))

    def keep(self, count: int) -> None:
        for coef, v in list(zip(*self.tried))[:count]:
            self.c, self.n = self.c - coef * v, self.n - v * v

    def deflate(self, target: int, energy: np.ndarray) -> None:
        n = self.rows.norms2_here + self.noise - self.rows.here(energy)
        out = self.n[target] == -np.inf
        self.n[target] = self.xp.where(out, self.n[target], n)

    def drop(self, targets: list[int], rows: list[int]) -> None:
        where = tuple(self.rows.here(np.array(which, dtype=np.int64)) for which in (targets, rows))
        self.n[where] = -np.inf

    def sharpen(self) -> None:
        self.error = 0.0
