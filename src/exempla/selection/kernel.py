"""SBQ from kernel values, without features: incremental Cholesky in O(t·k) memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from exempla.arrays import Array, real_numbers
from exempla.checks import check_choice, check_k, is_real
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.results import Selection
from exempla.selection.engine import MATCHED_RATIO
from exempla.selection.rows import ROUNDING, Rule, first_of_best, zero_rounding
from exempla.selection.select import SIDES, check_norm, side_of
from exempla.selection.selectors import check_noise

_TOLERANCE = 1e-11
"""A candidate adds something new if its remaining variance exceeds this fraction of k(j, j)."""

Kernel = Callable[[int, np.ndarray], Any]


def select_from_kernel(
    kernel: Kernel,
    z: Array,
    k: int,
    *,
    target_norm2: float,
    diagonal: Array | None = None,
    noise: float = 0.0,
    side: str = "both",
) -> Selection:
    """Run exact SBQ on kernel values alone; no t×t matrix is formed.

    Parameters
    ----------
    kernel : callable
        ``kernel(i, J)`` returns k(x_i, x_j) for every j of the integer array J. It is called once
        per pick.
    z : array of shape (t,)
        Kernel mean of the target at each row: the mean of k(x_j, ·) over the queried predictions.
    k : int
        Number of rows to select.
    target_norm2 : float
        ‖μ‖²: the mean of the kernel over all pairs of queried predictions.
    diagonal : array of shape (t,), optional
        k(x_j, x_j); computed by t kernel calls if omitted.
    noise : float, default 0.0
        Observation noise σ², as for `SBQ`.
    side : {"both", "opponents", "proponents"}, default "both"
        Candidates by the sign of z, as for `select`.

    Returns
    -------
    Selection

    Raises
    ------
    ExemplaError
        If an argument is invalid, or the kernel returns a wrong shape or values that are not
        finite or not positive semidefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import select, select_from_kernel
    >>> rows, target = np.random.default_rng(0).standard_normal((9, 3)), np.array([1.0, 2.0, 0.0])
    >>> selection = select_from_kernel(
    ...     lambda i, J: rows[J] @ rows[i], rows @ target, 2, target_norm2=target @ target
    ... )
    >>> bool((selection.indices == select(rows, target, 2).indices).all())
    True
    """
    if not callable(kernel):
        raise ExemplaError("kernel must be a function of a row number and an array of row numbers")
    z = _vector(z, "z")
    t = len(z)
    k = check_k(k, t)
    check_noise(noise)
    check_choice("side", side, SIDES)
    if not (is_real(target_norm2) and 0 < target_norm2 < math.inf):
        raise ExemplaError(f"target_norm2 is {target_norm2!r}; give a finite number above 0")
    if diagonal is None:
        diagonal = np.array([_row(kernel, i, np.array([i]))[0] for i in range(t)])
    norms2 = _vector(diagonal, "diagonal")
    if len(norms2) != t or (norms2 < 0).any():
        raise ExemplaError(f"diagonal must hold {t} numbers, none below 0")
    if norms2.any():
        check_norm("the longest row", float(norms2.max()))
    check_norm("the target", float(target_norm2))
    candidates = side_of(zero_rounding(z, norms2, target_norm2), side) & (norms2 > 0)
    indices, columns, coefs, stopped = _run(kernel, z, norms2, candidates, k, noise, target_norm2)
    weights = np.zeros(0)
    if indices:
        lower = np.tril(columns[:, indices].T)
        weights = solve_triangular(lower, coefs, lower=True, trans="T")
    gains, norm2 = coefs * coefs, float(target_norm2)
    explained, variance = float(gains.sum()) / norm2, max(0.0, norm2 - float(gains.sum()))
    if explained > 1 + 1e-8:
        raise ExemplaError(
            "the selection explains more than target_norm2: either that is not the target's "
            "squared norm, or the kernel is not positive semidefinite"
        )
    available = int(candidates.sum())
    if len(indices) < k:
        warnings.warn(
            f"{len(indices)} of {k} rows were selected: no further row of the {available} "
            f"candidates adds anything (stopped by {stopped})",
            ExemplaWarning,
            stacklevel=2,
        )
    return Selection(
        indices=np.array(indices, dtype=np.int64),
        weights=weights,
        gains=gains,
        explained=explained,
        variance=variance,
        mmd2=max(0.0, variance - noise * float(weights @ weights)),
        rank=len(indices),
        target_norm2=norm2,
        noise=float(noise),
        side=side,
        candidates=available,
        stopped=stopped,
    )


def _run(
    kernel: Kernel, z: Array, norms2: Array, candidates: Array, k: int, noise: float, norm2: float
) -> tuple[list[int], np.ndarray, np.ndarray, str]:
    """Return the picks, Cholesky columns (k, t), coefficients and the reason for stopping."""
    t = len(z)
    every = np.arange(t)
    c, n = z.copy(), np.where(candidates, norms2 + noise, -np.inf)
    columns, coefs, indices = np.empty((k, t)), np.empty(k), []
    for step in range(k):
        if noise == 0 and 1.0 - coefs[:step] @ coefs[:step] / norm2 < MATCHED_RATIO**2:
            return indices, columns[:step], coefs[:step], "residual"
        alive = n > _TOLERANCE * norms2
        if not alive.any():
            stopped = "candidates" if step >= candidates.sum() else "rank"
            return indices, columns[:step], coefs[:step], stopped
        at = np.flatnonzero(alive)
        slack = ROUNDING * math.sqrt(norm2)
        bounds = Rule.GAIN.bounds(c[at], n[at], norms2[at], noise, slack, ROUNDING)
        j = int(at[first_of_best(*bounds)])
        root = math.sqrt(n[j])
        # v = (K_j − Σ_l V_l[j] V_l)/√n_j: row j of the next Cholesky column.
        v = (_row(kernel, j, every) - columns[:step, j] @ columns[:step]) / root
        columns[step], coefs[step] = v, c[j] / root
        columns[step, j] = root
        c -= coefs[step] * v
        n -= v * v
        n[j] = -np.inf
        indices.append(j)
    return indices, columns, coefs, "k"


def _vector(values: Array, what: str) -> np.ndarray:
    vector = real_numbers(values, what)
    if vector.ndim != 1 or not len(vector):
        raise ExemplaError(f"{what} has shape {vector.shape}; give one number per row")
    bad = np.flatnonzero(~np.isfinite(vector))
    if len(bad):
        raise ExemplaError(f"{what} has NaN or infinite values at rows {bad[:5].tolist()}")
    return vector


def _row(kernel: Kernel, i: int, others: np.ndarray) -> np.ndarray:
    """Return validated kernel values: a wrong shape would broadcast silently."""
    try:
        given = kernel(i, others)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ExemplaError(
            f"kernel({i}, J) failed with {type(error).__name__}: {error}; it is called with a row "
            "number and an array of row numbers"
        ) from error
    values = real_numbers(given, f"kernel({i}, J)")
    if values.shape != others.shape:
        raise ExemplaError(
            f"kernel({i}, J) gave shape {values.shape} for {len(others)} rows; "
            "give one value per entry of J"
        )
    if not np.isfinite(values).all():
        raise ExemplaError(f"kernel({i}, J) gave NaN or infinite values; repair that row")
    return values
