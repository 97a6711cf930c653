"""NumPy arrays and torch tensors behind the same few functions, and threads for passes over them.

Code after the oracles works with an `Array`; only this file asks which kind it is.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpstrf
from threadpoolctl import ThreadpoolController

from exempla.errors import ExemplaError

Array = Any
"""A NumPy array or a torch tensor."""

_SOLVE_ROWS = 16_384
"""Rows solved at a time if their precision is not the factor's."""
_SQUARE_BYTES = 2**22
"""Bytes of the rows squared at a time."""


def is_tensor(value: Any) -> bool:
    """Return True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")  # a tensor cannot exist unless torch has been imported
    return torch is not None and isinstance(value, torch.Tensor)


def is_sparse(array: Any) -> bool:
    """Return True for a SciPy sparse matrix or array, without importing `scipy.sparse` (13 MB)."""
    loaded = sys.modules.get("scipy.sparse")
    return loaded is not None and bool(loaded.issparse(array))


def nbytes_of(values: Any) -> int:
    """Return the memory of an array, a sparse matrix or a table in bytes; 0 if it is not known."""
    if is_sparse(values):
        parts = (getattr(values, name, None) for name in ("data", "indices", "indptr", "coords"))
        arrays = (a for part in parts for a in (part if isinstance(part, tuple) else (part,)))
        return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
    if hasattr(values, "iloc"):
        return int(np.sum(values.memory_usage(index=False)))
    return int(getattr(values, "nbytes", 0))


def refuse_masked(values: Any, what: str) -> None:
    """Raise if an array has masked entries: NumPy would compute with the values under the mask."""
    parts = values if isinstance(values, list | tuple) else [values]
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ExemplaError(
            f"{what} is a masked array with hidden entries, which cannot be used: give them "
            "values (`filled`) or leave those rows out."
        )


def real_numbers(values: Any, what: str) -> np.ndarray:
    """Return the values as an array of float64; raise if they are not real numbers."""
    refuse_masked(values, what)
    try:
        array = np.asarray(to_numpy(values))  # no matrix, and no mask of nothing
        if array.dtype.kind not in "cmMSU":
            return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ExemplaError(f"{what} is not an array of numbers: give real numbers.") from None
    kinds = {"c": "complex", "m": "made of times", "M": "made of dates"}
    kind = kinds.get(array.dtype.kind, "not an array of numbers")
    raise ExemplaError(f"{what} is {kind}: give real numbers.")


def refuse_overflow(values: np.ndarray, what: str) -> np.ndarray:
    """Return the values if all of them are finite."""
    if not np.isfinite(values).all():
        raise ExemplaError(f"{what} overflows: scale the inputs of all examples alike.")
    return values


def to_numpy(array: Array) -> np.ndarray:
    """Return a NumPy array, copied from its device if necessary."""
    if isinstance(array, np.ndarray):
        return array
    if not is_tensor(array):
        return np.asarray(array)
    if array.is_meta:
        raise ExemplaError("a tensor on the meta device has no values: load the data first.")
    array = array.detach().cpu()
    # NumPy has no bfloat16
    return (array.float() if str(array.dtype) == "torch.bfloat16" else array).numpy()


def native(array: np.ndarray) -> np.ndarray:
    """Return the array in this machine's byte order, which pandas requires."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_like(values: Array, like: Array) -> Array:
    """Return `values` as an array of the kind, device and type of `like`."""
    if isinstance(like, np.ndarray) or is_sparse(like):
        return np.asarray(values, dtype=like.dtype)
    return like.new_tensor(values) if isinstance(values, np.ndarray) else values.to(like)


def in_double(array: Array) -> Array:
    """Return the array in float64 on the same device."""
    return array.astype(np.float64, copy=False) if isinstance(array, np.ndarray) else array.double()


def on_device_of(rows: Array, others: Array) -> Array:
    """Return the rows on the device of the others."""
    if isinstance(rows, np.ndarray):
        return rows
    return rows.to(others.device) if is_tensor(others) else to_numpy(rows)


def products(many: Array, few: Array) -> np.ndarray:
    """Return dot products, (many, few), computed on the device of the many rows."""
    return to_numpy(many @ on_device_of(few, many).T)


def concatenate(arrays: list[Array], axis: int = 0) -> Array:
    """Join arrays, in NumPy if one of them is: models of one list may have different sketches."""
    if len(arrays) == 1:
        return arrays[0]
    if any(isinstance(array, np.ndarray) for array in arrays):
        return np.concatenate([to_numpy(array) for array in arrays], axis)
    import torch

    return torch.cat(arrays, axis)


def padded(old: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array with zeros behind it, up to a larger shape."""
    return np.pad(old, [(0, wanted - size) for wanted, size in zip(shape, old.shape)])


def pivoted_cholesky(gram: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a rank-revealing Cholesky factor of a positive semidefinite matrix.

    The result is (L, order) with gram[order][:, order] = L Lᵀ. L is (n, r), and its first r rows
    are lower triangular. Pivoting stops when no remaining diagonal entry exceeds tolerance × the
    largest initial one. The matrix is overwritten: L uses its memory.
    """
    if not gram.size or not np.max(np.diag(gram)) > 0:
        raise ExemplaError(
            "every score is zero, so there is nothing to explain: the model fits these examples "
            "exactly or the selected parameters do not act on them."
        )
    stop = tolerance * float(np.max(np.diag(gram)))
    factor, pivot, rank, _ = dpstrf(gram.T, tol=stop, lower=1, overwrite_a=1)
    for column in range(1, rank):
        factor[:column, column] = 0.0
    return factor[:, :rank], pivot - 1


def solve_lower(
    lower: np.ndarray, rows: np.ndarray, *, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """Return rows · L⁻ᵀ: for each row the solution of L x = row, or of Lᵀ x = row if `transposed`.

    The result has the precision of the rows. Only the lower triangle is read. With `overwrite`, the
    memory of the rows may be used.
    """
    if rows.dtype != lower.dtype and len(rows) > _SOLVE_ROWS:
        # LAPACK copies the rows in the factor's precision: a few of them at a time
        out = np.empty(rows.shape, rows.dtype)
        for start in range(0, len(rows), _SOLVE_ROWS):
            here = slice(start, start + _SOLVE_ROWS)
            out[here] = solve_lower(lower, rows[here], transposed=transposed)
        return out
    side: Any = "T" if transposed else "N"
    solved = scipy.linalg.solve_triangular(
        lower, rows.T, lower=True, trans=side, overwrite_b=overwrite, check_finite=False
    )
    return np.ascontiguousarray(solved.T, dtype=rows.dtype)


def row_squares(rows: Array) -> np.ndarray:
    """Return the squared length of every row, (t,), summed in the precision of the rows.

    Stored rows are read in one pass and summed in double precision.
    """
    if hasattr(rows, "shards"):
        return rows.squares()
    step = max(1, _SQUARE_BYTES // max(1, rows[:1].nbytes))
    blocks = (rows[i : i + step] for i in range(0, len(rows), step))
    return np.concatenate([to_numpy((x * x).sum(1)) for x in blocks] or [np.zeros(0)])


TIE = 1e-9
"""Relative distance within which two numbers count as equal. The order in which a BLAS adds depends
on the number of threads and changes the last bits; choices among equal rows must not."""


def levels(values: np.ndarray, scale: float = 0.0) -> np.ndarray:
    """Return the rank of each value, from 0 for the smallest; near-ties share a rank.

    Two values nearly tie if they differ by at most TIE times the larger one, or times `scale`.
    Give `scale` for differences and log-odds, whose terms are larger than they are near zero.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    size = np.maximum(np.abs(ordered), scale)
    apart = np.diff(ordered) > TIE * np.maximum(size[1:], size[:-1])
    out = np.empty(len(values), dtype=np.int64)
    out[order[:1]] = 0
    out[order[1:]] = np.cumsum(apart)
    return out


def first_largest(table: np.ndarray) -> np.ndarray:
    """Return the first column of each row that equals, or nearly ties with, the largest value."""
    best = table.max(axis=1, keepdims=True)
    return np.argmax(table >= best - TIE * np.maximum(np.abs(best), 1.0), axis=1)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply the function to every leaf of nested lists, tuples and dictionaries."""
    if hasattr(tree, "__array__"):
        return function(tree)
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        return {key: tree_map(function, tree[key]) for key in tree.keys()}  # noqa: SIM118
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, v) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, v) for v in tree)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves that `tree_map` visits, in order."""
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


_PartResult = TypeVar("_PartResult")
_MIN_ENTRIES_PER_THREAD = 1 << 20
"""Entries to read that make another thread worthwhile."""


def n_threads() -> int:
    """Return the number of threads to use.

    EXEMPLA_THREADS if it is set (1 if it is not a number); otherwise the processors available to
    this process, or OMP_NUM_THREADS if that is lower.
    """
    requested = os.environ.get("EXEMPLA_THREADS")
    default = 1 if requested is not None else available()
    text = requested if requested is not None else os.environ.get("OMP_NUM_THREADS", "")
    first = text.split(",")[0]
    count = int(first) if first.strip().lstrip("+-").isdecimal() else default
    return max(1, count if requested is not None else min(count, default))


@cache
def available() -> int:
    """Return the processors available to this process, within the quota of its container."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    folder = Path("/sys/fs/cgroup")  # the second form is that of cgroups of version 1
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):
            quota, period = map(int, " ".join((folder / n).read_text() for n in names).split())
            found = min(found or 1, math.ceil(quota / period)) if quota > 0 else found
    return found or 1


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "exempla")


def in_parts(
    work: Callable[[int, int], _PartResult], t: int, width: int, tile: int
) -> list[_PartResult]:
    """Call work(start, stop) on consecutive parts of t rows and return the results in order.

    Parts are cut at multiples of `tile` and run in as many threads as t × width entries deserve.
    The result is the same for any number of threads. These are Python threads: NumPy releases the
    interpreter lock during its passes. `work` must not call `in_parts`, whose thread would wait for
    itself.
    """
    tiles = -(-t // tile)
    count = min(t * width // _MIN_ENTRIES_PER_THREAD, tiles)
    count = min(count, n_threads()) if count > 1 else 1
    cuts = [min(t, tiles * i // count * tile) for i in range(count + 1)]
    first, *others = pairwise(cuts)
    if not others:
        return [work(*first)]
    with SerialBLAS():
        pool = _pool(count - 1)  # this thread takes the first part
        found = [pool.submit(work, *part) for part in others]
        return [work(*first), *(one.result() for one in found)]


class SerialBLAS:
    """Within this context BLAS uses one thread, in all threads; contexts may overlap."""

    _lock, _open = threading.Lock(), 0
    _limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not SerialBLAS._open:
                SerialBLAS._limit = _blas().limit(limits=1)
            SerialBLAS._open += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            SerialBLAS._open -= 1
            if not SerialBLAS._open:
                SerialBLAS._limit.restore_original_limits()


def _start_afresh() -> None:
    """Forget the threads of the parent, which do not survive a fork, and what they were doing."""
    _pool.cache_clear()
    SerialBLAS._lock, SerialBLAS._open = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
