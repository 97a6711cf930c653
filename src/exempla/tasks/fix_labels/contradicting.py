"""Which examples contradict a suspect's label: curated rows, with weights.

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

from exempla.arrays import is_sparse
from exempla.errors import ExemplaWarning
from exempla.selection import SBQ, select
from exempla.tasks.fix_labels.evidence import Evidence
from exempla.tasks.ties import levels

__all__ = ["MIDDLE_DAMPING", "ContradictingExamples", "Contradiction"]

NOISE = 1.0
MIDDLE_DAMPING = 1
"""Which of the dampings: the middle one."""


@dataclass(frozen=True)
class Contradiction:
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
    """A `Contradiction` for each suspect by rank, worked out when first looked at.

    `[0]` belongs to the most suspicious row.
    """

    def __init__(self, evidence: Evidence, suspects: np.ndarray, count: int = 5) -> None:
        self._evidence, self._suspects, self._count = evidence, suspects, count
        self._known: dict[int, Contradiction] = {}
        self._anchors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._suspects)

    def __getitem__(self, rank: int) -> Contradiction:
        if not -len(self) <= rank < len(self):
            raise IndexError(f"there are {len(self)} suspects, and none at rank {rank}")
        row = int(self._suspects[rank])
        if row not in self._known:
            self._known[row] = self._of(row)
        return self._known[row]

    def __repr__(self) -> str:
        return f"<examples that contradict {len(self)} suspects, worked out when looked at>"

    def _of(self, row: int) -> Contradiction:
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

    def _nearest(self, row: int) -> Contradiction:
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

    def _named(self, row: int, positions: np.ndarray, weights: np.ndarray) -> Contradiction:
        evidence = self._evidence
        return Contradiction(
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
                anchors, target, min(self._count, len(anchors)), SBQ(noise=NOISE), side="opponents"
            )
        against = chosen.weights < 0
        found, weights = chosen.indices[against], -chosen.weights[against]
        order = np.argsort(-levels(weights), kind="stable")
        return found[order], weights[order]
