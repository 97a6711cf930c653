"""The default of `fix_labels`: all evidence, each kind weighed by its worth on calibration rows.

    round 0      Fisher similarity at three dampings; log-odds against the label by a model that
                 learned it, by models of the other folds, and by models of curated rows alone
    rounds 1, 2  the same, and by models of the other folds without the last round's suspects

None of them is a rule: each helps on some data and misleads on other, and is weighed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, log_softmax, logit

from exempla.tasks.fix_labels.calibration import (
    Calibrator,
    fit_calibrator,
    share_in_doubt,
    share_wrong,
)
from exempla.tasks.fix_labels.evidence import Draw, Evidence, log_odds_against
from exempla.tasks.ties import TIE, first_largest, levels

__all__ = ["LabelAssessment", "calibrated"]

ROUNDS = 2
NEARLY_SURE = 0.95
"""At most one in twenty rows of this probability is right as it is."""
LEARNED = 1
"""Which of a draw's predictions is that of a model that learned the label."""


@dataclass(frozen=True)
class LabelAssessment:
    """What is estimated of every training row's label."""

    probabilities: np.ndarray
    """(n,) that the given label is wrong; never surer than m calibration rows allow, m/(m + 3), and
    one value for all between NEARLY_SURE and that."""
    log_odds: np.ndarray
    """(n,) of the same at even prior odds, without that limit."""
    order: np.ndarray
    """(n,) rows, most suspicious first."""
    suggested: np.ndarray
    """(n,) codes of the likeliest labels, the given ones included."""
    calibrator: Calibrator


@dataclass(frozen=True)
class DrawEvidence:
    """One draw's evidence so far: predictions are (n + m, C) arrays of log p(c | x)."""

    draw: Draw
    predictions: list[np.ndarray]
    fisher: np.ndarray
    """(n + m, d): the Fisher kernel's signals of each row under its label in this draw."""

    @property
    def signals(self) -> np.ndarray:
        """(n + m, s): what each prediction has against the labels, and the Fisher kernel."""
        return np.column_stack([*(against(self.draw, p) for p in self.predictions), self.fisher])


def calibrated(evidence: Evidence) -> LabelAssessment:
    """Weigh the evidence, drop the suspects, look again."""
    seen = [first_round(evidence, draw) for draw in evidence.draws]
    calibrator, odds, share = weighed(evidence, seen)
    for _ in range(ROUNDS):
        suspects = [np.flatnonzero(o + logit(share) > TIE) for o in odds]
        if not all(_can_do_without(e.draw, s) for e, s in zip(seen, suspects, strict=True)):
            break
        seen = [next_round(evidence, e, s) for e, s in zip(seen, suspects, strict=True)]
        calibrator, odds, share = weighed(evidence, seen)
    return assessed(evidence, seen, calibrator, odds, share)


def first_round(evidence: Evidence, draw: Draw) -> DrawEvidence:
    """Round 0 of one draw."""
    predictions = [
        evidence.out_of_fold(draw.problem, draw.seed),
        evidence.learned(draw.problem),
    ]
    if evidence.trusted:
        predictions.append(evidence.curated_only)
    return DrawEvidence(draw, predictions, evidence.fisher(draw, predictions[0]))


def next_round(evidence: Evidence, seen: DrawEvidence, suspects: np.ndarray) -> DrawEvidence:
    """The same evidence, and models that did not learn from the suspects; in place of the last."""
    start = 3 if evidence.trusted else 2
    without = evidence.out_of_fold(seen.draw.problem, seen.draw.seed + 1, suspects)
    return replace(seen, predictions=[*seen.predictions[:start], without])


def against(draw: Draw, prediction: np.ndarray) -> np.ndarray:
    """Log-odds against each row's label in this draw, squashed: log-odds of 30 and of 10 both
    mean "surely", and the calibrator is linear."""
    own = prediction[np.arange(len(prediction)), draw.problem.codes]
    return np.arcsinh(log_odds_against(own))


def weighed(
    evidence: Evidence, seen: list[DrawEvidence]
) -> tuple[Calibrator, list[np.ndarray], float]:
    """One calibrator from the calibration rows of all draws; its log-odds of every row in each
    draw, and the share of wrong labels among the training rows."""
    problem, rows = evidence.problem, evidence.calibration_rows
    doubt = 0.0 if evidence.trusted else doubt_of_stand_ins(evidence, seen)
    calibrator = fit_calibrator(
        np.concatenate([e.signals[rows] for e in seen]),
        np.concatenate([e.draw.flipped[rows] for e in seen]),
        np.tile(rows, len(seen)),
        seed=evidence.seed,
        doubt=doubt,
        wrong_labels=len(problem.classes) - 1,
    )
    odds = [calibrator.log_odds(e.signals) for e in seen]
    share = doubt if doubt else share_wrong(over_draws(evidence, seen, odds))
    return calibrator, odds, share


def doubt_of_stand_ins(evidence: Evidence, seen: list[DrawEvidence]) -> float:
    """The smallest share in doubt by models that have not seen the label: those of the other
    folds, and from round 1 on those without the suspects. (The model that learned it has seen it.)
    """
    n = evidence.problem.n_train
    unseen = {0, len(seen[0].predictions) - 1} - {LEARNED}
    return min(
        share_in_doubt(
            np.mean([e.predictions[i][:n] for e in seen], axis=0), evidence.problem.codes[:n]
        )
        for i in unseen
    )


def over_draws(
    evidence: Evidence, seen: list[DrawEvidence], values: list[np.ndarray]
) -> np.ndarray:
    """Mean over the draws in which a training row has its given label, (n, …)."""
    n = evidence.problem.n_train
    kept = np.array([~e.draw.flipped[:n] for e in seen], dtype=float)
    stacked = np.array([value[:n] for value in values])
    kept = kept.reshape(kept.shape + (1,) * (stacked.ndim - 2))
    return (kept * stacked).sum(0) / kept.sum(0)


def assessed(
    evidence: Evidence,
    seen: list[DrawEvidence],
    calibrator: Calibrator,
    odds: list[np.ndarray],
    share: float,
) -> LabelAssessment:
    """One estimate from all draws."""
    mean = over_draws(evidence, seen, odds)
    # Rule of three: had all of m calibration rows been told right, 3/m of all might still not be.
    m = len(evidence.calibration_rows)
    limit = m / (m + 3.0)
    wrong = pooled(np.minimum(expit(mean + logit(share)), limit), limit)
    predictions = [
        over_draws(evidence, seen, [e.predictions[i] for e in seen])
        for i in range(len(seen[0].predictions))
    ]
    order = ranked(evidence, predictions, wrong, mean)
    suggested = likeliest_labels(evidence, predictions, calibrator, wrong)
    return LabelAssessment(wrong, mean, order, suggested, calibrator)


def pooled(wrong: np.ndarray, limit: float) -> np.ndarray:
    """Probabilities with those between NEARLY_SURE and the limit at their mean.

    Among a few hundred calibration rows are a handful of such cases: they cannot tell 0.96 from
    0.99.
    """
    nearly = (wrong >= NEARLY_SURE) & (wrong < limit)
    return np.where(nearly, wrong[nearly].mean(), wrong) if nearly.any() else wrong


def ranked(
    evidence: Evidence, predictions: list[np.ndarray], wrong: np.ndarray, odds: np.ndarray
) -> np.ndarray:
    """By probability; the equally sure by what mending them is worth.

    Putting a label right moves a linear model by H⁻¹x, towards the one that right labels give, and
    the further the more x·θ of that model stands against the label: the log-odds against it by
    models that have not learned from suspects. Once the surest are mended, the model stands there
    already for much of what they say; what is left for the others is how much further it stands
    from the label than the model that learned it.
    """
    rows = np.arange(len(wrong))
    given = evidence.problem.codes[rows]
    learned = log_odds_against(predictions[LEARNED][rows, given])
    unswayed = predictions[LEARNED + 1 :] or predictions[:1]
    clean = [log_odds_against(p[rows, given]) for p in unswayed]
    sure = levels(wrong)
    worth = np.where(sure == sure.max(), np.sum(clean, axis=0), clean[-1] - learned)
    return np.lexsort((-levels(odds, 1.0), -levels(worth, 1.0), -sure))


def likeliest_labels(
    evidence: Evidence,
    predictions: list[np.ndarray],
    calibrator: Calibrator,
    wrong: np.ndarray,
) -> np.ndarray:
    """argmax over labels: the given one has 1 − P(wrong), the others share P(wrong).

    They share it by the calibrator's weight of what the models predict of them.
    """
    rows = np.arange(len(wrong))
    given = evidence.problem.codes[rows]
    scaled = calibrator.weights[: len(predictions)] / calibrator.scale[: len(predictions)]
    pairs = zip(scaled, predictions, strict=True)
    support = -np.sum([w * np.arcsinh(log_odds_against(p)) for w, p in pairs], axis=0)
    support[rows, given] = -np.inf
    posterior = log_softmax(support, axis=1) + np.log(np.maximum(wrong, 1e-300))[:, None]
    posterior[rows, given] = np.log1p(-np.minimum(wrong, 1 - 1e-15))
    best = first_largest(posterior)
    tied = posterior[rows, given] >= posterior[rows, best] - TIE
    return np.where(tied, given, best)


def _can_do_without(draw: Draw, suspects: np.ndarray) -> bool:
    """Whether there are suspects, and every fold's models can still learn every class."""
    left = np.delete(draw.problem.codes, suspects)
    counts = np.bincount(left, minlength=len(draw.problem.classes))
    return bool(len(suspects) and counts.min() >= 2)
