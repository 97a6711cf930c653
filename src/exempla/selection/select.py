"""`select`: validate the arguments, choose an array backend, run a selector.

`as_rows` wraps features in the fastest `Rows` for them. `select_from_kernel` runs SBQ on kernel
values, without features: incremental Cholesky in O(t·k) memory.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from exempla.arrays import Array, SerialBLAS, is_tensor, real_numbers, refuse_masked, to_numpy
from exempla.checks import check_choice, check_k, is_real, whole_number
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.results import Selection
from exempla.selection.engine import MATCHED_RATIO
from exempla.selection.rows import (
    MIN_ROW_NORM,
    ROUNDING,
    ArrayRows,
    Rows,
    Rule,
    first_of_best,
    zero_rounding,
)
from exempla.selection.selectors import SBQ, Problem, Selector, check_noise, check_selector

SIDES = ("both", "opponents", "proponents")
MAX_FLOAT64_ENTRIES = 1 << 20
"""Rows of up to this many entries are copied to float64, which makes all sums exact enough."""
MAX_HOST_WORK = 1 << 29
"""Multiplications (rows × width × picks) up to which rows on a GPU are moved to the host, which
takes less time than compiling the GPU kernels, once on each machine."""
_MAX_GROUP_BYTES = 1 << 31
"""Memory for the state of the targets that are selected for together."""
_MAX_NORM = 1e60
"""Largest norm of rows and targets whose products can be squared."""
_KERNEL_TOLERANCE = 1e-11
"""A candidate adds something new if its remaining variance exceeds this fraction of k(j, j)."""


def as_rows(features: Array, picks: int | None = None) -> Rows:
    """Wrap features (t, p) in the fastest `Rows` for them without changing them.

    `picks` is the number of passes to expect (k × targets); few passes over few rows of a GPU are
    made on the host.
    """
    if isinstance(features, Rows):
        return features
    array = as_features(features)
    rows = wrap(array, picks)
    refuse_unusable(rows)
    return rows


def as_features(features: Array) -> Array:
    """Return features as a (t, p) float32 or float64 array, tensor on a GPU, or stored rows."""
    array = features if _is_stored(features) else _as_array(features, "features")
    if array.ndim != 2:
        raise ExemplaError(
            f"features have shape {tuple(array.shape)}, but must be two-dimensional: "
            "one row per training example"
        )
    if 0 in array.shape:
        raise ExemplaError(f"features have shape {tuple(array.shape)}; give at least one number")
    return array


def _is_stored(features: Any) -> bool:
    """Return True for `exempla.store.StoredRows`, without importing the store for arrays."""
    return hasattr(features, "stream") and hasattr(features, "shards")


def refuse_unusable(rows: Rows) -> None:
    """Raise if rows are not finite or their squares leave the range of floats."""
    bad = np.flatnonzero(~np.isfinite(rows.norms2))
    if len(bad):
        which = ", ".join(str(j) for j in bad[:5]) + (", …" if len(bad) > 5 else "")
        plural = "row" if len(bad) == 1 else "rows"
        raise ExemplaError(
            f"features have NaN, infinite or overflowing values in {len(bad)} {plural} "
            f"({plural} {which}); remove or repair them"
        )
    longest, parts = float(rows.norms2.max()), rows.pieces() if isinstance(rows, ArrayRows) else ()
    # If all norms count as zero: zero rows are allowed, tiny ones are not.
    if longest or any(bool((part != 0).any()) for _, part in parts):
        _check_norm("the longest row of the features", longest)


def _check_norm(what: str, norm2: float) -> None:
    """Raise if squares of products of vectors of this squared norm leave the range of floats."""
    if not MIN_ROW_NORM**2 <= norm2 <= _MAX_NORM**2:
        raise ExemplaError(
            f"{what} is shorter than {MIN_ROW_NORM:g} or longer than {_MAX_NORM:g}, so that "
            "squares leave the range of floats; multiply features and target by a constant"
        )


def wrap(array: Array, picks: int | None = None) -> Rows:
    """Return the fastest `Rows` for a float32 or float64 array, or for stored rows."""
    entries, stored = array.shape[0] * array.shape[1], _is_stored(array)
    if stored and array.dtype not in (np.float32, np.float64):
        raise ExemplaError(f"stored rows have type {array.dtype}; store float32 or float64")
    if entries <= MAX_FLOAT64_ENTRIES:
        array = array if stored else to_numpy(array)  # also from a GPU
        tolerance = 1e-5 if array.dtype == np.float32 else 1e-11
        return ArrayRows(array[:].astype(np.float64), tolerance)
    if not stored and not isinstance(array, np.ndarray):
        few = picks is not None and entries * picks <= MAX_HOST_WORK
        return ArrayRows(to_numpy(array) if few else array)
    return ArrayRows(array if stored else np.ascontiguousarray(array))


def _as_array(values: Array, what: str) -> Array:
    """Return a float32 or float64 NumPy array; a CUDA tensor of features stays on its device."""
    refuse_masked(values, what)
    if hasattr(values, "toarray"):
        raise ExemplaError(f"{what} are a sparse matrix; pass {what}.toarray()")
    if is_tensor(values) and values.is_cuda and what == "features" and not values.is_complex():
        values = values.detach()
        if values.is_floating_point():
            return values if values.element_size() >= 4 else values.float()
        return values.double()
    try:
        array = np.asarray(to_numpy(values))
        array = array.astype(np.float64) if array.dtype == object else array
    except (TypeError, ValueError):
        raise ExemplaError(
            f"{what} are not a rectangular array of numbers; give an array of floats"
        ) from None
    if array.dtype.kind not in "fiub":
        raise ExemplaError(f"{what} have type {array.dtype}; give real numbers")
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _make_problem(
    features: Array, target: Array, k: Any, side: str | Sequence[str], start: Any
) -> tuple[Problem, int]:
    """Return the problem and k."""
    shape = getattr(target, "shape", ())
    n_targets = shape[0] if len(shape) == 2 else 1
    rows = as_rows(features, k * n_targets if whole_number(k) and k > 0 else None)
    k = check_k(k, rows.t)
    targets, single = as_targets(target, rows.p)
    sides = _per_target(side, len(targets), single, "side")
    for one in sides:
        check_choice("side", one, SIDES)
    starts = _per_target(start, len(targets), single, "start")
    alignment = rows.align(targets)
    signs = np.stack([side_of(z, one) for z, one in zip(alignment, sides)])
    candidates = signs & (rows.norms2 > 0)
    return Problem(rows, targets, alignment, candidates, sides, starts, single), k


def groups(targets: int, rows: Rows, k: int) -> Iterator[slice]:
    """Yield groups of targets whose state (z, c, n and picked rows) fits into memory."""
    each = 25 * rows.t + 32 * int(k) * rows.p
    step = max(1, _MAX_GROUP_BYTES // each)
    for start in range(0, targets, step):
        yield slice(start, min(start + step, targets))


def side_of(z: np.ndarray, side: str) -> np.ndarray:
    """Return a mask of the candidates of a side, by the sign of the initial z."""
    if side == "opponents":
        return z < 0
    return z > 0 if side == "proponents" else np.ones(len(z), dtype=bool)


def as_targets(target: Array, p: int) -> tuple[np.ndarray, bool]:
    """Return targets as a (T, p) float64 matrix, and whether a single one was given."""
    targets = _as_array(target, "target").astype(np.float64)
    if targets.size == 0:
        raise ExemplaError("target is empty; give the mean of at least one prediction's rows")
    if targets.ndim not in (1, 2):
        raise ExemplaError(f"target has shape {targets.shape}, but must be (p,) or (T, p)")
    single = targets.ndim == 1
    if targets.shape[-1] != p:
        raise ExemplaError(
            f"target has {targets.shape[-1]} dimensions, but the features have {p}; "
            "embed both with the same metric"
        )
    targets = np.atleast_2d(targets)
    bad = np.flatnonzero(~np.isfinite(targets).all(axis=1))
    zero = np.flatnonzero(~targets.any(axis=1))
    name = "target" if single else f"target {(bad if len(bad) else zero)[:1].tolist()}"
    if len(bad):
        raise ExemplaError(f"{name} has NaN or infinite values; repair it")
    if len(zero):
        raise ExemplaError(f"{name} is zero, so there is nothing to explain; give another one")
    with np.errstate(over="ignore"):
        for norm2 in np.vecdot(targets, targets):
            _check_norm("the target" if single else "a target", float(norm2))
    return targets, single


def _per_target(value: Any, count: int, single: bool, what: str) -> tuple[Any, ...]:
    """Return one value per target from a single value or a sequence."""
    if value is None or isinstance(value, str | Selection):
        if isinstance(value, Selection) and not single:
            raise ExemplaError("start is one selection; give a list with one for each target")
        return (value,) * count
    if not isinstance(value, Sequence | np.ndarray):
        raise ExemplaError(
            f"{what} is {value!r}; give a single value or a sequence with one per target"
        )
    values = tuple(value)
    if single or len(values) != count:
        wanted = "a single value" if single else f"{count} values, one for each target"
        raise ExemplaError(f"{what} has {len(values)} values; give {wanted}")
    return values


def select(
    features: Array,
    target: Array,
    k: int,
    selector: Selector | None = None,
    side: str | Sequence[str] = "both",
    *,
    start: Selection | Sequence[Selection | None] | None = None,
) -> Any:
    """Select at most k rows whose weighted sum approximates the target.

    Parameters
    ----------
    features : array of shape (t, p)
        One row per training example: NumPy array, torch tensor (CPU or CUDA), DataFrame, nested
        lists or stored rows. Never changed; float32 rows stay float32.
    target : array of shape (p,) or (T, p)
        The vector to approximate, usually the mean row of the queried predictions. Several targets
        share each pass over the rows.
    k : int
        Number of rows to select, from 1 to t.
    selector : Selector, optional
        The algorithm. Default: ``SBQ()``.
    side : {"both", "opponents", "proponents"} or sequence of these, default "both"
        Restrict the candidates by the sign of z = f·μ: opponents have z < 0, proponents z > 0.
        A sequence gives one side per target.
    start : Selection or sequence of Selection, optional
        An earlier result for the same problem. Its picks are kept and extended to k.

    Returns
    -------
    Selection or list of Selection
        A list of T selections if `target` has shape (T, p). A selection has fewer than k rows, and
        an `ExemplaWarning` is issued, if no further row adds anything.

    Raises
    ------
    ExemplaError
        If an argument is invalid or the features are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import select
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> result = select(rows, np.array([2.0, 1.0]), k=1)
    >>> result.indices, round(result.explained, 2)
    (array([2]), 0.9)
    >>> select(rows, np.array([2.0, 1.0]), k=2, start=result).indices
    array([2, 0])
    """
    problem, results = choose(features, target, k, selector, side, start)
    return results[0] if problem.single else results


def quiet_select(
    features: Array, target: Array, k: int, selector: Selector | None = None, side: str = "both"
) -> Selection:
    """Select for one target without a warning if fewer than k rows are found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)
        return select(features, target, k, selector, side)


def choose(
    features: Any, target: Any, k: Any, selector: Any, side: Any, start: Any = None, first: int = 0
) -> tuple[Problem, list[Selection]]:
    """Run `select` on a group of targets; `first` is the number of the first one, for warnings."""
    selector = check_selector(selector) or SBQ()
    # The passes of a single target use all cores; the threads of BLAS would wait beside them.
    shape = getattr(target, "shape", ())
    with (
        SerialBLAS() if len(shape) < 2 or shape[0] == 1 else nullcontext(),
        selector.placed(features) as rows,
    ):
        problem, k = _make_problem(rows, target, k, side, start)
        for i in range(len(problem.targets)):
            _check_start(problem, i, selector, k)
        results = selector.choose(problem, k)
    for i, result in enumerate(results):
        if len(result) < k:
            why = _shortfall(result, k, None if problem.single else first + i)
            warnings.warn(why, ExemplaWarning, stacklevel=3)
            results[i] = replace(result, warnings=(why,))
    return problem, results


def _check_start(problem: Problem, i: int, selector: Selector, k: int) -> None:
    """Raise unless the start of target i is a result of this selector for this problem."""
    start, rows = problem.starts[i], problem.rows
    if start is None:
        return
    if not selector.continues:
        raise ExemplaError(f"{selector.name} cannot continue from a start; omit start")
    if not isinstance(start, Selection) or start.state is None:
        raise ExemplaError("start is not a result of select; pass the Selection it returned")
    if len(start) > k:
        raise ExemplaError(f"start has {len(start)} picks, more than k = {k}; raise k")
    if start.side != problem.sides[i]:
        raise ExemplaError(f"start was chosen for side {start.side!r}; continue with that side")
    same = (
        np.array_equal(start.state.target, problem.targets[i])
        and (len(start) == 0 or int(start.indices.max()) < rows.t)
        and np.array_equal(start.state.rows, rows.take(start.indices))
    )
    if not same:
        raise ExemplaError("start was chosen from other features or for another target")
    if start.selector != selector.name or start.noise != selector.noise:
        raise ExemplaError(
            f"start was chosen by {start.selector} with noise {start.noise:g}; "
            "continue with the same selector"
        )


def _shortfall(result: Selection, k: int, target: int | None) -> str:
    """Return a message that explains why fewer than k rows were selected."""
    whose = "" if target is None else f" for target {target}"
    found = f"{len(result)} of {k} rows were selected{whose}: "
    if result.stopped == "rank":
        return found + (
            f"the candidates have rank {result.rank} and no further row adds anything; "
            "a selector with noise can go beyond the rank"
        )
    if result.stopped == "residual":
        return found + "no further row can bring the weighted sum closer to the target"
    rows = "nonzero rows" if result.side == "both" else f"{result.side} among the nonzero rows"
    return found + f"there are only {result.candidates} {rows}"


def select_from_kernel(
    kernel: Callable[[int, np.ndarray], Any],
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
        diagonal = np.array([_kernel_row(kernel, i, np.array([i]))[0] for i in range(t)])
    norms2 = _vector(diagonal, "diagonal")
    if len(norms2) != t or (norms2 < 0).any():
        raise ExemplaError(f"diagonal must hold {t} numbers, none below 0")
    if norms2.any():
        _check_norm("the longest row", float(norms2.max()))
    _check_norm("the target", float(target_norm2))
    candidates = side_of(zero_rounding(z, norms2, target_norm2), side) & (norms2 > 0)
    indices, columns, coefs, stopped = _sbq(kernel, z, norms2, candidates, k, noise, target_norm2)
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


def _sbq(
    kernel: Any, z: Array, norms2: Array, candidates: Array, k: int, noise: float, norm2: float
) -> tuple[list[int], np.ndarray, np.ndarray, str]:
    """Return the picks, Cholesky columns (k, t), coefficients and the reason for stopping."""
    every, slack = np.arange(len(z)), ROUNDING * math.sqrt(norm2)
    c, n = z.copy(), np.where(candidates, norms2 + noise, -np.inf)
    columns, coefs, indices = np.empty((k, len(z))), np.empty(k), []
    for step in range(k):
        if noise == 0 and 1.0 - coefs[:step] @ coefs[:step] / norm2 < MATCHED_RATIO**2:
            return indices, columns[:step], coefs[:step], "residual"
        at = np.flatnonzero(n > _KERNEL_TOLERANCE * norms2)
        if not len(at):
            stopped = "candidates" if step >= candidates.sum() else "rank"
            return indices, columns[:step], coefs[:step], stopped
        bounds = Rule.GAIN.bounds(c[at], n[at], norms2[at], noise, slack, ROUNDING)
        j = int(at[first_of_best(*bounds)])
        root = math.sqrt(n[j])
        # v = (K_j − Σ_l V_l[j] V_l)/√n_j: row j of the next Cholesky column.
        v = (_kernel_row(kernel, j, every) - columns[:step, j] @ columns[:step]) / root
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


def _kernel_row(kernel: Any, i: int, others: np.ndarray) -> np.ndarray:
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
