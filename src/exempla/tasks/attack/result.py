"""Results of attacks, and whether they hold once the model is retrained on the attacked data."""

from __future__ import annotations

from collections.abc import Callable
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
from exempla.tasks.retrain import Fit, check_fit, refit
from exempla.tasks.verify import arm_table

_ARMS = ("untouched", "attacked", "random direction")


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack(Answer):
    """Perturbed copies of some rows; the caller's data are not changed.

    Attributes
    ----------
    indices : int64 array
        The perturbed rows: of the training data, or of the test data if `perturbed` is "test".
    perturbed : str
        "train" or "test".
    X : array
        The perturbed rows.
    original : array
        The same rows before the attack.
    budget : float
        ℓ∞ radius.
    before, after : arrays
        Training side: k(z, μ)/n of each row, its first-order contribution to the mean
        log-likelihood of the attacked predictions. Test side: log p(y | x).
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
    def finding(self) -> str:
        which = "training" if self.perturbed == "train" else "test"
        return (
            f"Moving {len(self):,} {which} points by at most {self.budget:g} should change the "
            f"mean log-likelihood of the attacked predictions by {self.expected:.3g}."
        )

    def _columns(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; `weights` is what moving each point costs."""
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
        """First-order change of the mean log-likelihood of the attacked predictions."""
        change = self.after - self.before
        return float(change.sum() if self.perturbed == "train" else change.mean())

    def apply(self, X: Any) -> Any:
        """Return a copy of X with the perturbed rows in place."""
        return with_rows(X, self.indices, self.X)

    def random_copy(self, seed: int) -> np.ndarray:
        """Return the rows moved as far in random directions, within the same box."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=self.original.shape)
        return self.box.project(self.original + self.budget * signs)

    def verify(self, fit: Fit | None = None, seeds: int = 5) -> AttackCheck:
        """Retrain on untouched, attacked and randomly moved rows, and count flipped predictions.

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
        model, (X, y), test, remembered = self.context

        def train(arm: str, seed: int, fit: Fit | None) -> Any:
            rows = X
            if arm == "attacked":
                rows = self.apply(X)
            elif arm == "random direction":
                moved = self.random_copy(seed).astype(self.X.dtype)
                rows = with_rows(X, self.indices, moved)
            return refit(model, rows, y, None, fit, seed)

        what = f"{len(self)} training points moved by at most {self.budget:g}"
        return check_attack(model, train, test, remembered if fit is None else fit, seeds, what)


@dataclass(frozen=True)
class AttackCheck:
    """Share of the attacked predictions that flip after retraining, per arm and seed."""

    runs: pd.DataFrame
    what: str

    def mean(self, arm: str, measure: str = "flipped") -> float:
        """Return the mean of one measure over the seeds."""
        return float(self.runs.loc[self.runs.arm == arm, measure].mean())

    @property
    def table(self) -> pd.DataFrame:
        """Mean of each arm, with a 95 % interval over the seeds."""
        return arm_table(self.runs, ["arm"], ("flipped", "log_likelihood"))

    def __str__(self) -> str:
        return f"{self.what}\n" + self.table.to_string(index=False, float_format="%.4f")


def check_attack(
    model: Any,
    train: Callable[[str, int, Fit | None], Any],
    test: Any,
    fit: Fit | None,
    seeds: int,
    what: str,
) -> AttackCheck:
    """Retrain every arm with every seed; `train(arm, seed, fit)` returns the model of one arm."""
    check_fit(model, fit)
    lines = []
    for seed in range(check_times("seeds", seeds)):
        untouched: Any = None
        for arm in _ARMS:
            oracle = make_oracle(train(arm, seed, fit))
            examples = oracle.read(test, role="test")
            predicted = oracle.predict(examples)
            untouched = predicted if untouched is None else untouched
            flips = float(np.mean(predicted != untouched))
            lines.append((arm, seed, flips, float(np.mean(oracle.log_likelihood(examples)))))
    columns = ["arm", "seed", "flipped", "log_likelihood"]
    return AttackCheck(pd.DataFrame(lines, columns=columns), what)


def with_rows(X: Any, rows: np.ndarray, values: np.ndarray) -> Any:
    """Return a copy of X with these values in place of these rows."""
    if is_tensor(X):
        out = X.detach().clone()
        out[rows] = out.new_tensor(values)
        return out
    out = np.array(X, dtype=np.result_type(np.asarray(X).dtype, values.dtype))
    out[rows] = values
    return out
