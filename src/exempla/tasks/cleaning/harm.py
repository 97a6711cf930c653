"""The whole kernel between training examples and a few questioned ones, sketch or no sketch.

A sketch keeps the p strongest directions V of parameter space. For removal the rest counts: most
of a hard example's score lies where the Fisher is small. There the metric is next to the damping
alone, so with the raw products s_i·s_j, which factors give without writing a score out,

    s_iᵀM⁻¹s_j ≈ (Vᵀs_i)ᵀ(VᵀMV)⁻¹(Vᵀs_j) + (s_i·s_j − (Vᵀs_i)·(Vᵀs_j)) / damping

and nothing of the scores is lost.
"""

from __future__ import annotations

import numpy as np

from exempla.embedding import Embedding
from exempla.fisher import Damping, resolve_damping
from exempla.linalg import to_numpy
from exempla.oracles.base import Examples, Labels, ScoreRows
from exempla.progress import track_rows

__all__ = ["kernel_with", "raw_products", "removal_damping"]


def removal_damping(wanted: str | float, embedding: Embedding) -> Damping:
    """The damping for influence on removal.

    Outside a sketch the damping stands in for the whole metric, so it must not be below the
    eigenvalues that were left out: "per-effective-row", the larger rule, there.
    """
    use = "influence" if embedding.sketch.exact else "selection"
    return resolve_damping(wanted, embedding.evidence, embedding.metric.name, use)


def kernel_with(
    embedding: Embedding,
    examples: Examples,
    damping: float,
    labels: Labels = "true",
    raw: np.ndarray | None = None,
    progress: bool = False,
) -> np.ndarray:
    """s_iᵀ M⁻¹ s_j of every training example i and questioned example j, (n_train, n_test).

    `raw` are their `raw_products`, if they are known already.
    """
    rows, _ = embedding.embed(examples, labels, progress)
    metric = embedding.metric
    inside = to_numpy(metric.whiten(embedding.rows, damping) @ metric.whiten(rows, damping).T)
    if embedding.sketch.exact:
        return inside.astype(np.float64)
    if raw is None:
        raw = raw_products(embedding, examples, labels, progress)
    beyond = raw - to_numpy(embedding.rows @ rows.T)
    return inside + beyond * metric.outside(0.0, damping)


def raw_products(
    embedding: Embedding, examples: Examples, labels: Labels = "true", progress: bool = False
) -> np.ndarray:
    """s_i·s_j over all parameters, (n_train, n_test): one more pass over the training set."""
    oracle, train = embedding.oracle, embedding.train
    asked = ScoreRows.join(list(oracle.scores(examples, labels)))
    batches = track_rows(oracle.scores(train), "beyond the sketch", progress, len(train))
    return np.concatenate([batch.gram(asked) for batch in batches])
