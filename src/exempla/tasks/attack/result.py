"""What an attack found, and whether it holds once the model is trained on it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from exempla import __version__
from exempla.arrays import is_tensor
from exempla.checks import check_times
from exempla.errors import ExemplaError
from exempla.oracles import make_oracle
from exempla.results import Answer
from exempla.tasks.attack.ascent import Box
from exempla.tasks.verify import Fit, check_fit, half_width, refit

__all__ = ["Attack", "AttackCheck", "with_rows"]

_ARMS = ("untouched", "attacked", "random direction")


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack(Answer):
    """Perturbed copies of some rows; the caller's data are as they were.

    Attributes
    ----------
    indices : int64 array
        Which rows: of the training data, or of the target when `perturbed` is "test".
    perturbed : str
        "train" or "test".
    X : array
        The perturbed rows.
    original : array
        The same rows untouched.
    budget : float
        ℓ∞ radius.
    before, after : arrays
        Training side: k(z, μ)/n of each row, what the target's mean log-likelihood owes to it.
        Test side: log p(y | x).
    """

    X: np.ndarray = field(repr=False)
    original: np.ndarray = field(repr=False)
    perturbed: str
    objective: str
    budget: float
    steps: int
    before: np.ndarray
    after: np.ndarray
    box: Box = field(repr=False)
    flipped: np.ndarray | None = None
    """Test side only: whose prediction changed."""
    damping: float = 0.0
    seed: int = 0
    version: str = __version__
    context: Any = field(default=None, repr=False, compare=False)

    @property
    def side(self) -> str:
        """The old name of `perturbed`."""
        warnings.warn("Attack.side is now Attack.perturbed.", FutureWarning, stacklevel=2)
        return self.perturbed

    @property
    def finding(self) -> str:
        what = "training points" if self.perturbed == "train" else "target points"
        return (
            f"{len(self):,} {what} moved by at most {self.budget:g} change the target's mean "
            f"log-likelihood by {self.expected:.3g}, to first order."
        )

    def _columns(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; `weights` is how far each point was turned against the
        target."""
        return {
            **super().to_dict(),
            "side": "opponents",
            "weights": (self.before - self.after).tolist(),
            "expected": self.expected,
        }

    @property
    def delta(self) -> np.ndarray:
        """The perturbation."""
        return self.X - self.original

    @property
    def expected(self) -> float:
        """First-order change of the target's mean log-likelihood."""
        change = self.after - self.before
        return float(change.sum() if self.perturbed == "train" else change.mean())

    def apply(self, X: Any) -> Any:
        """A copy of X with the perturbed rows in place."""
        return with_rows(X, self.indices, self.X)

    def random_copy(self, seed: int) -> np.ndarray:
        """Rows moved as far in random directions: signs by chance, same ball, same range."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=self.original.shape)
        return self.box.project(self.original + self.budget * signs)

    def verify(self, fit: Fit | None = None, seeds: int = 5) -> AttackCheck:
        """Train on untouched, attacked and randomly moved rows; count flipped predictions.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.preprocessing import scale
        >>> import exempla
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> X = scale(X)
        >>> model = LogisticRegression().fit(X[:200], y[:200])
        >>> found = exempla.attack(model, (X[:200], y[:200]), (X[300:310], y[300:310]), budget=1.0)
        >>> check = found.verify(seeds=2)
        >>> lower = check.mean("attacked", "log_likelihood")
        >>> lower < check.mean("random direction", "log_likelihood")
        True
        """
        if self.perturbed != "train" or self.context is None:
            raise ExemplaError("a test-side attack changes no training: look at .flipped instead.")
        model, (X, y), target, remembered = self.context
        fit = remembered if fit is None else fit
        check_fit(model, fit)
        check_times("seeds", seeds)
        lines = []
        for seed in range(seeds):
            moved = with_rows(X, self.indices, self.random_copy(seed).astype(self.X.dtype))
            arms = zip(_ARMS, (X, self.apply(X), moved), strict=True)
            fitted = {arm: refit(model, rows, y, None, fit, seed) for arm, rows in arms}
            clean = _predictions(fitted["untouched"], target)
            for arm, trained in fitted.items():
                predicted, likelihood = _predictions(trained, target)
                flips = float(np.mean(predicted != clean[0]))
                lines.append((arm, seed, flips, float(np.mean(likelihood))))
        columns = ["arm", "seed", "flipped", "log_likelihood"]
        return AttackCheck(pd.DataFrame(lines, columns=columns), len(self.indices), self.budget)


@dataclass(frozen=True)
class AttackCheck:
    """Flipped target predictions after training, per arm and seed."""

    runs: pd.DataFrame
    points: int
    budget: float

    def mean(self, arm: str, measure: str = "flipped") -> float:
        return float(self.runs.loc[self.runs.arm == arm, measure].mean())

    @property
    def table(self) -> pd.DataFrame:
        """Mean of each arm with a 95% interval over the seeds."""
        lines = []
        for arm, part in self.runs.groupby("arm", sort=False):
            line: dict[str, Any] = {"arm": arm}
            for name in ("flipped", "log_likelihood"):
                values = part[name].to_numpy(dtype=np.float64)
                line[name], line[f"{name}_±"] = float(values.mean()), half_width(values)
            lines.append(line)
        return pd.DataFrame(lines)

    def __str__(self) -> str:
        head = f"{self.points} training points moved by at most {self.budget:g}\n"
        return head + self.table.to_string(index=False, float_format="%.4f")


def with_rows(X: Any, rows: np.ndarray, values: np.ndarray) -> Any:
    """A copy of X with these values in place of these rows."""
    if is_tensor(X):
        out = X.detach().clone()
        out[rows] = out.new_tensor(values)
        return out
    out = np.array(X, dtype=np.result_type(np.asarray(X).dtype, values.dtype))
    out[rows] = values
    return out


def _predictions(model: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    oracle = make_oracle(model)
    examples = oracle.read(target, role="test")
    return oracle.predict(examples), oracle.log_likelihood(examples)
