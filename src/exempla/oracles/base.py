"""The interface of an oracle: a fitted model and data become scores, in one currency.

Only the oracle knows the framework of its model. It yields `ScoreRows`, batch by batch in data-set
order, whose `Factors` (one per layer) are the per-sample scores ∇θ log p(y | x, θ̂), never
multiplied out.

Weights: a training example of weight w has score w·s and Fisher w·E[s sᵀ], so the oracle multiplies
`g` by w (scores) and by √w (Fisher rows). Test examples have weight 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from exempla.arrays import Array, as_like, concatenate, is_sparse, to_numpy
from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError

Labels = Literal["true", "predicted"]
Side = Literal["inputs", "outputs"]
"""One of the two sides of a layer's scores: inputs a, or output gradients g."""

CLASSES = ("bernoulli", "categorical")
"""Likelihoods of one class out of several."""
CLASS_CUT = 1e-4
"""Probability below which a class is dropped from a network's Fisher: such classes contribute
almost nothing, and dropping them leaves a few rows per example instead of one per class."""
GRAM_BLOCK = 256
"""Rows per block of a Gram matrix; bounds the memory of temporaries."""
MANY = 32
"""Positions per example from which on fewer examples are sampled where a sample is enough: such
examples differ less from one another and cost more."""


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
    """Scores of one layer for n rows, not multiplied out: row i is the matrix a[i] g[i]ᵀ.

    `a` is (n, d_in), dense or CSR, and `g` is (n, d_out). A gradient without this structure is the
    case d_in = 1, a = 1. The rest of the library uses only these methods; layers that share a
    weight between positions (tokens, pixels) or never materialise their inputs override them (see
    `exempla.oracles.torch.factors`).
    """

    a: Array
    g: Array
    shares_inputs: ClassVar[bool] = False
    """Whether all rows of one example are known to have the same inputs."""

    def __len__(self) -> int:
        return int(self.g.shape[0])

    @property
    def nbytes(self) -> int:
        """Memory of the two arrays in bytes."""
        a = self.a.data.nbytes if is_sparse(self.a) else 0 if self.a is None else self.a.nbytes
        return int(a + self.g.nbytes)

    @property
    def work(self) -> Work:
        """Cost of arithmetic with these scores, per row."""
        d_in = self.a.nnz / max(len(self), 1) if is_sparse(self.a) else self.a.shape[1]
        return Work(1, d_in, self.g.shape[1], 2.0 * (d_in + self.g.shape[1]))

    def project(self, basis_in: Array | None, basis_out: Array | None) -> Array:
        """Return Uᵀ a gᵀ V as (n, r_in, r_out); None means the identity."""
        a = self.a if basis_in is None else self.a @ basis_in
        a = a.toarray() if is_sparse(a) else a
        g = self.g if basis_out is None else self.g @ basis_out
        return a[:, :, None] * g[:, None, :]

    def project_pairs(self, basis_in: Array, basis_out: Array, pairs: Pairs) -> Array:
        """Return the entries of `project` at these pairs, (n, pairs)."""
        return (self.a @ basis_in)[:, pairs.inputs] * (self.g @ basis_out)[:, pairs.outputs]

    def dense(self) -> Array:
        """Return the scores as a dense (n, d_in·d_out) array, inputs the slow index."""
        scores = self.project(None, None)
        return scores.reshape(len(self), scores.shape[1] * scores.shape[2])

    def compact(self) -> Factors:
        """Return the same scores in the smallest form that supports products."""
        return self

    def gram(self, other: Factors) -> Array:
        """Return the dot products with the other's scores, (n, m), from the factors alone."""
        inputs = self.a @ other.a.T
        inputs = inputs.toarray() if is_sparse(inputs) else inputs
        return inputs * (self.g @ other.g.T)

    def norm2(self) -> Array:
        """Return the squared norm of each row's score, (n,)."""
        squares = self.a.multiply(self.a) if is_sparse(self.a) else self.a * self.a
        inputs = np.asarray(squares.sum(1)).ravel() if is_sparse(self.a) else squares.sum(1)
        return inputs * (self.g * self.g).sum(1)

    @cached_property
    def norms2(self) -> Array:
        """`norm2`, computed once."""
        return self.norm2()

    def take(self, positions: np.ndarray) -> Factors:
        """Return the rows at these positions, in this order."""
        rows = as_slice(positions)
        return Factors(self.a[rows], self.g[rows])

    def join(self, others: list[Factors]) -> Factors:
        """Concatenate with the others' rows."""
        parts = [self, *others]
        g = concatenate([f.g for f in parts])
        if is_sparse(self.a):
            from scipy.sparse import vstack

            return Factors(vstack([f.a for f in parts]).tocsr(), g)
        return Factors(concatenate([f.a for f in parts]), g)

    def scale_inputs(self, factor: np.ndarray) -> Factors:
        """Return the same scores with input column i multiplied by factor[i]."""
        if is_sparse(self.a):
            return Factors(self.a.multiply(factor[None, :]).tocsr(), self.g)
        return Factors(self.a * as_like(factor, self.a), self.g)

    def moment(self, side: Side) -> Array:
        """Return Σ v vᵀ over the vectors of one side, (d, d): a factor of K-FAC."""
        v = self.a if side == "inputs" else self.g
        moment = v.T @ v
        return moment.toarray() if is_sparse(moment) else moment

    def action(self, side: Side, directions: Array) -> Array:
        """Return the moment times a few directions, (d, r), without forming the moment."""
        v = self.a if side == "inputs" else self.g
        return v.T @ (v @ directions)


def as_slice(positions: np.ndarray) -> np.ndarray | slice:
    """Return evenly spaced positions as a slice, which makes a view where positions copy.

    On a GPU, positions also have to be sent there, for which the host waits.
    """
    at = np.asarray(positions)
    if at.dtype == bool or len(at) == 0 or at[0] < 0:
        return at
    step = int(at[1] - at[0]) if len(at) > 1 else 1
    if step < 1 or not (np.diff(at) == step).all():
        return at
    return slice(int(at[0]), int(at[-1]) + 1, step)


@dataclass(frozen=True)
class Layer:
    """One block of parameters, a d_out × d_in matrix; a bias is an additional input column.

    `penalty` (d_in,) is the L2 coefficient λ of each input column in the objective
    mean(−log p) + Σ λ/2·w². It is zero for a bias and for models without regularisation.
    """

    name: str
    d_in: int
    d_out: int
    penalty: np.ndarray

    @property
    def size(self) -> int:
        return self.d_in * self.d_out


@dataclass(frozen=True)
class ScoreRows:
    """Score rows: the example each row belongs to, and its factors layer by layer."""

    sample: np.ndarray
    """(n,) int64 positions in the data set, one per row."""
    factors: tuple[Factors, ...]
    counted: int | None = None
    """Number of rows with probability above CLASS_CUT, if rows below it are included for
    exactness; None means all. Damping rules count rows."""
    to_score: np.ndarray | None = None
    """(n,) factors that turn Fisher rows into the scores of their examples; 0 for rows of other
    labels. None if no row is known to be a multiple of a score."""
    is_score: bool = False
    """True if these are scores among Fisher rows (`Oracle.fisher_and_scores`)."""

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def nbytes(self) -> int:
        """Memory of the factors in bytes."""
        return sum(f.nbytes for f in self.factors)

    def take(self, positions: np.ndarray) -> ScoreRows:
        """Return the rows at these positions, in this order."""
        scale = None if self.to_score is None else self.to_score[positions]
        factors = tuple(f.take(positions) for f in self.factors)
        return ScoreRows(self.sample[positions], factors, None, scale, self.is_score)

    def compact(self) -> ScoreRows:
        """Return the same rows with each layer in its smallest form; supports products only."""
        return replace(self, factors=tuple(f.compact() for f in self.factors))

    @staticmethod
    def join(groups: list[ScoreRows]) -> ScoreRows:
        """Concatenate several groups of rows."""
        if len(groups) == 1:
            return groups[0]
        layers = zip(*(group.factors for group in groups), strict=True)
        counts = [len(group) if group.counted is None else group.counted for group in groups]
        scales = [np.zeros(len(g)) if g.to_score is None else g.to_score for g in groups]
        return ScoreRows(
            np.concatenate([group.sample for group in groups]),
            tuple(first.join(list(rest)) for first, *rest in layers),
            sum(counts) if any(group.counted is not None for group in groups) else None,
            np.concatenate(scales),
        )

    def thinnest(self, layers: tuple[Layer, ...]) -> int:
        """Return the smallest number of positions per row over the weight matrices.

        A row with s positions is a sum of s products and carries about as much information about
        its layers as s rows with one position each.
        """
        pairs = zip(layers, self.factors, strict=True)
        return min((f.work.positions for x, f in pairs if x.d_in > 1), default=1)

    def squared_norms(self) -> Any:
        """Return the squared norm of each score over all layers, on the factors' device."""
        first, *rest = (f.norms2 for f in self.factors)
        for more in rest:
            first = first + more
        return first

    def norm2(self) -> np.ndarray:
        """Return the squared norm of each score over all layers, as a float64 NumPy array."""
        return in_float64(self.squared_norms())

    def gram(self, other: ScoreRows, done: Callable[[float], object] | None = None) -> np.ndarray:
        """Return the float64 dot products of these scores with the other's, block by block.

        `done` is called with the share of the work that each step completes.
        """
        out = np.empty((len(self), len(other)))
        rows, columns = (range(0, len(each), GRAM_BLOCK) for each in (self, other))
        # of a symmetric matrix, only the lower blocks are computed
        blocks = [(i, j) for i in rows for j in columns if other is not self or j <= i]
        step = 1.0 / max(len(blocks) * len(self.factors), 1)
        for i, j in blocks:
            left = self.take(np.arange(i, min(i + GRAM_BLOCK, len(self))))
            right = other.take(np.arange(j, min(j + GRAM_BLOCK, len(other))))
            block = 0.0
            for f, g in zip(left.factors, right.factors, strict=True):
                block = block + in_float64(f.gram(g))
                if done is not None:
                    done(step)
            out[i : i + GRAM_BLOCK, j : j + GRAM_BLOCK] = block
            if other is self and j < i:
                out[j : j + GRAM_BLOCK, i : i + GRAM_BLOCK] = np.transpose(block)
        return out


def in_float64(array: Any) -> np.ndarray:
    """Convert to a float64 NumPy array."""
    return np.asarray(to_numpy(array), dtype=np.float64)


class Examples(ABC):
    """Validated data that an oracle can score. Only its own oracle looks inside."""

    labels: np.ndarray | None
    """The labels as the user gave them, in data-set order; None if there are none."""
    ids: np.ndarray | None = None
    """The user's own names of the rows, if given."""
    needs_labels: bool = True
    """False where scores need no label: densities p(x), and precomputed scores."""
    made_bytes: int = 0
    """Memory that reading allocated permanently beside the user's data, in bytes."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, positions: np.ndarray) -> Examples:
        """Return the examples at these positions, in this order."""


@dataclass(frozen=True)
class RowExamples(Examples):
    """Examples kept as arrays with one entry per row.

    `codes` are the labels in the form the likelihood uses: class codes or numbers.
    """

    X: Any
    codes: np.ndarray | None = None
    weights: np.ndarray | None = None
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None
    needs_labels: bool = True
    made_bytes: int = 0

    per_row: ClassVar[tuple[str, ...]] = ("X", "codes", "weights", "labels", "ids")
    """Fields that `take` indexes."""

    def __len__(self) -> int:
        return n_rows(self.X)

    def take(self, positions: np.ndarray) -> Self:
        """Return the examples at these positions, in this order."""
        at = np.asarray(positions)
        parts = {name: getattr(self, name) for name in self.per_row}
        return replace(self, **{k: take_rows(v, at) for k, v in parts.items() if v is not None})

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, Self]]:
        """Yield consecutive positions, `size` at a time, and the examples there."""
        for start in range(0, len(self), size):
            rows = np.arange(start, min(start + size, len(self)))
            yield rows, self.take(rows)


class Oracle(ABC):
    """Scores of one fitted model."""

    layers: tuple[Layer, ...] = ()
    likelihood: str
    """Name of the likelihood: "categorical", "bernoulli", "gaussian", "poisson", …"""
    fisher_note: str = "exact"
    """How `fisher_rows` computes the expectation over the model's labels, in words."""
    notes: tuple[str, ...] = ()
    """Remarks that every explanation of this model includes."""
    trees: bool = False
    """True for an ensemble of trees."""
    budget: float | None = None
    """Epochs of training that a fit may cost by default; None for no limit."""
    whitened: bool = False
    """True if dot products of scores already are the kernel; the metric is then the identity,
    whichever one was requested."""
    implicit_penalty: float | None = None
    """The L2 penalty that the training procedure implies, if it is known; None if it has to be
    estimated from how far the parameters are from a stationary point."""
    itemsize: int = 8
    """Bytes per number of its scores: 8 in double precision, 4 in single."""

    @property
    def pass_bytes(self) -> int:
        """Memory of a pass over one batch besides the model, in bytes; 0 if negligible."""
        return 0

    @property
    def n_parameters(self) -> int:
        return sum(layer.size for layer in self.layers)

    @abstractmethod
    def read(self, data: Any, *, role: Literal["train", "test"]) -> Examples:
        """Validate the user's data; raise one ExemplaError that lists every problem."""

    @abstractmethod
    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield one row per example, in order, in batches."""

    @abstractmethod
    def fisher_rows(self, examples: Any) -> Iterator[ScoreRows]:
        """Yield rows r with Σ_{rows of example i} r rᵀ = E_{y ~ model}[s sᵀ], in batches.

        An example may have several rows, for instance one per class.
        """

    def fisher_and_scores(self, examples: Any) -> Iterator[ScoreRows]:
        """Yield Fisher rows and, if one pass of the model gives both, scores (`is_score`)."""
        return self.fisher_rows(examples)

    @abstractmethod
    def predict(self, examples: Any) -> np.ndarray:
        """Return the model's predictions, in the user's label vocabulary."""

    @abstractmethod
    def log_likelihood(self, examples: Any) -> np.ndarray:
        """Return log p(y | x, θ̂) of each example under its given label."""

    def by_prediction(self) -> Oracle:
        """Return an oracle that scores training rows the way it scores test rows.

        Some models (generative classifiers, neighbours) have different scores for the two. Jobs
        that compare training rows with test rows need the same one; most oracles have only one.
        """
        return self

    # ---- optional: properties of the parameters that only some oracles know

    @property
    def theta_squares(self) -> list[tuple[int, float]] | None:
        """Number of parameters and sum of their squares, for each scored layer."""
        return None

    @property
    def theta_norm(self) -> float | None:
        """‖θ̂‖ over the scored parameters, if they form a vector."""
        squares = self.theta_squares
        return None if squares is None else float(np.sqrt(sum(square for _, square in squares)))

    def gauss_newton(self, train: Any) -> Any:
        """Return the Fisher of the training examples as an operator on all parameters, or None if
        the oracle has none (see `exempla.oracles.torch.curvature`)."""
        return None

    def penalty_rows(self) -> ScoreRows | None:
        """Return the penalty's gradient λRθ̂ as score rows that sum to it; None if unpenalised."""
        return None

    @property
    def theta(self) -> np.ndarray:
        """All parameters as one vector: per layer a (d_in, d_out) block in row-major order, with
        the bias as its last input row."""
        raise ExemplaError(f"{type(self).__name__} has no single parameter vector.")

    def at(self, theta: np.ndarray) -> Oracle:
        """Return the same oracle at other parameters; it scores examples this one has read."""
        raise ExemplaError(f"{type(self).__name__} cannot be evaluated at other parameters.")
