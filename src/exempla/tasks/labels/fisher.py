"""Fisher evidence: does a row, under a label, push the model the way trusted rows do?

For a version (x, c) of a row, f is the score ∇ log p(c | x), whitened by the damped Fisher and
scaled to unit length. Its cosines with the trusted rows' f are near zero for unrelated rows,
positive for similar rows, and negative for similar rows under the wrong label.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import as_like, concatenate, row_squares, to_numpy
from exempla.kernel.damping import resolve_damping
from exempla.kernel.embed import Embedding, embed_models, embed_training_set, unit_rows
from exempla.oracles import make_oracle
from exempla.store import StoredRows
from exempla.tasks.labels.problem import LabelProblem

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
