"""All evidence about the labels of one problem, each kind gathered when it is first needed.

The *calibration rows* show what right labels look like. They are the curated rows; without any, a
sample of training rows stands in, an unknown share of them wrong themselves. The Fisher kernel
looks at each of them twice, under its given label (right) and under one drawn by chance (wrong).
"""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from exempla.errors import ExemplaWarning, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.sketch.choose import DUAL_LIMIT, PRIMAL_LIMIT, auto_width
from exempla.tasks.fix_labels.crossfit import curated_only, out_of_fold, predicted
from exempla.tasks.fix_labels.fisher import FisherView, view_versions
from exempla.tasks.fix_labels.learner import Learner
from exempla.tasks.fix_labels.nearby.conflicts import Conflict, conflicts
from exempla.tasks.fix_labels.nearby.features import comparable
from exempla.tasks.fix_labels.nearby.neighbours import Neighbours, nearest
from exempla.tasks.fix_labels.problem import LabelProblem
from exempla.tasks.ties import first_largest

__all__ = ["LIGHT", "Evidence", "score_width"]

STAND_INS = 1000
"""Training rows that stand in for curated ones."""
LIGHT = 128
"""Directions in which contradicting examples are looked for: enough to tell kin from others, where
all would take longer than every training together."""


class Evidence:
    """What is known about a problem's labels."""

    def __init__(
        self,
        learner: Learner,
        problem: LabelProblem,
        *,
        seed: int = 0,
        sketch: str | int = "auto",
        store: Path | None = None,
    ) -> None:
        self.learner, self.problem = learner, problem
        self.seed, self.sketch, self.store = seed, sketch, store
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
        self.wrong = np.tile([False, True], m)
        """Of the calibration rows' versions, two each: those under the wrong label."""
        self.as_given = problem.n_train + 2 * np.arange(m)
        """Positions of their versions under the given label, after the training rows."""

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

    @cached_property
    def learned_by_model(self) -> np.ndarray:
        """(n, C): by the model of the training rows, which learned their labels."""
        return self.learner.log_proba(self.model, self.problem.inputs(self.problem.train))

    # ---- rows that lie close together

    @cached_property
    def comparable(self) -> Any:
        """Unit rows by which they are compared; None if there is nothing to compare."""
        return comparable(self.model, self.problem.X, self.seed)

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """The nearest other rows of each."""
        return None if self.comparable is None else nearest(self.comparable, self.seed)

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Equal and nearly equal training rows under different labels."""
        train, Z = self.problem.train, self.comparable
        columns = 0 if Z is None else Z.shape[1]
        return conflicts(
            self.problem.inputs(train), self.problem.labels(train), self.neighbours, columns
        )

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
        return self._view(self.sketch)

    @cached_property
    def light_view(self) -> FisherView | None:
        """The same in few directions, which is enough to show what contradicts a label."""
        if "view" in self.__dict__ or self.sketch != "auto":
            return self.view
        return self._view(LIGHT if score_width(self) > LIGHT else "auto")

    def _view(self, sketch: str | int) -> FisherView | None:
        rows, codes = self.calibration_rows, self.calibration_codes
        try:
            return view_versions(
                self.model, self.problem, rows, codes, sketch=sketch, seed=self.seed,
                store=self.store,
            )  # fmt: skip
        except UnsupportedModelError as error:
            warnings.warn(
                f"the Fisher evidence is left out, only predictions are weighed: {error}",
                ExemplaWarning,
                stacklevel=4,
            )
            return None

    @cached_property
    def dissimilarity(self) -> np.ndarray:
        """(versions, d): minus the Fisher similarities with the trusted versions."""
        if self.view is None:
            return np.zeros((self.problem.n_train + 2 * len(self.calibration_rows), 0))
        return -self.view.similarities(self.reference)

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


def score_width(evidence: Evidence) -> int:
    """Numbers a score will have; 0 if the model has none, or cannot be asked."""
    problem = evidence.problem
    few = np.unique(problem.codes[problem.train], return_index=True)[1]  # a row of each class
    try:
        oracle = make_oracle(evidence.model)
        oracle.read((problem.inputs(few), problem.labels(few)), role="train")
    except (RuntimeError, TypeError, ValueError):  # whatever it is, it is told where it is needed
        return 0
    size, n = oracle.n_parameters, problem.n_train  # known once it has read some rows
    if isinstance(evidence.sketch, int):
        return min(size, evidence.sketch)
    if size <= PRIMAL_LIMIT:
        return min(size, n) if n <= DUAL_LIMIT else size
    return n if n <= DUAL_LIMIT else auto_width(n)
