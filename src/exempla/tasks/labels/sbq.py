"""The paper's ranking of suspects: SBQ on unit Fisher rows against the whole curated set.

Candidates are the opponents of the curated labels, z_j = f_j·μ < 0; noise σ² = 10 keeps the choice
between pure influence (σ² → ∞) and pure diversity (σ² = 0), both of which find fewer wrong labels.
The damping is the one at which the calibration rows' versions, right and wrong, are told apart best
by z, a row never counted for itself: a rule on data.

Which examples contradict a suspect's label: curated rows, with weights.

The suspect's score under its given label is explained by curated scores under their true labels:
SBQ on the unit rows of curated examples with another label, opponents only, target = the suspect's
own unit row. (Of a model without scores, the rows of another label that resemble it most.) The
chosen rows push the model the opposite way, each adds something the others do
not say, and −weight is how much of the suspect's pull each one contradicts.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression

from exempla.arrays import TIE, first_largest, is_sparse, levels
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.kernel.damping import check_damping, resolve_damping
from exempla.results import Selection
from exempla.selection import SBQ, select
from exempla.tasks.labels.evidence import Evidence, FisherView

MULTIPLES = (3.0, 10.0, 30.0, 100.0)
MOST_PICKS = 2000
"""Beyond so many picks the remaining rows follow in the order of z: each pick is a pass over all
rows, and nobody checks so many."""


_MAX_STEPS = 1000
_MIN_SHARE, _MAX_SHARE = 1e-6, 0.45
"""Shares of wrong labels; beyond the larger one nothing can be learned from the given labels."""
_NEAR_ONE = 1e-5
"""Where |log p| is smaller than this, only rounding distinguishes p from one."""


@dataclass(frozen=True)
class _Ranking:
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
) -> _Ranking:
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
    return _Ranking(order, selection, z[:n], _probabilities(evidence, view, unit, z), value, rule)


def _choose_damping(evidence: Evidence, view: FisherView) -> tuple[float, str]:
    """The multiple of "per-row" with the largest AUC of −z, wrong against right versions."""
    unit = resolve_damping("auto", view.embedding.evidence, use="labels").value
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
    scale = float(signal[n:].std()) or 1.0
    calibrator = LogisticRegression().fit(signal[n:] / scale, evidence.wrong)
    odds = calibrator.decision_function(signal[:n] / scale)
    if evidence.trusted:
        share = share_wrong(odds)
    else:
        share = share_in_doubt(evidence.cross_fitted[:n], evidence.columns.own[:n])
    return expit(odds + logit(share))


def share_wrong(log_odds: np.ndarray) -> float:
    """Return π: the share of wrong labels under which log-odds at even prior are self-consistent.

    It is the fixed point of π = mean_i σ(g_i + logit π): expectation-maximisation for a shift of
    the prior.

    >>> round(share_wrong(np.repeat([-9.0, 9.0], [80, 20])), 2)
    0.2
    """
    share = 0.5
    for _ in range(_MAX_STEPS):
        new = float(np.mean(expit(log_odds + logit(share))))
        new = min(max(new, _MIN_SHARE), 1.0 - _MIN_SHARE)
        if abs(new - share) < 1e-9:
            break
        share = new
    return share


def share_in_doubt(log_proba: np.ndarray, given: np.ndarray) -> float:
    """Return how often the given label is not the predicted one, among the most confident half.

    Where a cross-validated model is most certain, classes hardly overlap, and disagreement means a
    wrong label. The model's own errors count too, so this is an upper estimate.

    >>> p = np.repeat([[0.99, 0.01], [0.6, 0.4]], 10, axis=0)
    >>> share_in_doubt(np.log(p), np.array([1] * 2 + [0] * 8 + [0, 1] * 5))
    0.2
    """
    confidence = levels(log_proba.max(axis=1), scale=_NEAR_ONE)
    sure = np.argsort(-confidence, kind="stable")[: max(len(given) // 2, 1)]
    wrong = float(np.mean(first_largest(log_proba[sure]) != given[sure]))
    return float(np.clip(wrong, _MIN_SHARE, _MAX_SHARE))


_NOISE = 1.0
MIDDLE_DAMPING = 1
"""Which of the dampings: the middle one."""


@dataclass(frozen=True)
class _Contradiction:
    """The examples that contradict one training row's label, strongest first."""

    row: int
    indices: np.ndarray
    """Rows of the curated set; rows of the training set if there was no curated set."""
    labels: np.ndarray
    """Their labels."""
    weights: np.ndarray
    """How much of the suspect's pull each contradicts; positive."""
    source: str
    """"curated" or "train": where the indices count."""

    def __len__(self) -> int:
        return len(self.indices)


class ContradictingExamples:
    """A `_Contradiction` for each suspect by rank, worked out when first looked at.

    `[0]` belongs to the most suspicious row.
    """

    def __init__(self, evidence: Evidence, suspects: np.ndarray, count: int = 5) -> None:
        self._evidence, self._suspects, self._count = evidence, suspects, count
        self._known: dict[int, _Contradiction] = {}
        self._anchors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._suspects)

    def __getitem__(self, rank: int) -> _Contradiction:
        if not -len(self) <= rank < len(self):
            raise IndexError(f"there are {len(self)} suspects, and none at rank {rank}")
        row = int(self._suspects[rank])
        if row not in self._known:
            self._known[row] = self._of(row)
        return self._known[row]

    def __repr__(self) -> str:
        return f"<examples that contradict {len(self)} suspects, worked out when looked at>"

    def _of(self, row: int) -> _Contradiction:
        evidence = self._evidence
        problem, view = evidence.problem, evidence.light_view
        if view is None:
            return self._nearest(row)
        damping = view.dampings()[MIDDLE_DAMPING]
        if self._anchors is None:
            self._anchors = view.unit(evidence.reference, damping)
        rows = view.rows[evidence.reference]
        others = (rows != row) & (problem.codes[rows] != problem.codes[row])
        found, weights = np.array([], dtype=np.int64), np.array([])
        target = view.unit(np.array([row]), damping)[0]
        if np.any(target) and others.any():
            found, weights = self._chosen(self._anchors[others], target)
        return self._named(row, rows[others][found], weights)

    def _nearest(self, row: int) -> _Contradiction:
        """Of a model without scores: the calibration rows of another label that are most alike."""
        evidence = self._evidence
        rows, Z = evidence.calibration_rows, evidence.comparable
        rows = rows[(rows != row) & (evidence.problem.codes[rows] != evidence.problem.codes[row])]
        if Z is None or not len(rows):
            return self._named(row, rows[:0], np.array([]))
        cosine = Z[rows] @ Z[[row]].T
        cosine = np.asarray(cosine.todense() if is_sparse(cosine) else cosine).ravel()
        best = np.argsort(-levels(cosine, 1.0), kind="stable")[: self._count]
        best = best[cosine[best] > 0]
        return self._named(row, rows[best], cosine[best])

    def _named(self, row: int, positions: np.ndarray, weights: np.ndarray) -> _Contradiction:
        evidence = self._evidence
        return _Contradiction(
            row=row,
            indices=positions - (evidence.problem.n_train if evidence.trusted else 0),
            labels=evidence.problem.labels(positions),
            weights=weights,
            source="curated" if evidence.trusted else "train",
        )

    def _chosen(self, anchors: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the opponents that explain the target, and how much each contradicts it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExemplaWarning)  # fewer than count is no news
            chosen = select(
                anchors, target, min(self._count, len(anchors)), SBQ(noise=_NOISE), side="opponents"
            )
        against = chosen.weights < 0
        found, weights = chosen.indices[against], -chosen.weights[against]
        order = np.argsort(-levels(weights), kind="stable")
        return found[order], weights[order]
