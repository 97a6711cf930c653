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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    in_double,
    is_tensor,
    on_device_of,
    solve_lower,
    to_numpy,
)
from exempla.errors import ExemplaError
from exempla.kernel.basis import FisherSum, IdentitySketch, Sketch
from exempla.kernel.damping import FisherEvidence
from exempla.memory import KEPT_WIDTH, PIECE_BYTES, available_memory
from exempla.oracles.base import MANY, Examples, Factors, Oracle, ScoreRows, as_slice
from exempla.progress import track_rows

# ---- metrics


class Metric:
    """The identity metric, M = I for every damping, and the base of the others."""

    name = "identity"

    def whiten(self, rows: Array, damping: float) -> Array:
        """Return rows · W with W Wᵀ = M⁻¹: dot products of the result are the kernel."""
        return rows

    def solve(self, rows: Array, damping: float) -> Array:
        """Return rows · M⁻¹: dot products of the result with plain rows are the kernel."""
        return rows

    def residual_inverse(self, eigenvalue: float, damping: float) -> float:
        """Return 1 / metric in the directions outside the basis, all of this eigenvalue."""
        return 1.0


class _DampedMetric(Metric):
    """M = Fisher + λR + damping·I in sketch space."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        """F + λR, (p, p), or its diagonal (p,)."""

    def residual_inverse(self, eigenvalue: float, damping: float) -> float:
        total = eigenvalue + damping
        return 1.0 / total if total > 0 else 0.0


class DiagonalMetric(_DampedMetric):
    """M = diag(Fisher) + diag(λR) + damping."""

    name = "diagonal"

    def whiten(self, rows: Array, damping: float) -> Array:
        total = self.matrix + damping
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


class _Factor:
    """The Cholesky factor L of M = F + λR + damping·I, in the lower triangle of `lower`.

    It is computed on the host, or on the GPU of the rows that it is for.
    """

    def __init__(self, matrix: np.ndarray, damping: float, device: Any) -> None:
        self.damping, self.device = damping, device
        for jitter in (0.0, _JITTER * float(np.trace(matrix)) / len(matrix)):
            self.jitter = jitter
            if device is None:
                # symmetric: the transpose is the same matrix in LAPACK's order
                total: Any = np.array(matrix, dtype=np.float64).T
                total[np.diag_indices_from(total)] += damping + jitter
                self.lower, failed = dpotrf(total, lower=1, clean=0, overwrite_a=1)
            else:
                import torch

                total = torch.as_tensor(matrix, device=device, dtype=torch.float64).clone()
                total.diagonal().add_(damping + jitter)
                self.lower, failed = torch.linalg.cholesky_ex(total)
            if not failed:
                return
        raise ExemplaError(_SINGULAR)

    @cached_property
    def inverse(self) -> Array:
        """L⁻ᵀ."""
        if self.device is None:
            return dtrtri(np.tril(self.lower), lower=1)[0].T
        import torch

        eye = torch.eye(len(self.lower), device=self.device, dtype=torch.float64)
        return torch.linalg.solve_triangular(self.lower, eye, upper=False).T


class FullMetric(_DampedMetric):
    """M = F + λR + damping·I, applied through one Cholesky factor per damping.

    The factor of the last damping is kept, of up to `KEPT_WIDTH` coordinates that of the last two:
    `explain` needs those of selection and of influence. Threads may use different dampings, because
    a factor is replaced and never changed.
    """

    name = "full"
    _kept: tuple[_Factor, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {"matrix": self.matrix}

    def whiten(self, rows: Array, damping: float) -> Array:
        factor = self._factor(damping, rows)
        if isinstance(rows, np.ndarray):
            white = solve_lower(factor.lower, rows)
        else:
            white = rows @ as_like(factor.inverse, rows)
        if factor.jitter:
            # A direction without curvature (the common shift of a softmax) is harmless unless a
            # score has a component in it, which would be multiplied by 1/jitter.
            lengths, own = (to_numpy((x * x).sum(1)) for x in (white, rows))
            if (lengths * factor.jitter > 1e-6 * own).any():
                raise ExemplaError(_SINGULAR)
        return white

    def solve(self, rows: Array, damping: float) -> Array:
        white, factor = self.whiten(rows, damping), self._factor(damping, rows)
        if isinstance(white, np.ndarray):
            return solve_lower(factor.lower, white, transposed=True)
        return white @ as_like(factor.inverse.T, white)

    def _factor(self, damping: float, rows: Array) -> _Factor:
        device = rows.device if is_tensor(rows) and rows.is_cuda else None
        kept = self._kept  # read once: another thread may replace it
        for factor in kept:
            if (factor.damping, factor.device) == (damping, device):
                return factor
        self._kept = kept[:1] if len(self.matrix) <= KEPT_WIDTH else ()  # frees their memory
        factor = _Factor(self.matrix, damping, device)
        self._kept = (factor, *self._kept)
        return factor


# ---- the estimate

ENOUGH = 2048
"""Rows per product. Adding the p × p result then takes a twentieth of the product's time; with few
rows it would take longer than the product."""


class SumOfSquares:
    """Accumulate Σ r rᵀ (p, p) in double precision, or its diagonal (p,)."""

    def __init__(self, diagonal: bool = False) -> None:
        self.diagonal = diagonal
        self._total: Any = 0.0
        self._waiting: list[Array] = []

    def add(self, rows: Array) -> None:
        """Add rows (n, p); all must have one type and precision."""
        if self.diagonal:
            self._total = self._total + in_double((rows * rows).sum(0))
            return
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= ENOUGH:
            self._multiply()

    def add_products(self, batch: ScoreRows) -> None:
        """Add rows a ⊗ g, of which those of an example share the inputs a.

        They sum to a aᵀ ⊗ Σ g gᵀ. One product of the inputs for every pair of outputs takes 2C
        times fewer operations than C written-out rows of every example.
        """
        (factors,) = batch.factors
        order = np.argsort(batch.sample, kind="stable")
        first = np.flatnonzero(np.diff(batch.sample[order], prepend=-1))
        a, g = in_double(factors.a[order[first]]), in_double(factors.g[order])
        d, outputs = a.shape[1], g.shape[1]
        if isinstance(self._total, float):
            self._total = np.zeros((d * outputs, d * outputs))
        blocks = self._total.reshape(d, outputs, d, outputs)
        for one in range(outputs):
            for other in range(one + 1):
                weights = np.add.reduceat(g[:, one] * g[:, other], first)
                block = a.T @ (weights[:, None] * a)
                blocks[:, one, :, other] += block
                if other < one:
                    blocks[:, other, :, one] += block

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
        more = in_double(rows.T @ rows)
        more += self._total
        self._total = more


MEASURED, MEASURED_LONG = 256, 64
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
    on_gpu = rows.is_cuda and needed < _MAX_GPU_SHARE * available_memory(rows.device)
    where = rows.device if on_gpu else "cpu"
    return torch.empty(count, rows.shape[1], dtype=rows.dtype, device=where)


class TrainingRows:
    """The rows of a training set, collected in any order.

    The Fisher row of an example's given label is a multiple of its score (`ScoreRows.to_score`). A
    pass over the Fisher rows of examples at these `positions` therefore yields their rows as well.
    """

    def __init__(self, count: int, positions: np.ndarray) -> None:
        self.positions = positions
        self._found = np.zeros(count, dtype=bool)
        self.rows: Any = None
        """All rows, (count, p)."""

    def add(self, batch: ScoreRows, projected: Array) -> None:
        """Set the rows of examples whose score is one of these rows, or a multiple of one."""
        if batch.is_score:
            self.put(self.positions[batch.sample], projected)
        elif batch.to_score is not None:
            some = np.flatnonzero(batch.to_score)
            scale = as_like(batch.to_score[some], projected)
            self.put(self.positions[batch.sample[some]], projected[some] * scale[:, None])

    def put(self, positions: np.ndarray, rows: Array) -> None:
        """Set the rows of these training examples."""
        if self.rows is None:
            self.rows = _room_for(rows, len(self._found))
        at = as_slice(positions)
        self._found[at] = True
        self.rows[at] = on_device_of(rows, self.rows)

    @property
    def missing(self) -> np.ndarray:
        """Positions of the training examples without a row."""
        return np.flatnonzero(~self._found)


def estimate_fisher(
    oracle: Oracle,
    train: Examples,
    positions: np.ndarray,
    basis: Sketch,
    fisher: str,
    rows: TrainingRows | None = None,
) -> tuple[Metric, FisherEvidence]:
    """Estimate the mean Fisher matrix in the basis from the examples at these positions.

    The model's own penalty is added. `rows` collects the training rows that the pass gives.
    """
    fisher = "identity" if oracle.whitened else fisher
    found = basis.fisher_sum if fisher in ("true", "identity") else None
    basis.fisher_sum = None
    if found is None:
        found = _sum_of_rows(oracle, train, positions, basis, fisher, rows)
    n = len(positions)
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
        return Metric(), evidence
    penalty = basis.penalty
    if mean.ndim == 1:
        own = penalty if penalty.ndim == 1 else np.diag(penalty)
        return DiagonalMetric(mean + own), evidence
    if penalty.ndim == 1:
        mean[np.diag_indices_from(mean)] += penalty
    else:
        mean += penalty
    return FullMetric(mean), evidence


def _sum_of_rows(
    oracle: Oracle,
    train: Examples,
    positions: np.ndarray,
    basis: Sketch,
    fisher: str,
    found: TrainingRows | None,
) -> FisherSum:
    """Sum r rᵀ over the model's Fisher rows, or over the scores for the empirical Fisher.

    Rows that were kept from building the basis come first and are not computed again.
    """
    known, basis.seen_rows = list(basis.seen_rows), ()
    if fisher == "empirical":
        known = []
    start = len(basis.seen) if known and basis.seen is not None else 0
    rest = positions[start:]
    examples = train if np.array_equal(rest, np.arange(len(train))) else train.take(rest)
    if fisher == "empirical":
        scored = oracle.scores(examples)
    elif found is not None:
        scored = oracle.fisher_and_scores(examples)
    else:
        scored = oracle.fisher_rows(examples)
    fresh = track_rows(scored, "estimating the Fisher", len(examples)) if len(rest) else ()
    moved = (replace(batch, sample=batch.sample + start) for batch in fresh)
    total = SumOfSquares(diagonal=fisher == "diagonal")
    # A basis fits the rows that it was computed from better than others, and these come first: each
    # has its own sample.
    norms: list[_Norms] = []
    for whole in chain((known.pop(0) for _ in range(len(known))), moved):
        if not norms:
            long = whole.thinnest(oracle.layers) >= MANY
            most = MEASURED_LONG if long else MEASURED
            stride = 0 if basis.exact else -(-len(positions) // most)
            norms = [_Norms(stride, long), _Norms(stride, long)]  # of its rows, and of the others
        if not len(whole):  # examples outside the margin of a hinge loss have no rows
            continue
        if not total.diagonal and isinstance(basis, IdentitySketch) and _shares_inputs(whole):
            norms[0].add(whole, None)
            total.add_products(whole)
            continue
        for batch in pieces(whole, 8 * basis.width):
            rows = basis.project(batch)
            if found is not None:
                found.add(batch, rows)
            if not batch.is_score:
                norms[int(batch.sample[0] >= start)].add(batch, rows)
                total.add(rows)
            del batch
        del whole  # the next pass needs the memory
    energy, energy2 = np.sum([each.totals() for each in norms], axis=0).tolist()
    return FisherSum(total.done(), energy, energy2, sum(each.rows for each in norms))


def _shares_inputs(batch: ScoreRows) -> bool:
    """Return True if these are products of two NumPy arrays, several rows for an example."""
    one, *others = batch.factors
    plain = not others and type(one) is Factors and isinstance(one.a, np.ndarray)
    fisher = batch.to_score is None and not batch.is_score
    return plain and fisher and len(np.unique(batch.sample)) < len(batch)


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
    in_batches: bool = False
    """Measure as many rows in whole batches: for long examples, whose batches are small, the number
    of operations per layer counts."""
    rows: int = 0
    """Number of rows with a probability above the cut."""
    seen: int = 0
    measured: int = 0
    inside: Any = 0.0
    """(Σ ‖r‖², Σ ‖r‖⁴) in the basis."""
    inside_measured: Any = 0.0
    whole_measured: Any = 0.0
    """The same of the measured rows, in the basis and over all parameters."""

    def add(self, batch: ScoreRows, projected: Array | None) -> None:
        """Add rows; `projected` may be missing if the basis is exact."""
        self.rows += len(batch) if batch.counted is None else batch.counted
        energy = batch.squared_norms() if projected is None else (projected * projected).sum(1)
        self.inside = self.inside + _two_sums(energy)
        if not self.stride:
            return
        some = np.arange(-self.seen % self.stride, len(batch), self.stride)
        if self.in_batches:
            some = np.arange(len(batch) if self.measured * self.stride <= self.seen else 0)
        self.seen += len(batch)
        self.measured += len(some)
        if len(some):
            part = batch if len(some) == len(batch) else batch.take(some)
            self.inside_measured = self.inside_measured + _two_sums(energy[some])
            self.whole_measured = self.whole_measured + _two_sums(part.squared_norms())

    def totals(self) -> np.ndarray:
        inside, part, whole = (
            to_numpy(sums) + np.zeros(2)
            for sums in (self.inside, self.inside_measured, self.whole_measured)
        )
        if self.stride:
            inside = np.where(part > 0, inside * whole / np.where(part > 0, part, 1.0), whole)
        return inside


def _two_sums(energy: Array) -> Array:
    """Return (Σ e, Σ e²) in double precision."""
    e = in_double(energy)
    return concatenate([e.sum().reshape(1), (e @ e).reshape(1)])
