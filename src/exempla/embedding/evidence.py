"""What the training rows add to the evidence that a damping is chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from exempla.arrays import Array, is_tensor, to_numpy
from exempla.errors import ExemplaError
from exempla.fisher.damping import FisherEvidence
from exempla.oracles.base import Oracle
from exempla.sketch import Sketch
from exempla.store import StoredRows

__all__ = ["Seen", "refuse_unusable", "typical_square", "with_rows"]


class Seen:
    """Σ s_i and Σ ‖s_i‖², in double precision; no copy of the rows is made, as they may be nearly
    all the memory there is."""

    def __init__(self, rows: Array | StoredRows) -> None:
        self.count, self.energy = len(rows), 0.0
        self.total = np.zeros(rows.shape[1])
        for part in _parts(rows):
            own: Any = part
            if is_tensor(part):
                self.total += to_numpy(own.sum(0)).astype(np.float64)
                self.energy += float(own.norm()) ** 2
            else:
                self.total += own.sum(0, dtype=np.float64)
                self.energy += float(np.einsum("ij,ij->", own, own, dtype=np.float64))


def _parts(rows: Array | StoredRows) -> Iterator[Array]:
    if isinstance(rows, StoredRows):
        yield from (part for _, part in rows.stream())
    else:
        yield rows


def with_rows(
    evidence: FisherEvidence, oracle: Oracle, basis: Sketch, seen: Seen
) -> FisherEvidence:
    """The evidence of the Fisher with that of the training rows."""
    return replace(
        evidence,
        pull=distance_from_stationary(oracle, basis, seen),
        trained=seen.count,
        misfit=misfit(seen, evidence),
        weight_square=typical_square(oracle.theta_squares),
    )


def distance_from_stationary(oracle: Oracle, basis: Sketch, seen: Seen) -> float | None:
    """‖mean score − λRθ̂‖ / ‖θ̂‖, the mean taken in sketch space."""
    known = oracle.implicit_penalty
    if known is not None:
        return known
    size = oracle.theta_norm
    if not size:
        return None
    left = seen.total / seen.count
    penalty = oracle.penalty_rows()
    if penalty is not None:
        left = left - to_numpy(basis.project(penalty)).sum(0)
    return float(np.linalg.norm(left)) / size


def misfit(seen: Seen, evidence: FisherEvidence) -> float:
    """Mean squared length of the scores over the Fisher's trace, both as far as the sketch shows
    them."""
    expected = evidence.trace * evidence.share
    return seen.energy / seen.count / expected if expected > 0 else 1.0


def typical_square(squares: list[tuple[int, float]] | None) -> float | None:
    """The harmonic mean over parameters of their layer's mean square, of two layers or more."""
    used = [(size, square) for size, square in squares or [] if square > 0]
    if len(used) < 2:
        return None
    return sum(size for size, _ in used) / sum(size * size / square for size, square in used)


def refuse_unusable(rows: Array, whose: str, first: int = 0) -> None:
    """NaN and infinity stop here, by name: further on they would spoil everything silently.

    `first` is the number of the first of the rows.
    """
    sums = to_numpy(rows.sum(1))
    bad = first + np.flatnonzero(~np.isfinite(sums))
    if len(bad):
        named = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        raise ExemplaError(
            f"{len(bad)} of {whose} have a score that is not finite (rows {named}): "
            "check those inputs and the model's weights for NaN and infinity."
        )
