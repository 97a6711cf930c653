"""What the job takes beside what its caller holds: said before the many trainings begin.

N rows in all, n of them for training, m calibration rows; C classes; x bytes of X and p numbers of
a score a row; float64 unless said otherwise. Counted array by array, in bytes a row:

    rows         x if curated rows are stacked below the others, 8 codes
    draws        3 × 17                  codes, versions, flips
    view         12p + 52                scores as float64 and as unit rows in float32
    predictions  3 × 3 × 8C + 8C         three of each draw and one that they share
    Fisher       4 × 48                  three dampings, two summaries; as given and in each draw
    odds         3 × 8

That is held in the end, with a fold's part of X and its fit, or the average over draws, on top.
Earlier, scoring takes three arrays of N × p for a moment; without curated rows it does so for each
draw, beside the view. Comparing goes by blocks of BLOCK × m cosines of 18 bytes, whatever N is.
SBQ takes unit rows in float64 and, for k picks, 60k² + 24kp bytes for them and their Gram matrix.
Measured peaks are within a tenth of this for logistic regressions of 20 and 50 columns at 100,000
and 400,000 rows; for very wide ones (p in the thousands) they are up to half as large again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.oracles import make_oracle
from exempla.sketch.choose import DUAL_LIMIT, PRIMAL_LIMIT, auto_width
from exempla.tasks.fix_labels.crossfit import FOLDS
from exempla.tasks.fix_labels.evidence import Evidence
from exempla.tasks.fix_labels.fisher import BLOCK
from exempla.tasks.fix_labels.sbq import MOST_PICKS

__all__ = ["expected_peak"]

SLACK = 1.05
"""What the allocator cannot use again."""


def expected_peak(evidence: Evidence, method: str, k: int | None) -> float:
    """Bytes, most of all at one time."""
    problem, p = evidence.problem, score_width(evidence)
    N, m = len(problem), len(evidence.calibration_rows)
    rows = row_bytes(problem.X) * evidence.trusted + 8.0
    view = 12.0 * p + 52.0 if p else 0.0
    scoring = 24.0 * p + 40.0
    fixed = 24.0 * p**2
    if method == "sbq":
        picks = min(problem.n_train if k is None else k, MOST_PICKS)
        predictions = 0.0 if evidence.trusted else 8.0 * len(problem.classes)
        ranking = view + 8.0 * p + 60.0
        fixed += 60.0 * picks**2 + 24.0 * picks * p
        return SLACK * (N * (rows + predictions + max(scoring, ranking)) + fixed)
    comparing = 18.0 * BLOCK * m / N
    return SLACK * (N * _calibrated_peak(evidence, rows, view, scoring, comparing) + fixed)


def _calibrated_peak(
    evidence: Evidence, rows: float, view: float, scoring: float, comparing: float
) -> float:
    """Bytes a row of method "calibrated"."""
    prediction = 8.0 * len(evidence.problem.classes)
    held = rows + 51.0
    fisher = 48.0 if view else 0.0
    fit = row_bytes(evidence.problem.X) * (FOLDS - 1) / FOLDS + 8.0 + 3.4 * prediction
    average = 12.0 * prediction + 60.0
    end = held + view + 10 * prediction + 4 * fisher + 24.0 + max(fit, average)
    if not view:
        return end
    if evidence.trusted:
        first = held + 3 * prediction + max(scoring, view + fisher + comparing)
    else:  # the third draw's own view, beside the one of the labels as given
        before = held + view + 7 * prediction + 2 * fisher
        first = before + max(scoring, view + fisher + comparing)
    return max(first, end)


def score_width(evidence: Evidence) -> int:
    """Numbers a score will have; 0 if the model has none, or cannot be asked."""
    problem = evidence.problem
    few = np.unique(problem.codes[problem.train], return_index=True)[1]  # a row of each class
    try:
        oracle = make_oracle(evidence.model)
        oracle.read((problem.inputs(few), problem.labels(few)), role="train")
    except (RuntimeError, TypeError, ValueError):  # whatever it is, it is told where it is needed
        return 0
    size, n = oracle.n_parameters, problem.n_train  # known once it has read some rows
    if isinstance(evidence.sketch, int):
        return min(size, evidence.sketch)
    if size <= PRIMAL_LIMIT:
        return min(size, n) if n <= DUAL_LIMIT else size
    return n if n <= DUAL_LIMIT else auto_width(n)


def row_bytes(X: Any) -> float:
    """Bytes a row of X takes in memory, on average; 0 if it does not say."""
    if is_sparse(X):
        parts = [getattr(X, name, None) for name in ("data", "indices", "indptr", "row", "col")]
        size = sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
    elif hasattr(X, "iloc"):
        size = int(np.sum(X.memory_usage(index=False)))
    else:
        size = int(getattr(X, "nbytes", 0))
    return size / max(len(X) if not hasattr(X, "shape") else X.shape[0], 1)
