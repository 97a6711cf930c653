"""Results of attacks, and whether they hold once the model is retrained on the attacked data."""

from __future__ import annotations

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
    """Changed copies of some rows, what they should do, and how to check it.

    Attributes
    ----------
    indices : int64 array
        The changed rows: of the training data, or of the test data if `perturbed` is "test".
    perturbed : str
        "train", "test" or "labels".
    X, original : arrays
        The rows after and before the attack. If `perturbed` is "labels": their wrong and their
        given labels, which are also `labels` and `given`.
    budget : float
        ℓ∞ radius.
    before, after : arrays
        Training side: k(z, μ)/n of each row, its first-order contribution to the mean
        log-likelihood of the attacked predictions. Test side: log p(y | x).
    flipped : array
        Test side only: whose prediction changed.

    Examples
    --------
    See `attack`.
    """

    perturbed: str
    X: np.ndarray = field(repr=False)
    original: np.ndarray = field(repr=False)
    before: np.ndarray
    after: np.ndarray
    objective: str = "influence"
    budget: float | None = None
    steps: int = 0
    damping: float = 0.0
    damping_rule: str = "auto"
    seed: int = 0
    version: str = __version__
    flipped: np.ndarray | None = None
    box: Box | None = field(default=None, repr=False)
    every: Any = field(default=None, repr=False)
    """With labels, for all training rows: the most harmful other label, and its effect."""
    context: Any = field(default=None, repr=False, compare=False)
    """The model, (X, y, weights) of the training data, the test data, and the user's `fit`."""

    @property
    def expected(self) -> float:
        """First-order change of the mean log-likelihood of the attacked predictions."""
        return float(self.effect.mean() if self.perturbed == "test" else self.effect.sum())

    @property
    def effect(self) -> np.ndarray:
        """The part of it that is due to each row."""
        return self.after - self.before

    @property
    def finding(self) -> str:
        what = f"Giving {len(self):,} training rows wrong labels"
        if self.perturbed != "labels":
            which = "training" if self.perturbed == "train" else "test"
            what = f"Moving {len(self):,} {which} points by at most {self.budget:g}"
        return (
            f"{what} should change the mean log-likelihood of the attacked predictions by "
            f"{self.expected:.3g}."
        )

    @property
    def labels(self) -> np.ndarray:
        """The wrong labels, if `perturbed` is "labels"."""
        return self.X

    @property
    def given(self) -> np.ndarray:
        """The labels before the attack, if `perturbed` is "labels"."""
        return self.original

    def _columns(self) -> dict[str, Any]:
        if self.perturbed == "labels":
            return {"given": self.given, "label": self.labels, "effect": self.effect}
        return {"before": self.before, "after": self.after}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; `weights` is what changing each row costs."""
        out = {**super().to_dict(), "side": "opponents", "weights": (-self.effect).tolist()}
        if self.perturbed == "labels":
            parts = {"given": self.given, "labels": self.labels, "effect": self.effect}
            out |= {name: part.tolist() for name, part in parts.items()}
        return {**out, "expected": self.expected}

    @property
    def delta(self) -> np.ndarray:
        """The perturbation."""
        return self.X - self.original

    def apply(self, data: Any) -> Any:
        """Return a copy of X, or of the labels, with the changed rows in place."""
        return with_rows(data, self.indices, self.X)

    def weak_points(self) -> pd.DataFrame:
        """Return all training rows by how much a wrong label of each would harm."""
        labels, effect = self.every
        order = np.argsort(effect, kind="stable")
        return pd.DataFrame({"index": order, "label": labels[order], "reach": -effect[order]})

    def random_copy(self, seed: int) -> np.ndarray:
        """Return the rows moved as far in random directions, within the same box."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=self.original.shape)
        box: Any = self.box
        return box.project(self.original + box.budget * signs)

    def _at_random(self, X: Any, y: Any, seed: int) -> tuple[Any, Any]:
        """Return the training data with as many rows changed at random."""
        if self.perturbed != "labels":
            return with_rows(X, self.indices, self.random_copy(seed).astype(self.X.dtype)), y
        rng, labels = np.random.default_rng(seed), np.asarray(y)
        rows = rng.choice(len(labels), len(self), replace=False)
        classes, codes = np.unique(labels, return_inverse=True)
        other = (codes[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)
        return X, with_rows(labels, rows, classes[other])

    def verify(self, fit: Fit | None = None, seeds: int = 5) -> AttackCheck:
        """Retrain on untouched, attacked and randomly changed rows, and count flipped predictions.

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
        if self.context is None:
            raise ExemplaError("a test-side attack changes no training: look at .flipped instead.")
        model, (X, y, weights), test, remembered = self.context
        fit = remembered if fit is None else fit
        check_fit(model, fit)
        lines = []
        for seed in range(check_times("seeds", seeds)):
            attacked = (X, self.apply(y)) if self.perturbed == "labels" else (self.apply(X), y)
            data = ((X, y), attacked, self._at_random(X, y, seed))
            untouched: Any = None
            for arm, (inputs, labels) in zip(_ARMS, data, strict=True):
                oracle = make_oracle(refit(model, inputs, labels, weights, fit, seed))
                examples = oracle.read(test, role="test")
                predicted = oracle.predict(examples)
                untouched = predicted if untouched is None else untouched
                flips = float(np.mean(predicted != untouched))
                lines.append((arm, seed, flips, float(np.mean(oracle.log_likelihood(examples)))))
        columns = ["arm", "seed", "flipped", "log_likelihood"]
        return AttackCheck(pd.DataFrame(lines, columns=columns), self.finding)


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


def with_rows(X: Any, rows: np.ndarray, values: np.ndarray) -> Any:
    """Return a copy of X, or of labels, with these values in place of these rows."""
    if is_tensor(X):
        out = X.detach().clone()
        out[rows] = out.new_tensor(values)
        return out
    out = np.array(X)
    out = out if out.dtype == object else out.astype(np.result_type(out.dtype, values.dtype))
    out[rows] = values
    return out
