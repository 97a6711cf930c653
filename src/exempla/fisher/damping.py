"""How much to damp the metric, from data: the choice that decides more than any other.

A rule looks at what was seen of the Fisher (`FisherEvidence`) and returns a value with its reason.
Which rule is the default for which use was decided by `benchmarks/damping.py`, which compares them
on retraining truth (digits) and on planted label errors (Enron1):

* influence asks what a refit would do; there "implicit" wins: the penalty that would explain why
  training stopped where it did (`benchmarks/faithfulness.py` has it on a second truth);
* selection on unit rows asks which scores point the same way; there a few examples of huge
  energy must not define the metric, and "per-effective-row" wins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.errors import ExemplaError

__all__ = ["RULES", "Damping", "FisherEvidence", "check_damping", "resolve_damping"]


@dataclass(frozen=True)
class FisherEvidence:
    """What was seen of the mean Fisher (1/n) Σ r rᵀ: the ground a damping rule stands on."""

    trace: float
    """Trace over all parameters, before any sketch."""
    rows: int
    """R, the weighted (example, class) rows r it was summed from."""
    energy2: float
    """Σ ‖r‖⁴."""
    squared_norm: float
    """‖F‖² (Frobenius) in the sketch."""
    examples: int
    """n."""
    parameters: int
    share: float = 1.0
    """Share of the trace that the sketch holds."""
    pull: float | None = None
    """‖mean score − λRθ̂‖ / ‖θ̂‖: how far from stationary the model is; None if θ̂ is unknown."""


@dataclass(frozen=True)
class Damping:
    """A value and how it was chosen, in words."""

    value: float
    rule: str


def implicit(evidence: FisherEvidence) -> Damping:
    """The L2 penalty δ that makes the trained model an optimum: mean score = λRθ̂ + δθ̂.

    Early stopping, noise and weight decay hold a network back from the minimum of its loss; a
    refit would be held back alike, and δ says how strongly. A convex model fitted to its optimum
    needs none, and gets next to none (what keeps the metric invertible in floating point).
    """
    if evidence.pull is None:
        return per_row(evidence)
    floor = 1e-6 * evidence.trace / evidence.parameters
    text = "implicit: the penalty under which the trained weights are stationary"
    return Damping(max(evidence.pull, floor), text)


def per_row(evidence: FisherEvidence) -> Damping:
    """Trace of the Fisher ÷ R: the mean energy one row adds.

    A direction supported by less than one row's worth of evidence is not trusted.
    """
    value = evidence.trace / max(evidence.rows, 1)
    return Damping(value, f"per-row: trace of the Fisher / its {evidence.rows} rows")


def per_effective_row(evidence: FisherEvidence) -> Damping:
    """Trace of the Fisher ÷ effective number of rows, (Σ‖r‖²)² / Σ‖r‖⁴.

    The same as "per-row" when all rows weigh alike, and larger the more a few rows dominate.
    """
    total = evidence.trace * evidence.examples
    effective = total**2 / evidence.energy2 if evidence.energy2 > 0 else 1.0
    value = evidence.trace / effective
    return Damping(value, f"per-effective-row: trace of the Fisher / {effective:.1f} rows' worth")


def shrinkage(evidence: FisherEvidence) -> Damping:
    """Ledoit and Wolf's optimal shrinkage of a sampled matrix towards a multiple of identity.

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


RULES = {
    "implicit": implicit,
    "per-row": per_row,
    "per-effective-row": per_effective_row,
    "shrinkage": shrinkage,
}
AUTO = {"influence": "implicit", "selection": "per-effective-row"}
"""What damping="auto" means for each use."""


def check_damping(wanted: object) -> str | float:
    """The option as given, if it means something."""
    if isinstance(wanted, str):
        if wanted != "auto" and wanted not in RULES:
            raise ExemplaError(
                f"damping={wanted!r} is not known: use a number, 'auto' or one of "
                f"{', '.join(RULES)}."
            )
        return wanted
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float, np.number)):
        raise ExemplaError(f"damping={wanted!r} is not a number nor the name of a rule.")
    if not (np.isfinite(wanted) and wanted >= 0):
        raise ExemplaError(f"damping={wanted} is not usable: give a number of at least zero.")
    return float(wanted)


def resolve_damping(
    wanted: str | float, evidence: FisherEvidence, metric: str, use: str = "influence"
) -> Damping:
    """The user's number, a named rule's, or the default rule's for this use."""
    if metric == "identity":
        return Damping(0.0, "none: the identity metric has nothing to damp")
    if isinstance(wanted, str):
        return RULES[AUTO[use] if wanted == "auto" else wanted](evidence)
    return Damping(wanted, "given")
