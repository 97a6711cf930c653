"""What every oracle promises: a model and its data become scores, in one currency.

An oracle knows its framework; nothing after it does. It hands out `ScoreRows`, batch by batch in
data-set order, whose `Factors` (one per layer) are the per-sample scores ∇θ log p(y | x, θ̂),
never multiplied out.

Weights. A training example of weight w has score w·s and Fisher w·E[s sᵀ]; the oracle multiplies
`g` by w (scores) and by √w (Fisher rows). Questioned examples have weight 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from exempla.arrays import to_numpy
from exempla.errors import ExemplaError
from exempla.oracles.factors import Factors

__all__ = ["CLASS_CUT", "Examples", "Labels", "Layer", "Oracle", "ScoreRows"]

Labels = Literal["true", "predicted"]

CLASS_CUT = 1e-4
"""Classes with less probability than this are left out of a network's Fisher: they carry next to
none of it, and leaving them out shortens the sum from (classes) to a few rows an example."""

GRAM_BLOCK = 256
"""Rows per block of a Gram matrix: bounds the temporaries, not the result."""


@dataclass(frozen=True)
class Layer:
    """One block of parameters, a d_out × d_in matrix; a bias is one more column of inputs.

    `penalty` (d_in,) is the L2 coefficient λ of each input column in the mean-loss objective
    mean(−log p) + Σ λ/2·w²: zero for a bias, zero where the model is not regularised.
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
    """Some score rows: which example each belongs to, and its factors layer by layer."""

    sample: np.ndarray
    """(n,) int64 positions in the data set, one per row."""
    factors: tuple[Factors, ...]
    counted: int | None = None
    """How many of the rows carry probability above CLASS_CUT, where rows below it are here for
    exactness alone; None means all of them. Damping rules count rows."""

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def nbytes(self) -> int:
        """Memory that the factors take."""
        return sum(f.nbytes for f in self.factors)

    def take(self, positions: np.ndarray) -> ScoreRows:
        """Some of the rows, in this order."""
        return ScoreRows(self.sample[positions], tuple(f.take(positions) for f in self.factors))

    def compact(self) -> ScoreRows:
        """The same rows, each layer in the form that takes least memory: for products alone."""
        return replace(self, factors=tuple(f.compact() for f in self.factors))

    @staticmethod
    def join(groups: list[ScoreRows]) -> ScoreRows:
        """One group of rows from many."""
        if len(groups) == 1:
            return groups[0]
        layers = zip(*(group.factors for group in groups), strict=True)
        counts = [len(group) if group.counted is None else group.counted for group in groups]
        return ScoreRows(
            np.concatenate([group.sample for group in groups]),
            tuple(first.join(list(rest)) for first, *rest in layers),
            sum(counts) if any(group.counted is not None for group in groups) else None,
        )

    def thinnest(self, layers: tuple[Layer, ...]) -> int:
        """Positions that a row has in the matrix with fewest of them: a row of many is a sum of as
        many products, and says as much of its layers as so many rows of one."""
        pairs = zip(layers, self.factors, strict=True)
        return min((f.work.positions for x, f in pairs if x.d_in > 1), default=1)

    def squared_norms(self) -> Any:
        """Squared norm of each score, over all layers, where the factors live."""
        first, *rest = (f.norm2() for f in self.factors)
        for more in rest:
            first = first + more
        return first

    def norm2(self) -> np.ndarray:
        """Squared norm of each score, over all layers, in NumPy and float64."""
        return in_float64(self.squared_norms())

    def gram(self, other: ScoreRows, done: Callable[[float], object] | None = None) -> np.ndarray:
        """Dot products of these scores with the other's, in float64, block by block.

        `done` is told of the share of the work that each step has been.
        """
        out = np.empty((len(self), len(other)))
        blocks = _gram_blocks(len(self), len(other), symmetric=other is self)
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


def _gram_blocks(n: int, m: int, symmetric: bool) -> list[tuple[int, int]]:
    """First row and first column of each block; of a symmetric matrix only the lower ones."""
    rows, columns = range(0, n, GRAM_BLOCK), range(0, m, GRAM_BLOCK)
    return [(i, j) for i in rows for j in columns if not symmetric or j <= i]


def in_float64(array: Any) -> np.ndarray:
    """The array in NumPy and double precision."""
    return np.asarray(to_numpy(array), dtype=np.float64)


class Examples(ABC):
    """Validated data an oracle can score. Only its own oracle looks inside."""

    labels: np.ndarray | None
    """The labels as the user gave them, in data-set order; None if there are none."""
    ids: np.ndarray | None = None
    """The user's own names for the rows, if given."""
    needs_labels: bool = True
    """False where a score asks for no label: densities p(x), and scores that were given as such."""
    made_bytes: int = 0
    """Memory that reading took for good: inputs transformed once, where the user's stay too."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, positions: np.ndarray) -> Examples:
        """The examples at these positions, in this order."""


class Oracle(ABC):
    """Scores of one fitted model."""

    layers: tuple[Layer, ...]
    likelihood: str
    """Name of the likelihood: "categorical", "bernoulli", "gaussian", "poisson", …"""
    fisher_note: str = "exact"
    """How `fisher_rows` takes the expectation over the model's labels, in words."""
    notes: tuple[str, ...] = ()
    """What every explanation of this model should say of itself."""
    whitened: bool = False
    """Whether the scores' dot products are the kernel already: then the metric is the identity,
    whichever was asked for."""
    itemsize: int = 8
    """Bytes of a number of its scores: 8 in double precision, 4 in single."""

    @property
    def pass_bytes(self) -> int:
        """Memory that a pass over a batch takes, beside the model; 0 where that is little."""
        return 0

    @property
    def n_parameters(self) -> int:
        return sum(layer.size for layer in self.layers)

    @abstractmethod
    def read(self, data: Any, *, role: Literal["train", "test"]) -> Examples:
        """Validate the user's data; raise ExemplaError naming every problem at once."""

    @abstractmethod
    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        """One row per example, in order, in batches."""

    @abstractmethod
    def fisher_rows(self, examples: Any) -> Iterator[ScoreRows]:
        """Rows r with Σ_{rows of example i} r rᵀ = E_{y ~ model}[s sᵀ], in batches.

        An example may have several rows (one per class that carries probability).
        """

    @abstractmethod
    def predict(self, examples: Any) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""

    @abstractmethod
    def log_likelihood(self, examples: Any) -> np.ndarray:
        """log p(y | x, θ̂) of each example under its given label."""

    def by_prediction(self) -> Oracle:
        """The same oracle with training rows scored like questioned ones, by what the model says of
        their labels: for jobs that compare the two. Most oracles know no other score."""
        return self

    # ---- optional: what only some oracles know of their parameters

    @property
    def theta_squares(self) -> list[tuple[int, float]] | None:
        """Of each layer of parameters scored: how many, and the sum of their squares."""
        return None

    @property
    def theta_norm(self) -> float | None:
        """‖θ̂‖ over the parameters scored, if there is such a vector."""
        squares = self.theta_squares
        return None if squares is None else float(np.sqrt(sum(square for _, square in squares)))

    def gauss_newton(self, train: Any) -> Any:
        """The Fisher of the training examples as an operator on all parameters; None where there
        is none (see `exempla.oracles.torch.scorer`)."""
        return None

    @property
    def implicit_penalty(self) -> float | None:
        """The L2 penalty that the way of training amounts to, where that is known in itself; None
        where it shows in how far the parameters are from stationary."""
        return None

    def penalty_rows(self) -> ScoreRows | None:
        """The penalty's gradient λRθ̂ as score rows that sum to it; None without a penalty.

        One row an output: column o of a layer's (d_in, d_out) block stands against e_o.
        """
        if not any(layer.penalty.any() for layer in self.layers):
            return None
        total = sum(layer.d_out for layer in self.layers)
        factors, start, offset, theta = [], 0, 0, self.theta
        for layer in self.layers:
            block = theta[offset : offset + layer.size].reshape(layer.d_in, layer.d_out)
            a, g = np.zeros((total, layer.d_in)), np.zeros((total, layer.d_out))
            a[start : start + layer.d_out] = (layer.penalty[:, None] * block).T
            g[start : start + layer.d_out] = np.eye(layer.d_out)
            factors.append(Factors(a, g))
            start, offset = start + layer.d_out, offset + layer.size
        return ScoreRows(np.full(total, -1), tuple(factors))

    @property
    def theta(self) -> np.ndarray:
        """All parameters in one vector: per layer a (d_in, d_out) block in row-major order, the
        bias its last input row."""
        raise ExemplaError(f"{type(self).__name__} cannot write its parameters as one vector.")

    def at(self, theta: np.ndarray) -> Oracle:
        """The same oracle at other parameters; it scores examples this one has read."""
        raise ExemplaError(f"{type(self).__name__} cannot be moved to other parameters.")
