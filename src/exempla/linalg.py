"""The few steps of linear algebra that NumPy and torch spell differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpstrf

from exempla.errors import ExemplaError
from exempla.types import Array, as_like

__all__ = [
    "concatenate",
    "matmul_as",
    "pivoted_cholesky",
    "solve_lower",
    "to_numpy",
]


def to_numpy(array: Array) -> np.ndarray:
    """The array in NumPy, copied off its device if need be."""
    if isinstance(array, np.ndarray):
        return array
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def concatenate(arrays: list[Array], axis: int = 0) -> Array:
    """Join arrays, in NumPy if one of them is (models of one list may have different sketches)."""
    if len(arrays) == 1:
        return arrays[0]
    if any(isinstance(array, np.ndarray) for array in arrays):
        return np.concatenate([to_numpy(array) for array in arrays], axis)
    import torch

    return torch.cat(arrays, axis)


def pivoted_cholesky(gram: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Rank-revealing factor of a positive semidefinite matrix.

    Returns (L, order): L (n, r), its first r rows lower triangular, and the order the rows were
    taken in, with gram[order][:, order] = L Lᵀ. Pivoting stops when no diagonal entry left exceeds
    tolerance × the largest one of the start. The matrix is used up: L lies in its memory.
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
    if gram.flags.owndata and np.shares_memory(factor, gram):
        # what lies behind L is given back at once: the caller's next matrices are as large
        del factor
        gram.resize((rank, len(pivot)), refcheck=False)
        return gram.T, pivot - 1
    return factor[:, :rank], pivot - 1


def solve_lower(
    lower: np.ndarray, rows: np.ndarray, *, transposed: bool = False, overwrite: bool = False
) -> np.ndarray:
    """rows · L⁻ᵀ, row by row the solution of L x = row (of Lᵀ x = row if transposed), in the rows'
    precision. Only the lower triangle is read; the rows are used up if they may be overwritten."""
    side: Any = "T" if transposed else "N"
    solved = scipy.linalg.solve_triangular(
        lower, rows.T, lower=True, trans=side, overwrite_b=overwrite, check_finite=False
    )
    return np.ascontiguousarray(solved.T, dtype=rows.dtype)


def matmul_as(rows: Array, matrix: np.ndarray) -> Array:
    """rows @ matrix on the rows' device and in the rows' precision."""
    return rows @ as_like(matrix, rows)
