"""Slow twins of the selection engine, in 50-digit arithmetic.

`objective` is the paper's z'K⁻¹z, with the inverse grown block by block (with the off-diagonal
sign that Proposition 1 has wrong). `step_gains` is one round of Algorithm 1: what adding each
candidate would do to that objective.

Why so many digits: at a condition number of 1e8 the recursion with 19 digits gets gains wrong in
the fifth place, while the engine, which inverts nothing, is right to 1e-13.
"""

from __future__ import annotations

from decimal import Decimal, getcontext
from itertools import combinations

import numpy as np

getcontext().prec = 50
_exact = np.vectorize(lambda number: Decimal(float(number)), otypes=[object])


def exact(values):
    """An object array of Decimals, each exactly the float it came from."""
    values = np.asarray(values)
    return _exact(values) if values.size else values.astype(object)


def dot(a, b):
    """a·b; a Decimal also when there is nothing to add up."""
    return a @ b if len(a) else Decimal(0)


def grow_inverse(A, b, corner):
    """Inverse of [[A⁻¹, b], [bᵀ, corner]] from A."""
    if not len(b):
        return np.array([[1 / corner]], dtype=object)
    Ab = A @ b
    d = corner - b @ Ab
    column = (-Ab / d)[:, None]
    top = np.hstack([A + np.outer(Ab, Ab) / d, column])
    return np.vstack([top, np.hstack([column.T, np.array([[1 / d]], dtype=object)])])


def inverse_of(K, S, noise):
    """(K_SS + σ²I)⁻¹, grown pick by pick."""
    A = np.zeros((0, 0), dtype=object)
    for i, j in enumerate(S):
        A = grow_inverse(A, K[S[:i], j], K[j, j] + Decimal(noise))
    return A


def objective(K, z, S, noise):
    """g(S) = z_S'(K_SS + σ²I)⁻¹z_S."""
    S = list(S)
    return dot(z[S], inverse_of(K, S, noise) @ z[S]) if S else Decimal(0)


def step_gains(K, z, S, noise, candidates, tolerance, A=None):
    """g(S + j) − g(S) for every candidate j as floats; −inf for rows that cannot be picked.

    With the block inverse A of S that difference is (z_j − bᵀA z_S)²/d.
    """
    A = inverse_of(K, S, noise) if A is None else A
    gains = np.full(len(z), -np.inf)
    for j in range(len(z)):
        if j in S or not candidates[j] or K[j, j] == 0:
            continue
        b = K[S, j]
        Ab = A @ b if S else b
        d = K[j, j] + Decimal(noise) - dot(b, Ab)
        if d > Decimal(tolerance) * K[j, j]:
            gains[j] = float((z[j] - dot(Ab, z[S])) ** 2 / d)
    return gains


def weights(K, z, S, noise):
    """(K_SS + σ²I)⁻¹ z_S as floats."""
    S = [int(j) for j in S]
    return (inverse_of(K, S, noise) @ z[S]).astype(float) if S else np.zeros(0)


def kernel_and_z(rows, target):
    F = exact(rows)
    return F @ F.T, F @ exact(target)


def candidates_of(z, side):
    return {"both": np.ones(len(z), bool), "opponents": z < 0, "proponents": z > 0}[side]


def best_set(rows, target, size, noise, candidates):
    """The largest g over all sets of `size` candidates, in float64 (dependent sets skipped)."""
    best = 0.0
    if size == 0:
        return best
    for S in combinations(np.flatnonzero(candidates), size):
        F = rows[list(S)]
        block, z = F @ F.T + noise * np.eye(size), F @ target
        if np.linalg.cond(block) < 1e10:
            best = max(best, float(z @ np.linalg.solve(block, z)))
    return best
