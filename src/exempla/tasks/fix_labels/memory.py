"""What the job takes beside what its caller holds: said before the many trainings begin.

N rows in all, n of them for training, m calibration rows; C classes; x bytes of X and p numbers of
a score a row; float64 unless said otherwise. Counted array by array, in bytes a row:

    rows         x if curated rows are stacked below the others, 8 codes
    view         12p + 52                scores as float64 and as unit rows in float32
    predictions  4 × 8C                  one a view, and one by the model that learned the labels
    supports     4 × 8C                  what each view speaks for
    noise        8 × 8C                  the likelihood's arrays and their slopes
    neighbours   12 × 10, and x          ten a row, found among unit rows

With a fold's part of X and its fit on top while models are trained. Scoring takes three arrays of
N × p for a moment. Comparing goes by blocks of BLOCK × m cosines of 18 bytes, whatever N is. SBQ
takes unit rows in float64 and, for k picks, 60k² + 24kp bytes for them and their Gram matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.tasks.fix_labels.crossfit import FOLDS
from exempla.tasks.fix_labels.evidence import LIGHT, Evidence
from exempla.tasks.fix_labels.fisher import BLOCK
from exempla.tasks.fix_labels.sbq import MOST_PICKS

__all__ = ["expected_peak"]

SLACK = 1.05
"""What the allocator cannot use again."""
LIBRARIES = 24e6
"""What the parts of scikit-learn and SciPy take that judging labels is the first to load."""


def expected_peak(evidence: Evidence, method: str, k: int | None) -> float:
    """Bytes, most of all at one time."""
    problem, p = evidence.problem, evidence.score_width
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
    p = min(p, LIGHT) if evidence.sketch == "auto" else p
    fixed = 24.0 * p**2
    view = 12.0 * p + 52.0 if p else 0.0
    scoring = 24.0 * p + 40.0 if p else 0.0
    held = rows + 48.0 * len(problem.classes) + 160.0 + row_bytes(problem.X)
    judging = 90.0 * len(problem.classes) + 60.0
    fit = row_bytes(problem.X) * (FOLDS - 1) / FOLDS + 8.0 + 27.0 * len(problem.classes)
    showing = max(scoring, view + 18.0 * BLOCK * m / N)
    return SLACK * (N * (held + max(judging, fit, showing)) + fixed) + LIBRARIES


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
