"""The default of `fix_labels`: weigh every kind of evidence as the curated examples teach.

    round 0      Fisher similarity at three dampings, cross-fitted log-odds, curated-only log-odds
    rounds 1, 2  the same, and the log-odds of models that learned without the last suspects

The last helps where the model copies wrong labels and may hurt where the task is hard: a signal to
be weighed, not a rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_softmax, logit
from scipy.stats import rankdata

from exempla.tasks.labels.calibration import Judge, share_in_doubt, share_of_guilty, teach
from exempla.tasks.labels.evidence import Evidence, log_odds_against

__all__ = ["Verdict", "calibrated", "judged"]

ROUNDS = 2


@dataclass(frozen=True)
class Verdict:
    """What is believed of every training row's label."""

    probabilities: np.ndarray
    """(n,) that the given label is wrong; never surer than m teachers can vouch for, m/(m + 1)."""
    log_odds: np.ndarray
    """(n,) of the same at even prior odds, without that limit."""
    order: np.ndarray
    """(n,) rows, most suspicious first."""
    suggested: np.ndarray
    """(n,) codes of the likeliest labels, the given ones included."""
    judge: Judge


def calibrated(evidence: Evidence) -> Verdict:
    """Judge, drop the suspects, look again."""
    beliefs = [evidence.cross_fitted]
    if evidence.trusted:
        beliefs.append(evidence.curated_only)
    verdict = judged(evidence, beliefs)
    for _ in range(ROUNDS):
        suspects = np.flatnonzero(verdict.probabilities > 0.5)
        if not len(suspects) or not _enough_left(evidence, suspects):
            break
        verdict = judged(evidence, [*beliefs, evidence.without(suspects)])
    return verdict


def judged(evidence: Evidence, beliefs: list[np.ndarray]) -> Verdict:
    """Teach a judge on the teachers' versions, and let it judge the training rows."""
    signals = np.column_stack([*(evidence.against(b) for b in beliefs), evidence.dissimilarity])
    n = evidence.problem.n_train
    doubt = 0.0
    if not evidence.trusted:  # the last beliefs are the best informed ones
        doubt = share_in_doubt(beliefs[-1][:n], evidence.problem.codes[:n])
    judge = teach(
        signals[n:],
        evidence.guilty,
        evidence.rows[n:],
        seed=evidence.seed,
        doubt=doubt,
        wrong_labels=len(evidence.problem.classes) - 1,
    )
    odds = judge.log_odds(signals[:n])
    share = share_of_guilty(odds) if evidence.trusted else doubt
    limit = len(evidence.teachers) / (len(evidence.teachers) + 1.0)
    wrong = np.minimum(expit(odds + logit(share)), limit)
    order = ranked(evidence, beliefs, wrong, odds)
    labels = likeliest_labels(evidence, beliefs, judge, wrong)
    return Verdict(wrong, odds, order, labels, judge)


def ranked(
    evidence: Evidence, beliefs: list[np.ndarray], wrong: np.ndarray, odds: np.ndarray
) -> np.ndarray:
    """By probability; among the equally sure, by certainty and weight of the contradiction alike.

    The weight is the models' unsquashed log-odds against the label: of two rows that are surely
    wrong, the one that moves models more is worth mending first.
    """
    n = evidence.problem.n_train
    given = evidence.problem.codes[:n]
    weight = np.sum([log_odds_against(b[np.arange(n), given]) for b in beliefs], axis=0)
    both = rankdata(weight) + rankdata(odds)
    return np.lexsort((-odds, -both, -wrong))


def likeliest_labels(
    evidence: Evidence, beliefs: list[np.ndarray], judge: Judge, wrong: np.ndarray
) -> np.ndarray:
    """argmax over labels: the given one has 1 − P(wrong), the others share P(wrong).

    They share it by what the judge thinks of the model's beliefs in them.
    """
    n = evidence.problem.n_train
    given = evidence.problem.codes[:n]
    scaled = judge.weights[: len(beliefs)] / judge.scale[: len(beliefs)]
    guilt = sum(
        w * np.arcsinh(log_odds_against(b[:n])) for w, b in zip(scaled, beliefs, strict=True)
    )
    innocence = -np.asarray(guilt)
    innocence[np.arange(n), given] = -np.inf
    posterior = log_softmax(innocence, axis=1) + np.log(np.maximum(wrong, 1e-300))[:, None]
    posterior[np.arange(n), given] = np.log1p(-np.minimum(wrong, 1 - 1e-15))
    return np.argmax(posterior, axis=1)


def _enough_left(evidence: Evidence, suspects: np.ndarray) -> bool:
    """Whether every fold's models can still learn every class."""
    left = np.delete(evidence.problem.codes, suspects)
    return bool(np.bincount(left, minlength=len(evidence.problem.classes)).min() >= 2)
