"""A fitted model taken apart: its layers, its likelihood, its penalty, and what to say of it.

Every penalty is brought to one form: mean over the n rows of w_i·(−log p_i), plus Σ λ/2·v² over
the weights v. At a fitted optimum therefore Σ_i w_i s_i = n·λ·v, which the tests check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from exempla.likelihoods import Likelihood
from exempla.oracles.sklearn.dense import DenseNetwork

__all__ = ["Anatomy", "Penalty"]


@dataclass(frozen=True)
class Penalty:
    """strength/2·v² on every weight v, added to a sum or a mean of losses.

    >>> Penalty(6.0, "sum").per_row(n=3, mean_weight=2.0)
    2.0
    """

    strength: float
    added_to: Literal["sum", "mean", "weighted mean"]
    batch: int | None = None
    """Rows of a mini-batch, where the sum is one over a mini-batch."""

    def per_row(self, n: int, mean_weight: float) -> float:
        """λ in the mean over n rows of w_i·loss_i. (A Gaussian's is still to be divided by σ².)"""
        if self.added_to == "sum":
            return self.strength / min(n, self.batch or n)
        # a weighted mean divides by Σ w_i = n·mean_weight where we divide by n
        return self.strength * (mean_weight if self.added_to == "weighted mean" else 1.0)


@dataclass(frozen=True)
class Anatomy:
    """A fitted model, taken apart."""

    network: DenseNetwork
    likelihood: Likelihood
    penalty: Penalty
    classes: np.ndarray | None = None
    class_weight: dict | str | None = None
    balanced_by_weight: bool = False
    """Whether class_weight="balanced" counts an example by its weight or as one."""
    intercept_penalty: float = 0.0
    """λ of the intercept, as a multiple of that of the weights."""
    column_penalty: np.ndarray | None = None
    """λ of each input column, as a multiple of the common one; None: all alike."""
    note: str = ""
    """What an answer has to say of these scores: what is an analogy, what was left out."""
    with_training: Callable[[Any], Anatomy] | None = None
    """The same model once its training inputs are known, where its features depend on them."""
