"""The Fisher metric in sketch space: its estimate, its damping, and how it is applied to rows.

`estimate_fisher` sums r rᵀ over Fisher rows r in one pass and returns a `Metric` with the
statistics from which a damping is chosen. Metrics are the full matrix, which keeps correlations
across layers, its diagonal, and the identity (the paper's practical kernel). A metric whitens rows
for any damping.

The norm of a full score costs as much as a good part of a backward pass, and only the residual of
the sketch needs it. Norms are therefore measured on some of the rows, and the share of a row inside
the basis that is found there is used for all.

The damping is added to every eigenvalue of the metric and is chosen from data by default. A rule
turns what was measured of the Fisher matrix (`FisherEvidence`) into a value and its reason.
`damping="auto"` means a different rule for each use, because each use asks something else
(`AUTO_RULES`; the defaults were compared by retraining):

* influence predicts a refit. The weights of a network may not move further than a linear
  approximation reaches; "trust" bounds that distance. It was chosen on `benchmarks.truths`, where
  its worst loss against the best damping is the smallest of all rules tried. A model that is linear
  in its parameters has no such limit and uses "implicit", which is close to zero at an optimum.
* selection on unit rows compares directions of scores. A few examples with very long scores must
  not dominate the metric; "per-effective-row" wins (`benchmarks.damping`).
* an attack on inputs uses "per-row" up to 4096 parameters and "per-effective-row" above, where the
  Fisher matrix of a sample has many empty directions.
* a summary ("summary") uses none: the posterior around the fitted model takes its place.
* label repair with SBQ ("labels") takes multiples of "per-row" and picks the one that separates
  right from wrong labels best (`exempla.tasks.labels.fisher`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    is_tensor,
    on_device_of,
    solve_lower,
    to_numpy,
)
from exempla.errors import ExemplaError
from exempla.kernel.basis import FisherSum, Sketch
from exempla.memory import PIECE_BYTES, available_memory
from exempla.oracles.base import MANY, Examples, Oracle, ScoreRows
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
    """The Cholesky factor L of M = F + λR + damping·I, in the lower triangle of `lower`."""

    def __init__(self, matrix: np.ndarray, damping: float) -> None:
        self.damping = damping
        for jitter in (0.0, _JITTER * float(np.trace(matrix)) / len(matrix)):
            # symmetric: the transpose is the same matrix in LAPACK's order
            total: Any = np.array(matrix, dtype=np.float64).T
            total[np.diag_indices_from(total)] += damping + jitter
            lower, failed = dpotrf(total, lower=1, clean=0, overwrite_a=1)
            if not failed:
                self.lower: np.ndarray = lower
                self.jitter = jitter
                return
        raise ExemplaError(_SINGULAR)

    @cached_property
    def inverse(self) -> np.ndarray:
        """L⁻ᵀ."""
        return dtrtri(np.tril(self.lower), lower=1)[0].T


class FullMetric(_DampedMetric):
    """M = F + λR + damping·I, applied through one Cholesky factor per damping.

    The factor of the last damping is kept. Threads may use different dampings, because a factor is
    replaced and never changed.
    """

    name = "full"
    _last: _Factor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"matrix": self.matrix}

    def whiten(self, rows: Array, damping: float) -> Array:
        factor = self._factor(damping)
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
        white, factor = self.whiten(rows, damping), self._factor(damping)
        if isinstance(white, np.ndarray):
            return solve_lower(factor.lower, white, transposed=True)
        return white @ as_like(factor.inverse.T, white)

    def _factor(self, damping: float) -> _Factor:
        last = self._last  # read once: another thread may replace it
        if last is None or last.damping != damping:
            self._last = None  # frees the memory of the other factor
            self._last = last = _Factor(self.matrix, damping)
        return last


# ---- damping

Use = Literal["influence", "selection", "attack", "labels", "summary"]
"""What a damping is for."""


@dataclass(frozen=True)
class FisherEvidence:
    """Statistics of the mean Fisher matrix F = (1/n) Σ r rᵀ from which a rule chooses a damping."""

    trace: float
    """Trace over all parameters, before any sketch."""
    rows: int
    """R, the number of weighted (example, class) rows r in the sum."""
    energy2: float
    """Σ ‖r‖⁴."""
    squared_norm: float
    """‖F‖² (Frobenius) in the sketch."""
    examples: int
    """n, the number of examples in the sum."""
    parameters: int
    share: float = 1.0
    """Share of the trace that the sketch keeps."""
    gradient_gap: float | None = None
    """‖mean score − λRθ̂‖ / ‖θ̂‖, the distance from a stationary point; None if θ̂ is unknown."""
    trained: int = 0
    """Number of training examples; `examples` may be a sample of them."""
    misfit: float = 1.0
    """κ, the mean squared length of the training scores divided by its expectation under the model
    (the trace). Near 1 for a calibrated model, near 0 for one that memorised its training set."""
    weight_square: float | None = None
    """Typical squared weight: harmonic mean over parameters of the mean square of their layer. None
    for a model with fewer than two layers."""
    from_run: bool = False
    """Whether the model is one of several snapshots of a run; `weight_square` is then that of the
    last one."""


@dataclass(frozen=True)
class Damping:
    """A value and the rule that chose it, in words."""

    value: float
    rule: str


_TRUST_RADIUS, SNAPSHOT_TRUST_RADIUS = 0.5, 1.0
"""ρ² of the rule "trust" in units of the typical squared weight: for one model, and for each of
several snapshots of a run (`benchmarks.truths`)."""
_MIN_SHARE_OF_MEAN_EIGENVALUE = 1e-6
"""Smallest damping chosen by a rule, relative to the mean eigenvalue of the Fisher matrix."""
_MAX_PER_ROW_PARAMETERS = 4096
"""Up to this many parameters an attack uses "per-row"."""


def trust(evidence: FisherEvidence) -> Damping:
    """Return κ / (n ρ²), the eigenvalue below which leaving examples out moves weights too far.

    Leaving out a fraction of n examples changes the mean score along an eigenvector of eigenvalue σ
    by about √(κσ/n), and the weights by √(κ/(nσ)). A network is linear in its weights only within
    some fraction ρ of their size; directions with σ < κ/(nρ²) would leave that range and are
    damped. Each snapshot of a run accounts for a part of the way only, so its radius is larger.
    """
    if evidence.weight_square is None or not evidence.trained:
        return implicit(evidence)
    radius = SNAPSHOT_TRUST_RADIUS if evidence.from_run else _TRUST_RADIUS
    value = evidence.misfit / (evidence.trained * radius * evidence.weight_square)
    return Damping(
        max(value, _floor(evidence)), "trust: weights may move by about their own size, not further"
    )


def implicit(evidence: FisherEvidence) -> Damping:
    """Return ‖mean score − λRθ̂‖ / ‖θ̂‖, the L2 penalty that would balance the mean score.

    A model at its optimum needs none and gets only what keeps the metric invertible.
    """
    if evidence.gradient_gap is None:
        return per_row(evidence)
    value = max(evidence.gradient_gap, _floor(evidence))
    return Damping(value, "implicit: length of the mean score / length of the weights")


def per_row(evidence: FisherEvidence) -> Damping:
    """Return trace(F) / R, the mean contribution of one row.

    A direction supported by less than one row's worth of data is not trusted.
    """
    value = evidence.trace / max(evidence.rows, 1)
    return Damping(value, f"per-row: trace of the Fisher / its {evidence.rows} rows")


def per_effective_row(evidence: FisherEvidence) -> Damping:
    """Return trace(F) divided by the effective number of rows, (Σ‖r‖²)² / Σ‖r‖⁴.

    It equals "per-row" if all rows have the same length, and grows if a few rows dominate.
    """
    total = evidence.trace * evidence.examples
    effective = total**2 / evidence.energy2 if evidence.energy2 > 0 else 1.0
    value = evidence.trace / effective
    return Damping(
        value, f"per-effective-row: trace of the Fisher / {effective:.1f} effective rows"
    )


def shrinkage(evidence: FisherEvidence) -> Damping:
    """Return the optimal shrinkage of Ledoit and Wolf towards a multiple of the identity.

    (1−ρ)F + ρmI has the directions of F + ρm/(1−ρ)·I, with m = trace/P and
    ρ = E‖F − EF‖² / ‖F − mI‖², the numerator estimated from the spread of the R rows.
    """
    mean = evidence.trace / evidence.parameters
    scale = evidence.rows / evidence.examples
    spread = scale**2 * evidence.energy2 / evidence.rows - evidence.squared_norm
    distance = evidence.squared_norm - mean**2 * evidence.parameters
    share = float(np.clip(spread / evidence.rows / distance, 0.0, 0.999)) if distance > 0 else 0.999
    value = share / (1.0 - share) * mean
    return Damping(value, f"shrinkage: Ledoit-Wolf, {share:.3g} of the way to the identity")


def _floor(evidence: FisherEvidence) -> float:
    return _MIN_SHARE_OF_MEAN_EIGENVALUE * evidence.trace / evidence.parameters


RULES = {
    "trust": trust,
    "implicit": implicit,
    "per-row": per_row,
    "per-effective-row": per_effective_row,
    "shrinkage": shrinkage,
}
AUTO_RULES: dict[str, str] = {
    "influence": "trust",
    "selection": "per-effective-row",
    "labels": "per-row",
}
"""The rule that damping="auto" stands for, where it does not depend on the model."""


def check_damping(wanted: object, use: Use = "influence") -> str | float:
    """Return the option if it is a rule or a number ≥ 0; a summary takes no named rule."""
    if isinstance(wanted, str):
        if wanted != "auto" and (use == "summary" or wanted not in RULES):
            rules = "a number" if use == "summary" else f"one of {', '.join(RULES)}"
            raise ExemplaError(f"damping={wanted!r} is not known: use a number, 'auto' or {rules}.")
        return wanted
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float, np.number)):
        raise ExemplaError(f"damping={wanted!r} is neither a number nor the name of a rule.")
    if not (np.isfinite(wanted) and wanted >= 0):
        raise ExemplaError(f"damping={wanted} is not usable: give a number of at least zero.")
    return float(wanted)


def resolve_damping(
    wanted: str | float,
    evidence: FisherEvidence | None,
    metric: str = "full",
    use: Use = "influence",
) -> Damping:
    """Return the number given, or the value of the named rule or of the default rule of this use.

    Every job resolves `damping=` here. `evidence` may be None for a number, and for a summary,
    which needs none.
    """
    if metric == "identity":
        return Damping(0.0, "none: the identity metric has nothing to damp")
    if not isinstance(wanted, str):
        return Damping(float(wanted), "given")
    if use == "summary":
        return Damping(0.0, "none: the posterior around the fitted model takes its place")
    assert evidence is not None
    if wanted == "auto" and use == "attack":
        small = evidence.parameters <= _MAX_PER_ROW_PARAMETERS
        wanted = "per-row" if small else "per-effective-row"
    return RULES[AUTO_RULES[use] if wanted == "auto" else wanted](evidence)


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


def in_double(array: Array) -> Array:
    """Return the array in float64 on the same device."""
    return array.astype(np.float64, copy=False) if isinstance(array, np.ndarray) else array.double()


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
        self._found[positions] = True
        self.rows[positions] = on_device_of(rows, self.rows)

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
    examples = train if len(positions) == len(train) else train.take(positions)
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
    oracle: Oracle, examples: Examples, basis: Sketch, fisher: str, found: TrainingRows | None
) -> FisherSum:
    """Sum r rᵀ over the model's Fisher rows, or over the scores for the empirical Fisher."""
    if fisher == "empirical":
        scored = oracle.scores(examples)
    elif found is not None:
        scored = oracle.fisher_and_scores(examples)
    else:
        scored = oracle.fisher_rows(examples)
    batches = track_rows(scored, "estimating the Fisher", len(examples))
    total = SumOfSquares(diagonal=fisher == "diagonal")
    norms: _Norms | None = None
    for batch in (piece for whole in batches for piece in pieces(whole, 8 * basis.width)):
        if norms is None:
            long = batch.thinnest(oracle.layers) >= MANY
            stride = -(-len(examples) // (MEASURED_LONG if long else MEASURED))
            norms = _Norms(0 if basis.exact else stride)
        rows = basis.project(batch)
        if found is not None:
            found.add(batch, rows)
        if not batch.is_score:
            norms.add(batch, rows)
            total.add(rows)
    assert norms is not None  # there is an example, and it has a row
    energy, energy2 = norms.totals()
    return FisherSum(total.done(), energy, energy2, norms.rows)


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
    """(Σ ‖r‖², Σ ‖r‖⁴) in the basis."""
    inside_measured: Any = 0.0
    whole_measured: Any = 0.0
    """The same of the measured rows, in the basis and over all parameters."""

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
    return concatenate([e.sum().reshape(1), (e @ e).reshape(1)])
