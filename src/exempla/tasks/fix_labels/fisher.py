"""Fisher evidence: does a row, under a label, push the model the way trusted rows do?

For a version (x, c) of a row, f = the score ∇ log p(c | x) whitened by the damped Fisher and scaled
to unit length. Its cosines with the curated rows' f under their true labels are near zero for
unrelated rows, positive for kin, negative for kin under the wrong label. Two summaries of them:

    mean    (1/m) Σ_j cos_j          every curated row counts
    sharp   (1/m) Σ_j cos_j³         the few that really resemble the row decide

each at several dampings, since no single one suits every problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import as_like, concatenate, row_squares, to_numpy
from exempla.embedding import Embedding, embed_models, embed_training_set
from exempla.fisher.damping import per_row
from exempla.oracles import make_oracle
from exempla.store import StoredRows
from exempla.target import unit_rows
from exempla.tasks.fix_labels.problem import LabelProblem

__all__ = ["DAMPINGS", "FisherView", "view_versions"]

DAMPINGS = (1.0, 10.0, 100.0)
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
        if e.sketch.outside is not None:
            beyond = self.outside[versions] * e.metric.outside(e.sketch.outside, damping)
        unit = unit_rows(e.metric.whiten(self.scores[versions], damping), beyond)
        return to_numpy(unit) * self.signs[versions, None]

    def dampings(self) -> list[float]:
        unit = per_row(self.embedding.evidence).value
        return [multiple * unit for multiple in DAMPINGS]

    def similarities(self, reference: np.ndarray) -> np.ndarray:
        """(versions, 2 · dampings): mean and sharpened cosine with the reference versions.

        A row is never compared with itself under any label.
        """
        columns = []
        for damping in self.dampings():
            columns.append(self.compare(np.arange(len(self.rows)), reference, damping))
        return np.concatenate(columns, axis=1)

    def compare(self, versions: np.ndarray, reference: np.ndarray, damping: float) -> np.ndarray:
        """(versions, 2): mean and sharpened cosine of some versions, at one damping."""
        anchors = self.unit(reference, damping)
        blocks = np.split(versions, np.arange(BLOCK, len(versions), BLOCK))
        return np.concatenate([self._compare(v, reference, anchors, damping) for v in blocks])

    def _compare(
        self, versions: np.ndarray, reference: np.ndarray, anchors: np.ndarray, damping: float
    ) -> np.ndarray:
        cosine = self.unit(versions, damping) @ anchors.T
        own = self.rows[versions][:, None] == self.rows[reference][None, :]
        cosine[own] = 0.0
        others = np.maximum(len(reference) - own.sum(1), 1)
        return np.stack([cosine.sum(1) / others, (cosine**3).sum(1) / others], axis=1)


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
    The training rows are in the folder `store`, if one is given.

    `model` is fitted to the training rows alone. With two classes the scores of a row under both
    labels point in exactly opposite directions; the longer one gives the direction of both.
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
        given, lengths = unit_length(embedding.rows, np.zeros(len(train)))
    else:
        embedding = embed_models([model], [oracle], data, store=store, **chosen)[0]
        lengths = np.sqrt(embedding.rows.squares())
        given = StoredVersions(embedding.rows, lengths)
    repeated = np.repeat(calibration, codes.shape[1])
    if not len(repeated):
        return FisherView(
            embedding, train, np.ones(len(train)), lengths, below(given), np.zeros(len(train))
        )
    rows, outside = _embed(embedding, problem, repeated, codes.ravel())
    more, more_lengths = unit_length(rows, outside)
    outside = outside / np.where(more_lengths > 0, more_lengths, 1.0) ** 2
    source, signs = np.arange(len(repeated)), np.ones(len(repeated))
    if len(problem.classes) == 2:
        longer = 2 * (source // 2) + np.repeat(np.argmax(more_lengths.reshape(-1, 2), 1), 2)
        source, signs = longer, np.where(source == longer, 1.0, -1.0)
    return FisherView(
        embedding,
        rows=np.concatenate([train, repeated]),
        signs=np.concatenate([np.ones(len(train)), signs]),
        lengths=np.concatenate([lengths, more_lengths]),
        scores=below(given, in_single(more)[source]),
        outside=np.concatenate([np.zeros(len(train)), outside[source]]),
    )


@dataclass(frozen=True)
class StoredVersions:
    """Unit rows of training examples whose scores are on disk, and of versions in memory after
    them; some of them at a time."""

    stored: StoredRows
    lengths: np.ndarray
    more: Any = None

    def __getitem__(self, versions: np.ndarray) -> np.ndarray:
        versions, n = np.asarray(versions), len(self.stored)
        first = versions < n
        out = np.empty((len(versions), self.stored.shape[1]), np.float32)
        length = self.lengths[versions[first]]
        out[first] = self.stored[versions[first]] / np.where(length > 0, length, 1.0)[:, None]
        if not first.all():
            out[~first] = to_numpy(self.more)[versions[~first] - n]
        return out


def below(given: Any, more: Any = None) -> Any:
    """The training rows' versions, then the others, in single precision."""
    if isinstance(given, StoredVersions):
        return given if more is None else StoredVersions(given.stored, given.lengths, more)
    return in_single(given) if more is None else concatenate([in_single(given), more])


def unit_length(rows: Any, outside: np.ndarray) -> tuple[Any, np.ndarray]:
    """Rows of length one (before whitening), and the lengths they had.

    Scores of labels the model is sure of are tiny, down to 1e-40: float32 would lose them.
    """
    norm = np.sqrt(row_squares(rows).astype(np.float64) + outside)
    return rows / as_like(np.where(norm > 0, norm, 1.0), rows)[:, None], norm


def _embed(
    embedding: Embedding, problem: LabelProblem, rows: np.ndarray, codes: np.ndarray
) -> tuple[Any, np.ndarray]:
    data = (problem.inputs(rows), problem.classes[codes])
    return embedding.embed(embedding.oracle.read(data, role="test"), "true")


def in_single(rows: Any) -> Any:
    """Cosines need no more than float32, and half the time goes into whitening."""
    return rows.astype(np.float32) if isinstance(rows, np.ndarray) else rows.float()
