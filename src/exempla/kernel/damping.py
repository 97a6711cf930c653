"""How much to damp the metric, from data: the choice that decides more than any other.

A rule looks at what was seen of the Fisher (`FisherEvidence`) and returns a value with its reason.
Which rule is the default for which use was decided by retraining:

* influence asks what a refit would do. A network's weights may not be moved further than a linear
  approximation reaches, and "trust" says how far that is; it was chosen on the truths of
  `benchmarks.truths`, where its worst loss to the best damping is the smallest of all rules tried.
  A model that is linear in its parameters has no such limit; there "implicit" is right, which is
  next to nothing for one that was fitted to its optimum.
* selection on unit rows asks which scores point the same way; there a few examples of huge
  energy must not define the metric, and "per-effective-row" wins (`benchmarks.damping`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.errors import ExemplaError


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
    trained: int = 0
    """Training examples; `examples` may be a sample of them."""
    misfit: float = 1.0
    """κ: mean squared length of the training scores ÷ what the model itself expects (the trace).
    Near 1 for a model that is as often wrong as it thinks, near 0 for one that has learned its
    training set by heart."""
    weight_square: float | None = None
    """Typical squared weight: the harmonic mean over parameters of their layer's mean square; None
    for a model with less than two layers."""
    of_run: bool = False
    """Whether this is one moment of a training of several; the weights are those at its end."""


@dataclass(frozen=True)
class Damping:
    """A value and how it was chosen, in words."""

    value: float
    rule: str


_SHARE_OF_A_WEIGHT, SHARE_IN_A_RUN = 0.5, 1.0
"""ρ² in units of the typical squared weight, for a model alone and for the moments of one training:
the constants of "trust" (`benchmarks.truths`)."""


def trust(evidence: FisherEvidence) -> Damping:
    """κ / (n ρ²): the eigenvalue below which leaving examples out moves weights too far.

    Leaving out a share of n examples changes the mean score along an eigenvector of eigenvalue σ
    by about √(κσ/n), and so the weights by √(κ/(nσ)). A network is linear in its weights only
    while they stay within some fraction ρ of their own size; directions with σ < κ/(nρ²) would
    leave that range, and are held back. Of several moments of one training each stands for a part
    of the way only, and the weights at its end say how far it went: they are held back less.
    """
    if evidence.weight_square is None or not evidence.trained:
        return implicit(evidence)
    share = SHARE_IN_A_RUN if evidence.of_run else _SHARE_OF_A_WEIGHT
    radius = share * evidence.weight_square
    floor = 1e-6 * evidence.trace / evidence.parameters
    value = max(evidence.misfit / (evidence.trained * radius), floor)
    return Damping(value, "trust: weights may move by about their own size, not further")


def implicit(evidence: FisherEvidence) -> Damping:
    """‖mean score − λRθ̂‖ / ‖θ̂‖: the size of an L2 penalty that could balance the mean score.

    A model fitted to its optimum needs none, and gets next to none (what keeps the metric
    invertible in floating point). One that was stopped before is held back by as much.
    """
    if evidence.pull is None:
        return per_row(evidence)
    floor = 1e-6 * evidence.trace / evidence.parameters
    text = "implicit: the mean score's length over the weights'"
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
    "trust": trust,
    "implicit": implicit,
    "per-row": per_row,
    "per-effective-row": per_effective_row,
    "shrinkage": shrinkage,
}
AUTO = {"influence": "trust", "selection": "per-effective-row"}
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
