"""The mean Fisher in sketch space, streamed, and what is seen of it on the way.

Norms of whole scores cost as much as a good part of a backward pass, and only the part outside the
basis needs them: they are measured on some examples, spread over the data, and the share of a row
inside the basis seen there is carried over to the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exempla.arrays import Array, to_numpy
from exempla.factors import MANY
from exempla.fisher.base import Metric
from exempla.fisher.damping import FisherEvidence
from exempla.fisher.diagonal import DiagonalMetric
from exempla.fisher.full import FullMetric
from exempla.fisher.identity import IdentityMetric
from exempla.fisher.squares import SumOfSquares, in_double
from exempla.oracles.base import Examples, Oracle, ScoreRows
from exempla.progress import track_rows
from exempla.sketch.base import FisherSum, Sketch

__all__ = ["estimate_fisher"]

MEASURED = 512
"""Examples whose rows are measured whole, outside the basis too, where the basis is not exact …"""
MEASURED_LONG = 64
"""… and of examples with `MANY` positions in every layer."""
PIECE_BYTES = 2**26
"""Rows in the basis are summed so many bytes at a time: those of all classes of a batch may be
far more than its factors."""


def estimate_fisher(
    oracle: Oracle, examples: Examples, basis: Sketch, fisher: str
) -> tuple[Metric, FisherEvidence]:
    """The mean Fisher in sketch space with the model's own penalty added."""
    found = basis.fisher_sum if fisher in ("true", "identity") else None
    basis.fisher_sum = None
    if found is None:
        found = sum_of_rows(oracle, examples, basis, fisher)
    n = len(examples)
    mean = found.matrix
    mean /= n
    inside = n * float(np.sum(mean if mean.ndim == 1 else np.diag(mean)))
    whole = basis.exact or found.energy <= inside  # two sums of the same differ by rounding
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
    return metric_of(mean, basis.penalty), evidence


def metric_of(mean: np.ndarray, penalty: np.ndarray) -> Metric:
    """Fisher and penalty together; the matrix is taken over."""
    if mean.ndim == 1:
        return DiagonalMetric(mean + (penalty if penalty.ndim == 1 else np.diag(penalty)))
    if penalty.ndim == 1:
        mean[np.diag_indices_from(mean)] += penalty
    else:
        mean += penalty
    return FullMetric(mean)


def sum_of_rows(oracle: Oracle, examples: Examples, basis: Sketch, fisher: str) -> FisherSum:
    """Σ r rᵀ over the model's Fisher rows (or the scores, for the empirical one)."""
    batches = oracle.scores(examples) if fisher == "empirical" else oracle.fisher_rows(examples)
    total = SumOfSquares(diagonal=fisher == "diagonal")
    norms: Norms | None = None
    watched = track_rows(batches, "estimating the Fisher", len(examples))
    for batch in (piece for whole in watched for piece in pieces(whole, 8 * basis.width)):
        if norms is None:
            long = batch.thinnest(oracle.layers) >= MANY
            stride = -(-len(examples) // (MEASURED_LONG if long else MEASURED))
            norms = Norms(0 if basis.exact else stride)
        rows = basis.project(batch)
        norms.add(batch, rows)
        total.add(rows)
    assert norms is not None  # there is an example, and it has a row
    energy, energy2 = norms.totals()
    return FisherSum(total.done(), energy, energy2, norms.rows)


def pieces(batch: ScoreRows, row_bytes: int) -> Iterator[ScoreRows]:
    """The batch, in parts if its rows take much more than a piece should."""
    step = max(1, PIECE_BYTES // row_bytes)
    if len(batch) <= 2 * step:
        yield batch
        return
    for start in range(0, len(batch), step):
        part = batch.take(np.arange(start, min(start + step, len(batch))))
        # what is counted of the batch is counted with its first part
        counted = batch.counted if start == 0 or batch.counted is None else 0
        yield replace(part, counted=counted)


@dataclass
class Norms:
    """Σ ‖r‖² and Σ ‖r‖⁴ over whole rows r, from their parts inside the basis and a sample of whole
    ones. Sums stay on the rows' device until the end: nobody waits for them."""

    stride: int
    """One row of so many is measured whole, rows of rare classes like the others; 0: none, as all
    of every row lies inside."""
    rows: int = 0
    """How many carry probability."""
    seen: int = 0
    inside: Any = 0.0
    """(Σ ‖r‖², Σ ‖r‖⁴) of the parts inside, over all rows."""
    inside_measured: Any = 0.0
    """The same over the rows that were measured whole."""
    whole_measured: Any = 0.0

    def add(self, batch: ScoreRows, projected: Array) -> None:
        self.rows += len(batch) if batch.counted is None else batch.counted
        energy = (projected * projected).sum(1)
        self.inside = self.inside + two_sums(energy)
        if not self.stride:
            return
        some = np.arange(-self.seen % self.stride, len(batch), self.stride)
        self.seen += len(batch)
        if len(some):
            part = batch if self.stride == 1 else batch.take(some)
            self.inside_measured = self.inside_measured + two_sums(energy[some])
            self.whole_measured = self.whole_measured + two_sums(part.squared_norms())

    def totals(self) -> tuple[float, float]:
        inside = to_numpy(self.inside)
        if self.stride:
            part, whole = to_numpy(self.inside_measured), to_numpy(self.whole_measured)
            inside = np.where(part > 0, inside * whole / np.where(part > 0, part, 1.0), whole)
        return float(inside[0]), float(inside[1])


def two_sums(energy: Array) -> Array:
    """(Σ e, Σ e²) in double precision."""
    e = in_double(energy)
    if isinstance(e, np.ndarray):
        return np.array([e.sum(), e @ e])
    import torch

    return torch.stack([e.sum(), e @ e])
