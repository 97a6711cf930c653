"""The few steps of linear algebra that NumPy and torch spell differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpstrf

from exempla.errors import ExemplaError
from exempla.types import Array, as_like

__all__ = ["concatenate", "inverse_factor", "pivoted_cholesky", "solve_lower", "to_numpy", "zeros"]


def to_numpy(array: Array) -> np.ndarray:
    """The array in NumPy, copied off its device if need be."""
    if isinstance(array, np.ndarray):
        return array
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def concatenate(arrays: list[Array], axis: int = 0) -> Array:
    """Join arrays of one kind."""
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis)
    import torch

    return torch.cat(arrays, axis)


def zeros(shape: tuple[int, ...], like: Array, *, double: bool = False) -> Array:
    """Zeros of the kind and device of `like`; in float64 if `double`."""
    if isinstance(like, np.ndarray):
        return np.zeros(shape, np.float64 if double else like.dtype)
    import torch

    return like.new_zeros(shape, dtype=torch.float64 if double else like.dtype)


def pivoted_cholesky(gram: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Rank-revealing factor of a positive semidefinite matrix.

    Returns (L, pivots, rest): L (r, r) lower triangular with gram[pivots][:, pivots] = L Lᵀ, and
    the trace that the r pivots leave unexplained. Pivoting stops when no diagonal entry left
    exceeds tolerance × the largest one of the start.
    """
    if not gram.size or not np.max(np.diag(gram)) > 0:
        raise ExemplaError(
            "every score is zero, so there is nothing to explain: the model fits these examples "
            "exactly or the selected parameters do not act on them."
        )
    factor, pivot, rank, _ = dpstrf(gram, tol=tolerance * float(np.max(np.diag(gram))), lower=1)
    pivot = pivot - 1
    lower = np.tril(factor[:, :rank])
    explained = np.einsum("ij,ij->", lower, lower)
    rest = max(float(np.trace(gram) - explained), 0.0)
    return lower[:rank].copy(), pivot[:rank], rest


def solve_lower(lower: np.ndarray, rows: Array) -> Array:
    """rows · L⁻ᵀ, row by row the solution of L x = row."""
    if isinstance(rows, np.ndarray):
        solved = scipy.linalg.solve_triangular(lower, rows.T.astype(np.float64), lower=True)
        return np.ascontiguousarray(solved.T)
    import torch

    factor = torch.as_tensor(lower, device=rows.device, dtype=torch.float64)
    return torch.linalg.solve_triangular(factor, rows.T.double(), upper=False).T.contiguous()


def inverse_factor(matrix: np.ndarray) -> np.ndarray:
    """W with W Wᵀ = matrix⁻¹ (W = L⁻ᵀ): rows · W are whitened rows."""
    try:
        lower = scipy.linalg.cholesky(matrix, lower=True)
    except scipy.linalg.LinAlgError:
        raise ExemplaError(
            "the Fisher metric is singular without damping: leave damping='auto' or give a "
            "positive number."
        ) from None
    return scipy.linalg.solve_triangular(lower, np.eye(len(matrix)), lower=True).T


def matmul_as(rows: Array, matrix: np.ndarray) -> Array:
    """rows @ matrix on the rows' device and in the rows' precision."""
    return rows @ as_like(matrix, rows)


def namespace(array: Array) -> Any:
    """`numpy` or `torch`, whichever made the array."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch
