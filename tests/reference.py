"""Slow, dense twins of the embedding: everything written out, nothing clever."""

from __future__ import annotations

import numpy as np

from exempla.arrays import to_numpy
from exempla.oracles.base import Oracle
from exempla.tasks.labels.crossfit import Columns


def dense_rows(batches) -> np.ndarray:
    """Scores written out, one line a row, layers side by side."""
    groups = [np.hstack([to_numpy(f.dense()) for f in batch.factors]) for batch in batches]
    return np.vstack(groups).astype(np.float64)


def dense_metric(oracle: Oracle, train, damping: float, empirical: bool = False) -> np.ndarray:
    """Mean Fisher + λR + damping·I over all parameters."""
    rows = dense_rows(oracle.scores(train) if empirical else oracle.fisher_rows(train))
    penalty = np.concatenate([np.repeat(x.penalty, x.d_out) for x in oracle.layers])
    return rows.T @ rows / len(train) + np.diag(penalty) + damping * np.eye(rows.shape[1])


def dense_kernel(oracle: Oracle, train, test, damping: float, empirical: bool = False):
    """s_iᵀ M⁻¹ s_j for training rows i and test rows j, and the test rows' own norms."""
    M = dense_metric(oracle, train, damping, empirical)
    S, Z = dense_rows(oracle.scores(train)), dense_rows(oracle.scores(test))
    solved = np.linalg.solve(M, Z.T)
    return S @ solved, np.einsum("ij,ji->i", Z, solved)


def all_columns(given: np.ndarray, n_classes: int) -> Columns:
    """Columns of predictions that hold every class."""
    return Columns(np.tile(np.arange(n_classes), (len(given), 1)), given, n_classes)
