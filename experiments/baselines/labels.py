"""What others rank suspects by: each a function from the same evidence to one score a row.

    self_influence     how much a row's own log-likelihood depends on it (Koh & Liang)
    influence          harm to the curated rows' log-likelihood, first order; damping as SBQ's
    training_loss      loss of the fitted model on its own training rows
    self_confidence    loss under 5-fold cross-validation (cleanlab's signal)
    self_confidence_with_curated   the same with the curated rows in every fold
    curated_only       loss of a model of the curated rows alone, its penalty cross-validated
    rbf_sbq            SBQ in input space: an RBF kernel times the labels' agreement
    random             chance

Larger means more suspicious. `rank` gives the order; `scores` the numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from exempla.arrays import TIE, concatenate, to_numpy
from exempla.errors import ExemplaError
from exempla.tasks.labels.crossfit import FOLDS, stratified_folds
from exempla.tasks.labels.evidence import Evidence
from exempla.tasks.labels.fisher import MULTIPLES, FisherView, separation
from exempla.tasks.labels.fix_labels import gather
from exempla.tasks.retrain import Fit
from experiments.baselines.rbf import rbf_sbq

__all__ = ["LABEL_BASELINES", "rank", "scores"]

STRENGTHS = tuple(10.0**power for power in range(-4, 5))
"""C of the model of the curated rows."""


def self_influence(evidence: Evidence) -> np.ndarray:
    """f_jᵀ M⁻¹ f_j with no damping but the model's own penalty, where it has one."""
    view = _view(evidence)
    penalised = any((layer.penalty > 0).any() for layer in view.embedding.oracle.layers)
    damping = 0.0 if penalised else view.damping(1.0)
    rows = to_numpy(view.embedding.metric.whiten(view.embedding.rows, damping))
    return np.einsum("ij,ij->i", rows, rows)


def influence(evidence: Evidence) -> np.ndarray:
    """−z: what the curated rows' mean log-likelihood gains, to first order, without the row.

    It is given the choice of damping that SBQ has: the one at which right and wrong labels of the
    curated rows are told apart best, a row not counted for itself.
    """
    view = _view(evidence)
    n, unit = evidence.problem.n_train, view.damping(1.0)
    best, auc = np.zeros(n), -1.0
    e, problem = view.embedding, evidence.last_step[1]
    repeated = np.repeat(evidence.calibration_rows, 2)
    versions = problem.inputs(repeated), problem.classes[evidence.calibration_codes.ravel()]
    scores = concatenate([e.rows, e.embed(e.oracle.read(versions, role="test"), "true")[0]])
    for multiple in (1.0, *MULTIPLES):
        rows = to_numpy(e.metric.whiten(scores, multiple * unit))
        reference = rows[evidence.reference]
        harm = -rows @ reference.mean(0)
        own = np.repeat(np.arange(len(evidence.calibration_rows)), 2)
        if len(reference) == len(evidence.calibration_rows):
            harm[n:] += np.einsum("ij,ij->i", rows[n:], reference[own]) / len(reference)
        found = separation(harm[n:][~evidence.wrong], harm[n:][evidence.wrong])
        if found > auc + TIE:
            best, auc = harm[:n], found
    return best


def training_loss(evidence: Evidence) -> np.ndarray:
    """−log p(given label) under a model of all training and curated rows."""
    everything = np.arange(len(evidence.problem))
    return _loss_of(evidence, everything, evidence.problem.train)


def self_confidence(evidence: Evidence) -> np.ndarray:
    """−log p(given label) under models of the other folds of the training rows."""
    return _cross_validated(evidence, always=np.array([], dtype=np.int64))


def self_confidence_with_curated(evidence: Evidence) -> np.ndarray:
    """The same, every model having seen the curated rows as well."""
    return _cross_validated(evidence, always=evidence.problem.curated)


def curated_only(evidence: Evidence) -> np.ndarray:
    """−log p(given label) under a model of the curated rows alone.

    Its penalty is its own, by five-fold cross-validation of the log-likelihood, where the model has
    one called C: that of the model under test suits seven times as many rows.
    """
    _need_curated(evidence, "curated_only")
    problem, model = evidence.problem, evidence.learner.model
    n, curated = problem.n_train, problem.curated
    if "C" not in getattr(model, "get_params", dict)():
        return _loss_of(evidence, curated, problem.train)
    X, y = problem.inputs(curated), problem.labels(curated)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(model, {"C": STRENGTHS}, scoring="neg_log_loss", cv=5).fit(X, y)
    log_proba = evidence.learner.log_proba(search.best_estimator_, problem.inputs(problem.train))
    return -log_proba[np.arange(n), problem.codes[:n]]


def random(evidence: Evidence) -> np.ndarray:
    """Chance."""
    return np.random.default_rng(evidence.seed).random(evidence.problem.n_train)


LABEL_BASELINES: dict[str, Callable[[Evidence], np.ndarray]] = {
    "self_influence": self_influence,
    "influence": influence,
    "training_loss": training_loss,
    "self_confidence": self_confidence,
    "self_confidence_with_curated": self_confidence_with_curated,
    "curated_only": curated_only,
    "rbf_sbq": rbf_sbq,
    "random": random,
}


def scores(
    name: str,
    model: Any,
    train: Any,
    curated: Any = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
) -> np.ndarray:
    """How suspicious each training row is to the named baseline.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> y[3] = 2
    >>> int(scores("self_confidence", LogisticRegression(), (X, y)).argmax())
    3
    """
    if name not in LABEL_BASELINES:
        raise ExemplaError(f"{name!r} is no baseline: use one of {', '.join(LABEL_BASELINES)}.")
    return LABEL_BASELINES[name](gather(model, train, curated, fit=fit, seed=seed))


def rank(
    name: str,
    model: Any,
    train: Any,
    curated: Any = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
) -> np.ndarray:
    """All training rows, the most suspicious to the named baseline first.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> y[3] = 2
    >>> int(rank("training_loss", LogisticRegression(), (X, y))[0])
    3
    """
    return np.argsort(-scores(name, model, train, curated, fit=fit, seed=seed), kind="stable")


def _cross_validated(evidence: Evidence, always: np.ndarray) -> np.ndarray:
    problem = evidence.problem
    fold = stratified_folds(
        problem.codes[problem.train], FOLDS, np.random.default_rng(evidence.seed)
    )
    out = np.empty(problem.n_train)
    for f in range(FOLDS):
        held = np.flatnonzero(fold == f)
        if len(held):
            out[held] = _loss_of(evidence, np.append(np.flatnonzero(fold != f), always), held)
    return out


def _loss_of(evidence: Evidence, learn: np.ndarray, held: np.ndarray) -> np.ndarray:
    """−log p of the given labels of some rows, by a model of others."""
    problem = evidence.problem
    model = evidence.learner.fitted(problem, learn, evidence.seed)
    log_proba = evidence.learner.log_proba(model, problem.inputs(held))
    return -log_proba[np.arange(len(held)), problem.codes[held]]


def _view(evidence: Evidence) -> FisherView:
    if evidence.view is None:
        raise ExemplaError("influence needs a model with scores, such as LogisticRegression.")
    return evidence.view


def _need_curated(evidence: Evidence, name: str) -> None:
    if not evidence.trusted:
        raise ExemplaError(f"{name} ranks by curated rows: give some.")
