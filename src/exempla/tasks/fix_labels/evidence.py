"""All evidence about the labels of one problem, each kind gathered when it is first needed.

What is looked at is a row under a label. The *calibration rows* show what right and wrong look
like: each is seen under its given label (right) and under one drawn by chance (wrong). They are the
curated rows; without any, a sample of training rows stands in, an unknown share of them wrong
themselves (`calibration.fit_calibrator` then allows for that).

A training row's label was there while models were fitted, and so it must be with the calibration
rows, or the two cannot be compared. So in each `Draw` a part of them is flipped to the wrong label
among all rows; everything is done to the whole; what the models then think of a flipped label is
what they think of a wrong one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from exempla.errors import ExemplaWarning, UnsupportedModelError
from exempla.tasks.fix_labels.crossfit import curated_only, out_of_fold, predicted
from exempla.tasks.fix_labels.fisher import FisherView, view_versions
from exempla.tasks.fix_labels.learner import Learner
from exempla.tasks.fix_labels.problem import LabelProblem
from exempla.tasks.ties import first_largest

__all__ = ["Draw", "Evidence", "log_odds_against"]

STAND_INS = 1000
"""Training rows that stand in for curated ones."""
DRAWS = 3
"""Each calibration row is flipped in one draw and as given in the others."""


@dataclass(frozen=True)
class Draw:
    """All rows, some calibration rows among them under a wrong label."""

    problem: LabelProblem
    flipped: np.ndarray
    """(n + m,) which rows are."""
    versions: np.ndarray
    """(n + m,) where the Fisher evidence keeps each row under the label it has here."""
    seed: int


class Evidence:
    """What is known about a problem's labels."""

    def __init__(
        self,
        learner: Learner,
        problem: LabelProblem,
        *,
        seed: int = 0,
        sketch: str | int = "auto",
    ) -> None:
        self.learner, self.problem = learner, problem
        self.seed, self.sketch = seed, sketch
        self.trusted = len(problem.curated) > 0
        rng = np.random.default_rng(seed)
        self.calibration_rows = problem.curated
        if not self.trusted:
            count = min(STAND_INS, problem.n_train)
            self.calibration_rows = np.sort(rng.choice(problem.n_train, count, replace=False))
        C, m = len(problem.classes), len(self.calibration_rows)
        own = problem.codes[self.calibration_rows]
        self.calibration_codes = np.stack([own, (own + rng.integers(1, C, m)) % C], axis=1)
        """(m, 2): the given label and a wrong one."""
        self.part = rng.permutation(m) % DRAWS
        """The draw in which each calibration row is flipped."""
        self.wrong = np.tile([False, True], m)
        """Of the calibration rows' versions, two each: those under the wrong label."""
        self.as_given = problem.n_train + 2 * np.arange(m)
        """Positions of their versions under the given label, after the training rows."""

    @cached_property
    def draws(self) -> list[Draw]:
        """As many problems as draws, each with its own flipped labels."""
        out = []
        for d in range(DRAWS):
            here = self.part == d
            codes = self.problem.codes.copy()
            codes[self.calibration_rows[here]] = self.calibration_codes[here, 1]
            versions = np.arange(len(self.problem))
            versions[self.calibration_rows] = self.as_given + here
            flipped = np.zeros(len(self.problem), dtype=bool)
            flipped[self.calibration_rows[here]] = True
            problem = replace(self.problem, codes=codes)
            out.append(Draw(problem, flipped, versions, self.seed + 101 * d))
        return out

    # ---- predictions: log p(c | x) of every row, (n + m, C)

    @cached_property
    def cross_fitted(self) -> np.ndarray:
        """By models of the other folds, nothing flipped."""
        return self.out_of_fold(self.problem, self.seed)

    @cached_property
    def curated_only(self) -> np.ndarray:
        """By models of curated rows alone."""
        return curated_only(self.learner, self.problem, self.seed)

    def out_of_fold(
        self, problem: LabelProblem, seed: int, without: np.ndarray | None = None
    ) -> np.ndarray:
        """By models of the other folds, which do not learn from the rows in `without`."""
        allowed = None
        if without is not None:
            allowed = np.ones(len(problem), dtype=bool)
            allowed[without] = False
        return out_of_fold(self.learner, problem, seed, learn_from=allowed)

    def learned(self, problem: LabelProblem) -> np.ndarray:
        """By a model of all rows: what is left of a doubt after the label has been learned."""
        everything = np.arange(len(problem))
        return predicted(self.learner, problem, everything, everything, self.seed)

    # ---- the Fisher kernel's part

    @cached_property
    def model(self) -> Any:
        """The model of the training rows alone: the curated rows are new to it."""
        train, problem = self.problem.train, self.problem
        weights = problem.weights_of(train)
        return self.learner.fitted(
            problem.inputs(train), problem.labels(train), weights, self.seed, quiet=False
        )

    @cached_property
    def view(self) -> FisherView | None:
        """The versions in Fisher space; None, and said, if the model has no score."""
        try:
            return self._view(self.model, self.problem, self.calibration_rows)
        except UnsupportedModelError as error:
            warnings.warn(
                f"the Fisher evidence is left out, only predictions are weighed: {error}",
                ExemplaWarning,
                stacklevel=3,
            )
            return None

    def _view(self, model: Any, problem: LabelProblem, calibration: np.ndarray) -> FisherView:
        codes = self.calibration_codes[: len(calibration)]
        return view_versions(model, problem, calibration, codes, sketch=self.sketch, seed=self.seed)

    @cached_property
    def dissimilarity(self) -> np.ndarray:
        """(versions, d): minus the Fisher similarities with the trusted versions."""
        if self.view is None:
            return np.zeros((self.problem.n_train + 2 * len(self.calibration_rows), 0))
        return -self.view.similarities(self.reference)

    def fisher(self, draw: Draw, out_of_fold: np.ndarray) -> np.ndarray:
        """(n + m, d): the same for all rows under their labels in a draw.

        Curated rows are new to the model. Stand-ins are not: it has learned their given labels,
        and would tell those from any other, right or wrong. So it learns them as flipped.
        """
        problem, rows = draw.problem, self.calibration_rows
        learnable = np.count_nonzero(problem.class_sizes(problem.train)) > 1
        if self.trusted or self.view is None or not learnable:
            return self.dissimilarity[draw.versions]
        model = self.learner.fitted(
            problem.X, problem.labels(problem.train), problem.weights, self.seed
        )
        view = self._view(model, problem, rows[:0])
        agree = first_largest(out_of_fold[rows]) == problem.codes[rows]
        return -view.similarities(rows[agree] if agree.any() else rows)

    @cached_property
    def reference(self) -> np.ndarray:
        """The versions others are compared with: the calibration rows under their given labels.

        Stand-ins count only where models of the other folds agree with their label.
        """
        if self.trusted:
            return self.as_given
        said = first_largest(self.cross_fitted[self.calibration_rows])
        agree = said == self.calibration_codes[:, 0]
        return self.as_given[agree] if agree.any() else self.as_given


def log_odds_against(log_p: np.ndarray) -> np.ndarray:
    """log (1 − p)/p from log p."""
    return np.log(-np.expm1(np.minimum(log_p, -1e-12))) - log_p
