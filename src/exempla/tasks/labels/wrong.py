"""P(label is wrong), for one class per row: the order, the probabilities and the count.

Inputs are *views*: log p(c | x) by models that have not seen the row's label (`crossfit`).

Stack
    q(c | x) ∝ exp(Σ_k w_k·log p_k(c | x) + b_c) with 0 ≤ w_k ≤ 4. Trusted rows decide w and b.
    Without them, w, b and the flip rate π are fitted together to the given labels j, whose
    likelihood is (1 − π_j)·q_j + Σ_{c ≠ j} π_c·q_c/(C − 1). Each class has its own flip rate, with
    a prior around a common one: a fifth of the spam may be called ham, and no ham spam.
Order
    z = log Σ_{c ≠ j} π_c·q_c/(C − 1) − log (1 − π_j)·q_j. If the training was recorded, half as
    much of the margins then, calibrated to z class by class, is added.
Probability
    The larger of two. Labels flipped whatever x is: P₁ = σ(z). People who hesitate where models
    hesitate: P₂ = σ(0.65·z + shift), shifted such that the sum is a share of the expected
    disagreement Σ(1 − q(given)): 0.55 times the fourth root of its mean, as on the sets of
    `benchmarks/label_variants.md`. Labels alone do not tell the second kind from overlap.
Count
    Without trusted rows the interval reaches from half of what flips explain up to the whole
    expected disagreement. Where the first labels of trusted rows are known, the number of wrong
    ones among them is binomial, and that alone decides the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, log_softmax, logit, logsumexp
from scipy.stats import betabinom, mannwhitneyu
from threadpoolctl import threadpool_limits

from exempla.arrays import TIE, first_largest, levels
from exempla.tasks.labels.crossfit import Columns

_MAX_LOG_ODDS = 12.0
"""Log-odds beyond this all mean "certain"."""
_MAX_WEIGHT = 4.0
_MAX_WEIGHTS = {"nearest rows": 1.0}
"""Largest weight of a view in the stack."""
_WEIGHT_PENALTY, _BIAS_PENALTY = 1.0, 3.0
_FLIP_LOGIT, _FLIP_PENALTY = -3.0, 0.25
"""Prior of logit π: one label in twenty, ± 2."""
_MAX_FLIP_LOGIT = -0.2
_MAX_CLASS_LOGIT = 0.4
_NO_FLIPS = -40.0
_CLASS_PENALTY = 4.0
"""Prior precision of the logit of a class's flip rate around the common one."""
_MAX_RATED_CLASSES = 30
"""With more classes, all have the same flip rate."""
_FIT_ROWS = 20_000
"""Rows the stack is fitted to; a random part of larger sets."""
_MARGIN_WEIGHT = 0.5
_HESITANT_SLOPE, _HESITANT_SHARE = 0.65, 0.55
"""Of mistakes where models hesitate: slope of log-odds, and their share of the expected
disagreement, times the fourth root of its mean."""
Z90 = 1.645
"""90 % of a normal distribution lie within this many standard deviations."""
_CHANCE = 0.00135
"""Of a model that predicts no better than chance, the probability of being called better: three
standard deviations."""
_MAX_TESTED_CLASSES = 20
_AMBIGUOUS = 0.35
"""A row is ambiguous if two labels both have at least this probability."""
_EDGE = 1e-9


@dataclass(frozen=True)
class Stack:
    """Weights of the views and of the classes, and π: how often each class gets another label."""

    weights: np.ndarray
    biases: np.ndarray
    flip_rates: np.ndarray

    def log_q(self, views: Iterable[np.ndarray], columns: Columns) -> np.ndarray:
        """Return log q of the kept classes, (rows, columns)."""
        total = self.biases[columns.codes]
        for weight, view in zip(self.weights, views, strict=True):
            total = total + weight * np.maximum(view, -_MAX_LOG_ODDS)
        return log_softmax(total, axis=1)

    @property
    def prior(self) -> float:
        """Log-odds of a flip to one label; left out of `odds`, so several labels compare."""
        return float(logit(self.flip_rates.mean()) - np.log(len(self.biases) - 1))

    def odds(self, log_q: np.ndarray, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
        """Return log-odds that the given labels are wrong, less `prior`, and their probability."""
        rows, own, rates = np.arange(len(log_q)), columns.own, self.flip_rates[columns.codes]
        other = log_q + np.log(np.maximum(rates, 1e-12) / (columns.n_classes - 1))
        other[rows, own] = -np.inf
        wrong: Any = logsumexp(other, axis=1)
        right = log_q[rows, own] + np.log1p(-rates[rows, own])
        odds = np.clip(wrong - right - self.prior, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
        return odds, np.exp(np.logaddexp(wrong, right))


@dataclass(frozen=True)
class Assessment:
    """What is estimated about the label of every training row."""

    probabilities: np.ndarray
    """P(the given label is wrong)."""
    score: np.ndarray
    """Log-odds that the order follows."""
    flipped: np.ndarray
    """P(the label was flipped whatever x is): P₁, without mistakes where models hesitate."""
    given: np.ndarray
    alternative: np.ndarray
    """Class codes of the given label and of the most likely other one."""
    given_chance: np.ndarray
    alternative_chance: np.ndarray
    """q of the given label and of the alternative."""
    expected_errors: float
    interval: tuple[float, float]
    """90 % interval of the number of wrong labels."""
    has_signal: bool = True
    """False if no view predicts labels better than chance."""
    noise_identified: bool = False
    """True if the first labels of trusted rows determined the count."""
    used: tuple[str, ...] = ()
    """Names of the views with a positive weight."""

    @property
    def order(self) -> np.ndarray:
        """Rows, most suspicious first."""
        return np.lexsort((-levels(self.score, 1.0), -np.round(self.probabilities, 9)))

    def listed(self, order: np.ndarray, classes: np.ndarray) -> dict[str, Any]:
        """Return the fields of `LabelFixes` for the labels listed."""
        p = self.probabilities
        likely = np.minimum(self.given_chance, self.alternative_chance) >= _AMBIGUOUS
        ambiguous = likely & (p <= 0.5)
        suggested = np.where(p > 0.5 + TIE, self.alternative, self.given)
        verdict = np.where(p > 0.5, "wrong", np.where(ambiguous, "ambiguous", "right"))
        return {
            "probabilities": p[order],
            "given": classes[self.given[order]],
            "suggested": classes[suggested[order]],
            "alternative": classes[self.alternative[order]],
            "alternative_chance": self.alternative_chance[order],
            "given_chance": self.given_chance[order],
            "verdict": verdict[order],
            "n_ambiguous": int(ambiguous.sum()),
            "expected_errors": self.expected_errors,
            "interval": self.interval,
            "has_signal": self.has_signal,
            "noise_identified": self.noise_identified,
            "evidence_used": self.used,
            "method": "calibrated",
        }


def assess(
    views: Mapping[str, np.ndarray],
    columns: Columns,
    n_train: int,
    *,
    margins: np.ndarray | None = None,
    original: np.ndarray | None = None,
    seed: int = 0,
) -> Assessment:
    """Assess the labels of the first `n_train` rows; the others are trusted.

    `margins` (n_train,) are those of the given labels while a model learned them, `original` the
    class codes that the trusted rows had before they were corrected.
    """
    n, N = n_train, len(columns.own)
    trusted = n < N
    stack = fit_stack(views, columns, n, seed)
    log_q = stack.log_q(views.values(), columns)
    rows, some = np.arange(n), columns.part(slice(0, n))
    z, predictive = stack.odds(log_q[:n], some)
    score, flipped = z, expit(z + stack.prior)
    if margins is not None:  # they change the order, not the count
        score = _with_margins(z, margins, some.given)
        flipped = shifted(score, float(flipped.sum()))
    q, best = np.exp(log_q[:n]), likeliest_other(log_q[:n], some.own)
    p, sd = _probabilities(flipped, score, q[rows, some.own]), 0.0
    has_signal = any(_tells_apart(view, columns) for view in views.values())
    if not has_signal:
        p = flipped = np.full(n, p.mean())
    if trusted:  # they show how often the models err, known from as many rows only
        contradicted = float(np.mean(first_largest(log_q[:n]) != some.own))
        error, sd = _model_error(log_q[n:], columns.own[n:])
        least = n * ((contradicted - error) / (1.0 - 2.0 * error) - sd)
        if has_signal and p.sum() < least:
            p = shifted(logit(np.clip(p, _EDGE, 1 - _EDGE)), least)
    m = N - n if trusted else n
    most = m / (m + 3.0)  # rule of three: m rows cannot show more certainty than this
    p = np.minimum(p, most)
    chance = Z90 * float(np.hypot(n * sd, np.sqrt(np.sum(p * (1.0 - p)))))
    low, high = float(flipped.sum()) / 2.0 - chance, float(np.sum(1.0 - predictive)) + chance
    if not has_signal:
        shares = np.bincount(some.given, minlength=columns.n_classes) / n
        low, high = 0.0, n * float(1.0 - np.sum(shares**2))
    expected = float(p.sum())
    interval = min(max(low, 0.0), expected), max(min(high, float(n)), expected)
    if original is not None and has_signal:  # a random sample decides the count
        wrong = int(np.sum(original != columns.given[n:]))
        expected, interval = count_by_sample(n, N - n, wrong)
        p = shifted(logit(np.clip(p, _EDGE, 1 - _EDGE)), expected)
    return Assessment(
        probabilities=p,
        score=score,
        flipped=np.minimum(flipped, most),
        given=some.given,
        alternative=some.codes[rows, best],
        given_chance=q[rows, some.own],
        alternative_chance=q[rows, best],
        expected_errors=expected,
        interval=interval,
        has_signal=has_signal,
        noise_identified=original is not None and has_signal,
        used=tuple(k for k, w in zip(views, stack.weights, strict=True) if w > 1e-6),
    )


def count_by_sample(n: int, m: int, wrong: int) -> tuple[float, tuple[float, float]]:
    """Return the expected number of wrong ones among n labels and its 90 % interval.

    `wrong` of m others, drawn at random, were wrong.
    """
    count = betabinom(n, wrong + 0.5, m - wrong + 0.5)
    return count.mean(), (float(count.ppf(0.05)), float(count.ppf(0.95)))


def fit_stack(
    views: Mapping[str, np.ndarray], columns: Columns, n_train: int, seed: int = 0
) -> Stack:
    """Fit the stack to the rows from `n_train` on, which are trusted, and flip rates to the others.

    Without trusted rows both are fitted together.
    """
    N = len(columns.own)
    rows = _sampled(np.arange(n_train, N) if n_train < N else np.arange(N), seed)
    V = np.stack([np.maximum(view[rows], -_MAX_LOG_ODDS) for view in views.values()], axis=-1)
    limits = [(0.0, _MAX_WEIGHTS.get(name, _MAX_WEIGHT)) for name in views]
    if n_train == N:
        return _maximised(V, columns.part(rows), limits)
    stack = _maximised(V, columns.part(rows), limits, flips=False)
    if n_train == 0:
        return stack
    rows = _sampled(np.arange(n_train), seed)
    some = columns.part(rows)
    log_q = stack.log_q([view[rows] for view in views.values()], some)[:, :, None]
    rates = _maximised(log_q, some, [(1.0, 1.0)], biases=False).flip_rates
    return replace(stack, flip_rates=rates)


def _sampled(rows: np.ndarray, seed: int) -> np.ndarray:
    if len(rows) <= _FIT_ROWS:
        return rows
    return np.sort(np.random.default_rng(seed).permutation(rows)[:_FIT_ROWS])


def _maximised(
    V: np.ndarray,
    columns: Columns,
    limits: list[tuple[float, float]],
    *,
    biases: bool = True,
    flips: bool = True,
) -> Stack:
    """Return the most likely stack: weights within limits, and what else is free to vary."""
    K, C, codes, own = V.shape[-1], columns.n_classes, columns.codes, columns.own
    at, flat = np.arange(len(own)), codes.ravel().astype(np.int64)
    start = _FLIP_LOGIT if flips else _NO_FLIPS
    sizes = [K, C, 1, C]
    center = np.repeat([1.0 / K, 0.0, start, 0.0], sizes)
    penalty = np.repeat([_WEIGHT_PENALTY, _BIAS_PENALTY, _FLIP_PENALTY, _CLASS_PENALTY], sizes)
    bounds: list[tuple[float | None, float | None]] = [*limits]
    bounds += [(None, None) if biases else (0.0, 0.0)] * C
    bounds += [(-9.0, _MAX_FLIP_LOGIT) if flips else (start, start)]
    bounds += [(-5.0, 5.0) if flips and C <= _MAX_RATED_CLASSES else (0.0, 0.0)] * C

    def rates(v: np.ndarray) -> np.ndarray:
        return expit(np.minimum(v[K + C] + v[K + C + 1 :], _MAX_CLASS_LOGIT))

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        q = np.exp(log_softmax(V @ v[:K] + v[K : K + C][codes], axis=1))
        pi = rates(v)[codes]
        by_q, by_pi = pi / (C - 1), q / (C - 1)
        by_q[at, own], by_pi[at, own] = 1.0 - pi[at, own], -q[at, own]
        likelihood = np.maximum(np.sum(q * by_q, axis=1), 1e-300)[:, None]
        slope = q * (1.0 - by_q / likelihood)  # of the logits: Σ_c q_c·∂/∂q_c = likelihood
        off = v - center
        by_rate = np.bincount(flat, (-by_pi / likelihood * pi * (1.0 - pi)).ravel(), minlength=C)
        gradient = np.concatenate([
            np.einsum("nc,nck->k", slope, V),
            np.bincount(flat, slope.ravel(), minlength=C),
            [by_rate.sum()],
            by_rate,
        ])  # fmt: skip
        return float(-np.log(likelihood).sum() + 0.5 * penalty @ off**2), gradient + penalty * off

    # With a dozen parameters L-BFGS mostly waits for BLAS threads.
    with threadpool_limits(1, user_api="blas"):
        found = minimize(
            objective, center, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": 300, "ftol": 1e-12, "gtol": 1e-7},
        )  # fmt: skip
    return Stack(found.x[:K], found.x[K : K + C], rates(found.x))


def _tells_apart(view: np.ndarray, columns: Columns) -> bool:
    """Return True if rows of some class get a higher probability of it than other rows do.

    Ranks decide (the Mann-Whitney U test), so overconfidence is no hindrance.
    """
    n, given = len(columns.own), columns.given
    if columns.codes.shape[1] < columns.n_classes:  # columns differ between rows: compare own
        own = view[np.arange(n), columns.own]
        return bool(np.mean(own >= np.sort(view, axis=1)[:, -2]) > 2.0 / columns.codes.shape[1])
    sizes = np.bincount(given, minlength=columns.n_classes)
    for c in np.argsort(-sizes)[:_MAX_TESTED_CLASSES]:
        p, here = np.round(view[:, c], 9), given == c
        if 0 < sizes[c] < n:
            test: Any = mannwhitneyu(p[here], p[~here], alternative="greater", method="asymptotic")
            if test.pvalue < _CHANCE:
                return True
    return False


def likeliest_other(log_p: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the column of the most likely label other than the given one."""
    rest = log_p.copy()
    rest[np.arange(len(own)), own] = -np.inf
    return first_largest(rest)


def _with_margins(z: np.ndarray, margins: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return z with how long a recorded training took to accept the labels."""
    place = np.unique(given, return_inverse=True)[1]
    size = np.bincount(place)
    # least squares of z on the margins, with an intercept for each class
    x_mean, z_mean = ((np.bincount(place, v) / size)[place] for v in (margins, z))
    x, y = margins - x_mean, z - z_mean
    calibrated = z_mean + x * float(x @ y) / (float(x @ x) + 1e-3)
    return (z + _MARGIN_WEIGHT * calibrated) / (1.0 + _MARGIN_WEIGHT)


def _probabilities(flipped: np.ndarray, score: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return P(wrong): by flips, or by hesitation where that is more likely."""
    doubt = (1.0 - flipped) * (1.0 - q)
    hesitant = _HESITANT_SHARE * float(doubt.mean() ** 0.25 * doubt.sum())
    return np.maximum(flipped, shifted(_HESITANT_SLOPE * score, hesitant))


def shifted(odds: np.ndarray, total: float) -> np.ndarray:
    """Return probabilities with these log-odds, all shifted such that they sum to a total."""
    total = float(np.clip(total, _EDGE * len(odds), (1 - _EDGE) * len(odds)))
    shift = brentq(lambda by: float(expit(odds + by).sum()) - total, -80.0, 80.0)
    return expit(odds + shift)


def _model_error(log_q: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    """Return how often q errs on trusted rows, and what that adds to the error of a flip rate.

    A share D of contradicted labels means a flip rate of (D − e)/(1 − 2e); e is known from m rows.
    """
    m = len(own)
    # Agresti and Coull's two successes and two failures: no error in 40 rows does not mean none
    e = min(float((np.sum(first_largest(log_q) != own) + 2.0) / (m + 4.0)), 0.45)
    return e, float(np.sqrt(e * (1 - e) / m) / (1 - 2 * e))
