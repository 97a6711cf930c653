"""The default of `fix_labels`: what a row truly is, what kind of mistakes there are, then Bayes.

    views        log p(c | x) by models of the other folds, by models of curated rows alone, by the
                 nearest other rows, and by models of the other folds without the suspects: none of
                 them has seen the row's own label
    posterior    the views weighed on curated rows, where labels are right: q(c | x)
    noise        how often each class is called another, and how much more often on hard rows,
                 from all training labels
    probability  of a wrong label, by Bayes; the order also counts how much q alone has against the
                 label, which does not hang on the estimated kind

Without curated rows the weights and the noise are fitted at once, and mistakes are taken not to
depend on the row: what happens on hard rows cannot be told from classes that overlap. Where models
are surest classes hardly overlap, and the share of labels they contradict there is the least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.isotonic import isotonic_regression

from exempla.tasks.fix_labels.calibration import share_in_doubt
from exempla.tasks.fix_labels.evidence import Evidence
from exempla.tasks.fix_labels.noise.informed import tells_apart
from exempla.tasks.fix_labels.noise.kinds import NoiseModel, fit_noise, fit_together
from exempla.tasks.fix_labels.noise.posterior import (
    ClassPosterior,
    fit_posterior,
    log_odds_against,
    support,
)
from exempla.tasks.fix_labels.noise.spread import Spread, TrustedRows, spread_of
from exempla.tasks.fix_labels.recorded import moved, worth_of_margins
from exempla.tasks.ties import TIE, first_largest, levels

__all__ = ["LabelAssessment", "calibrated"]

NEARLY_SURE = 0.95
"""At most one in twenty rows of this probability is right as it is."""
LEARNED = 1
"""Which of the predictions is that of a model that learned the label."""
ALONE_STRENGTH = 1.0
"""Penalty on the views' weights where nothing is known to be right."""
LIMIT = 1e-9


@dataclass(frozen=True)
class LabelAssessment:
    """What is estimated of every training row's label."""

    probabilities: np.ndarray
    """(n,) that the given label is wrong; never surer than m calibration rows allow, m/(m + 3), and
    one value for all between NEARLY_SURE and that."""
    order: np.ndarray
    """(n,) rows, most suspicious first, by falling probability."""
    suggested: np.ndarray
    """(n,) codes of the likeliest labels: the given ones where those are more likely right."""
    other: np.ndarray
    """(n,) codes of the likeliest labels but the given ones."""
    log_q: np.ndarray
    """(n, C): what models say that have not seen the label."""
    noise: NoiseModel
    spread: Spread
    informed: bool
    """Whether the models can tell the classes apart at all."""
    used: tuple[str, ...]
    """The views that help."""


@dataclass(frozen=True)
class Judgement:
    """One look at all labels."""

    log_q: np.ndarray
    wrong: np.ndarray
    posterior: ClassPosterior
    noise: NoiseModel


def calibrated(evidence: Evidence, once: np.ndarray | None = None) -> LabelAssessment:
    """Judge every label, drop the suspects, look again. `once` are the codes of the labels that
    the curated rows had before they were put right."""
    views = first_views(evidence)
    informed = tells_apart_at_all(evidence, views)
    judged = judge(evidence, views, once)
    suspects = np.flatnonzero(judged.wrong > 0.5 + TIE)
    if informed and _can_do_without(evidence, suspects):
        without = evidence.out_of_fold(evidence.problem, evidence.seed + 1, suspects)
        views["models without the suspects"] = without
        judged = judge(evidence, views, once)
    return assessed(evidence, views, judged, informed, once)


def first_views(evidence: Evidence) -> dict[str, np.ndarray]:
    """log p(c | x) of every row, (n + m, C), by name."""
    views = {"models of the other folds": evidence.cross_fitted}
    if evidence.trusted:
        views["models of the trusted rows"] = evidence.curated_only
    near = evidence.neighbours
    if near is not None:
        problem = evidence.problem
        views["nearest rows"] = near.log_votes(problem.codes, len(problem.classes))
    return views


def tells_apart_at_all(evidence: Evidence, views: dict[str, np.ndarray]) -> bool:
    codes = evidence.problem.codes
    return any(tells_apart(view, codes) for view in views.values())


def judge(evidence: Evidence, views: dict[str, np.ndarray], once: np.ndarray | None) -> Judgement:
    """q, the noise, and what follows for every training label."""
    n, codes = evidence.problem.n_train, evidence.problem.codes
    supports = [support(view) for view in views.values()]
    given = codes[:n]
    train = [view[:n] for view in supports]
    if not evidence.trusted:
        weights, noise = fit_together(train, given, ALONE_STRENGTH)
        C = len(evidence.problem.classes)
        posterior = ClassPosterior(weights, np.zeros(C), ALONE_STRENGTH)
        log_q = posterior.log_proba(train)
        wrong = at_least(noise.wrong(log_q, given), doubt_of(evidence, views))
        return Judgement(log_q, wrong, posterior, noise)
    posterior = fit_posterior([view[n:] for view in supports], codes[n:], evidence.seed)
    log_q = posterior.log_proba(train)
    if once is None:
        noise = fit_noise(log_q, given, curated=len(codes) - n)
    else:  # what the curated rows were once called shows the noise itself
        both = posterior.log_proba(supports)
        known = np.where(np.arange(len(codes)) < n, -1, codes)
        noise = fit_noise(both, np.concatenate([given, once]), known=known)
    return Judgement(log_q, noise.wrong(log_q, given), posterior, noise)


def at_least(wrong: np.ndarray, share: float) -> np.ndarray:
    """Probabilities whose mean is no smaller than the share: the odds of all raised alike.

    Without curated rows both counts of wrong labels miss some: the likeliest fit takes them for
    overlap of the classes, and where models are surest there may be none. The larger one is taken.

    >>> import numpy as np
    >>> at_least(np.array([0.5, 0.0]), 0.4).round(2).tolist()
    [0.8, 0.0]
    """
    if wrong.mean() >= share:
        return wrong
    odds = logit(np.clip(wrong, LIMIT, 1 - LIMIT))
    shift = brentq(lambda by: float(expit(odds + by).mean()) - share, 0.0, 60.0)
    return expit(odds + shift)


def doubt_of(evidence: Evidence, views: dict[str, np.ndarray]) -> float:
    """The smallest share in doubt by models that have not seen the label."""
    n = evidence.problem.n_train
    codes = evidence.problem.codes[:n]
    return min(share_in_doubt(v[:n], codes) for name, v in views.items() if "models" in name)


def assessed(
    evidence: Evidence,
    views: dict[str, np.ndarray],
    judged: Judgement,
    informed: bool,
    once: np.ndarray | None,
) -> LabelAssessment:
    """Probabilities, order, suggestions and how sure all of it is."""
    n = evidence.problem.n_train
    given, rows = evidence.problem.codes[:n], np.arange(n)
    raw = judged.wrong if informed else np.full(n, judged.wrong.mean())
    plain = log_odds_against(judged.log_q[rows, given])
    margins, recorded = evidence.margins, False
    if margins is not None and informed:
        by = worth_of_margins(margins, plain, raw)
        raw, recorded = moved(raw, by), bool(by.any())
    odds = logit(np.clip(raw, LIMIT, 1 - LIMIT)) + plain
    # Rule of three: had all of m calibration rows been told right, 3/m of all might still not be.
    m = len(evidence.calibration_rows)
    limit = m / (m + 3.0)
    wrong = pooled(np.minimum(falling(raw, odds), limit), limit)
    predictions = [evidence.cross_fitted[:n], evidence.learned_by_model]
    predictions += [v[:n] for name, v in views.items() if name.startswith("models of the trusted")]
    predictions += [v[:n] for name, v in views.items() if name.startswith("models without")]
    order = ranked(evidence, predictions, wrong, odds)
    suggested, other = likeliest_labels(judged, given, wrong)
    used = tuple(
        name for name, w in zip(views, judged.posterior.weights, strict=True) if abs(w) > 0
    )
    used += ("margins of the recorded run",) * recorded
    return LabelAssessment(
        wrong, order, suggested, other, judged.log_q, judged.noise,
        spread(evidence, views, judged, wrong, informed, once), informed, used,
    )  # fmt: skip


def spread(
    evidence: Evidence,
    views: dict[str, np.ndarray],
    judged: Judgement,
    wrong: np.ndarray,
    informed: bool,
    once: np.ndarray | None,
) -> Spread:
    """From where to where the number of wrong labels may lie."""
    n, codes = evidence.problem.n_train, evidence.problem.codes
    if not informed:
        shares = np.bincount(codes[:n]) / n
        return Spread(0.0, n * float(1.0 - np.sum(shares**2)), told=False)
    if not evidence.trusted:
        total = float(wrong.sum())
        chance = 1.645 * float(np.sqrt(np.sum(wrong * (1 - wrong))))
        # beyond what was counted, any row may be wrong that the models waver about
        unseen = float(np.sum(1.0 - np.exp(judged.log_q.max(axis=1))))
        return Spread(max(total / 2 - chance, 0.0), min(total + unseen + chance, n), told=False)
    supports = [support(view) for view in views.values()]
    return spread_of(
        judged.posterior,
        judged.noise,
        [view[:n] for view in supports],
        TrustedRows([view[n:] for view in supports], codes[n:], once),
        codes[:n],
        float(wrong.sum()),
        evidence.seed,
    )


def falling(wrong: np.ndarray, odds: np.ndarray) -> np.ndarray:
    """Probabilities that fall with the order of the odds, their sum unchanged: neighbours in the
    order that say otherwise share their mean.

    >>> import numpy as np
    >>> falling(np.array([0.9, 0.2, 0.4]), np.array([3.0, 2.0, 1.0])).round(2).tolist()
    [0.9, 0.3, 0.3]
    """
    order = np.argsort(-levels(odds, 1.0), kind="stable")
    out = np.empty_like(wrong)
    out[order] = isotonic_regression(wrong[order], increasing=False)
    return out


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
    """By probability; the equally sure by what mending them is worth, the others by their odds.

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
    surest = sure == sure.max()
    worth = np.where(surest, np.sum(clean, axis=0), clean[-1] - learned)
    worth = np.where(surest | (wrong >= NEARLY_SURE), worth, 0.0)
    return np.lexsort((-levels(odds, 1.0), -levels(worth, 1.0), -sure))


def likeliest_labels(
    judged: Judgement, given: np.ndarray, wrong: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The label to suggest, the given one unless it is more likely wrong than right; and the
    likeliest other one."""
    posterior = np.log(np.maximum(judged.noise.posterior(judged.log_q, given), 1e-300))
    posterior[np.arange(len(given)), given] = -np.inf
    other = first_largest(posterior)
    return np.where(wrong > 0.5 + TIE, other, given), other


def _can_do_without(evidence: Evidence, suspects: np.ndarray) -> bool:
    """Whether there are suspects, and every fold's models can still learn every class."""
    left = np.delete(evidence.problem.codes, suspects)
    counts = np.bincount(left, minlength=len(evidence.problem.classes))
    return bool(len(suspects) and counts.min() >= 2)
