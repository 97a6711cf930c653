"""All evidence about the labels of one problem, each kind gathered when it is first needed.

The *calibration rows* show what right labels look like. They are the curated rows; without any, a
sample of training rows stands in, an unknown share of them wrong themselves. The Fisher kernel
looks at each of them twice, under its given label (right) and under one drawn by chance (wrong).

If the training was recorded, the margin of the given label over the next best, averaged over the
snapshots, is evidence too: right labels are learned early, wrong ones late.

Rows are compared by the cosine of what the last step of a Pipeline sees, or of the inputs as
numbers. The last layer of a network is not used: it has learned the labels under suspicion and
draws a row to its given label, so neighbours found there agree with wrong labels. Each of the ten
nearest other rows votes for its given label, by its cosine; a row never votes for itself.

Conflicts: equal rows are found by a hash of what they hold (texts without regard to case and
spaces), nearly equal ones among the nearest neighbours. One of the two labels must be wrong.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from exempla.arrays import first_largest, is_sparse, is_tensor, to_numpy
from exempla.data import row_hashes, take_rows
from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.kernel.sketch import auto_width
from exempla.oracles import make_oracle, make_oracles, with_runs
from exempla.progress import track
from exempla.tasks.labels.crossfit import BLOCK_BYTES, Columns, Learner, gathered, log_likelihoods
from exempla.tasks.labels.fisher import FisherView, view_versions
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
_NEIGHBOURS, _PRIOR_VOTES = 10, 2.0
"""Nearest rows that vote on a label, and votes that go to the classes by their sizes."""
_MIN_COSINE = 1e-3
"""Least weight of a vote; rows without a nearer neighbour get the class shares."""
_MAX_SEARCHED_ROWS, _SEARCH_BLOCK = 10_000, 4096
"""Rows that are looked through for neighbours (a sample of more), and rows searched at a time."""
_NEARLY_EQUAL, _MIN_COLUMNS = 0.995, 30
"""Cosine from which rows are nearly equal, if they have at least this many columns: fewer agree by
chance."""
_MAX_PAIRS = 1000
"""Pairs listed at most."""
_MAX_COLUMNS = 256
"""Dense rows of more columns are projected at random, which preserves cosines approximately."""
_MAX_SPREAD_RATIO = 20.0
"""Columns whose spreads differ by more than this are in different units."""


class Neighbours(NamedTuple):
    """The nearest others of each row, (n, k)."""

    rows: np.ndarray
    cosines: np.ndarray

    def log_votes(self, codes: np.ndarray, columns: Columns) -> np.ndarray:
        """Return log p(c | x) by votes, for the classes in `columns`."""
        weight = np.maximum(self.cosines, _MIN_COSINE)
        weight = weight / weight.mean(axis=1, keepdims=True)
        weight[self.cosines.max(axis=1) <= _MIN_COSINE] = 0.0  # nothing is near: class shares alone
        shares = np.bincount(codes, minlength=columns.n_classes) / len(codes)
        votes = _PRIOR_VOTES * shares[columns.codes]
        total = _PRIOR_VOTES + weight.sum(axis=1, keepdims=True)
        for place in range(self.rows.shape[1]):
            same = columns.codes == codes[self.rows[:, place]][:, None]
            votes += weight[:, place, None] * same
        return np.log(np.maximum(votes / total, 1e-12))


def nearest(Z: Any, seed: int, count: int = _NEIGHBOURS) -> Neighbours | None:
    """Return the nearest others of every unit row; None if there are too few."""
    n = Z.shape[0]
    # a row without any word is like no other, yet as far from each as unlike rows are: left out
    blank = np.asarray(abs(Z).sum(axis=1)).ravel() == 0
    among = np.flatnonzero(~blank)
    if len(among) > _MAX_SEARCHED_ROWS:
        among = np.sort(
            np.random.default_rng(seed).choice(among, _MAX_SEARCHED_ROWS, replace=False)
        )
    count = min(count, len(among) - 1)
    if count < 1:
        return None
    # of unit rows the nearest are those of the largest cosine: ‖x − y‖² = 2 − 2·cos
    search = NearestNeighbors(n_neighbors=count + 1, algorithm="brute").fit(Z[among])
    rows = np.empty((n, count), dtype=np.int64)
    cosines = np.empty((n, count), dtype=np.float32)
    for start in range(0, n, _SEARCH_BLOCK):
        here = np.arange(start, min(start + _SEARCH_BLOCK, n))
        far, found = search.kneighbors(Z[here])
        found = among[found]
        own = found == here[:, None]
        own[~own.any(axis=1), -1] = True  # not among them: then the last is one too many
        rows[here] = found[~own].reshape(len(here), count)
        cosines[here] = 1.0 - far[~own].reshape(len(here), count) ** 2 / 2.0
    cosines[blank] = 0.0
    return Neighbours(rows, cosines)


@dataclass(frozen=True)
class Conflict:
    """Two training rows that are (nearly) the same and have different labels."""

    rows: tuple[int, int]
    labels: tuple[Any, Any]
    cosine: float
    """1.0 where they are equal."""


def find_conflicts(X: Any, labels: np.ndarray, near: Neighbours | None = None) -> list[Conflict]:
    """Return pairs of rows, equal ones first; `near` may know of further rows behind those of X."""
    names = np.asarray(labels).tolist()
    pairs: dict[tuple[int, int], float] = {}
    if isinstance(X, pd.Series | list) and all(isinstance(value, str) for value in X):
        X = [" ".join(value.split()).casefold() for value in X]
    keys, first = row_hashes(X), defaultdict[int, dict[Any, int]](dict)
    for row, key in enumerate([] if keys is None else keys.tolist()):
        seen = first[key]  # of equal rows the first with each label
        others = [other for name, other in seen.items() if name != names[row]]
        if others:
            pairs[others[0], row] = 1.0
        seen.setdefault(names[row], row)
    if near is not None:
        close: dict[tuple[int, int], float] = {}
        for a, place in zip(*np.nonzero(near.cosines[: len(names)] >= _NEARLY_EQUAL), strict=True):
            b = near.rows[a, place]
            if b < len(names) and names[a] != names[b]:
                close[int(min(a, b)), int(max(a, b))] = float(near.cosines[a, place])
        for pair in sorted(close, key=lambda pair: (-close[pair], pair)):
            pairs.setdefault(pair, close[pair])
    found = [Conflict(pair, (names[pair[0]], names[pair[1]]), at) for pair, at in pairs.items()]
    return found[:_MAX_PAIRS]


def _cosine_rows(X: Any, seed: int) -> Any:
    """Return unit rows, dense or sparse, whose products are cosines; None if X are no numbers."""
    if is_sparse(X):
        return normalize(X.tocsr().astype(np.float64)) if X.shape[1] else None
    if is_tensor(X):
        X = to_numpy(X)
    if isinstance(X, pd.DataFrame):
        X = X.select_dtypes("number")
    table = np.asarray(X)
    if table.dtype.kind not in "biuf" or table.ndim < 2 or table.size == 0:
        return None
    Z = table.reshape(len(table), -1).astype(np.float64)
    if not np.isfinite(Z).all():
        return None
    Z -= Z.mean(axis=0)
    spread = Z.std(axis=0)
    varying, ratio = spread[spread > 0], _MAX_SPREAD_RATIO
    if len(varying):
        usual = np.median(varying)
        if varying.max() > ratio * usual or usual > ratio * varying.min():
            Z /= np.where(spread > 0, spread, 1.0)
    if Z.shape[1] > _MAX_COLUMNS:
        rng = np.random.default_rng(seed)
        Z = Z @ (rng.normal(size=(Z.shape[1], _MAX_COLUMNS)) / np.sqrt(_MAX_COLUMNS))
    return normalize(Z)


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
        return self.learner.out_of_fold(self.problem, self.seed)

    @property
    def cross_fitted(self) -> np.ndarray:
        """By models of the other folds, one draw of folds."""
        return self._first_draw[0]

    @property
    def columns(self) -> Columns:
        """The classes that predictions are kept of."""
        return self._first_draw[1]

    @cached_property
    def views(self) -> dict[str, np.ndarray]:
        """All predictions by models that have not seen the row's label, by name."""
        problem, seed, columns = self.problem, self.seed, self.columns
        draws, size = [np.exp(self.cross_fitted)], len(problem) * max(columns.n_classes, 10)
        again = partial(self.learner.out_of_fold, problem, columns=columns)
        for draw in range(1, _DRAWS if size <= _MAX_REPEATED else 1):
            draws.append(np.exp(again(seed + 101 * draw)[0]))
        mean = np.log(np.maximum(np.mean(draws, axis=0), 1e-12))
        views = {"cross-validated models": mean}
        for place, (name, factor) in enumerate(_REGULARISATION.items()):
            other = self.learner.with_regularisation(factor)
            if other is not None and size <= _MAX_VARIED:
                view = other.out_of_fold(problem, seed + 303 + place, columns=columns, what=name)
                views[name] = view[0]
        if self.neighbours is not None:
            views["nearest rows"] = self.neighbours.log_votes(problem.codes, columns)
        if self.trusted:
            name = "models of the trusted rows alone"
            trusted = np.arange(len(problem)) >= problem.n_train
            views[name] = again(seed + 404, learn_from=trusted, what=name)[0]
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
        return _cosine_rows(self.last_step[1].X, self.seed)

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """The nearest other rows of each."""
        return None if self.comparable is None else nearest(self.comparable, self.seed)

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Equal and nearly equal training rows under different labels."""
        wide = self.comparable is not None and self.comparable.shape[1] >= _MIN_COLUMNS
        labels = self.problem.labels(self.problem.train)
        return find_conflicts(self._train_rows, labels, self.neighbours if wide else None)

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
        try:
            return view_versions(self, sketch)
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


def assess_predictions(probabilities: Any, codes: np.ndarray, C: int) -> Assessment:
    """Return the assessment of labels, given as class codes, by probabilities of all C classes."""
    n = len(codes)
    size = max(1, BLOCK_BYTES // (8 * C))
    blocks = (
        (rows, log_probabilities(probabilities, (n, C), slice(rows[0], rows[-1] + 1)))
        for rows in np.split(np.arange(n), np.arange(size, n, size))
    )
    view, columns = gathered(blocks, codes, C)
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
