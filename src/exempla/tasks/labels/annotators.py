"""Votes of several annotators: the true labels, and how each annotator errs.

The true label of a row and the annotators' confusion matrices are estimated together by
expectation-maximisation (Dawid and Skene, 1979). The model is one more voter, as in CROWDLAB
(Goh, Tkachenko and Mueller, 2022): its cross-validated probabilities q(c | x), trained on the
consensus and calibrated to it, take the place of the class shares:

    P(true c | votes of row i) ∝ q_i(c)·Π_a θ_a[c, vote of a],
    θ_a[c, j] ∝ Σ_i P(true c)·1[a voted j] + κ·θ[c, j].

θ is the pooled confusion matrix of all annotators, so those with few votes count as average ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax, logit

from exempla.arrays import first_largest, is_sparse
from exempla.data import n_rows
from exempla.errors import ExemplaError
from exempla.tasks.labels.crossfit import make_learner
from exempla.tasks.labels.evidence import Evidence, log_probabilities
from exempla.tasks.labels.problem import LabelProblem, LabelRequest, without_unsupervised_steps
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Z90, Assessment, fit_stack, likeliest_other

_MAX_STEPS = 100
_POOLED_VOTES = 10.0
"""κ: votes per class that the pooled confusion matrix counts for."""
_ROUNDS = 2
"""How often the model is trained on the consensus."""


@dataclass(frozen=True)
class Annotators:
    """How often each annotator errs, and how.

    Attributes
    ----------
    names, classes : array
        The annotators, and the labels in the order of the confusion matrices.
    confusion : array of shape (annotators, classes, classes)
        P(the annotator votes j | the true label is c).
    accuracy : array of shape (annotators,)
        Estimated share of right votes.
    n_votes : int array
        Number of votes of each annotator.
    posterior : array of shape (rows, classes)
        P(the true label is c) of every row.
    """

    names: np.ndarray
    classes: np.ndarray
    confusion: np.ndarray
    accuracy: np.ndarray
    n_votes: np.ndarray
    posterior: np.ndarray

    @property
    def consensus(self) -> np.ndarray:
        """The most likely label of every row."""
        return self.classes[self.consensus_codes]

    @property
    def consensus_codes(self) -> np.ndarray:
        return first_largest(np.log(np.maximum(self.posterior, 1e-300)))

    def to_frame(self) -> pd.DataFrame:
        """Return one line per annotator: votes, accuracy and the most frequent mistake."""
        C = len(self.classes)
        wrong = (self.confusion * (1.0 - np.eye(C))).reshape(len(self.names), -1)
        true, said = np.divmod(wrong.argmax(axis=1), C)
        return pd.DataFrame({
            "annotator": self.names,
            "votes": self.n_votes,
            "accuracy": self.accuracy,
            "mistake": [
                f"{self.classes[c]} → {self.classes[j]}" for c, j in zip(true, said, strict=True)
            ],
            "mistake_rate": wrong.max(axis=1),
        })  # fmt: skip


def is_votes(y: Any) -> bool:
    """Return True for a table of at least two columns in which some votes are missing."""
    if is_sparse(y) or not hasattr(y, "__len__"):
        return False
    try:
        values = np.asarray(y, dtype=object)
    except ValueError:  # lists of different lengths
        return False
    return values.ndim == 2 and values.shape[1] > 1 and bool(_missing(values).any())


def estimate_annotators(
    votes: Any, log_prior: np.ndarray | None = None, names: Any = None
) -> Annotators:
    """Estimate true labels and confusion matrices from votes (rows, annotators).

    `log_prior` is log q(c | x) by a model; without it class shares are used (plain Dawid-Skene).
    """
    codes, classes = _coded(votes)
    n, A = codes.shape
    C = len(classes)
    cast = codes >= 0
    one_hot = np.zeros((n, A, C))
    one_hot[(*np.nonzero(cast), codes[cast])] = 1.0
    T = one_hot.sum(axis=1) + 1e-2
    T /= T.sum(axis=1, keepdims=True)
    confusion = np.empty((A, C, C))
    for _ in range(_MAX_STEPS):
        counts = np.einsum("nc,naj->acj", T, one_hot)
        pooled = counts.sum(axis=0) + np.eye(C) + 0.1
        pooled /= pooled.sum(axis=1, keepdims=True)
        confusion = counts + _POOLED_VOTES * pooled
        confusion /= confusion.sum(axis=2, keepdims=True)
        prior = np.log(T.mean(axis=0) + 1e-12) if log_prior is None else log_prior
        new = np.exp(
            log_softmax(prior + np.einsum("naj,acj->nc", one_hot, np.log(confusion)), axis=1)
        )
        moved, T = float(np.abs(new - T).max()), new
        if moved < 1e-5:
            break
    n_votes = cast.sum(axis=0)
    right = np.einsum("nc,nac->a", T, one_hot) / np.maximum(n_votes, 1)
    who = np.arange(A) if names is None else np.asarray(names)
    return Annotators(who, classes, confusion, right, n_votes, T)


def fix_votes(asked: LabelRequest) -> LabelFixes:
    """Rank rows by how likely their majority vote is wrong; see `exempla.fix_labels`."""
    if asked.curated is not None:
        raise ExemplaError("curated= is for one label per row; leave it out for votes.")
    model, probabilities, seed = asked.model, asked.probabilities, asked.seed
    X, votes, names = _read(asked.train)
    codes, classes = _coded(votes)
    n = len(codes)
    if len(classes) < 2:
        raise ExemplaError(f"all votes are {classes[0]!r}, and two labels are needed.")
    k, row_names = asked.listed(n, "training rows"), asked.names(n)
    found = estimate_annotators(votes, names=names)
    majority = _majority(codes, found.posterior)
    if probabilities is not None:
        log_q = log_probabilities(probabilities, (n, len(classes)))
        found = estimate_annotators(votes, log_q, names)
    elif model is not None:
        learner = make_learner(model, classes, asked.fit)
        last, inputs = without_unsupervised_steps(model, X, seed)
        for step in range(_ROUNDS):
            consensus = found.consensus_codes
            if len(np.unique(consensus)) < len(classes):
                break  # a class that no row has cannot be learned
            problem = LabelProblem(inputs, consensus, classes, n)
            evidence = Evidence(replace(learner, model=last), problem, seed=seed + step)
            found = estimate_annotators(votes, _calibrated(evidence), names)
    T, rows = found.posterior, np.arange(n)
    p = 1.0 - T[rows, majority]
    other = likeliest_other(np.log(np.maximum(T, 1e-300)), majority)
    expected = float(p.sum())
    # the votes say how often annotators err, which is known from a few of them only
    off = Z90 * float(np.hypot(np.sqrt(np.sum(p * (1 - p))), 0.25 * expected))
    judged = Assessment(
        probabilities=p,
        score=logit(np.clip(p, 1e-9, 1 - 1e-9)),
        flipped=p,
        given=majority,
        alternative=other,
        given_chance=T[rows, majority],
        alternative_chance=T[rows, other],
        expected_errors=expected,
        interval=(max(expected - off, 0.0), min(expected + off, float(n))),
        noise_identified=True,
    )
    order = judged.order[:k]
    return LabelFixes(
        selector="Dawid-Skene with the model as a voter",
        annotators=found,
        **judged.listed(order, classes) | {"method": "votes"},
        **asked.fields(order, row_names, n, n),
    )


def _calibrated(evidence: Evidence) -> np.ndarray:
    """Return log q of every class by all predictions, calibrated to the consensus."""
    views, columns = evidence.views, evidence.columns
    log_q = np.full((len(columns.own), columns.n_classes), -12.0)
    part = fit_stack(views, columns, 0, evidence.seed).log_q(views.values(), columns)
    np.put_along_axis(log_q, columns.codes.astype(np.int64), part, axis=1)
    return log_q


def _majority(codes: np.ndarray, posterior: np.ndarray) -> np.ndarray:
    """Return the most frequent vote; of equal ones the label that is more likely."""
    counts = np.stack([(codes == c).sum(axis=1) for c in range(posterior.shape[1])], axis=1)
    return np.argmax(counts + 0.5 * posterior, axis=1)


def _missing(values: np.ndarray) -> np.ndarray:
    """Return which votes were not cast."""
    return pd.isna(values) | (values == -1)


def _coded(votes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return class codes, −1 where no vote was cast, and the classes."""
    values = np.array(votes, dtype=object)
    values[_missing(values)] = None
    try:
        codes, classes = pd.factorize(values.ravel(), sort=True)
    except TypeError:
        raise ExemplaError("votes must all be text or all be numbers.") from None
    return codes.reshape(values.shape), np.array(classes.tolist())


def _read(train: Any) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return X, the table of votes and the annotators' names."""
    if not isinstance(train, tuple) or len(train) < 2 or train[1] is None:
        raise ExemplaError("train has no votes: give (X, votes).")
    X, y = train[:2]
    names = np.asarray(y.columns) if hasattr(y, "columns") else None
    values = np.asarray(y, dtype=object)
    rows = n_rows(X)
    if values.ndim != 2 or values.shape[1] < 2:
        raise ExemplaError(
            f"votes must be a table with one column per annotator, or rows of (row, annotator, "
            f"label), but have shape {values.shape}."
        )
    if values.shape[1] == 3 and (
        len(values) != rows or (names is not None and list(names) == ["row", "annotator", "label"])
    ):
        at = values[:, 0].astype(np.int64)
        if len(at) and (at.min() < 0 or at.max() >= rows):
            raise ExemplaError(f"votes name row {at.max()}, but X has {rows:,} rows.")
        names, who = np.unique(values[:, 1].astype(str), return_inverse=True)
        table = np.full((rows, len(names)), None, dtype=object)
        table[at, who] = values[:, 2]
        values = table
    if len(values) != rows:
        raise ExemplaError(f"X has {rows:,} rows but there are votes on {len(values):,}.")
    if len(empty := np.flatnonzero(_missing(values).all(axis=1))):
        raise ExemplaError(f"row {empty[0]} has no vote; leave such rows out.")
    return X, values, names
