"""Cross-fitting: what a model that never saw a row predicts of its label."""

from __future__ import annotations

import numpy as np

from exempla.progress import track
from exempla.tasks.fix_labels.learner import Learner
from exempla.tasks.fix_labels.problem import LabelProblem

__all__ = ["curated_only", "out_of_fold", "predicted", "stratified_folds"]

FOLDS = 5
CURATED_FOLDS = 10
"""The curated set is small: more folds make the cross-fitted models nearly as good as the one
fitted to all of it, which predicts the training rows."""


def stratified_folds(codes: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """A fold number for each row, each label spread evenly over the folds.

    >>> import numpy as np
    >>> np.bincount(stratified_folds(np.repeat([0, 1], 10), 5, np.random.default_rng(0)))
    array([4, 4, 4, 4, 4])
    """
    shuffled = rng.permutation(len(codes))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    fold = np.empty(len(codes), dtype=np.int64)
    fold[order] = np.arange(len(codes)) % folds
    return fold


def out_of_fold(
    learner: Learner,
    problem: LabelProblem,
    seed: int,
    *,
    learn_from: np.ndarray | None = None,
    folds: int = FOLDS,
    what: str = "cross-fitting",
) -> np.ndarray:
    """log p(c | x) of every row, (n + m, C), from a model fitted to the other folds.

    Training and curated rows share the folds: each is predicted by a model that saw the
    other folds of both. `learn_from` marks the rows a model may learn from; all are predicted.
    """
    allowed = np.ones(len(problem), dtype=bool) if learn_from is None else learn_from
    fold = stratified_folds(problem.codes, folds, np.random.default_rng(seed))
    out = np.empty((len(problem), len(problem.classes)))
    for f in track(range(folds), what, folds):
        held = np.flatnonzero(fold == f)
        if len(held):
            rows = np.flatnonzero(allowed & (fold != f))
            out[held] = predicted(learner, problem, rows, held, seed + f)
    return out


def curated_only(learner: Learner, problem: LabelProblem, seed: int) -> np.ndarray:
    """log p(c | x) of every row from curated rows alone, cross-fitted inside the curated set."""
    train, curated = np.arange(problem.n_train), np.arange(problem.n_train, len(problem))
    folds = int(np.clip(len(curated), 2, CURATED_FOLDS))
    fold = stratified_folds(problem.codes[curated], folds, np.random.default_rng(seed))
    out = np.empty((len(problem), len(problem.classes)))
    for f in range(folds):
        rows, held = curated[fold != f], curated[fold == f]
        if len(held):
            out[held] = predicted(learner, problem, rows, held, seed + f)
    out[train] = predicted(learner, problem, curated, train, seed)
    return out


def predicted(
    learner: Learner, problem: LabelProblem, rows: np.ndarray, held: np.ndarray, seed: int
) -> np.ndarray:
    """log p(c | x) of the held rows by a model of `rows`; class shares if those have one class."""
    sizes = problem.class_sizes(rows)
    if np.count_nonzero(sizes) < 2:
        share = sizes + 1.0
        return np.tile(np.log(share / share.sum()), (len(held), 1))
    model = learner.fitted(
        problem.inputs(rows), problem.labels(rows), problem.weights_of(rows), seed
    )
    return learner.log_proba(model, problem.inputs(held))
