"""`Factors`: per-sample scores of one layer, in factored form.

Shapes: n rows of a batch, s positions that share a weight (tokens, pixels), d_in, d_out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from exempla.arrays import Array, as_like, concatenate, is_sparse

MANY = 32
"""Positions per example from which on fewer examples are sampled where a sample is enough: such
examples differ less from one another and cost more."""


Side = Literal["inputs", "outputs"]
"""One of the two sides of a layer's scores: inputs a, or output gradients g."""


class Pairs(NamedTuple):
    """The products of an input direction and an output direction that a sketch keeps."""

    inputs: Array
    """(pairs,) columns of the input basis."""
    outputs: Array
    """(pairs,) columns of the output basis."""
    flat: Array
    """(pairs,) positions in the flattened (r_in, r_out) block, precomputed."""


class Work(NamedTuple):
    """Cost of a layer's arithmetic, per row."""

    positions: int
    d_in: float
    """Entries of an input that have to be multiplied; for sparse inputs, the nonzero ones."""
    d_out: float
    gram: float
    """Floating-point operations per dot product of two scores in `Factors.gram`."""


@dataclass(frozen=True)
class Factors:
    """Scores of one layer for n rows, not multiplied out: row i is Σ_s a[i, s] g[i, s]ᵀ.

    `a` is (n, s, d_in) and `g` is (n, s, d_out); 2-D arrays mean s = 1, and only then may `a` be a
    CSR matrix. A gradient without this structure is the case d_in = 1, a = 1. The rest of the
    library uses only these methods; layers that never materialise their inputs (embedding tables)
    override them.
    """

    a: Array
    g: Array

    def __len__(self) -> int:
        return int(self.g.shape[0])

    @property
    def nbytes(self) -> int:
        """Memory of the two arrays in bytes."""
        a = self.a.data.nbytes if is_sparse(self.a) else 0 if self.a is None else self.a.nbytes
        return int(a + self.g.nbytes)

    @property
    def given_inputs(self) -> Array | None:
        """The part that depends on the inputs alone, shared by all classes of an example."""
        return self.a

    @property
    def work(self) -> Work:
        """Cost of arithmetic with these scores, per row."""
        positions = self.g.shape[1] if self.g.ndim == 3 else 1
        d_in = self.a.nnz / max(len(self), 1) if is_sparse(self.a) else self.a.shape[-1]
        d_out = self.g.shape[-1]
        written_out = self.g.ndim == 3 and d_in * d_out <= positions**2
        each = d_in * d_out if written_out else positions**2 * (d_in + d_out)
        return Work(positions, d_in, d_out, 2.0 * each)

    def project(self, basis_in: Array | None, basis_out: Array | None) -> Array:
        """Return Uᵀ(Σ_s a_s g_sᵀ)V as (n, r_in, r_out); None means the identity."""
        a = self.a if basis_in is None else self.a @ basis_in
        a = a.toarray() if is_sparse(a) else a
        g = self.g if basis_out is None else self.g @ basis_out
        if g.ndim == 2:
            return a[:, :, None] * g[:, None, :]
        return a.swapaxes(1, 2) @ g

    def project_pairs(self, basis_in: Array, basis_out: Array, pairs: Pairs) -> Array:
        """Return the entries of `project` at these pairs, (n, pairs)."""
        if self.g.ndim == 2:  # one position: no need to compute the whole block
            return (self.a @ basis_in)[:, pairs.inputs] * (self.g @ basis_out)[:, pairs.outputs]
        return self.project(basis_in, basis_out).reshape(len(self), -1)[:, pairs.flat]

    def dense(self) -> Array:
        """Return the scores as a dense (n, d_in·d_out) array, inputs the slow index."""
        return self.project(None, None).reshape(len(self), -1)

    def compact(self) -> Factors:
        """Return the same scores in the smallest form that supports products."""
        return self

    def gram(self, other: Factors) -> Array:
        """Return the dot products with the other's scores, (n, m), from the factors alone."""
        if self.g.ndim == 2 and other.g.ndim == 2:
            inputs = self.a @ other.a.T
            inputs = inputs.toarray() if is_sparse(inputs) else inputs
            return inputs * (self.g @ other.g.T)
        positions = self.g.shape[1] * other.g.shape[1]
        if self.a.shape[-1] * self.g.shape[-1] <= positions:
            return self.dense() @ other.dense().T
        # Σ_{s,s'} (a_s·a'_s')(g_s·g'_s'): cheaper than the product when positions are few.
        (n, s), (m, r) = self.g.shape[:2], other.g.shape[:2]
        inputs = self.a.reshape(n * s, -1) @ other.a.reshape(m * r, -1).T
        outputs = self.g.reshape(n * s, -1) @ other.g.reshape(m * r, -1).T
        return (inputs * outputs).reshape(n, s, m, r).sum((1, 3))

    def norm2(self) -> Array:
        """Return the squared norm of each row's score, (n,)."""
        if self.g.ndim == 2:
            squares = self.a.multiply(self.a) if is_sparse(self.a) else self.a * self.a
            inputs = np.asarray(squares.sum(1)).ravel() if is_sparse(self.a) else squares.sum(1)
            return inputs * (self.g * self.g).sum(1)
        if self.g.shape[1] ** 2 > self.a.shape[-1] * self.g.shape[-1]:
            scores = self.dense()
            return (scores * scores).sum(1)
        inputs = self.a @ self.a.swapaxes(1, 2)
        return (inputs * (self.g @ self.g.swapaxes(1, 2))).sum((1, 2))

    def take(self, positions: np.ndarray) -> Factors:
        """Return the rows at these positions, in this order."""
        rows = as_slice(positions)
        return Factors(self.a[rows], self.g[rows])

    def join(self, others: list[Factors]) -> Factors:
        """Concatenate with the others' rows; shorter ones are padded with zero positions."""
        parts = [self, *others]
        if is_sparse(self.a):
            from scipy.sparse import vstack

            return Factors(
                vstack([f.a for f in parts]).tocsr(), np.concatenate([f.g for f in parts])
            )
        if self.g.ndim == 3:
            longest = max(f.g.shape[1] for f in parts)
            return Factors(
                *(concatenate([pad(getattr(f, x), longest) for f in parts]) for x in "ag")
            )
        return Factors(concatenate([f.a for f in parts]), concatenate([f.g for f in parts]))

    def scale_inputs(self, factor: np.ndarray) -> Factors:
        """Return the same scores with input column i multiplied by factor[i]."""
        if is_sparse(self.a):
            return Factors(self.a.multiply(factor[None, :]).tocsr(), self.g)
        return Factors(self.a * as_like(factor, self.a), self.g)

    def moment(self, side: Side) -> Array:
        """Return Σ v vᵀ over rows and positions of one side, (d, d): a factor of K-FAC."""
        v = self._vectors(side)
        moment = v.T @ v
        return moment.toarray() if is_sparse(moment) else moment

    def action(self, side: Side, directions: Array) -> Array:
        """Return the moment times a few directions, (d, r), without forming the moment."""
        v = self._vectors(side)
        return v.T @ (v @ directions)

    def _vectors(self, side: Side) -> Array:
        v = self.a if side == "inputs" else self.g
        return v.reshape(-1, v.shape[-1]) if v.ndim == 3 else v


def as_slice(positions: np.ndarray) -> np.ndarray | slice:
    """Return consecutive positions as a slice, which makes a view where positions copy."""
    at = np.asarray(positions)
    if at.dtype == bool or len(at) == 0 or (len(at) > 1 and not (np.diff(at) == 1).all()):
        return at
    return slice(int(at[0]), int(at[-1]) + 1) if at[0] >= 0 else at


def pad(array: Array, positions: int) -> Array:
    """Pad an (n, s, d) array with zero positions to the given number of positions."""
    missing = positions - array.shape[1]
    if missing == 0:
        return array
    if isinstance(array, np.ndarray):
        return np.pad(array, ((0, 0), (0, missing), (0, 0)))
    import torch

    return torch.nn.functional.pad(array, (0, 0, 0, missing))
