"""The paper's ranking of suspects, and the examples that contradict a suspect's label.

`rank_by_sbq`: SBQ on unit Fisher rows against the whole curated set. Candidates are the opponents
of the curated labels, z_j = f_j·μ < 0. Noise σ² = 10 lies between pure influence (σ² → ∞) and pure
diversity (σ² = 0), both of which find fewer wrong labels. The damping is the one at which z best
distinguishes the calibration rows' right and wrong versions; a row is never counted for itself.

`ContradictingExamples`: SBQ on the unit rows of curated examples with another label, opponents
only, with the suspect's own unit row as the target. The chosen rows push the model the opposite
way, each adds something the others do not, and −weight is how strongly each one disagrees. For a
model without scores, the most similar rows of another label are taken.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from exempla.arrays import TIE, is_sparse, levels
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.kernel.damping import check_damping, resolve_damping
from exempla.results import Selection
from exempla.selection import SBQ, select
from exempla.tasks.labels.evidence import Evidence
from exempla.tasks.labels.fisher import FisherView

MULTIPLES = (3.0, 10.0, 30.0, 100.0)
MOST_PICKS = 2000
"""Beyond so many picks the remaining rows follow in the order of z: each pick is a pass over all
rows, and nobody checks so many."""
_NOISE = 1.0
"""Noise of the selection of contradicting examples."""


@dataclass(frozen=True)
class _Ranking:
    """All training rows, most suspicious first, and the selection the order came from."""

    order: np.ndarray
    selection: Selection
    alignment: np.ndarray
    """z of every training row."""
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
    return _Ranking(order, selection, z[:n], value, rule)


def _choose_damping(evidence: Evidence, view: FisherView) -> tuple[float, str]:
    """The multiple of "per-row" with the largest AUC of −z, wrong against right versions."""
    unit = view.damping(1.0)
    versions = np.arange(evidence.problem.n_train, len(view.rows))
    best, auc = MULTIPLES[0], -1.0
    for multiple in MULTIPLES:
        z = view.similarity(versions, evidence.reference, multiple * unit)
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
        damping = view.damping()
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
