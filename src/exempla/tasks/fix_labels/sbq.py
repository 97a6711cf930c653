"""The paper's ranking of suspects: SBQ on unit Fisher rows against the whole curated set.

Candidates are the opponents of the curated labels, z_j = f_j·μ < 0; noise σ² = 10 keeps the choice
between pure influence (σ² → ∞) and pure diversity (σ² = 0), both of which find fewer wrong labels.
The damping is the one at which the calibration rows' versions, right and wrong, are told apart best
by z, a row never counted for itself: a rule on data.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import rankdata

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.fisher import check_damping, resolve_damping
from exempla.fisher.damping import per_row
from exempla.results import Selection
from exempla.selection import SBQ, select
from exempla.tasks.fix_labels.calibration import fit_calibrator, share_in_doubt, share_wrong
from exempla.tasks.fix_labels.evidence import Evidence
from exempla.tasks.fix_labels.fisher import FisherView
from exempla.tasks.ties import TIE, levels

__all__ = ["Ranking", "rank_by_sbq"]

MULTIPLES = (3.0, 10.0, 30.0, 100.0)
MOST_PICKS = 2000
"""Beyond so many picks the remaining rows follow in the order of z: each pick is a pass over all
rows, and nobody checks so many."""


@dataclass(frozen=True)
class Ranking:
    """All training rows, most suspicious first, and the selection the order came from."""

    order: np.ndarray
    selection: Selection
    alignment: np.ndarray
    """z of every training row."""
    probabilities: np.ndarray
    damping: float
    damping_rule: str


def rank_by_sbq(
    evidence: Evidence, k: int | None, noise: float, damping: str | float | None
) -> Ranking:
    """Pick the first k by SBQ; the others follow by z.

    `damping` is a number, a rule's name, or "auto" (None is its old spelling): chosen from data.
    """
    wanted = check_damping("auto" if damping is None else damping)
    view = evidence.view
    if view is None:
        raise ExemplaError(
            "method='sbq' needs a model with scores: use method='calibrated', "
            "or a model exempla can explain, such as LogisticRegression."
        )
    n = evidence.problem.n_train
    if wanted == "auto":
        value, rule = _choose_damping(evidence, view)
    else:
        chosen = resolve_damping(wanted, view.embedding.evidence, view.embedding.metric.name)
        value, rule = chosen.value, chosen.rule
    unit = view.unit(np.arange(len(view.rows)), value)
    mu = unit[evidence.reference].mean(0)
    z = (unit @ mu).astype(np.float64)
    size = float(np.abs(z).max())
    opponents = int((z[:n] < -TIE * size).sum())
    wanted = min(n if k is None else k, max(opponents, 1), MOST_PICKS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)  # the rest follows by z
        selection = select(unit[:n], mu, wanted, SBQ(noise=noise), side="opponents")
    rest = np.setdiff1d(np.arange(n), selection.indices)
    order = np.concatenate(
        [selection.indices, rest[np.argsort(levels(z[rest], size), kind="stable")]]
    )
    return Ranking(order, selection, z[:n], _probabilities(evidence, view, unit, z), value, rule)


def _choose_damping(evidence: Evidence, view: FisherView) -> tuple[float, str]:
    """The multiple of "per-row" with the largest AUC of −z, wrong against right versions."""
    unit = per_row(view.embedding.evidence).value
    versions = np.arange(evidence.problem.n_train, len(view.rows))
    best, auc = MULTIPLES[0], -1.0
    for multiple in MULTIPLES:
        z = view.compare(versions, evidence.reference, multiple * unit)[:, 0]
        found = separation(-z[~evidence.wrong], -z[evidence.wrong])
        if found > auc + TIE:
            best, auc = multiple, found
    return (
        best * unit,
        f"{best:g} x per-row: tells wrong from right labels best (AUC {auc:.3f})",
    )


def separation(right: np.ndarray, wrong: np.ndarray) -> float:
    """AUC: how often a wrong version looks more suspicious than a right one.

    >>> import numpy as np
    >>> separation(np.array([0.0, 1.0]), np.array([2.0, 0.5]))
    0.75
    """
    both = np.concatenate([wrong, right])
    ranks = rankdata(levels(both, scale=float(np.abs(both).max())))[: len(wrong)]
    w, r = len(wrong), len(right)
    return float((ranks.sum() - w * (w + 1) / 2) / (w * r))


def _probabilities(
    evidence: Evidence, view: FisherView, unit: np.ndarray, z: np.ndarray
) -> np.ndarray:
    """P(label is wrong) from z alone, calibrated on the calibration rows' versions."""
    n, m = evidence.problem.n_train, len(evidence.reference)
    # A reference row must not count for itself: take its own part out of the mean.
    version_of = np.full(len(evidence.problem), -1)
    version_of[view.rows[evidence.reference]] = evidence.reference
    twin = version_of[view.rows]
    own = np.einsum("ij,ij->i", unit, unit[twin])
    signal = -np.where(twin >= 0, (m * z - own) / max(m - 1, 1), z)[:, None]
    doubt = 0.0
    if not evidence.trusted:
        doubt = share_in_doubt(evidence.cross_fitted[:n], evidence.problem.codes[:n])
    calibrator = fit_calibrator(
        signal[n:],
        evidence.wrong,
        np.repeat(evidence.calibration_rows, 2),
        seed=evidence.seed,
        doubt=doubt,
        wrong_labels=len(evidence.problem.classes) - 1,
    )
    odds = calibrator.log_odds(signal[:n])
    return expit(odds + logit(share_wrong(odds) if evidence.trusted else doubt))
