"""All evidence about the labels of one problem, each kind gathered when first asked for.

The evidence speaks about *versions*: a row under a label. First come the training rows as given,
then the teachers, each once as it is (innocent) and once under each wrong label (guilty). Teachers
are the curated rows; without any, a sample of training rows stands in, an unknown share of them
wrong themselves (`calibration.teach` then allows for that).
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np

from exempla.errors import ExemplaWarning, UnsupportedModelError
from exempla.tasks.labels.crossfit import curated_only, out_of_fold
from exempla.tasks.labels.fisher import FisherView, look
from exempla.tasks.labels.learner import Learner
from exempla.tasks.labels.problem import LabelProblem
from exempla.tasks.labels.rows import take

__all__ = ["Evidence"]

MOST_WRONG_LABELS = 9
"""With very many classes each teacher is shown under so many wrong labels, drawn by chance."""
STAND_INS = 1000
"""Training rows that stand in for curated ones."""


class Evidence:
    """Signals for and against each version; larger always means more suspicious."""

    def __init__(
        self,
        learner: Learner,
        problem: LabelProblem,
        *,
        seed: int = 0,
        sketch: str | int = "auto",
        progress: bool = False,
    ) -> None:
        self.learner, self.problem = learner, problem
        self.seed, self.sketch, self.progress = seed, sketch, progress
        self.trusted = len(problem.curated) > 0
        self._draw_versions()

    def _draw_versions(self) -> None:
        problem, rng = self.problem, np.random.default_rng(self.seed)
        teachers = problem.curated
        if not self.trusted:
            count = min(STAND_INS, problem.n_train)
            teachers = np.sort(rng.choice(problem.n_train, count, replace=False))
        C = len(problem.classes)
        wrong = np.arange(1, C)[None, :].repeat(len(teachers), 0)
        if C - 1 > MOST_WRONG_LABELS:
            wrong = rng.permuted(wrong, axis=1)[:, :MOST_WRONG_LABELS]
        own = problem.codes[teachers][:, None]
        self.teachers = teachers
        self.teacher_codes = np.concatenate([own, (own + wrong) % C], axis=1)
        """(m, v): the given label first, then wrong ones."""
        v = self.teacher_codes.shape[1]
        self.rows = np.concatenate([problem.train, np.repeat(teachers, v)])
        self.codes = np.concatenate([problem.codes[problem.train], self.teacher_codes.ravel()])
        self.guilty = np.tile(np.arange(v) > 0, len(teachers))
        """Of the teachers' versions: those under a wrong label."""
        self.as_given = problem.n_train + v * np.arange(len(teachers))
        """The teachers' versions under their given label."""

    # ---- kinds of evidence

    @cached_property
    def model(self) -> Any:
        """The model of the training rows alone: the curated rows are new to it."""
        train, problem = self.problem.train, self.problem
        weights = problem.weights_of(train)
        return self.learner.fitted(
            take(problem.X, train), problem.labels(train), weights, quiet=False
        )

    @cached_property
    def cross_fitted(self) -> np.ndarray:
        """log p(c | x) of every row by models of the other folds, curated rows included."""
        return out_of_fold(self.learner, self.problem, self.seed, progress=self.progress)

    @cached_property
    def curated_only(self) -> np.ndarray:
        """log p(c | x) of every row by models of curated rows alone."""
        return curated_only(self.learner, self.problem, self.seed)

    def without(self, suspects: np.ndarray) -> np.ndarray:
        """log p(c | x) of every row, cross-fitted again with the suspects dropped."""
        trusted = np.ones(len(self.problem), dtype=bool)
        trusted[suspects] = False
        return out_of_fold(
            self.learner,
            self.problem,
            self.seed + 1,
            learn_from=trusted,
            what="cross-fitting without the suspects",
            progress=self.progress,
        )

    @cached_property
    def view(self) -> FisherView | None:
        """The versions in Fisher space; None, and said, if the model has no score."""
        try:
            return look(
                self.model,
                self.problem,
                self.teachers,
                self.teacher_codes,
                sketch=self.sketch,
                seed=self.seed,
                progress=self.progress,
            )
        except UnsupportedModelError as error:
            warnings.warn(
                f"the Fisher evidence is left out, only predictions are weighed: {error}",
                ExemplaWarning,
                stacklevel=3,
            )
            return None

    @cached_property
    def dissimilarity(self) -> np.ndarray:
        """(versions, d): minus the Fisher similarities with the trusted versions."""
        if self.view is None:
            return np.zeros((len(self.rows), 0))
        return -self.view.similarities(self.reference)

    @cached_property
    def reference(self) -> np.ndarray:
        """The versions others are compared with: the teachers under their given labels.

        Stand-ins count only where models of the other folds agree with their label.
        """
        if self.trusted:
            return self.as_given
        agree = np.argmax(self.cross_fitted[self.teachers], 1) == self.teacher_codes[:, 0]
        return self.as_given[agree] if agree.any() else self.as_given

    # ---- from beliefs to signals

    def against(self, log_proba: np.ndarray) -> np.ndarray:
        """Log-odds against each version's label, squashed: log-odds of 30 and of 10 both mean
        "surely", and the judge is linear."""
        return np.arcsinh(log_odds_against(log_proba[self.rows, self.codes]))


def log_odds_against(log_p: np.ndarray) -> np.ndarray:
    """log (1 − p)/p from log p."""
    return np.log(-np.expm1(np.minimum(log_p, -1e-12))) - log_p
