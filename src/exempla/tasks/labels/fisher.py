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

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics import roc_auc_score

from exempla.arrays import TIE, as_like, concatenate, is_sparse, levels, row_squares, to_numpy
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.kernel.damping import check_damping, resolve_damping
from exempla.kernel.embed import Embedding, embed_models, embed_training_set, unit_rows
from exempla.oracles import make_oracle
from exempla.results import Selection
from exempla.selection import SBQ, select
from exempla.store import StoredRows
from exempla.tasks.labels.problem import LabelProblem

if TYPE_CHECKING:
    from exempla.tasks.labels.evidence import Evidence

LABEL_DAMPING = 10.0
"""In units of the mean energy of one Fisher row ("per-row")."""
BLOCK = 4096


@dataclass(frozen=True)
class FisherView:
    """Every version (row, label) that is looked at, embedded by one model of the training rows."""

    embedding: Embedding
    rows: np.ndarray
    """Positions in the problem, one per version: training rows, then calibration rows, two each."""
    signs: np.ndarray
    """+1, or −1 where the stored score is that of the other of two labels."""
    lengths: np.ndarray
    """Length of each version's own score; the stored ones have length one."""
    scores: Any
    outside: np.ndarray

    def unit(self, versions: np.ndarray, damping: float) -> np.ndarray:
        """Whitened unit rows of some versions."""
        e = self.embedding
        beyond = None
        if e.sketch.residual_penalty is not None:
            beyond = self.outside[versions] * e.metric.residual_inverse(
                e.sketch.residual_penalty, damping
            )
        unit = unit_rows(e.metric.whiten(self.scores[versions], damping), beyond)
        return to_numpy(unit) * self.signs[versions, None]

    def damping(self, multiple: float = LABEL_DAMPING) -> float:
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


def view_versions(
    model: Any,
    problem: LabelProblem,
    calibration: np.ndarray,
    codes: np.ndarray,
    *,
    sketch: str | int,
    seed: int,
    store: Path | None = None,
) -> FisherView:
    """Embed the training rows as given, and any calibration rows, each under its codes (m, v).

    `model` is fitted to the training rows alone. With two classes the scores of a row under both
    labels point in exactly opposite directions; the longer one gives the direction of both. The
    scores of the training rows are kept in the folder `store`, if one is given.
    """
    train = problem.train
    data = (problem.inputs(train), problem.labels(train))
    if problem.weights is not None:
        data = (*data, problem.weights_of(train))
    # both kinds of rows by the same score, or their cosines could not be compared
    oracle = make_oracle(model).by_prediction()
    chosen: Any = {"fisher": "true", "sketch": sketch, "seed": seed}
    if store is None:
        embedding = embed_training_set(oracle, data, **chosen)
        given, lengths = _unit_length(embedding.rows, np.zeros(len(train)))
    else:
        embedding = embed_models(
            [model], [oracle], [oracle.read(data, role="train")], data, store=store, **chosen
        )[0]
        given, lengths = None, np.sqrt(embedding.rows.squares())
    repeated = np.repeat(calibration, codes.shape[1])
    versions = (problem.inputs(repeated), problem.classes[codes.ravel()])
    rows, outside = embedding.embed(embedding.oracle.read(versions, role="test"), "true")
    more, more_lengths = _unit_length(rows, outside)
    outside = outside / np.where(more_lengths > 0, more_lengths, 1.0) ** 2
    source, signs = np.arange(len(repeated)), np.ones(len(repeated))
    if len(problem.classes) == 2:
        longer = 2 * (source // 2) + np.repeat(np.argmax(more_lengths.reshape(-1, 2), 1), 2)
        source, signs = longer, np.where(source == longer, 1.0, -1.0)
    more = _in_single(more)[source]
    if given is None:
        scores = _StoredVersions(embedding.rows, lengths, to_numpy(more))
    else:
        scores = concatenate([_in_single(given), more])
    return FisherView(
        embedding,
        rows=np.concatenate([train, repeated]),
        signs=np.concatenate([np.ones(len(train)), signs]),
        lengths=np.concatenate([lengths, more_lengths]),
        scores=scores,
        outside=np.concatenate([np.zeros(len(train)), outside[source]]),
    )


@dataclass(frozen=True)
class _StoredVersions:
    """Unit rows of training examples whose scores are on disk, then of versions in memory."""

    stored: StoredRows
    lengths: np.ndarray
    more: np.ndarray

    def __getitem__(self, versions: np.ndarray) -> np.ndarray:
        versions, n = np.asarray(versions), len(self.stored)
        first = versions < n
        out = np.empty((len(versions), self.stored.shape[1]), np.float32)
        length = self.lengths[versions[first]]
        out[first] = self.stored[versions[first]] / np.where(length > 0, length, 1.0)[:, None]
        if not first.all():
            out[~first] = self.more[versions[~first] - n]
        return out


def _unit_length(rows: Any, outside: np.ndarray) -> tuple[Any, np.ndarray]:
    """Rows of length one (before whitening), and the lengths they had.

    Scores of labels the model is sure of are tiny, down to 1e-40: float32 would lose them.
    """
    norm = np.sqrt(row_squares(rows).astype(np.float64) + outside)
    return rows / as_like(np.where(norm > 0, norm, 1.0), rows)[:, None], norm


def _in_single(rows: Any) -> Any:
    """Cosines need no more than float32, and half the time goes into whitening."""
    return rows.astype(np.float32) if isinstance(rows, np.ndarray) else rows.float()


MULTIPLES = (3.0, 10.0, 30.0, 100.0)
MOST_PICKS = 2000
"""Beyond so many picks the remaining rows follow in the order of z: each pick is a pass over all
rows, and nobody checks so many."""
_NOISE = 1.0
"""Noise of the selection of contradicting examples."""


def rank_by_sbq(
    evidence: Evidence, k: int | None, noise: float, damping: str | float | None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the first k training rows picked by SBQ, others by z, and fields of `LabelFixes`.

    `damping` is a number, a rule's name, or "auto" (None is its old spelling): chosen from data.
    """
    wanted = check_damping("auto" if damping is None else damping)
    view = evidence.view
    if view is None:
        raise ExemplaError(
            "method='sbq' needs a model with scores: use method='calibrated', "
            "or a model exempla can explain, such as LogisticRegression."
        )
    n, embedding = evidence.problem.n_train, view.embedding
    if wanted == "auto":
        value, rule = _choose_damping(evidence, view)
    else:
        chosen = resolve_damping(wanted, embedding.evidence, embedding.metric.name)
        value, rule = chosen.value, chosen.rule
    unit = view.unit(np.arange(len(view.rows)), value)
    mu = unit[evidence.reference].mean(0)
    z = (unit @ mu).astype(np.float64)
    size = float(np.abs(z).max())
    opponents = int((z[:n] < -TIE * size).sum())
    picks = min(n if k is None else k, max(opponents, 1), MOST_PICKS)
    picked = _opponents(unit[:n], mu, picks, noise)
    rest = np.setdiff1d(np.arange(n), picked.indices)
    rest = rest[np.argsort(levels(z[rest], size), kind="stable")]
    order = np.concatenate([picked.indices, rest])[:k]
    weights = np.zeros(max(len(order), len(picked)))
    weights[: len(picked)] = picked.weights
    return order, {
        "weights": weights[: len(order)],
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


def _opponents(rows: np.ndarray, target: np.ndarray, k: int, noise: float) -> Selection:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)  # fewer than k is no news
        return select(rows, target, k, SBQ(noise=noise), side="opponents")


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
    """AUC: how often a wrong version looks more suspicious than a right one.

    >>> import numpy as np
    >>> separation(np.array([0.0, 1.0]), np.array([2.0, 0.5]))
    0.75
    """
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
    """A `_Contradiction` for each suspect by rank, worked out when looked at.

    `[0]` belongs to the most suspicious row.
    """

    def __init__(self, evidence: Evidence, suspects: np.ndarray, count: int = 5) -> None:
        self._evidence, self._suspects, self._count = evidence, suspects, count
        self._anchors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._suspects)

    def __repr__(self) -> str:
        return f"<examples that contradict {len(self)} suspects, worked out when looked at>"

    def __getitem__(self, rank: int) -> _Contradiction:
        if not -len(self) <= rank < len(self):
            raise IndexError(f"there are {len(self)} suspects, and none at rank {rank}")
        row, evidence = int(self._suspects[rank]), self._evidence
        problem, view = evidence.problem, evidence.light_view
        known = evidence.calibration_rows if view is None else view.rows[evidence.reference]
        others = (known != row) & (problem.codes[known] != problem.codes[row])
        found, weights = np.array([], dtype=np.int64), np.array([])
        if others.any():
            found, weights = (
                self._most_alike(row, known[others])
                if view is None
                else self._chosen(row, others, view)
            )
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
        if Z is None:
            return np.array([], dtype=np.int64), np.array([])
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
        chosen = _opponents(anchors, target, min(self._count, len(anchors)), _NOISE)
        against = chosen.weights < 0
        found, weights = chosen.indices[against], -chosen.weights[against]
        order = np.argsort(-levels(weights), kind="stable")
        return found[order], weights[order]
