"""The Fisher metric in sketch space: its estimate, and how it is applied to rows.

`estimate_fisher` sums r rᵀ over Fisher rows r in one pass and returns a `Metric` with the
statistics from which a damping is chosen. Metrics are the full matrix, which keeps correlations
across layers, its diagonal, and the identity (the paper's practical kernel). A metric whitens rows
for any damping.

The norm of a full score costs as much as a good part of a backward pass, and only the residual of
the sketch needs it. Norms are therefore measured on some of the rows, and the share of a row inside
the basis that is found there is used for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    is_tensor,
    matmul_as,
    on_device_of,
    solve_lower,
    to_numpy,
)
from exempla.errors import ExemplaError
from exempla.kernel.basis import FisherSum, Sketch
from exempla.kernel.damping import FisherEvidence
from exempla.memory import PIECE_BYTES
from exempla.oracles.base import Examples, Oracle, ScoreRows
from exempla.oracles.factors import MANY
from exempla.progress import track_rows


class Metric(ABC):
    """M = Fisher + λR + damping·I in sketch space."""

    name: str

    @abstractmethod
    def whiten(self, rows: Array, damping: float) -> Array:
        """Return rows · W with W Wᵀ = M⁻¹: dot products of the result are the kernel."""

    @abstractmethod
    def solve(self, rows: Array, damping: float) -> Array:
        """Return rows · M⁻¹: dot products of the result with plain rows are the kernel."""

    def residual_inverse(self, eigenvalue: float, damping: float) -> float:
        """Return 1 / metric in the directions outside the basis, all of this eigenvalue."""
        total = eigenvalue + damping
        return 1.0 / total if total > 0 else 0.0


class IdentityMetric(Metric):
    """M = I, for every damping."""

    name = "identity"

    def whiten(self, rows: Array, damping: float) -> Array:
        return rows

    def solve(self, rows: Array, damping: float) -> Array:
        return rows

    def residual_inverse(self, eigenvalue: float, damping: float) -> float:
        return 1.0


class DiagonalMetric(Metric):
    """M = diag(Fisher) + diag(λR) + damping."""

    name = "diagonal"

    def __init__(self, diagonal: np.ndarray) -> None:
        self.diagonal = diagonal

    def whiten(self, rows: Array, damping: float) -> Array:
        total = self.diagonal + damping
        if not (total > 0).all():
            raise ExemplaError(
                "the Fisher's diagonal has zeros: leave damping='auto' or give a positive number."
            )
        return rows * as_like(1.0 / np.sqrt(total), rows)

    def solve(self, rows: Array, damping: float) -> Array:
        return self.whiten(self.whiten(rows, damping), damping)


_JITTER = 1e-10
"""Multiple of the mean eigenvalue that is added to a metric that is singular without damping."""
_SINGULAR = (
    "the Fisher metric is singular without damping: leave damping='auto' or give a positive number."
)


class FullMetric(Metric):
    """M = F + λR + damping·I, applied through one Cholesky factor L Lᵀ = M per damping.

    One p × p array holds both: F + λR above the diagonal, L of the last damping on and below it.
    The given matrix is overwritten. Threads may use different dampings: a lock is held from the
    factorisation until the factor has been used.
    """

    name = "full"

    def __init__(self, matrix: np.ndarray) -> None:
        # symmetric: the transpose is the same matrix in LAPACK's order, without a copy
        self._array: Any = np.asfortranarray(np.asarray(matrix, dtype=np.float64).T)
        self._diagonal = np.diag(self._array).copy()
        self._damping: float | None = None
        self._added = 0.0
        """Jitter that made M invertible; 0 if none was needed."""
        self._inverse: Any = None
        self._in_use = RLock()

    def __getstate__(self) -> dict[str, Any]:
        # The part above the diagonal never changes; the factor, which another thread may be
        # replacing, is computed from it again.
        return {**vars(self), "_in_use": None, "_damping": None, "_inverse": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._in_use = RLock()

    @property
    def matrix(self) -> np.ndarray:
        """F + λR."""
        with self._in_use:
            above = np.triu(self._array, 1)
            return above + above.T + np.diag(self._diagonal)

    def whiten(self, rows: Array, damping: float) -> Array:
        with self._in_use:
            self._factor(damping)
            white, added = self._whitened(rows), self._added
        if added:
            # A direction without curvature (the common shift of a softmax) is harmless unless a
            # score has a component in it, which would be multiplied by 1/added.
            blown_up = to_numpy((white * white).sum(1)) * added > 1e-6 * to_numpy(
                (rows * rows).sum(1)
            )
            if blown_up.any():
                raise ExemplaError(_SINGULAR)
        return white

    def solve(self, rows: Array, damping: float) -> Array:
        with self._in_use:
            white = self.whiten(rows, damping)
            if isinstance(white, np.ndarray):
                return solve_lower(self._array, white, transposed=True)
            return matmul_as(white, self._inverse_factor().T)

    def _factor(self, damping: float) -> None:
        """Compute L for this damping, unless the array holds it already."""
        if damping == self._damping:
            return
        self._damping = self._inverse = None
        self._added = 0.0
        if not self._cholesky(damping):
            self._added = _JITTER * float(self._diagonal.sum()) / len(self._diagonal)
            if not self._cholesky(damping + self._added):
                raise ExemplaError(_SINGULAR)
        self._damping = damping

    def _cholesky(self, damping: float) -> bool:
        """Factor F + λR + damping·I; return False if it is not positive definite."""
        array: Any = self._array
        for j in range(len(array)):
            array[j + 1 :, j] = array[j, j + 1 :]
        array[np.diag_indices_from(array)] = self._diagonal + damping
        self._array, failed = dpotrf(array, lower=1, clean=0, overwrite_a=1)
        return failed == 0

    def _whitened(self, rows: Array) -> Array:
        """Return rows · L⁻ᵀ, by a triangular solve; for torch rows by the inverse of L."""
        if isinstance(rows, np.ndarray):
            return solve_lower(self._array, rows)
        return matmul_as(rows, self._inverse_factor())

    def _inverse_factor(self) -> Any:
        """Return L⁻ᵀ."""
        if self._inverse is None:
            lower = np.asfortranarray(np.tril(self._array))
            inverse: Any = dtrtri(lower, lower=1, overwrite_c=1)[0]
            self._inverse = inverse.T
        return self._inverse


ENOUGH = 2048
"""Rows per product. Adding the p × p result then takes a twentieth of the product's time; with few
rows it would take longer than the product."""


class SumOfSquares:
    """Accumulate Σ r rᵀ (p, p) in double precision, or its diagonal (p,).

    >>> total = SumOfSquares()
    >>> for row in np.eye(3):
    ...     total.add(2 * row[None])
    >>> np.diag(total.done()).tolist()
    [4.0, 4.0, 4.0]
    """

    def __init__(self, diagonal: bool = False) -> None:
        self.diagonal = diagonal
        self._total: Any = None
        self._waiting: list[Array] = []

    def add(self, rows: Array) -> None:
        """Add rows (n, p); all must have one type and precision."""
        if self.diagonal:
            self._increase((rows * rows).sum(0))
            return
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= ENOUGH:
            self._multiply()

    def done(self) -> np.ndarray:
        """Return the sum; nothing can be added afterwards."""
        if self._waiting:
            self._multiply()
        return to_numpy(self._total)

    def _multiply(self) -> None:
        rows: Any = concatenate(self._waiting)
        self._waiting = []
        if is_tensor(rows) and rows.device.type == "cpu":
            rows = to_numpy(rows)  # whose product with itself takes half the work
        self._increase(rows.T @ rows)

    def _increase(self, more: Any) -> None:
        if self._total is None:
            self._total = in_double(more)
        else:
            self._total += more


def in_double(array: Array) -> Array:
    """Return a float64 copy on the same device."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


MEASURED, MEASURED_LONG = 512, 64
"""Examples whose full norms are measured if the basis is not exact; the second number for examples
with `MANY` positions in every layer."""


_MAX_GPU_SHARE = 1 / 8
"""Share of the free GPU memory that rows may take; more rows are kept in main memory."""


def _room_for(rows: Array, count: int) -> Array:
    """Return an empty array for `count` rows like these."""
    if isinstance(rows, np.ndarray):
        return np.empty((count, rows.shape[1]), rows.dtype)
    import torch

    needed = count * rows.shape[1] * rows.element_size()
    on_gpu = rows.is_cuda and needed < _MAX_GPU_SHARE * torch.cuda.mem_get_info(rows.device)[0]
    where = rows.device if on_gpu else "cpu"
    return torch.empty(count, rows.shape[1], dtype=rows.dtype, device=where)


class TrainingRows:
    """The rows of a training set, collected in any order.

    They are kept on their GPU if they take little of its memory, otherwise in main memory.

    The Fisher row of an example's given label is a multiple of its score (`ScoreRows.to_score`). A
    pass over the Fisher rows of examples at these `positions` therefore yields their rows as well.
    """

    def __init__(self, count: int, positions: np.ndarray) -> None:
        self.positions = positions
        self._found = np.zeros(count, dtype=bool)
        self.rows: Any = None
        """All rows, (count, p)."""

    def add(self, batch: ScoreRows, projected: Array) -> None:
        """Set the rows of examples whose score is a multiple of one of these Fisher rows."""
        if batch.to_score is not None:
            some = np.flatnonzero(batch.to_score)
            scale = as_like(batch.to_score[some], projected)
            self.put(self.positions[batch.sample[some]], projected[some] * scale[:, None])

    def put(self, positions: np.ndarray, rows: Array) -> None:
        """Set the rows of these training examples."""
        if self.rows is None:
            self.rows = _room_for(rows, len(self._found))
        self._found[positions] = True
        self.rows[positions] = on_device_of(rows, self.rows)

    @property
    def missing(self) -> np.ndarray:
        """Positions of the training examples without a row."""
        return np.flatnonzero(~self._found)


def estimate_fisher(
    oracle: Oracle,
    examples: Examples,
    basis: Sketch,
    fisher: str,
    rows: TrainingRows | None = None,
) -> tuple[Metric, FisherEvidence]:
    """Estimate the mean Fisher matrix in the basis; add the model's own penalty to it.

    `rows` collects the training rows that the pass gives.
    """
    found = basis.fisher_sum if fisher in ("true", "identity") else None
    basis.fisher_sum = None
    if found is None:
        found = _sum_of_rows(oracle, examples, basis, fisher, rows)
    n = len(examples)
    mean = found.matrix
    mean /= n
    inside = n * float(np.sum(mean if mean.ndim == 1 else np.diag(mean)))
    whole = basis.exact or found.energy <= inside  # the two differ by rounding
    evidence = FisherEvidence(
        trace=found.energy / n,
        rows=found.rows,
        energy2=found.energy2,
        squared_norm=float(np.vdot(mean, mean)),
        share=1.0 if whole else inside / found.energy,
        examples=n,
        parameters=oracle.n_parameters,
    )
    if fisher == "identity":
        return IdentityMetric(), evidence
    return _metric_of(mean, basis.penalty), evidence


def _metric_of(mean: np.ndarray, penalty: np.ndarray) -> Metric:
    """Add the penalty to the Fisher matrix, which is overwritten."""
    if mean.ndim == 1:
        return DiagonalMetric(mean + (penalty if penalty.ndim == 1 else np.diag(penalty)))
    if penalty.ndim == 1:
        mean[np.diag_indices_from(mean)] += penalty
    else:
        mean += penalty
    return FullMetric(mean)


def _sum_of_rows(
    oracle: Oracle, examples: Examples, basis: Sketch, fisher: str, found: TrainingRows | None
) -> FisherSum:
    """Sum r rᵀ over the model's Fisher rows, or over the scores for the empirical Fisher."""
    batches = _batches(oracle, examples, basis, fisher)
    total = SumOfSquares(diagonal=fisher == "diagonal")
    norms: _Norms | None = None
    for batch in (piece for whole in batches for piece in pieces(whole, 8 * basis.width)):
        if norms is None:
            long = batch.thinnest(oracle.layers) >= MANY
            stride = -(-len(examples) // (MEASURED_LONG if long else MEASURED))
            norms = _Norms(0 if basis.exact else stride)
        rows = basis.project(batch)
        norms.add(batch, rows)
        total.add(rows)
        if found is not None:
            found.add(batch, rows)
    assert norms is not None  # there is an example, and it has a row
    energy, energy2 = norms.totals()
    return FisherSum(total.done(), energy, energy2, norms.rows)


def _batches(oracle: Oracle, examples: Examples, basis: Sketch, fisher: str) -> Iterator[ScoreRows]:
    """Yield Fisher rows (or scores): those that the basis holds, then those of other examples."""
    held, basis.held = basis.held, None
    what = "estimating the Fisher"
    if held is None or fisher == "empirical":
        rows = oracle.scores(examples) if fisher == "empirical" else oracle.fisher_rows(examples)
        yield from track_rows(rows, what, len(examples))
        return
    yield from held.batches
    rest = np.setdiff1d(np.arange(len(examples)), held.positions)
    if len(rest):
        for batch in track_rows(oracle.fisher_rows(examples.take(rest)), what, len(rest)):
            yield replace(batch, sample=rest[batch.sample])


def pieces(batch: ScoreRows, row_bytes: int) -> Iterator[ScoreRows]:
    """Yield the batch, in parts if its projected rows take much more than `PIECE_BYTES`."""
    step = max(1, PIECE_BYTES // row_bytes)
    if len(batch) <= 2 * step:
        yield batch
        return
    for start in range(0, len(batch), step):
        part = batch.take(np.arange(start, min(start + step, len(batch))))
        # the count of the batch goes with its first part
        counted = batch.counted if start == 0 or batch.counted is None else 0
        yield replace(part, counted=counted)


@dataclass
class _Norms:
    """Σ ‖r‖² and Σ ‖r‖⁴ over all parameters, from norms in the basis and a sample of full norms.

    Sums stay on the device of the rows until the end, so that no batch waits for a transfer.
    """

    stride: int
    """Every stride-th row is measured; 0 if the basis is exact and none has to be."""
    rows: int = 0
    """Number of rows with a probability above the cut."""
    seen: int = 0
    inside: Any = 0.0
    """(Σ ‖r‖², Σ ‖r‖⁴) in the basis, over all rows."""
    inside_measured: Any = 0.0
    """The same over the measured rows."""
    whole_measured: Any = 0.0
    """Over all parameters, for the measured rows."""

    def add(self, batch: ScoreRows, projected: Array) -> None:
        self.rows += len(batch) if batch.counted is None else batch.counted
        energy = (projected * projected).sum(1)
        self.inside = self.inside + _two_sums(energy)
        if not self.stride:
            return
        some = np.arange(-self.seen % self.stride, len(batch), self.stride)
        self.seen += len(batch)
        if len(some):
            part = batch if self.stride == 1 else batch.take(some)
            self.inside_measured = self.inside_measured + _two_sums(energy[some])
            self.whole_measured = self.whole_measured + _two_sums(part.squared_norms())

    def totals(self) -> tuple[float, float]:
        inside = to_numpy(self.inside)
        if self.stride:
            part, whole = to_numpy(self.inside_measured), to_numpy(self.whole_measured)
            inside = np.where(part > 0, inside * whole / np.where(part > 0, part, 1.0), whole)
        return float(inside[0]), float(inside[1])


def _two_sums(energy: Array) -> Array:
    """Return (Σ e, Σ e²) in double precision."""
    e = in_double(energy)
    if isinstance(e, np.ndarray):
        return np.array([e.sum(), e @ e])
    import torch

    return torch.stack([e.sum(), e @ e])
