"""Damping: what is added to every eigenvalue of the Fisher metric, chosen from data by default.

A rule turns what was measured of the Fisher matrix (`FisherEvidence`) into a value and its reason.
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

from dataclasses import dataclass
from typing import Literal

import numpy as np

from exempla.errors import ExemplaError

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
