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

From signals to a probability: calibration rows show how much each kind of evidence weighs.

Each calibration row is seen once with its true label (right) and once with another (wrong). A small
logistic regression, the calibrator, tells the two apart; on the training rows it gives log-odds g
of a wrong label at even prior odds. There the share π of wrong labels is not one half but unknown.
It is the fixed point of (expectation-maximisation for a shift of the prior)

    π = mean_i σ(g_i + logit π),      P(label i is wrong) = σ(g_i + logit π),

so Σ_i P(label i is wrong) = π·n is the expected number of wrong labels.

Without curated rows the calibration rows are training rows, a share ρ of them wrong: what is called
wrong is right with probability ρ/(C − 1), and what is called right is wrong with probability ρ.
Then P(called wrong | signals) = (1 − a)·σ(g) + b·σ(−g), a and b following from ρ. The data cannot
tell ρ from natural overlap of the classes (fitted along with the weights it collapses to zero), so
it is read off where there is no overlap: `share_in_doubt`, and taken as π.

The probabilities again, after a person has decided about some rows.

A logistic regression on the decided rows, with the probabilities as they were for an offset:

    logit p'_i = logit p_i + t + Σ_k v_k·s_ik,     t ~ N(0, 2²),  v_k ~ N(0, ½²),

s being the log-odds themselves and whatever evidence is given, scaled to unit spread. A few dozen
decisions may move the whole level (t) far, and which rows are likelier (v) a little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit
from sklearn.isotonic import isotonic_regression
from threadpoolctl import threadpool_limits

from exempla.arrays import TIE, first_largest, levels
from exempla.tasks.labels.evidence import Evidence, moved, worth_of_margins
from exempla.tasks.labels.noise import (
    ClassPosterior,
    NoiseModel,
    fit_noise,
    fit_posterior,
    fit_together,
    log_odds_against,
    support,
    tells_apart,
)
from exempla.tasks.labels.spread import Spread, TrustedRows, spread_of

_STRENGTHS = (1.0, 10.0, 100.0)
"""Penalties on the squared weights (of standardised signals), tried by cross-validation."""
_FOLDS = 5
STEPS = 1000
_SMALLEST_SHARE = 1e-6
_NEAR_ONE = 1e-5
"""Where log p is smaller than this, p is so near to one that only its last digits are left."""
_MOST_DOUBT = 0.45
"""Beyond this share of wrong labels nothing can be learnt from the given ones."""


@dataclass(frozen=True)
class _Calibrator:
    """Log-odds of a wrong label, linear in standardised signals."""

    center: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: float
    penalty: float

    def log_odds(self, signals: np.ndarray) -> np.ndarray:
        """g at even prior odds, one per version."""
        return (signals - self.center) / self.scale @ self.weights + self.bias


@dataclass(frozen=True)
class _CalibrationSet:
    """Versions of calibration rows: signals, whether called wrong, and how much each counts."""

    signals: np.ndarray
    wrong: np.ndarray
    share: np.ndarray
    wrong_called_right: float = 0.0
    """a: how often that happens."""
    right_called_wrong: float = 0.0
    """b: how often that happens."""

    def part(self, rows: np.ndarray) -> _CalibrationSet:
        return replace(
            self, signals=self.signals[rows], wrong=self.wrong[rows], share=self.share[rows]
        )

    def loss(self, log_odds: np.ndarray) -> tuple[float, np.ndarray]:
        """−log-likelihood of what the versions are called, and its slope in the log-odds."""
        a, b = self.wrong_called_right, self.right_called_wrong
        if a == b == 0.0:
            value = self.share @ np.logaddexp(0.0, np.where(self.wrong, -log_odds, log_odds))
            return float(value), self.share * (expit(log_odds) - self.wrong)
        p = expit(log_odds)
        called = (1.0 - a) * p + b * (1.0 - p)
        value = -self.share @ np.where(self.wrong, np.log(called), np.log1p(-called))
        slope = self.share * np.where(self.wrong, -1.0 / called, 1.0 / (1.0 - called))
        return float(value), slope * (1.0 - a - b) * p * (1.0 - p)


def fit_calibrator(
    signals: np.ndarray,
    wrong: np.ndarray,
    groups: np.ndarray,
    *,
    seed: int,
    doubt: float = 0.0,
    wrong_labels: int = 1,
) -> _Calibrator:
    """Fit it; the penalty is the one under which held-out calibration rows are likeliest.

    `groups` says which row a version belongs to: versions of a row stay together. `doubt` is ρ,
    `wrong_labels` C − 1.
    """
    members, codes = np.unique(groups, return_inverse=True)
    # Both kinds weigh the same in all, however many wrong labels there are.
    share = np.where(wrong, 1.0 / wrong.sum(), 1.0 / (~wrong).sum()) * len(members)
    lucky = doubt / wrong_labels
    known = _CalibrationSet(
        signals, wrong, share, doubt / (1 + doubt - lucky), lucky / (1 - doubt + lucky)
    )
    fold = (np.random.default_rng(seed).permutation(len(members)) % _FOLDS)[codes]
    # For a dozen weights L-BFGS only waits for threads: on a busy machine a hundred times as long.
    with threadpool_limits(1, user_api="blas"):
        return _fit(known, _best_penalty(known, fold))


def _best_penalty(known: _CalibrationSet, fold: np.ndarray) -> float:
    """The one with the smallest loss on held-out folds; of equals the weakest."""
    losses = np.zeros(len(_STRENGTHS))
    for f in np.unique(fold):
        held = known.part(fold == f)
        for i, penalty in enumerate(_STRENGTHS):
            calibrator = _fit(known.part(fold != f), penalty)
            losses[i] += held.loss(calibrator.log_odds(held.signals))[0]
    return _STRENGTHS[int(np.argmax(losses <= losses.min() * (1.0 + TIE)))]


def share_wrong(log_odds: np.ndarray) -> float:
    """π: the share of wrong labels under which the log-odds are self-consistent.

    >>> import numpy as np
    >>> round(share_wrong(np.repeat([-9.0, 9.0], [80, 20])), 2)
    0.2
    """
    share = 0.5
    for _ in range(STEPS):
        new = float(np.mean(expit(log_odds + logit(share))))
        new = min(max(new, _SMALLEST_SHARE), 1.0 - _SMALLEST_SHARE)
        if abs(new - share) < 1e-9:
            break
        share = new
    return share


def share_in_doubt(log_proba: np.ndarray, codes: np.ndarray) -> float:
    """ρ: how often the given label is not the predicted one, among the most confident half.

    Where a cross-fitted model is surest, classes hardly overlap and disagreement means a wrong
    label. The model's own mistakes count as well, so this errs upwards: with e of them,
    ρ(1 − e) + (1 − ρ)e ≥ ρ while ρ < ½. Of several models' shares the smallest is the best.

    >>> import numpy as np
    >>> p = np.repeat([[0.99, 0.01], [0.6, 0.4]], 10, axis=0)
    >>> share_in_doubt(np.log(p), np.array([1] * 2 + [0] * 8 + [0, 1] * 5))
    0.2
    """
    confidence = levels(log_proba.max(axis=1), scale=_NEAR_ONE)
    sure = np.argsort(-confidence, kind="stable")[: max(len(codes) // 2, 1)]
    wrong = float(np.mean(first_largest(log_proba[sure]) != codes[sure]))
    return float(np.clip(wrong, _SMALLEST_SHARE, _MOST_DOUBT))


def _fit(known: _CalibrationSet, penalty: float) -> _Calibrator:
    """min over w of loss + penalty/2·‖w‖² on standardised signals, the bias free."""
    center = np.average(known.signals, axis=0, weights=known.share)
    scale = np.sqrt(np.average((known.signals - center) ** 2, axis=0, weights=known.share))
    scale = np.where(scale > 0, scale, 1.0)
    Z = np.column_stack([(known.signals - center) / scale, np.ones(len(known.signals))])
    ridge = np.append(np.full(known.signals.shape[1], penalty), 0.0)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = known.loss(Z @ w)
        return value + 0.5 * float(ridge @ w**2), Z.T @ slope + ridge * w

    w = minimize(objective, np.zeros(Z.shape[1]), jac=True, method="L-BFGS-B").x
    return _Calibrator(center, scale, w[:-1], float(w[-1]), penalty)


_NEARLY_SURE = 0.95
"""At most one in twenty rows of this probability is right as it is."""
_LEARNED = 1
"""Which of the predictions is that of a model that learned the label."""
_ALONE_STRENGTH = 1.0
"""Penalty on the views' weights where nothing is known to be right."""
_LIMIT = 1e-9


@dataclass(frozen=True)
class _LabelAssessment:
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
class _Judgement:
    """One look at all labels."""

    log_q: np.ndarray
    wrong: np.ndarray
    posterior: ClassPosterior
    noise: NoiseModel


def calibrated(evidence: Evidence, once: np.ndarray | None = None) -> _LabelAssessment:
    """Judge every label, drop the suspects, look again. `once` are the codes of the labels that
    the curated rows had before they were put right."""
    views = _first_views(evidence)
    informed = _tells_apart_at_all(evidence, views)
    judged = judge(evidence, views, once)
    suspects = np.flatnonzero(judged.wrong > 0.5 + TIE)
    if informed and _can_do_without(evidence, suspects):
        without = evidence.out_of_fold(evidence.problem, evidence.seed + 1, suspects)
        views["models without the suspects"] = without
        judged = judge(evidence, views, once)
    return _assessed(evidence, views, judged, informed, once)


def _first_views(evidence: Evidence) -> dict[str, np.ndarray]:
    """log p(c | x) of every row, (n + m, C), by name."""
    views = {"models of the other folds": evidence.cross_fitted}
    if evidence.trusted:
        views["models of the trusted rows"] = evidence.curated_only
    near = evidence.neighbours
    if near is not None:
        problem = evidence.problem
        views["nearest rows"] = near.log_votes(problem.codes, len(problem.classes))
    return views


def _tells_apart_at_all(evidence: Evidence, views: dict[str, np.ndarray]) -> bool:
    codes = evidence.problem.codes
    return any(tells_apart(view, codes) for view in views.values())


def judge(evidence: Evidence, views: dict[str, np.ndarray], once: np.ndarray | None) -> _Judgement:
    """q, the noise, and what follows for every training label."""
    n, codes = evidence.problem.n_train, evidence.problem.codes
    supports = [support(view) for view in views.values()]
    given = codes[:n]
    train = [view[:n] for view in supports]
    if not evidence.trusted:
        weights, noise = fit_together(train, given, _ALONE_STRENGTH)
        C = len(evidence.problem.classes)
        posterior = ClassPosterior(weights, np.zeros(C), _ALONE_STRENGTH)
        log_q = posterior.log_proba(train)
        wrong = _at_least(noise.wrong(log_q, given), _doubt_of(evidence, views))
        return _Judgement(log_q, wrong, posterior, noise)
    posterior = fit_posterior([view[n:] for view in supports], codes[n:], evidence.seed)
    log_q = posterior.log_proba(train)
    if once is None:
        noise = fit_noise(log_q, given, curated=len(codes) - n)
    else:  # what the curated rows were once called shows the noise itself
        both = posterior.log_proba(supports)
        known = np.where(np.arange(len(codes)) < n, -1, codes)
        noise = fit_noise(both, np.concatenate([given, once]), known=known)
    return _Judgement(log_q, noise.wrong(log_q, given), posterior, noise)


def _at_least(wrong: np.ndarray, share: float) -> np.ndarray:
    """Probabilities whose mean is no smaller than the share: the odds of all raised alike.

    Without curated rows both counts of wrong labels miss some: the likeliest fit takes them for
    overlap of the classes, and where models are surest there may be none. The larger one is taken.

    >>> import numpy as np
    >>> _at_least(np.array([0.5, 0.0]), 0.4).round(2).tolist()
    [0.8, 0.0]
    """
    if wrong.mean() >= share:
        return wrong
    odds = logit(np.clip(wrong, _LIMIT, 1 - _LIMIT))
    shift = brentq(lambda by: float(expit(odds + by).mean()) - share, 0.0, 60.0)
    return expit(odds + shift)


def _doubt_of(evidence: Evidence, views: dict[str, np.ndarray]) -> float:
    """The smallest share in doubt by models that have not seen the label."""
    n = evidence.problem.n_train
    codes = evidence.problem.codes[:n]
    return min(share_in_doubt(v[:n], codes) for name, v in views.items() if "models" in name)


def _assessed(
    evidence: Evidence,
    views: dict[str, np.ndarray],
    judged: _Judgement,
    informed: bool,
    once: np.ndarray | None,
) -> _LabelAssessment:
    """Probabilities, order, suggestions and how sure all of it is."""
    n = evidence.problem.n_train
    given, rows = evidence.problem.codes[:n], np.arange(n)
    raw = judged.wrong if informed else np.full(n, judged.wrong.mean())
    plain = log_odds_against(judged.log_q[rows, given])
    margins, recorded = evidence.margins, False
    if margins is not None and informed:
        by = worth_of_margins(margins, plain, raw)
        raw, recorded = moved(raw, by), bool(by.any())
    odds = logit(np.clip(raw, _LIMIT, 1 - _LIMIT)) + plain
    # Rule of three: had all of m calibration rows been told right, 3/m of all might still not be.
    m = len(evidence.calibration_rows)
    limit = m / (m + 3.0)
    wrong = pooled(np.minimum(falling(raw, odds), limit), limit)
    predictions = [evidence.cross_fitted[:n], evidence.learned_by_model]
    predictions += [v[:n] for name, v in views.items() if name.startswith("models of the trusted")]
    predictions += [v[:n] for name, v in views.items() if name.startswith("models without")]
    order = ranked(evidence, predictions, wrong, odds)
    suggested, other = _likeliest_labels(judged, given, wrong)
    used = tuple(
        name for name, w in zip(views, judged.posterior.weights, strict=True) if abs(w) > 0
    )
    used += ("margins of the recorded run",) * recorded
    return _LabelAssessment(
        wrong, order, suggested, other, judged.log_q, judged.noise,
        spread(evidence, views, judged, wrong, informed, once), informed, used,
    )  # fmt: skip


def spread(
    evidence: Evidence,
    views: dict[str, np.ndarray],
    judged: _Judgement,
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
    nearly = (wrong >= _NEARLY_SURE) & (wrong < limit)
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
    learned = log_odds_against(predictions[_LEARNED][rows, given])
    unswayed = predictions[_LEARNED + 1 :] or predictions[:1]
    clean = [log_odds_against(p[rows, given]) for p in unswayed]
    sure = levels(wrong)
    surest = sure == sure.max()
    worth = np.where(surest, np.sum(clean, axis=0), clean[-1] - learned)
    worth = np.where(surest | (wrong >= _NEARLY_SURE), worth, 0.0)
    return np.lexsort((-levels(odds, 1.0), -levels(worth, 1.0), -sure))


def _likeliest_labels(
    judged: _Judgement, given: np.ndarray, wrong: np.ndarray
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


_LEVEL_SD = 2.0
_SLOPE_SD = 0.5
_LEARN_LIMIT = 1e-6


def refit_after_decisions(
    evidence: Any, probabilities: Any, decided_rows: Any, was_wrong: Any
) -> np.ndarray:
    """P(wrong) of every row, given what was decided of some.

    `evidence` holds numbers about each row, (n, d), for example one column per given label, or is
    None; `was_wrong` says of each decided row whether its label was wrong. Decided rows come back
    as 0 and 1.

    >>> import numpy as np
    >>> p = np.full(100, 0.1)
    >>> again = refit_after_decisions(None, p, np.arange(20), np.arange(20) < 12)
    >>> bool(again[50] > 0.4), float(again[0]), float(again[19])
    (True, 1.0, 0.0)
    """
    p = np.asarray(probabilities, dtype=np.float64)
    rows, wrong = np.asarray(decided_rows, dtype=np.int64), np.asarray(was_wrong, dtype=bool)
    if not len(rows):
        return p.copy()
    odds = logit(np.clip(p, _LEARN_LIMIT, 1.0 - _LEARN_LIMIT))
    columns = [odds[:, None]]
    if evidence is not None:
        columns.append(np.asarray(evidence, dtype=np.float64).reshape(len(p), -1))
    S = np.concatenate(columns, axis=1)
    spread = S.std(axis=0)
    S = (S - S.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    S = np.column_stack([np.ones(len(p)), S])
    precision = np.append(_LEVEL_SD**-2, np.full(S.shape[1] - 1, _SLOPE_SD**-2))
    D, offset = S[rows], odds[rows]

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        g = offset + D @ v
        value = np.logaddexp(0.0, np.where(wrong, -g, g)).sum() + 0.5 * precision @ v**2
        return float(value), D.T @ (expit(g) - wrong) + precision * v

    v = minimize(objective, np.zeros(S.shape[1]), jac=True, method="L-BFGS-B").x
    out = expit(odds + S @ v)
    out[rows] = wrong
    return out
