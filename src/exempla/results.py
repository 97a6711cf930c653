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

from exempla.arrays import Array, as_like
from exempla.factors import Factors

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Array", "Explanation", "Factors", "Features", "Selection", "as_like"]


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

    >>> import exempla
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> features = exempla.Explainer(model, progress=False).fit((X, y)).features
    >>> len(features.rows), features.damping > 0
    (150, True)
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

    >>> import exempla
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = exempla.explain(model, (X, y), (X[:5], y[:5]), k=3, progress=False)
    >>> answer.to_frame().columns.tolist()
    ['rank', 'index', 'weight', 'alignment', 'side', 'gain']
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
    asked: Any = field(default=None, repr=False, compare=False)
    """The test data as given and the positions in it that were questioned, for `verify`."""

    def __len__(self) -> int:
        return len(self.indices)

    def to_dict(self) -> dict[str, Any]:
        """Everything in the explanation as plain Python values."""
        out: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name in ("context", "asked"):
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

    def verify(self, fit: Any = None, seeds: int = 5, holdout: Any = None, **more: Any) -> Any:
        """Does it hold? Refit without these examples, and without as many chosen by chance.

        See `exempla.tasks.verify.verify`; a torch module needs
        `fit=callable(module, X, y, sample_weight) -> module`.
        """
        from exempla.tasks.verify import verify

        return verify(self, fit, seeds, holdout, **more)

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
