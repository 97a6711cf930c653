"""Who accuses a suspect: the curated rows that its label contradicts, with weights.

The suspect's score under its given label is explained by curated scores under their true labels:
SBQ on the unit rows of curated examples with another label, opponents only, target = the suspect's
own unit row. The chosen rows push the model the opposite way, each adds something the others do
not say, and −weight is how much of the suspect's pull each one contradicts.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.selection import SBQ, select
from exempla.tasks.fix_labels.evidence import Evidence

__all__ = ["Accusation", "Accusers"]

NOISE = 1.0
MIDDLE_DAMPING = 1
"""Which of the dampings: the middle one."""


@dataclass(frozen=True)
class Accusation:
    """The curated rows that speak against one training row's label, strongest first."""

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


class Accusers:
    """Accusations by rank of the suspect, each worked out when it is first looked at.

    `accusers[0]` belongs to the most suspicious row.
    """

    def __init__(self, evidence: Evidence, suspects: np.ndarray, count: int = 5) -> None:
        self._evidence, self._suspects, self._count = evidence, suspects, count
        self._known: dict[int, Accusation] = {}
        self._anchors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._suspects)

    def __getitem__(self, rank: int) -> Accusation:
        if not -len(self) <= rank < len(self):
            raise IndexError(f"there are {len(self)} suspects, and none at rank {rank}")
        row = int(self._suspects[rank])
        if row not in self._known:
            self._known[row] = self._accuse(row)
        return self._known[row]

    def __repr__(self) -> str:
        return f"<accusers of {len(self)} suspects, worked out when asked for>"

    def _accuse(self, row: int) -> Accusation:
        evidence = self._evidence
        view = evidence.view
        if view is None:
            raise ExemplaError(
                "this model has no scores, so nothing can be said about who accuses a row: "
                "use a model exempla can explain, such as LogisticRegression."
            )
        damping = view.dampings()[MIDDLE_DAMPING]
        if self._anchors is None:
            self._anchors = view.unit(evidence.reference, damping)
        rows = view.rows[evidence.reference]
        given = evidence.problem.codes[row]
        others = (rows != row) & (evidence.problem.codes[rows] != given)
        target = view.unit(np.array([row]), damping)[0]
        found, weights = np.array([], dtype=np.int64), np.array([])
        if np.any(target) and others.any():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExemplaWarning)  # fewer than count is no news
                chosen = select(
                    self._anchors[others],
                    target,
                    min(self._count, int(others.sum())),
                    SBQ(noise=NOISE),
                    side="opponents",
                )
            against = chosen.weights < 0
            order = np.argsort(chosen.weights[against], kind="stable")
            found = np.flatnonzero(others)[chosen.indices[against][order]]
            weights = -chosen.weights[against][order]
        positions = view.rows[evidence.reference[found]]
        offset = evidence.problem.n_train if evidence.trusted else 0
        return Accusation(
            row=row,
            indices=positions - offset,
            labels=evidence.problem.labels(positions),
            weights=weights,
            source="curated" if evidence.trusted else "train",
        )
