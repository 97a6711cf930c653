"""The whole kernel between training examples and a few questioned ones, sketch or no sketch.

A sketch keeps the p strongest directions V of parameter space. For removal the rest counts: much
of a hard example's score lies where the Fisher is small. There one number ρ stands in for the
Fisher, so with the raw products s_i·s_j, which factors give without writing a score out,

    s_iᵀM⁻¹s_j ≈ (Vᵀs_i)ᵀ(VᵀMV)⁻¹(Vᵀs_j) + (s_i·s_j − (Vᵀs_i)·(Vᵀs_j)) / (ρ + damping)

and nothing of the scores is lost. ρ = tr(F²)/tr(F) of the Fisher left out: its mean eigenvalue as
the scores themselves weigh directions.
"""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, to_numpy
from exempla.embedding import Embedding
from exempla.oracles.base import Examples, Labels, ScoreRows
from exempla.progress import track_rows

__all__ = ["kernel_with", "left_out_scale", "raw_products"]

LOOKED_AT = 4096
"""Training examples among which Fisher rows are drawn to estimate ρ."""
DRAWN = 64
"""Fisher rows drawn for that; all their products are taken."""


def kernel_with(
    embedding: Embedding,
    examples: Examples,
    damping: float,
    labels: Labels = "true",
    mix: np.ndarray | None = None,
) -> np.ndarray:
    """s_iᵀ M⁻¹ s_j of every training example i and questioned example j, (n_train, n_test).

    With `mix` (n_test, T) the T columns are sums of questioned examples with these weights, and
    no train × test matrix is made: a question about many examples is one column.
    """
    lead = embedding.sketch.lead
    rows = embedding.embed(examples, labels)[0][:, :lead]
    if mix is not None:
        rows = as_like(mix.T, rows) @ rows
    train, more = embedding.rows_near_model(), embedding.sketch.width - lead
    # only the few questioned rows meet M⁻¹; random directions of the rest count for nothing here
    inside = products(train, with_zeros(embedding.metric.lead.solve(rows, damping), more))
    if embedding.sketch.exact:
        return inside.astype(np.float64)
    raw = raw_products(embedding, examples, labels, mix)
    beyond = raw - products(train, with_zeros(rows, more))
    return inside + beyond * embedding.metric.outside(left_out_scale(embedding), damping)


def with_zeros(rows: Array, count: int) -> Array:
    """The rows with so many columns of zeros behind their own."""
    if not count:
        return rows
    return concatenate([rows, as_like(np.zeros((len(rows), count)), rows)], axis=1)


def raw_products(
    embedding: Embedding,
    examples: Examples,
    labels: Labels = "true",
    mix: np.ndarray | None = None,
) -> np.ndarray:
    """s_i·s_j over all parameters, (n_train, n_test): one more pass over the training set.

    `mix` as for `kernel_with`.
    """
    oracle, train = embedding.oracle, embedding.train
    asked = ScoreRows.join([batch.compact() for batch in oracle.scores(examples, labels)])
    batches = track_rows(oracle.scores(train), "beyond the sketch", len(train))
    products = (batch.gram(asked) for batch in batches)
    return np.concatenate([part if mix is None else part @ mix for part in products])


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
    inside = inside[:, : embedding.sketch.lead]
    products = rows.gram(rows) - inside @ inside.T
    energy = np.maximum(np.diag(products), 1e-30)
    drawn_for = np.maximum(rows.norm2(), 1e-30)
    pairs = np.outer(energy / drawn_for, energy / drawn_for)  # drawn for the whole row's energy
    np.fill_diagonal(pairs, 0.0)
    cosine2 = np.minimum(products**2 / np.outer(energy, energy), 1.0)
    return trace * float((pairs * cosine2).sum() / max(pairs.sum(), 1e-300))


def drawn_rows(embedding: Embedding, rng: np.random.Generator) -> ScoreRows:
    """Fisher rows drawn without replacement in proportion to their energy."""
    train = embedding.train
    some = np.sort(rng.permutation(len(train))[:LOOKED_AT])
    kept: ScoreRows | None = None
    keys = np.zeros(0)
    for batch in embedding.oracle.fisher_rows(train.take(some)):
        fresh = np.log(rng.random(len(batch))) / np.maximum(batch.norm2(), 1e-30)
        best = np.argsort(-fresh)[:DRAWN]
        joined = batch.take(best) if kept is None else ScoreRows.join([kept, batch.take(best)])
        keys = np.concatenate([keys, fresh[best]])
        order = np.argsort(-keys)[:DRAWN]
        kept, keys = joined.take(order), keys[order]
    assert kept is not None
    return kept
