"""The nouns every other file speaks of: Factors, Features, Selection, Explanation.

Shapes, fixed once:
    n  rows of a batch             t  training examples        p  width of a feature row
    s  positions that share a weight (sequence, pixels)        k  selected examples
Arrays are NumPy or torch alike; `Factors.a` may also be a SciPy CSR matrix.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse, vstack

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Array", "Explanation", "Factors", "Features", "Selection", "as_like"]

Array = Any
"""A NumPy array or a torch tensor."""


@dataclass(frozen=True)
class Factors:
    """Scores of one layer for n rows, unmultiplied: the score of row i is Σ_s a[i, s] g[i, s]ᵀ.

    `a` is (n, s, d_in) and `g` is (n, s, d_out); 2-D arrays mean s = 1, and only then may `a` be
    a CSR matrix. A gradient that has no such structure is the case d_in = 1, a = 1.
    The methods are all that the rest of the library asks of a layer; a layer whose inputs are
    never written out (an embedding table) overrides them.
    """

    a: Array
    g: Array

    def __len__(self) -> int:
        return int(self.g.shape[0])

    def project(self, basis_in: Array | None, basis_out: Array | None) -> Array:
        """Uᵀ(Σ_s a_s g_sᵀ)V as (n, r_in, r_out); None stands for the identity."""
        a = self.a if basis_in is None else self.a @ basis_in
        a = a.toarray() if issparse(a) else a
        g = self.g if basis_out is None else self.g @ basis_out
        if g.ndim == 2:
            return a[:, :, None] * g[:, None, :]
        return a.swapaxes(1, 2) @ g

    def dense(self) -> Array:
        """The scores written out, (n, d_in·d_out), inputs the slow index."""
        return self.project(None, None).reshape(len(self), -1)

    def gram(self, other: Factors) -> Array:
        """Dot products of these scores with the other's, (n, m), without writing either out."""
        if self.g.ndim == 2 and other.g.ndim == 2:
            inputs = self.a @ other.a.T
            inputs = inputs.toarray() if issparse(inputs) else inputs
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
        """Squared norm of each row's score, (n,)."""
        if self.g.ndim == 2:
            squares = self.a.multiply(self.a) if issparse(self.a) else self.a * self.a
            inputs = np.asarray(squares.sum(1)).ravel() if issparse(self.a) else squares.sum(1)
            return inputs * (self.g * self.g).sum(1)
        if self.g.shape[1] ** 2 > self.a.shape[-1] * self.g.shape[-1]:
            scores = self.dense()
            return (scores * scores).sum(1)
        inputs = self.a @ self.a.swapaxes(1, 2)
        return (inputs * (self.g @ self.g.swapaxes(1, 2))).sum((1, 2))

    def take(self, positions: np.ndarray) -> Factors:
        """Some of the rows, in this order."""
        return Factors(self.a[positions], self.g[positions])

    def join(self, others: list[Factors]) -> Factors:
        """These rows followed by the others'; shorter ones are padded with empty positions."""
        parts = [self, *others]
        if issparse(self.a):
            return Factors(
                vstack([f.a for f in parts]).tocsr(), np.concatenate([f.g for f in parts])
            )
        if self.g.ndim == 3:
            longest = max(f.g.shape[1] for f in parts)
            return Factors(*(stack([pad(getattr(f, x), longest) for f in parts]) for x in "ag"))
        return Factors(stack([f.a for f in parts]), stack([f.g for f in parts]))

    def scale_inputs(self, factor: np.ndarray) -> Factors:
        """The same scores with input column i multiplied by factor[i]."""
        if issparse(self.a):
            return Factors(self.a.multiply(factor[None, :]).tocsr(), self.g)
        return Factors(self.a * as_like(factor, self.a), self.g)

    def input_moment(self) -> Array:
        """Σ over rows and positions of a aᵀ, (d_in, d_in): the input side of K-FAC."""
        a = self.a.reshape(-1, self.a.shape[-1]) if self.a.ndim == 3 else self.a
        moment = a.T @ a
        return moment.toarray() if issparse(moment) else moment

    def output_moment(self) -> Array:
        """Σ over rows and positions of g gᵀ, (d_out, d_out): the output side of K-FAC."""
        g = self.g.reshape(-1, self.g.shape[-1])
        return g.T @ g

    def input_action(self, directions: Array) -> Array:
        """(Σ a aᵀ) times a few directions, (d_in, r), where the moment itself is too wide."""
        a = self.a.reshape(-1, self.a.shape[-1]) if self.a.ndim == 3 else self.a
        return a.T @ (a @ directions)

    def output_action(self, directions: Array) -> Array:
        """(Σ g gᵀ) times a few directions, (d_out, r)."""
        g = self.g.reshape(-1, self.g.shape[-1])
        return g.T @ (g @ directions)


def stack(arrays: list[Array]) -> Array:
    """Arrays of one kind joined along the first axis."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    import torch

    return torch.cat(arrays)


def pad(array: Array, positions: int) -> Array:
    """(n, s, d) with zero positions added up to the given number."""
    missing = positions - array.shape[1]
    if missing == 0:
        return array
    if isinstance(array, np.ndarray):
        return np.pad(array, ((0, 0), (0, missing), (0, 0)))
    import torch

    return torch.nn.functional.pad(array, (0, 0, 0, missing))


def as_like(values: Array, like: Array) -> Array:
    """`values` as an array of the same kind, on the same device and of the same type as `like`."""
    if isinstance(like, np.ndarray) or issparse(like):
        return np.asarray(values, dtype=like.dtype)
    return like.new_tensor(values) if isinstance(values, np.ndarray) else values.to(like)


@dataclass(frozen=True)
class Features:
    """Whitened training rows: from here on the kernel is a dot product.

    Attributes
    ----------
    rows : (t, p) array
        One row per training example; ``rows @ rows.T`` is the damped Fisher kernel.
    damping : float
        What was added to every eigenvalue of the metric.
    damping_rule : str
        How that value was chosen, in words.
    share : float
        Share of the Fisher's trace that the rows can express (1.0 = exact).
    """

    rows: Array
    damping: float
    damping_rule: str
    share: float = 1.0


@dataclass(frozen=True)
class Selection:
    """A weighted set of examples that stands in for a target mean embedding.

    Attributes
    ----------
    indices : int64 array
        Rows of the features, in the order they were picked.
    weights : float64 array
        Quadrature weights, w = (K_SS + σ²I)⁻¹ z_S unless the selector says otherwise.
    gains : float64 array
        How much each pick lowered the posterior variance.
    explained : float
        Share of ‖μ‖² that the selection accounts for (Σ gains / ‖μ‖²).
    variance : float
        Posterior variance of the quadrature: ‖μ‖² − Σ gains.
    mmd2 : float
        ‖μ − Σ w_i f_i‖²; equal to `variance` only without noise.
    rank : int
        Number of linearly independent picks found (without noise, no k above it is possible).
    """

    indices: np.ndarray
    weights: np.ndarray
    gains: np.ndarray
    explained: float
    variance: float
    mmd2: float
    rank: int
    target_norm2: float
    noise: float = 0.0
    side: str = "both"
    selector: str = "SBQ"
    candidates: int = 0
    stopped: str = "k"
    """Why the loop ended: "k", "rank", "candidates" or "residual"."""
    state: Any = field(default=None, repr=False, compare=False)
    """What a later call needs to continue from here (`select(..., start=selection)`)."""

    def __len__(self) -> int:
        return len(self.indices)

    def estimate(self, values: Array) -> Any:
        """Estimate the target's mean of a function from its values on the training rows.

        >>> import numpy as np, exempla
        >>> rows = np.eye(3)
        >>> exempla.select(rows, np.array([0.5, 0.25, 0.0]), 2).estimate(np.array([4.0, 8.0, 1.0]))
        4.0
        """
        picked = np.asarray(values)[self.indices]
        result = np.tensordot(self.weights, picked, axes=1)
        return float(result) if result.ndim == 0 else result


@dataclass(frozen=True)
class Explanation:
    """The answer to "which training examples are responsible?", with its evidence.

    Everything in it is small (k entries or a number each); the model and the data are only
    referred to, for `verify`.
    """

    indices: np.ndarray
    weights: np.ndarray
    side: str
    gains: np.ndarray
    explained: float
    variance: float
    mmd2: float
    rank: int
    k: int
    damping: float
    damping_rule: str
    share: float
    selector: str
    noise: float
    labels: str
    """Whose labels the target used: "true" or "predicted"."""
    alignment: np.ndarray
    """z_j = f_j·μ for each selected example: negative for opponents, positive for proponents."""
    n_train: int
    n_test: int
    seed: int
    version: str
    fisher: str = "true"
    ids: np.ndarray | None = None
    certificate: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    context: Any = field(default=None, repr=False, compare=False)
    """The fitted Explainer and the questioned examples, for `verify`."""

    def __len__(self) -> int:
        return len(self.indices)

    def to_dict(self) -> dict[str, Any]:
        """Everything in the explanation as plain Python values."""
        out: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name == "context":
                continue
            value = getattr(self, name)
            if name == "ids" and value is None:
                continue
            out[name] = value.tolist() if isinstance(value, np.ndarray) else value
        out["warnings"] = list(self.warnings)
        return out

    def to_json(self, path: str | Path) -> Path:
        """Write the explanation as JSON and return the path."""
        path = Path(path)
        path.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        return path

    def to_frame(self) -> pd.DataFrame:
        """One line per selected example, most important first."""
        import pandas as pd

        columns: dict[str, Any] = {
            "rank": np.arange(1, len(self) + 1),
            "index": self.indices,
            "weight": self.weights,
            "alignment": self.alignment,
            "side": np.where(self.alignment < 0, "opponent", "proponent"),
            "gain": self.gains,
        }
        if self.ids is not None:
            columns["id"] = self.ids
        return pd.DataFrame(columns)

    def to_csv(self, path: str | Path) -> Path:
        """Write `to_frame` as CSV and return the path."""
        path = Path(path)
        self.to_frame().to_csv(path, index=False)
        return path

    def to_parquet(self, path: str | Path) -> Path:
        """Write `to_frame` as Parquet and return the path."""
        path = Path(path)
        self.to_frame().to_parquet(path, index=False)
        return path

    def plot(self) -> Figure:
        """Weights and explained share as a matplotlib figure."""
        from exempla.report.plots import plot_explanation

        return plot_explanation(self)

    def __str__(self) -> str:
        from exempla.report.sentences import terminal_text

        return terminal_text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from exempla.report.html import explanation_fragment

        return explanation_fragment(self)
