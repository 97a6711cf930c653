"""All evidence about the labels of one problem, each kind gathered when it is first needed.

The *calibration rows* show what right labels look like. They are the curated rows; without any, a
sample of training rows stands in, an unknown share of them wrong themselves. The Fisher kernel
looks at each of them twice, under its given label (right) and under one drawn by chance (wrong).

If the training was recorded, the margin of the given label over the next best, averaged over the
snapshots, is evidence too: right labels are learned early, wrong ones late.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import first_largest
from exempla.data import take_rows
from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.kernel.sketch import auto_width
from exempla.oracles import make_oracle, make_oracles, with_runs
from exempla.progress import track
from exempla.tasks.labels.crossfit import (
    BLOCK_BYTES,
    Columns,
    Learner,
    gathered,
    log_likelihoods,
    out_of_fold,
    with_regularisation,
)
from exempla.tasks.labels.fisher import FisherView, view_versions
from exempla.tasks.labels.neighbours import Conflict, Neighbours, comparable, conflicts, nearest
from exempla.tasks.labels.problem import LabelProblem
from exempla.tasks.labels.wrong import Assessment, assess

_STAND_INS = 1000
"""Training rows that stand in for curated ones."""
_DRAWS = 3
"""Draws of folds that are averaged."""
_MAX_REPEATED, _MAX_VARIED = 200_000, 500_000
"""Rows × classes (at least ten) up to which cross-validation is repeated, and done at other
regularisation strengths."""
_REGULARISATION = {"stronger regularisation": 0.1, "weaker regularisation": 10.0}
_MAX_FISHER_CLASSES = 1000
"""With more classes, contradicting examples are the nearest rows of another label."""
LIGHT = 128
"""Directions in which contradicting examples are looked for."""


def recorded_margins(model: Any, run: Any, X: Any, classes: np.ndarray, codes: Any) -> np.ndarray:
    """Return the mean margin of each row's label over the snapshots of one or several runs."""
    folders = [run] if isinstance(run, str | Path) else list(run)
    missing = [str(folder) for folder in folders if not Path(folder).is_dir()]
    if missing or not folders:
        named = ", ".join(missing) or "nothing"
        raise ExemplaError(f"recorded= must name folders that a Recorder filled; got {named}.")
    oracles = make_oracles(with_runs([model, *folders]))
    rows, total = np.arange(len(codes)), np.zeros(len(codes))
    for oracle in track(oracles, "margins of the recorded run", len(oracles)):
        log_p = log_likelihoods(oracle, X, classes)
        own = log_p[rows, codes]
        log_p[rows, codes] = -np.inf
        total += own - log_p.max(axis=1)
    return total / len(oracles)


class Evidence:
    """What is known about a problem's labels."""

    def __init__(
        self,
        learner: Learner,
        problem: LabelProblem,
        *,
        seed: int = 0,
        sketch: str | int = "auto",
        as_given: Any = None,
        store: Path | None = None,
        recorded: tuple[Any, Any] | None = None,
    ) -> None:
        self.learner, self.problem = learner, problem
        # the problem may hold what steps of a Pipeline made of X as the caller gave it
        self.rows_as_given = problem.X if as_given is None else as_given
        self.recorded = recorded  # the model whose training was recorded, and the run's folder
        self.seed, self.sketch, self.store = seed, sketch, store
        self.trusted = len(problem.curated) > 0
        rng = np.random.default_rng(seed)
        self.calibration_rows = problem.curated
        if not self.trusted:
            count = min(_STAND_INS, problem.n_train)
            self.calibration_rows = np.sort(rng.choice(problem.n_train, count, replace=False))
        C, m = len(problem.classes), len(self.calibration_rows)
        own = problem.codes[self.calibration_rows]
        # two versions of each, (m, 2): under the given label and under a wrong one
        self.calibration_codes = np.stack([own, (own + rng.integers(1, C, m)) % C], axis=1)
        self.wrong = np.tile([False, True], m)
        self.as_given = problem.n_train + 2 * np.arange(m)  # the former, after the training rows

    # ---- predictions: log p(c | x) of every row, (n + m, columns)

    @cached_property
    def _first_draw(self) -> tuple[np.ndarray, Columns]:
        return self.out_of_fold(self.problem, self.seed)

    @property
    def cross_fitted(self) -> np.ndarray:
        """By models of the other folds, one draw of folds."""
        return self._first_draw[0]

    @property
    def columns(self) -> Columns:
        """The classes that predictions are kept of."""
        return self._first_draw[1]

    def out_of_fold(self, problem: LabelProblem, seed: int, **options: Any) -> Any:
        """Return predictions by models of the other folds; see `crossfit.out_of_fold`."""
        return out_of_fold(self.learner, problem, seed, **options)

    @cached_property
    def views(self) -> dict[str, np.ndarray]:
        """All predictions by models that have not seen the row's label, by name."""
        problem, seed, columns = self.problem, self.seed, self.columns
        draws, size = [np.exp(self.cross_fitted)], len(problem) * max(columns.n_classes, 10)
        for draw in range(1, _DRAWS if size <= _MAX_REPEATED else 1):
            draws.append(np.exp(self.out_of_fold(problem, seed + 101 * draw, columns=columns)[0]))
        mean = np.log(np.maximum(np.mean(draws, axis=0), 1e-12))
        views = {"cross-validated models": mean}
        for place, (name, factor) in enumerate(_REGULARISATION.items()):
            other = with_regularisation(self.learner, factor)
            if other is not None and size <= _MAX_VARIED:
                options: Any = {"columns": columns, "what": name}
                views[name] = out_of_fold(other, problem, seed + 303 + place, **options)[0]
        if self.neighbours is not None:
            views["nearest rows"] = self.neighbours.log_votes(problem.codes, columns)
        if self.trusted:
            name = "models of the trusted rows alone"
            trusted = np.arange(len(problem)) >= problem.n_train
            options = {"learn_from": trusted, "columns": columns, "what": name}
            views[name] = self.out_of_fold(problem, seed + 404, **options)[0]
        return views

    def assess(self, original: np.ndarray | None = None) -> Assessment:
        """Assess every training label by all predictions, and by the recorded training if any."""
        problem, margins = self.problem, None
        if self.recorded is not None:
            codes = problem.codes[problem.train]
            margins = recorded_margins(*self.recorded, self._train_rows, problem.classes, codes)
        return assess(
            self.views, self.columns, problem.n_train, margins=margins, original=original,
            seed=self.seed,
        )  # fmt: skip

    # ---- rows that lie close together

    @cached_property
    def comparable(self) -> Any:
        """Unit rows by which they are compared; None if there is nothing to compare."""
        return comparable(self.last_step[1].X, self.seed)

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """The nearest other rows of each."""
        return None if self.comparable is None else nearest(self.comparable, self.seed)

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Equal and nearly equal training rows under different labels."""
        columns = 0 if self.comparable is None else self.comparable.shape[1]
        labels = self.problem.labels(self.problem.train)
        return conflicts(self._train_rows, labels, self.neighbours, columns)

    @property
    def _train_rows(self) -> Any:
        """X of the training rows as the caller gave it."""
        X = self.rows_as_given
        return take_rows(X, self.problem.train) if self.trusted else X

    # ---- the Fisher kernel's part

    @cached_property
    def model(self) -> Any:
        """The model of the training rows alone: the curated rows are new to it."""
        found = self.learner.fitted(self.problem, self.problem.train, self.seed, quiet=False)
        if isinstance(found, np.ndarray):
            raise ExemplaError(
                "the labels cannot be judged: without the curated rows only one class is left to "
                "learn from; give more rows of every class."
            )
        return found

    @cached_property
    def last_step(self) -> tuple[Any, LabelProblem]:
        """The last step of a Pipeline, or another model itself, and the rows as it sees them."""
        inner = getattr(self.model, "best_estimator_", self.model)
        if hasattr(inner, "steps") and len(inner.steps) > 1:
            with suppress(Exception):  # the caller's own steps may raise anything; then as a whole
                return inner[-1], replace(self.problem, X=inner[:-1].transform(self.problem.X))
        return self.model, self.problem

    @cached_property
    def score_width(self) -> int:
        """Numbers a score will have; 0 if the model has none, or cannot be asked."""
        problem = self.problem
        few = np.unique(problem.codes[problem.train], return_index=True)[1]  # a row of each class
        try:
            oracle = make_oracle(self.model)
            oracle.read((problem.inputs(few), problem.labels(few)), role="train")
        except (RuntimeError, TypeError, ValueError):  # reported where the model is needed
            return 0
        n = problem.n_train
        widest = self.sketch if isinstance(self.sketch, int) else auto_width(n)
        return min(oracle.n_parameters, n, widest)  # known once it has read some rows

    @cached_property
    def view(self) -> FisherView | None:
        """The versions in Fisher space; None, with a warning, if the model has no score."""
        return self._view(self.sketch)

    @cached_property
    def light_view(self) -> FisherView | None:
        """The same in few directions, which is enough to show what contradicts a label."""
        if "view" in self.__dict__ or self.sketch != "auto":
            return self.view
        return self._view(LIGHT if self.score_width > LIGHT else "auto")

    def _view(self, sketch: str | int) -> FisherView | None:
        if len(self.problem.classes) > _MAX_FISHER_CLASSES:
            return None
        versions = self.calibration_rows, self.calibration_codes
        chosen: Any = {"sketch": sketch, "seed": self.seed, "store": self.store}
        try:
            return view_versions(*self.last_step, *versions, **chosen)
        except UnsupportedModelError as error:
            warnings.warn(
                f"the Fisher evidence is left out, only predictions are weighed: {error}",
                ExemplaWarning,
                stacklevel=4,
            )
            return None

    @cached_property
    def reference(self) -> np.ndarray:
        """The versions others are compared with: the calibration rows under their given labels.

        Stand-ins count only where models of the other folds agree with their label.
        """
        if self.trusted:
            return self.as_given
        said = first_largest(self.cross_fitted[self.calibration_rows])
        agree = said == self.columns.own[self.calibration_rows]
        return self.as_given[agree] if agree.any() else self.as_given


def assess_predictions(probabilities: Any, problem: LabelProblem) -> Assessment:
    """Return the assessment by probabilities of every class that the caller computed."""
    n, C = len(problem), len(problem.classes)
    size = max(1, BLOCK_BYTES // (8 * C))
    blocks = (
        (rows, log_probabilities(probabilities, (n, C), slice(rows[0], rows[-1] + 1)))
        for rows in np.split(np.arange(n), np.arange(size, n, size))
    )
    view, columns = gathered(blocks, problem.codes, C)
    return assess({"your probabilities": view}, columns, n)


def log_probabilities(
    probabilities: Any, wanted: tuple[int, int], rows: slice = slice(None)
) -> np.ndarray:
    """Return logs of the caller's probabilities, of some rows or all, once checked."""
    shape = np.shape(probabilities)
    if shape != wanted:
        raise ExemplaError(
            f"probabilities have shape {shape}; give one for each of {wanted[0]:,} labels and "
            f"{wanted[1]:,} classes, in the order of the sorted classes."
        )
    p = np.asarray(probabilities[rows], dtype=np.float64)
    if not np.isfinite(p).all() or p.min() < 0 or p.max() > 1 + 1e-6:
        raise ExemplaError("probabilities must be numbers from 0 to 1; check your model.")
    return np.log(np.clip(p, 1e-12, 1.0))
