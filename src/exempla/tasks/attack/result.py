"""Results of attacks, and whether they hold once the model is retrained on the attacked data."""

from __future__ import annotations

from abc import abstractmethod
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
class _Harm(Answer):
    """What every attack returns: changed rows, what they should do, and how to check it."""

    perturbed: str
    damping: float = 0.0
    seed: int = 0
    version: str = __version__
    context: Any = field(default=None, repr=False, compare=False)
    """The model, (X, y, weights) of the training data, the test data, and the user's `fit`."""

    @property
    @abstractmethod
    def expected(self) -> float:
        """First-order change of the mean log-likelihood of the attacked predictions."""

    @property
    @abstractmethod
    def _costs(self) -> np.ndarray:
        """What changing each row costs the attacked predictions."""

    @property
    @abstractmethod
    def _what(self) -> str:
        """What was changed, in words."""

    @abstractmethod
    def _changed(self, X: Any, y: Any, seed: int | None) -> tuple[Any, Any]:
        """Return the training data with the attack in place, or a random one of the same size."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; `weights` is what changing each row costs."""
        costs = {"weights": self._costs.tolist(), "expected": self.expected}
        return {**super().to_dict(), "side": "opponents", **costs}

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
            data = ((X, y), self._changed(X, y, None), self._changed(X, y, seed))
            untouched: Any = None
            for arm, (inputs, labels) in zip(_ARMS, data, strict=True):
                oracle = make_oracle(refit(model, inputs, labels, weights, fit, seed))
                examples = oracle.read(test, role="test")
                predicted = oracle.predict(examples)
                untouched = predicted if untouched is None else untouched
                flips = float(np.mean(predicted != untouched))
                lines.append((arm, seed, flips, float(np.mean(oracle.log_likelihood(examples)))))
        columns = ["arm", "seed", "flipped", "log_likelihood"]
        return AttackCheck(pd.DataFrame(lines, columns=columns), self._what)


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack(_Harm):
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
    >>> bool(abs(found.X - found.original).max() < 1.001), bool(found.expected < 0)
    (True, True)
    """

    X: np.ndarray = field(repr=False)
    original: np.ndarray = field(repr=False)
    objective: str
    budget: float
    steps: int
    before: np.ndarray
    after: np.ndarray
    box: Box = field(repr=False)
    flipped: np.ndarray | None = None
    """Test side only: whose prediction changed."""

    @property
    def finding(self) -> str:
        which = "training" if self.perturbed == "train" else "test"
        return (
            f"Moving {len(self):,} {which} points by at most {self.budget:g} should change the "
            f"mean log-likelihood of the attacked predictions by {self.expected:.3g}."
        )

    def _columns(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after}

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

    @property
    def _costs(self) -> np.ndarray:
        return self.before - self.after

    @property
    def _what(self) -> str:
        return f"{len(self)} training points moved by at most {self.budget:g}"

    def _changed(self, X: Any, y: Any, seed: int | None) -> tuple[Any, Any]:
        rows = self.X if seed is None else self.random_copy(seed).astype(self.X.dtype)
        return with_rows(X, self.indices, rows), y


@dataclass(frozen=True, kw_only=True, repr=False)
class Relabelling(_Harm):
    """Training rows and the wrong labels that would do most harm; nothing is changed.

    Attributes
    ----------
    indices : int64 array
        Rows of the training data, most harmful first.
    given, labels : arrays
        Their labels, and the wrong ones to give them.
    effect : array
        First-order change of the attacked predictions' mean log-likelihood by each.
    """

    given: np.ndarray
    labels: np.ndarray
    effect: np.ndarray
    perturbed: str = "labels"
    damping_rule: str = ""
    every: tuple[np.ndarray, np.ndarray] = field(repr=False)
    """For all training rows: the most harmful other label, and its effect."""

    @property
    def expected(self) -> float:
        """First-order change of the attacked predictions' mean log-likelihood by all of them."""
        return float(self.effect.sum())

    @property
    def finding(self) -> str:
        return (
            f"Giving {len(self):,} training rows wrong labels should change the mean "
            f"log-likelihood of the attacked predictions by {self.expected:.3g}."
        )

    def _columns(self) -> dict[str, Any]:
        return {"given": self.given, "label": self.labels, "effect": self.effect}

    def weak_points(self) -> pd.DataFrame:
        """Return all training rows by how much a wrong label of each would harm."""
        labels, effect = self.every
        order = np.argsort(effect, kind="stable")
        return pd.DataFrame({"index": order, "label": labels[order], "reach": -effect[order]})

    def apply(self, y: Any) -> np.ndarray:
        """Return a copy of the labels with the wrong ones in place."""
        return with_rows(y, self.indices, self.labels)

    @property
    def _costs(self) -> np.ndarray:
        return -self.effect

    @property
    def _what(self) -> str:
        return f"{len(self)} training rows with wrong labels"

    def _changed(self, X: Any, y: Any, seed: int | None) -> tuple[Any, Any]:
        if seed is None:
            return X, self.apply(y)
        rng, labels = np.random.default_rng(seed), np.asarray(y)
        rows = rng.choice(len(labels), len(self), replace=False)
        classes, codes = np.unique(labels, return_inverse=True)
        other = (codes[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)
        return X, with_rows(labels, rows, classes[other])


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
