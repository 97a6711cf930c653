"""The default of `fix_labels`: weigh every kind of evidence as the curated examples teach.

    round 0      Fisher similarity at three dampings; log-odds against the label by a model that
                 learned it, by models of the other folds, and by models of curated rows alone
    rounds 1, 2  the same, and by models of the other folds without the last round's suspects

None of them is a rule: each helps on some data and misleads on other, and is weighed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, log_softmax, logit

from exempla.tasks.fix_labels.calibration import Judge, share_in_doubt, share_of_guilty, teach
from exempla.tasks.fix_labels.evidence import Draw, Evidence, log_odds_against

__all__ = ["Verdict", "calibrated"]

ROUNDS = 2
NEARLY_SURE = 0.95
"""At most one in twenty rows of this probability is right as it is."""
LEARNED = 1
"""Which of a hearing's beliefs is that of a model that learned the label."""


@dataclass(frozen=True)
class Verdict:
    """What is believed of every training row's label."""

    probabilities: np.ndarray
    """(n,) that the given label is wrong; never surer than m teachers can vouch for, m/(m + 3), and
    one value for all between NEARLY_SURE and that."""
    log_odds: np.ndarray
    """(n,) of the same at even prior odds, without that limit."""
    order: np.ndarray
    """(n,) rows, most suspicious first."""
    suggested: np.ndarray
    """(n,) codes of the likeliest labels, the given ones included."""
    judge: Judge


@dataclass(frozen=True)
class Hearing:
    """One draw's evidence so far: beliefs are (n + m, C) arrays of log p(c | x)."""

    draw: Draw
    beliefs: list[np.ndarray]
    fisher: np.ndarray
    """(n + m, d): the Fisher kernel's say on each row under its label in this draw."""

    @property
    def signals(self) -> np.ndarray:
        """(n + m, s): what each belief has against the labels, and the Fisher kernel."""
        return np.column_stack([*(against(self.draw, b) for b in self.beliefs), self.fisher])


def calibrated(evidence: Evidence) -> Verdict:
    """Judge, drop the suspects, look again."""
    hearings = [opened(evidence, draw) for draw in evidence.draws]
    judge, odds, share = judged(evidence, hearings)
    for _ in range(ROUNDS):
        suspects = [np.flatnonzero(expit(o + logit(share)) > 0.5) for o in odds]
        if not all(_can_do_without(h.draw, s) for h, s in zip(hearings, suspects, strict=True)):
            break
        hearings = [reopened(evidence, h, s) for h, s in zip(hearings, suspects, strict=True)]
        judge, odds, share = judged(evidence, hearings)
    return concluded(evidence, hearings, judge, odds, share)


def opened(evidence: Evidence, draw: Draw) -> Hearing:
    """Round 0 of one draw."""
    beliefs = [
        evidence.out_of_fold(draw.problem, draw.seed),
        evidence.learned(draw.problem),
    ]
    if evidence.trusted:
        beliefs.append(evidence.curated_only)
    return Hearing(draw, beliefs, evidence.fisher(draw, beliefs[0]))


def reopened(evidence: Evidence, hearing: Hearing, suspects: np.ndarray) -> Hearing:
    """The same evidence, and models that did not learn from the suspects; in place of the last."""
    start = 3 if evidence.trusted else 2
    belief = evidence.out_of_fold(hearing.draw.problem, hearing.draw.seed + 1, suspects)
    return replace(hearing, beliefs=[*hearing.beliefs[:start], belief])


def against(draw: Draw, belief: np.ndarray) -> np.ndarray:
    """Log-odds against each row's label in this draw, squashed: log-odds of 30 and of 10 both
    mean "surely", and the judge is linear."""
    return np.arcsinh(log_odds_against(belief[np.arange(len(belief)), draw.problem.codes]))


def judged(evidence: Evidence, hearings: list[Hearing]) -> tuple[Judge, list[np.ndarray], float]:
    """Teach one judge on the teachers of all draws; its log-odds of every row in each draw, and
    the share of wrong labels among the training rows."""
    problem, teachers = evidence.problem, evidence.teachers
    doubt = 0.0 if evidence.trusted else doubt_of_stand_ins(evidence, hearings)
    judge = teach(
        np.concatenate([h.signals[teachers] for h in hearings]),
        np.concatenate([h.draw.planted[teachers] for h in hearings]),
        np.tile(teachers, len(hearings)),
        seed=evidence.seed,
        doubt=doubt,
        wrong_labels=len(problem.classes) - 1,
    )
    odds = [judge.log_odds(h.signals) for h in hearings]
    share = doubt if doubt else share_of_guilty(over_draws(evidence, hearings, odds))
    return judge, odds, share


def doubt_of_stand_ins(evidence: Evidence, hearings: list[Hearing]) -> float:
    """The smallest share in doubt by beliefs of models that have not seen the label: those of the
    other folds, and from round 1 on those without the suspects. (The learned belief has seen it.)
    """
    n = evidence.problem.n_train
    unseen = {0, len(hearings[0].beliefs) - 1} - {LEARNED}
    return min(
        share_in_doubt(
            np.mean([h.beliefs[i][:n] for h in hearings], axis=0), evidence.problem.codes[:n]
        )
        for i in unseen
    )


def over_draws(evidence: Evidence, hearings: list[Hearing], values: list[np.ndarray]) -> np.ndarray:
    """Mean over the draws in which a training row has its given label, (n, …)."""
    n = evidence.problem.n_train
    kept = np.array([~h.draw.planted[:n] for h in hearings], dtype=float)
    stacked = np.array([value[:n] for value in values])
    kept = kept.reshape(kept.shape + (1,) * (stacked.ndim - 2))
    return (kept * stacked).sum(0) / kept.sum(0)


def concluded(
    evidence: Evidence,
    hearings: list[Hearing],
    judge: Judge,
    odds: list[np.ndarray],
    share: float,
) -> Verdict:
    """One verdict from all draws."""
    mean = over_draws(evidence, hearings, odds)
    # Rule of three: had not one of m teachers been misjudged, up to 3/m of all might still be.
    limit = len(evidence.teachers) / (len(evidence.teachers) + 3.0)
    wrong = pooled(np.minimum(expit(mean + logit(share)), limit), limit)
    count = len(hearings[0].beliefs)
    beliefs = [
        over_draws(evidence, hearings, [h.beliefs[i] for h in hearings]) for i in range(count)
    ]
    order = ranked(evidence, beliefs, wrong, mean)
    return Verdict(wrong, mean, order, likeliest_labels(evidence, beliefs, judge, wrong), judge)


def pooled(wrong: np.ndarray, limit: float) -> np.ndarray:
    """Probabilities with those between NEARLY_SURE and the limit at their mean.

    A few hundred teachers hold a handful of such cases: they cannot tell 0.96 from 0.99.
    """
    nearly = (wrong >= NEARLY_SURE) & (wrong < limit)
    return np.where(nearly, wrong[nearly].mean(), wrong) if nearly.any() else wrong


def ranked(
    evidence: Evidence, beliefs: list[np.ndarray], wrong: np.ndarray, odds: np.ndarray
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
    learned = log_odds_against(beliefs[LEARNED][rows, given])
    clean = [log_odds_against(b[rows, given]) for b in beliefs[LEARNED + 1 :] or beliefs[:1]]
    worth = np.where(wrong == wrong.max(), np.sum(clean, axis=0), clean[-1] - learned)
    return np.lexsort((-odds, -worth, -wrong))


def likeliest_labels(
    evidence: Evidence, beliefs: list[np.ndarray], judge: Judge, wrong: np.ndarray
) -> np.ndarray:
    """argmax over labels: the given one has 1 − P(wrong), the others share P(wrong).

    They share it by what the judge thinks of the models' beliefs in them.
    """
    rows = np.arange(len(wrong))
    given = evidence.problem.codes[rows]
    scaled = judge.weights[: len(beliefs)] / judge.scale[: len(beliefs)]
    guilt = [w * np.arcsinh(log_odds_against(b)) for w, b in zip(scaled, beliefs, strict=True)]
    innocence = -np.sum(guilt, axis=0)
    innocence[rows, given] = -np.inf
    posterior = log_softmax(innocence, axis=1) + np.log(np.maximum(wrong, 1e-300))[:, None]
    posterior[rows, given] = np.log1p(-np.minimum(wrong, 1 - 1e-15))
    return np.argmax(posterior, axis=1)


def _can_do_without(draw: Draw, suspects: np.ndarray) -> bool:
    """Whether there are suspects, and every fold's models can still learn every class."""
    left = np.delete(draw.problem.codes, suspects)
    counts = np.bincount(left, minlength=len(draw.problem.classes))
    return bool(len(suspects) and counts.min() >= 2)
