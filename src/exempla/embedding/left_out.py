"""ρ: how large the Fisher is, along the scores, in the directions a sketch leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from exempla.arrays import Array, row_squares, to_numpy
from exempla.factors import MANY
from exempla.oracles.base import Examples, Labels, Oracle, ScoreRows
from exempla.progress import track_rows
from exempla.store import StoredRows

if TYPE_CHECKING:
    from exempla.embedding.whole import Embedding

__all__ = ["energy_of", "left_out_scale", "squares"]

LOOKED_AT, LOOKED_AT_LONG = 4096, 256
"""Training examples among which Fisher rows are drawn, and of those with `MANY` positions."""
DRAWN, LEAST_DRAWN, HELD_BYTES = 64, 8, 2**31
"""Fisher rows drawn, all of whose products are taken; fewer where they take more memory, since one
row of a language model can take more than a GiB."""


def left_out_scale(embedding: Embedding, seed: int = 0) -> float:
    """ρ = tr(F²)/tr(F) for the Fisher outside the sketch, estimated from a few of its rows.

    Rows r_i drawn in proportion to ‖r_i‖² make F/tr(F) the mean of r̂ r̂ᵀ, r̂ of unit length, and
    tr(F²)/tr(F)² the mean of (r̂_i·r̂_j)² over pairs; here for what each row has outside.
    """
    trace = (1.0 - embedding.evidence.share) * embedding.evidence.trace
    if embedding.sketch.exact or trace <= 0.0:
        return 0.0
    rows = drawn_rows(embedding, np.random.default_rng(seed))
    inside = to_numpy(embedding.sketch.project(rows)).astype(np.float64)
    products = rows.gram(rows) - inside @ inside.T
    energy = np.maximum(np.diag(products), 1e-30)
    drawn_for = np.maximum(rows.norm2(), 1e-30)
    pairs = np.outer(energy / drawn_for, energy / drawn_for)  # drawn for the whole row's energy
    np.fill_diagonal(pairs, 0.0)
    cosine2 = np.minimum(products**2 / np.outer(energy, energy), 1.0)
    return trace * float((pairs * cosine2).sum() / max(pairs.sum(), 1e-300))


def drawn_rows(embedding: Embedding, rng: np.random.Generator) -> ScoreRows:
    """Fisher rows drawn without replacement in proportion to their energy."""
    oracle, train = embedding.oracle, embedding.train
    order = rng.permutation(len(train))
    first = next(oracle.fisher_rows(train.take(order[:1])), None)
    count, looked_at = DRAWN, LOOKED_AT
    if first is not None and len(first):
        count = int(np.clip(HELD_BYTES // max(first.nbytes // len(first), 1), LEAST_DRAWN, DRAWN))
        looked_at = LOOKED_AT_LONG if first.thinnest(oracle.layers) >= MANY else LOOKED_AT
    some = np.sort(order[:looked_at])
    kept: ScoreRows | None = None
    keys = np.zeros(0)
    for batch in oracle.fisher_rows(train.take(some)):
        fresh = np.log(rng.random(len(batch))) / np.maximum(batch.norm2(), 1e-30)
        best = np.argsort(-fresh)[:count]
        joined = batch.take(best) if kept is None else ScoreRows.join([kept, batch.take(best)])
        keys = np.concatenate([keys, fresh[best]])
        order = np.argsort(-keys)[:count]
        kept, keys = joined.take(order), keys[order]
    assert kept is not None
    return kept


def energy_of(
    oracle: Oracle, examples: Examples, rows: Array | StoredRows, labels: Labels = "true"
) -> np.ndarray:
    """‖s_i‖² − ‖Vᵀs_i‖² of examples with these rows, (n,): a pass over them."""
    batches = track_rows(oracle.scores(examples, labels), "beyond the sketch", len(examples))
    whole = np.concatenate([batch.norm2() for batch in batches])
    return np.maximum(whole - squares(rows), 0.0)


def squares(rows: Array | StoredRows) -> np.ndarray:
    """Squared length of every row, (t,)."""
    if isinstance(rows, StoredRows):
        return rows.squares()
    return row_squares(rows)
