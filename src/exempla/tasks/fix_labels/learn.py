"""The probabilities again, after a person has decided about some rows.

A logistic regression on the decided rows, with the probabilities as they were for an offset:

    logit p'_i = logit p_i + t + Σ_k v_k·s_ik,     t ~ N(0, 2²),  v_k ~ N(0, ½²),

s being the log-odds themselves and whatever evidence is given, scaled to unit spread. A few dozen
decisions may move the whole level (t) far, and which rows are likelier (v) a little.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

__all__ = ["refit"]

LEVEL_SD = 2.0
SLOPE_SD = 0.5
LIMIT = 1e-6


def refit(evidence: Any, probabilities: Any, decided_rows: Any, was_wrong: Any) -> np.ndarray:
    """P(wrong) of every row, given what was decided of some.

    `evidence` holds numbers about each row, (n, d), for example one column per given label, or is
    None; `was_wrong` says of each decided row whether its label was wrong. Decided rows come back
    as 0 and 1.

    >>> import numpy as np
    >>> p = np.full(100, 0.1)
    >>> again = refit(None, p, np.arange(20), np.arange(20) < 12)
    >>> bool(again[50] > 0.4), float(again[0]), float(again[19])
    (True, 1.0, 0.0)
    """
    p = np.asarray(probabilities, dtype=np.float64)
    rows, wrong = np.asarray(decided_rows, dtype=np.int64), np.asarray(was_wrong, dtype=bool)
    if not len(rows):
        return p.copy()
    odds = logit(np.clip(p, LIMIT, 1.0 - LIMIT))
    columns = [odds[:, None]]
    if evidence is not None:
        columns.append(np.asarray(evidence, dtype=np.float64).reshape(len(p), -1))
    S = np.concatenate(columns, axis=1)
    spread = S.std(axis=0)
    S = (S - S.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    S = np.column_stack([np.ones(len(p)), S])
    precision = np.append(LEVEL_SD**-2, np.full(S.shape[1] - 1, SLOPE_SD**-2))
    D, offset = S[rows], odds[rows]

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        g = offset + D @ v
        value = np.logaddexp(0.0, np.where(wrong, -g, g)).sum() + 0.5 * precision @ v**2
        return float(value), D.T @ (expit(g) - wrong) + precision * v

    v = minimize(objective, np.zeros(S.shape[1]), jac=True, method="L-BFGS-B").x
    out = expit(odds + S @ v)
    out[rows] = wrong
    return out
