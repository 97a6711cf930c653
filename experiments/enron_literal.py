"""The paper's label-fixing ranking as printed, for the record: what `method="sbq"` departs from.

Empirical Fisher (residuals of the given labels) with no damping but the model's own penalty, raw
rows, target = mean score of the curated rows the model gets wrong, greedy SBQ without noise, and
no regard to the sign of a row's contribution.
"""

from __future__ import annotations

import warnings

import numpy as np

from exempla.arrays import to_numpy
from exempla.data import take_rows
from exempla.errors import ExemplaWarning
from exempla.kernel.embed import EmbeddingOptions, embed_training_set
from exempla.oracles import make_oracle
from exempla.selection import SBQ, select
from exempla.tasks.labels.evidence import Evidence

__all__ = ["literal_sbq"]


def literal_sbq(evidence: Evidence, k: int) -> np.ndarray:
    """The first k rows to check; fewer picks than k, at the kernel's rank, are filled up by |z|."""
    problem, model = evidence.problem, evidence.model
    oracle = make_oracle(model)
    data = (take_rows(problem.X, problem.train), problem.labels(problem.train))
    options = EmbeddingOptions("empirical", evidence.sketch, evidence.seed)
    embedding = embed_training_set(oracle, data, options)
    curated = take_rows(problem.X, problem.curated)
    truth = problem.labels(problem.curated)
    wrong = np.flatnonzero(model.predict(curated) != truth)
    mistakes = oracle.read((take_rows(curated, wrong), truth[wrong]), role="test")
    target, _ = embedding.embed(mistakes, "true")
    rows = to_numpy(embedding.metric.whiten(embedding.rows, 0.0))
    mu = to_numpy(embedding.metric.whiten(target, 0.0)).mean(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)  # stopping at the rank is part of it
        picked = select(rows, mu, k, SBQ(noise=0.0), side="both").indices
    rest = np.setdiff1d(np.arange(len(rows)), picked)
    by_size = rest[np.argsort(-np.abs(rows[rest] @ mu), kind="stable")]
    return np.concatenate([picked, by_size])[:k]
