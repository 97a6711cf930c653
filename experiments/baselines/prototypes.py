"""Prototypes and criticisms: MMD-critic, in the inputs' space or in Fisher space.

    Kim, Khanna, Koyejo, "Examples are not enough, learn to criticize!" (2016)

Prototypes are unweighted: S is grown to maximise 2·mean_{i, j∈S} k(i, j) − mean_{i, j∈S} k(i, j).
Criticisms are where the prototypes misjudge the data's density: large |witness|, spread out.
Only one row of the kernel is held at a time, never a t×t matrix. Criticisms in Fisher space, the
paper's stated future work, are the same two functions with `FisherKernel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from exempla.checks import check_k
from exempla.errors import ExemplaError
from exempla.results import Selection
from exempla.selection import select_from_kernel

__all__ = ["FisherKernel", "Kernel", "Prototypes", "RBF", "mmd_critic", "rbf_sbq"]

BLOCK = 2048
"""Rows of the kernel taken together when only their mean is wanted."""


class Kernel(ABC):
    """A kernel over t examples, one row at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, i: int) -> np.ndarray:
        """k(i, j) for every j."""

    @abstractmethod
    def diagonal(self) -> np.ndarray:
        """k(j, j)."""

    @abstractmethod
    def mean(self) -> np.ndarray:
        """Mean of k(i, j) over all i, for every j."""


@dataclass(frozen=True)
class RBF(Kernel):
    """exp(−γ‖x − x′‖²); γ = 1 / median squared distance if not given.

    >>> import numpy as np
    >>> RBF(np.array([[0.0], [1.0]]), gamma=1.0).row(0).round(3)
    array([1.   , 0.368])
    """

    X: np.ndarray
    gamma: float | None = None

    def __post_init__(self) -> None:
        X = np.asarray(self.X, dtype=np.float64)
        if X.ndim != 2 or not np.isfinite(X).all():
            raise ExemplaError("X must be a finite matrix, one row per example.")
        object.__setattr__(self, "X", X)
        if self.gamma is None:
            object.__setattr__(self, "gamma", median_gamma(X))

    def __len__(self) -> int:
        return len(self.X)

    def between(self, others: np.ndarray) -> np.ndarray:
        """k of each of the others with each example."""
        apart = (others**2).sum(1)[:, None] + (self.X**2).sum(1) - 2 * others @ self.X.T
        return np.exp(-float(self.gamma or 0.0) * np.maximum(apart, 0.0))

    def row(self, i: int) -> np.ndarray:
        return self.between(self.X[i : i + 1])[0]

    def diagonal(self) -> np.ndarray:
        return np.ones(len(self.X))

    def mean(self) -> np.ndarray:
        return self.mean_of(self.X)

    def mean_of(self, others: np.ndarray) -> np.ndarray:
        """Mean of k over other points, for every example."""
        total = np.zeros(len(self.X))
        for start in range(0, len(others), BLOCK):
            total += self.between(others[start : start + BLOCK]).sum(0)
        return total / len(others)


@dataclass(frozen=True)
class FisherKernel(Kernel):
    """Dot products of feature rows, such as `Explainer(...).fit(train).features.rows`.

    >>> import numpy as np
    >>> FisherKernel(np.eye(2)).mean()
    array([0.5, 0.5])
    """

    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, i: int) -> np.ndarray:
        return np.asarray(self.rows @ self.rows[i], dtype=np.float64)

    def diagonal(self) -> np.ndarray:
        return np.einsum("ij,ij->i", self.rows, self.rows).astype(np.float64)

    def mean(self) -> np.ndarray:
        return np.asarray(self.rows @ self.rows.mean(0), dtype=np.float64)


@dataclass(frozen=True)
class Prototypes:
    """What MMD-critic found: typical examples, and those the typical ones do not account for."""

    indices: np.ndarray
    criticisms: np.ndarray
    mmd2: float
    """Squared distance between the mean of the data and the plain mean of the prototypes."""
    witness: np.ndarray
    """mean_i k(i, j) − mean_{i∈S} k(i, j) for every example: where the data is under-represented
    (positive) or over-represented (negative)."""


def mmd_critic(kernel: Kernel, k: int, criticisms: int = 0) -> Prototypes:
    """k unweighted prototypes, then criticisms, both greedily.

    >>> import numpy as np
    >>> x = np.r_[np.zeros(8), np.full(8, 5.0), np.full(4, 50.0)][:, None]
    >>> found = mmd_critic(RBF(x, gamma=0.1), 2, criticisms=1)
    >>> x[found.indices].ravel(), x[found.criticisms].ravel()
    (array([5., 0.]), array([50.]))
    """
    t = len(kernel)
    k = check_k(k, t)
    if not 0 <= criticisms <= t - k:
        raise ExemplaError(
            f"criticisms is {criticisms}; ask for 0 to {t - k} beside {k} prototypes"
        )
    mean, diagonal = kernel.mean(), kernel.diagonal()
    picked: list[int] = []
    near = np.zeros(t)  # Σ_{i∈S} k(i, j)
    towards, within = 0.0, 0.0  # Σ_{j∈S} mean_j and Σ_{i,j∈S} k(i, j)
    for size in range(1, k + 1):
        value = 2 * (towards + mean) / size - (within + 2 * near + diagonal) / size**2
        value[picked] = -np.inf
        j = int(np.argmax(value))
        towards, within = towards + mean[j], within + 2 * near[j] + diagonal[j]
        near = near + kernel.row(j)
        picked.append(j)
    witness = mean - near / k
    chosen = _criticise(kernel, witness, diagonal, picked, criticisms)
    mmd2 = float(mean.mean() - 2 * towards / k + within / k**2)
    return Prototypes(np.array(picked), np.array(chosen, dtype=np.int64), mmd2, witness)


def _criticise(
    kernel: Kernel, witness: np.ndarray, diagonal: np.ndarray, picked: list[int], count: int
) -> list[int]:
    """Greedy on Σ|witness| + log det K: far off, and not twice in the same place."""
    t = len(kernel)
    left = diagonal.copy()  # variance that the criticisms so far leave: log det grows by its log
    columns = np.zeros((count, t))
    chosen: list[int] = []
    tiny = 1e-12 * float(diagonal.max(initial=0.0)) + np.finfo(float).tiny
    # witness and log det are compared on one scale: that of a kernel with unit diagonal
    scale = float(np.mean(diagonal)) or 1.0
    for step in range(count):
        value = np.abs(witness) / scale + np.log(np.maximum(left, tiny) / scale)
        value[picked + chosen] = -np.inf
        j = int(np.argmax(value))
        # one more row of the Cholesky factor of K over the criticisms
        row = kernel.row(j)
        pivot = np.sqrt(max(left[j], tiny))
        columns[step] = (row - columns[:step, j] @ columns[:step]) / pivot
        left = np.maximum(left - columns[step] ** 2, 0.0)
        chosen.append(j)
    return chosen


def rbf_sbq(
    X: np.ndarray, targets: np.ndarray, k: int, *, gamma: float | None = None, noise: float = 0.0
) -> Selection:
    """SBQ with the RBF kernel: rows of X whose weighted mean embedding is that of the targets.

    >>> import numpy as np
    >>> X = np.array([[0.0], [1.0], [9.0]])
    >>> rbf_sbq(X, np.array([[8.5], [9.5]]), 1, gamma=0.5).indices
    array([2])
    """
    kernel = RBF(X, gamma)
    targets = np.asarray(targets, dtype=np.float64)
    mine = RBF(targets, kernel.gamma)
    return select_from_kernel(
        lambda i, J: kernel.row(i)[J],
        kernel.mean_of(targets),
        k,
        target_norm2=float(mine.mean().mean()),
        diagonal=kernel.diagonal(),
        noise=noise,
    )


def median_gamma(X: np.ndarray, sample: int = 500) -> float:
    """1 / median squared distance of some pairs."""
    rows = X[np.random.default_rng(0).permutation(len(X))[:sample]]
    apart = ((rows[:, None] - rows[None]) ** 2).sum(-1)[np.triu_indices(len(rows), 1)]
    middle = float(np.median(apart)) if len(apart) else 1.0
    return 1.0 / middle if middle > 0 else 1.0
