"""The Fisher kernel's part: the paper's ranking, and the examples that contradict a label.

For a version (x, c) of a row, f is the score ∇ log p(c | x), whitened by the damped Fisher and
scaled to unit length. Its cosines with the trusted rows' f are near zero for unrelated rows,
positive for similar rows, and negative for similar rows under the wrong label.

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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics import roc_auc_score

from exempla.arrays import (
    TIE,
    as_like,
    concatenate,
    is_sparse,
    is_tensor,
    levels,
    row_squares,
    to_numpy,
)
from exempla.errors import ExemplaError
from exempla.kernel.damping import resolve_damping
from exempla.kernel.embed import Embedding, EmbeddingOptions, embed_models, unit_rows
from exempla.oracles import make_oracle
from exempla.selection import SBQ
from exempla.selection.select import quiet_select
from exempla.store import StoredRows

if TYPE_CHECKING:
    from exempla.tasks.labels.evidence import Evidence

_LABEL_DAMPING = 10.0
"""In units of the mean energy of one Fisher row ("per-row")."""
BLOCK = 4096


@dataclass(frozen=True)
class FisherView:
    """Every version (row, label) that is looked at, embedded by one model of the training rows."""

    embedding: Embedding
    rows: np.ndarray
    """Positions in the problem, one per version: training rows, then calibration rows, two each."""
    more: Any
    """Scores of the calibration rows' versions, of length one."""
    outside: np.ndarray
    """Squared length of these outside the sketch."""

    def unit(self, versions: np.ndarray, damping: float) -> np.ndarray:
        """Return whitened unit rows of some versions, training rows first."""
        e, n = self.embedding, len(self.rows) - len(self.outside)
        train, more = versions[versions < n], versions[versions >= n] - n
        given = _of_length_one(e.rows[train], np.zeros(len(train)))[0]
        beyond, penalty = None, e.sketch.residual_penalty
        if penalty is not None:
            beyond = np.concatenate([np.zeros(len(train)), self.outside[more]])
            beyond *= e.metric.residual_inverse(penalty, damping)
        rows = concatenate([given, self.more[more]])
        return to_numpy(unit_rows(e.metric.whiten(rows, damping), beyond))

    def train_rows(self, damping: float) -> Any:
        """Return the whitened unit rows of all training rows, on disk where their scores are."""
        every = np.arange(len(self.embedding.rows))
        if not isinstance(self.embedding.rows, StoredRows):
            return self.unit(every, damping)
        from exempla.kernel.stored import whiten_on_disk

        return whiten_on_disk(
            [self.embedding], [damping], "labels", lambda where: self.unit(every[where], damping)
        )

    def damping(self, multiple: float = _LABEL_DAMPING) -> float:
        """Return a multiple of the mean energy of one Fisher row."""
        return multiple * resolve_damping("auto", self.embedding.evidence, use="labels").value

    def similarity(self, versions: np.ndarray, reference: np.ndarray, damping: float) -> np.ndarray:
        """Return the mean cosine of some versions with the reference versions.

        A row is never compared with itself under any label.
        """
        anchors, out = self.unit(reference, damping), np.empty(len(versions))
        for start in range(0, len(versions), BLOCK):
            here = versions[start : start + BLOCK]
            cosine = self.unit(here, damping) @ anchors.T
            own = self.rows[here][:, None] == self.rows[reference][None, :]
            cosine[own] = 0.0
            out[start : start + BLOCK] = cosine.sum(1) / np.maximum(len(reference) - own.sum(1), 1)
        return out


def view_versions(evidence: Evidence, sketch: str | int) -> FisherView:
    """Embed the training rows as given, and the calibration rows, each under its two codes.

    The model is fitted to the training rows alone. With two classes the scores of a row under both
    labels point in exactly opposite directions; the longer one gives the direction of both.
    """
    model, problem = evidence.last_step
    train = problem.train
    data = (problem.inputs(train), problem.labels(train))
    if problem.weights is not None:
        data = (*data, problem.weights_of(train))
    # both kinds of rows by the same score, or their cosines could not be compared
    oracle = make_oracle(model).by_prediction()
    embedding = embed_models(
        [model], [oracle], [oracle.read(data, role="train")], data,
        EmbeddingOptions(sketch=sketch, seed=evidence.seed), evidence.store,
    )[0]  # fmt: skip
    repeated = np.repeat(evidence.calibration_rows, 2)
    versions = (problem.inputs(repeated), problem.classes[evidence.calibration_codes.ravel()])
    rows, outside = embedding.embed(embedding.oracle.read(versions, role="test"), "true")
    more, lengths = _of_length_one(rows, outside)
    outside = outside / np.where(lengths > 0, lengths, 1.0) ** 2
    if len(problem.classes) == 2:
        place = np.arange(len(repeated))
        longer = 2 * (place // 2) + np.repeat(np.argmax(lengths.reshape(-1, 2), 1), 2)
        signs = as_like(np.where(place == longer, 1.0, -1.0), more)
        more, outside = more[longer] * signs[:, None], outside[longer]
    if not is_tensor(embedding.rows):  # rows in a store are NumPy's
        more = to_numpy(more)
    return FisherView(embedding, np.concatenate([train, repeated]), more, outside)


def _of_length_one(rows: Any, outside: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return rows of length one (before whitening) in float32, and the lengths they had.

    Scores of labels the model is sure of are tiny, down to 1e-40: float32 would lose them.
    """
    norm = np.sqrt(row_squares(rows).astype(np.float64) + outside)
    unit = rows / as_like(np.where(norm > 0, norm, 1.0), rows)[:, None]
    return unit.astype(np.float32) if isinstance(unit, np.ndarray) else unit.float(), norm


MULTIPLES = (3.0, 10.0, 30.0, 100.0)
MOST_PICKS = 2000
"""Beyond so many picks the remaining rows follow in the order of z: each pick is a pass over all
rows, and nobody checks so many."""
_NOISE = 1.0
"""Noise of the selection of contradicting examples."""


def rank_by_sbq(
    evidence: Evidence, k: int | None, noise: float, damping: str | float
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the first k training rows picked by SBQ, others by z, and fields of `LabelFixes`.

    `damping` is a number, a rule's name, or "auto": chosen from data.
    """
    view = evidence.view
    if view is None:
        raise ExemplaError(
            "method='sbq' needs a model with scores: use method='calibrated', "
            "or a model exempla can explain, such as LogisticRegression."
        )
    n, embedding = evidence.problem.n_train, view.embedding
    if damping == "auto":
        value, rule = _choose_damping(evidence, view)
    else:
        chosen = resolve_damping(damping, embedding.evidence, embedding.metric.name)
        value, rule = chosen.value, chosen.rule
    rows, others = view.train_rows(value), view.unit(np.arange(n, len(view.rows)), value)
    mu = others[evidence.reference - n].mean(0)
    z = (rows @ mu).astype(np.float64)
    size = float(max(np.abs(z).max(), np.abs(others @ mu).max()))
    opponents = int((z < -TIE * size).sum())
    picks = min(n if k is None else k, max(opponents, 1), MOST_PICKS)
    picked = quiet_select(rows, mu, picks, SBQ(noise=noise), side="opponents")
    rest = np.setdiff1d(np.arange(n), picked.indices)
    rest = rest[np.argsort(levels(z[rest], size), kind="stable")]
    order = np.concatenate([picked.indices, rest])[:k]
    return order, {
        "weights": np.pad(picked.weights, (0, len(order) - len(picked))),
        "explained": picked.explained,
        "variance": picked.variance,
        "damping": value,
        "damping_rule": rule,
        "share": embedding.evidence.share,
        "selector": picked.selector,
        "noise": noise,
        "alignment": z[order],
        "method": "sbq",
    }


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
    return best * unit, f"{best:g} x per-row: tells wrong from right labels best (AUC {auc:.3f})"


def separation(right: np.ndarray, wrong: np.ndarray) -> float:
    """AUC: how often a wrong version looks more suspicious than a right one."""
    both = np.concatenate([right, wrong])
    ranked = levels(both, scale=float(np.abs(both).max()))
    return float(roc_auc_score(np.repeat([0, 1], [len(right), len(wrong)]), ranked))


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
    """A `_Contradiction` for each suspect by rank, computed when accessed."""

    def __init__(self, evidence: Evidence, suspects: np.ndarray, count: int = 5) -> None:
        self._evidence, self._suspects, self._count = evidence, suspects, count
        self._anchors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._suspects)

    def __repr__(self) -> str:
        return f"<examples that contradict {len(self)} suspects, computed when accessed>"

    def __getitem__(self, rank: int) -> _Contradiction:
        if not -len(self) <= rank < len(self):
            raise IndexError(f"there are {len(self)} suspects, and none at rank {rank}")
        row, evidence = int(self._suspects[rank]), self._evidence
        problem, view = evidence.problem, evidence.light_view
        known = evidence.calibration_rows if view is None else view.rows[evidence.reference]
        others = (known != row) & (problem.codes[known] != problem.codes[row])
        found, weights = np.array([], dtype=np.int64), np.array([])
        if others.any() and view is not None:
            found, weights = self._chosen(row, others, view)
        elif others.any() and evidence.comparable is not None:
            found, weights = self._most_alike(row, known[others])
        positions = known[others][found]
        return _Contradiction(
            row=row,
            indices=positions - (problem.n_train if evidence.trusted else 0),
            labels=problem.labels(positions),
            weights=weights,
            source="curated" if evidence.trusted else "train",
        )

    def _most_alike(self, row: int, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For a model without scores: the rows with the largest cosine."""
        Z = self._evidence.comparable
        cosine = Z[others] @ Z[[row]].T
        cosine = np.asarray(cosine.todense() if is_sparse(cosine) else cosine).ravel()
        best = np.argsort(-levels(cosine, 1.0), kind="stable")[: self._count]
        best = best[cosine[best] > 0]
        return best, cosine[best]

    def _chosen(
        self, row: int, others: np.ndarray, view: FisherView
    ) -> tuple[np.ndarray, np.ndarray]:
        """Opponents that explain the suspect's own row, and how much each contradicts it."""
        damping = view.damping()
        if self._anchors is None:
            self._anchors = view.unit(self._evidence.reference, damping)
        target, anchors = view.unit(np.array([row]), damping)[0], self._anchors[others]
        if not np.any(target):
            return np.array([], dtype=np.int64), np.array([])
        most = min(self._count, len(anchors))
        chosen = quiet_select(anchors, target, most, SBQ(noise=_NOISE), side="opponents")
        against = chosen.weights < 0
        found, weights = chosen.indices[against], -chosen.weights[against]
        order = np.argsort(-levels(weights), kind="stable")
        return found[order], weights[order]
