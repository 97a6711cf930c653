"""What a selector is, and the two things it trades in: a Problem and an Outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exempla.checks import is_real
from exempla.errors import ExemplaError
from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Rows

__all__ = ["Continuation", "Outcome", "Problem", "Selector"]


@dataclass(frozen=True)
class Continuation:
    """What continuing a selection needs, and what shows that it is the same problem."""

    rows: np.ndarray
    """(k, p) the picked rows."""
    target: np.ndarray
    basis: Basis | None = None


@dataclass(frozen=True)
class Outcome:
    """What a selector found for one target."""

    indices: np.ndarray
    weights: np.ndarray
    gains: np.ndarray
    variance: float
    mmd2: float
    rank: int
    stopped: str
    state: Continuation

    @staticmethod
    def of(indices: list[int] | np.ndarray, basis: Basis, stopped: str) -> Outcome:
        """The picked rows with their optimal weights."""
        weights = basis.weights()
        mmd2 = basis.mmd2
        return Outcome(
            indices=np.asarray(indices, dtype=np.int64),
            weights=weights,
            gains=basis.gains,
            # ‖μ‖² − Σ gains, written without the cancellation
            variance=mmd2 + basis.noise * float(weights @ weights),
            mmd2=mmd2,
            rank=basis.rank(),
            stopped=stopped,
            state=Continuation(basis.rows, basis.target, basis),
        )


@dataclass(frozen=True)
class Problem:
    """Candidates and targets, validated."""

    rows: Rows
    targets: np.ndarray
    """(T, p) float64."""
    alignment: np.ndarray
    """(T, t): z_j = f_j·μ."""
    candidates: np.ndarray
    """(T, t) bool: nonzero rows of the target's side."""
    sides: tuple[str, ...]
    starts: tuple[Any, ...] = field(default=())
    """One earlier Selection per target to continue from, or None."""

    def basis(self, i: int, noise: float) -> Basis:
        """A fresh basis for target i."""
        return Basis(self.targets[i], noise, self.rows.tolerance)

    def only(self, i: int) -> Problem:
        """The problem of target i alone."""
        one = slice(i, i + 1)
        return Problem(
            self.rows,
            self.targets[one],
            self.alignment[one],
            self.candidates[one],
            self.sides[one],
            self.starts[one],
        )


class Selector(ABC):
    """A way to choose k rows. A new one is a frozen dataclass in its own file.

    >>> from exempla.selection import SBQ
    >>> SBQ(noise=0.5)
    SBQ(noise=0.5)
    """

    noise: float = 0.0

    @property
    def name(self) -> str:
        """How results refer to this selector."""
        return type(self).__name__

    @property
    def continues(self) -> bool:
        """Whether `select(..., start=...)` can carry on an earlier result."""
        return True

    def placed(self, features: Any) -> AbstractContextManager[Any]:
        """The features where this selector wants them, until the end of the `with` block."""
        return nullcontext(features)

    @abstractmethod
    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        """At most k rows for each target."""


def check_noise(noise: float) -> None:
    """Noise is a variance."""
    if not is_real(noise):
        raise ExemplaError(f"noise is {noise!r}; give a number of at least 0")
    if not 0 <= float(noise) < np.inf:
        raise ExemplaError(f"noise is {noise!r}, but it is a variance; give a finite number ≥ 0")
