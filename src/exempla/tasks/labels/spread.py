"""How far the evidence carries: an interval for the number of wrong labels.

Four things are uncertain, and each has its part:

    q       rests on m curated rows: they are weighed anew at random (the Bayesian bootstrap), and
            everything is fitted again. σ is the scatter of the logarithm of the number.
    models  are mistaken in a share e of the curated rows, known to √(e(1 − e)/m) only. Labels that
            contradict them are told from their own mistakes by that share, so whatever the draws
            say, the number of n labels is no surer than n·√(e(1 − e)/m)/(1 − 2e).
    kind    Whether hard rows are mistaken more often, and how much, is set by hand; what the labels
            make nearly as likely as the best fit is possible. That labels are less certain than q
            says, where models waver, may be due to mistakes or to q: so n labels tell no more about
            it than m·n/(m + n) rows do, and differences of log-likelihood count m/(m + n).
            The other way round, people may have called rows what they look like: a share λ of the
            labels that should differ from q's likeliest class repeat it instead. Then labels are
            more certain than q says, and P(wrong) is up to 1 − q(given).
    chance  The number itself is a sum of chances.

Where the possible kinds give different answers, the kind cannot be told, and the interval spans
all of them.

The share of wrong labels is not one number but a posterior; these shares stand for it.

The prior holds every order of magnitude equally likely (density 1/π): where the likelihood is flat,
because noise and mistakes look alike, few labels are taken to be wrong and the interval is wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from exempla.tasks.labels.noise import ClassPosterior, NoiseModel, fit_noise, refitted

_DRAWS = 12
ROWS = 2000
"""Training rows the draws are fitted to: what they differ in is the curated rows."""
_NEARLY = 2.0
"""Log-likelihoods closer than this are not told apart."""
_TWO_SIDED = 1.645
"""Of a normal distribution, 90 % lie within."""
SETTINGS = ((-30.0, 1.0), (-1.0, 1.0), (0.0, 1.0), (0.0, 2.0), (1.5, 2.0), (3.0, 3.0), (3.0, 1.5))
"""(s, b): no wavering at all, then more and more of it."""
_ECHOES = (0.25, 0.5, 0.75, 1.0)
"""λ: how often a label repeats what its row looks like."""
_APART = 2.0
"""Numbers that differ by this factor are different answers,"""
_FEW = 0.01
"""unless all are below this share of the rows."""
_LEAST = 1e-3


@dataclass(frozen=True)
class Spread:
    """From where to where the number of wrong labels may lie, with 90 % certainty."""

    low: float
    high: float
    told: bool
    """Whether the kind of mistakes can be told: no other kind fits as well and gives another
    number."""


@dataclass(frozen=True)
class TrustedRows:
    """The curated rows: their views, their labels, and what they were once called if known."""

    views: list[np.ndarray]
    codes: np.ndarray
    once: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.codes)


def spread_of(
    posterior: ClassPosterior,
    noise: NoiseModel,
    views: list[np.ndarray],
    trusted: TrustedRows,
    given: np.ndarray,
    expected: float,
    seed: int,
) -> Spread:
    """The interval around the expected number."""
    rng = np.random.default_rng(seed)
    n, m = len(given), len(trusted)
    some = np.sort(rng.permutation(n)[:ROWS])
    few, labels = [view[some] for view in views], given[some]
    weights = np.full(len(some), n / len(some))
    kept = np.flatnonzero(posterior.weights).tolist() or [0]
    drawn = []
    for _ in range(_DRAWS):
        share = rng.exponential(size=m)
        q = refitted(trusted.views, trusted.codes, kept, posterior.penalty, share)
        log_q = q.log_proba(few)
        fitted = fit_noise(log_q, labels, weights=weights, start=noise, curated=m)
        drawn.append(max(float(weights @ fitted.wrong(log_q, labels)), _LEAST))
    log_q = posterior.log_proba(few)
    here = noise.wrong(log_q, labels)
    number = max(float(weights @ here), _LEAST)
    possible = [number, *_possible(posterior, noise, trusted, (log_q, labels, weights))]
    scatter = np.exp(_TWO_SIDED * np.std(np.log(drawn), ddof=1))
    chance = float(np.sqrt(weights @ (here * (1 - here))))
    # the rows looked at stand for all: what they say is taken in proportion to all rows' number
    low = expected * min(possible) / number / scatter - _TWO_SIDED * chance
    high = expected * max(possible) / number * scatter + _TWO_SIDED * chance
    unsure = _TWO_SIDED * float(np.hypot(n * _own_mistakes(posterior, trusted), chance))
    told = max(possible) < _APART * min(possible) or max(possible) < _FEW * n
    return Spread(
        max(min(low, expected - unsure), 0.0), min(max(high, expected + unsure), float(n)), told
    )


def _possible(
    posterior: ClassPosterior,
    noise: NoiseModel,
    trusted: TrustedRows,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> list[float]:
    """The numbers by every kind that the labels make nearly as likely as the best fit."""
    log_q, labels, weights = rows
    n, m = float(weights.sum()), len(trusted)
    log_q_trusted = posterior.log_proba(trusted.views)

    def shown(kind: NoiseModel) -> float:
        """What the curated rows were once called shows the kind itself."""
        if trusted.once is None:
            return 0.0
        return float(kind.log_chance(log_q_trusted, trusted.codes, trusted.once).sum())

    best = fit_noise(log_q, labels, weights=weights, start=noise)
    likeliest = best.log_likelihood * m / (m + n) + max(shown(best), shown(noise))
    found = []
    for setting in SETTINGS:
        other = fit_noise(log_q, labels, weights=weights, fixed=setting)
        if other.log_likelihood * m / (m + n) + shown(other) > likeliest - _NEARLY:
            found.append(max(float(weights @ other.wrong(log_q, labels)), _LEAST))
    if trusted.once is None:  # what rows were once called would have shown it
        for echo in _ECHOES:
            log_likelihood, wrong = _echoed(log_q, labels, weights, echo)
            if log_likelihood * m / (m + n) > likeliest - _NEARLY:
                found.append(max(float(weights @ wrong), _LEAST))
    return found


def _echoed(
    log_q: np.ndarray, labels: np.ndarray, weights: np.ndarray, echo: float
) -> tuple[float, np.ndarray]:
    """The log-likelihood of the labels if a share of them repeats what rows look like, any other
    mistakes on top; and P(wrong) of each.

    Before other mistakes a label is the likeliest class with q + λ(1 − q), and then right with
    q/(q + λ(1 − q)); any other label has (1 − λ)q, and is right.
    """
    rows, top = np.arange(len(log_q)), log_q.argmax(axis=1)
    q = np.exp(log_q)
    said = (1.0 - echo) * q
    said[rows, top] += echo
    log_said = np.log(np.maximum(said, 1e-9))
    right = np.where(labels == top, q[rows, top] / said[rows, top], 1.0)
    noise = fit_noise(log_said, labels, weights=weights, fixed=SETTINGS[0])
    return noise.log_likelihood, 1.0 - (1.0 - noise.wrong(log_said, labels)) * right


def _own_mistakes(posterior: ClassPosterior, trusted: TrustedRows) -> float:
    """How uncertain the share of labels is that the models contradict by their own mistakes."""
    m = len(trusted)
    said = posterior.log_proba(trusted.views).argmax(axis=1)
    # two of each kind added (Agresti and Coull): no mistake in 40 rows does not mean none
    e = min(float((np.sum(said != trusted.codes) + 2.0) / (m + 4.0)), 0.45)
    return float(np.sqrt(e * (1.0 - e) / m) / (1.0 - 2.0 * e))


PARTS = 15
"""How many shares stand for the posterior, each for an equal part of it."""
_POINTS = 2000


def posterior_points(
    log_likelihood: Callable[[float], float], least: float, most: float, coarse: int, fine: int
) -> np.ndarray:
    """PARTS shares between `least` and `most`; the likelihood is asked at `coarse` of them, then
    twice at `fine` more around the likeliest."""
    known = {share: log_likelihood(share) for share in np.geomspace(least, most, coarse).tolist()}
    for _ in range(2):
        for share in around_peak(known, fine):
            known[share] = log_likelihood(share)
    return spread_points(known)


def around_peak(known: dict[float, float], count: int) -> list[float]:
    """So many shares between the neighbours of the likeliest one, less those known already.

    >>> [round(share, 3) for share in around_peak({0.01: 1.0, 0.04: 3.0, 0.16: 2.0}, 3)]
    [0.02, 0.08]
    """
    order = sorted(known)
    peak = order.index(max(known, key=lambda share: known[share]))
    low, high = order[max(peak - 1, 0)], order[min(peak + 1, len(order) - 1)]
    between = np.geomspace(low, high, count + 2)[1:-1].tolist()
    return [share for share in between if min(abs(share / one - 1) for one in order) > 1e-6]


def spread_points(known: dict[float, float]) -> np.ndarray:
    """Shares at the middle of PARTS equal parts of the posterior, from log-likelihoods of some.

    >>> bool(abs(np.median(spread_points({0.001: -50.0, 0.1: 0.0, 0.101: 0.0, 0.4: -50.0})) - 0.1)
    ...      < 0.02)
    True
    """
    shares = np.array(sorted(known))
    logs = np.array([known[share] for share in shares.tolist()])
    points = np.linspace(np.log(shares[0]), np.log(shares[-1]), _POINTS)
    # even in log π, where the prior is flat: the likelihood alone
    heights = PchipInterpolator(np.log(shares), logs)(points)
    below = np.cumsum(np.exp(heights - heights.max()))
    below /= below[-1]
    return np.exp(points[np.searchsorted(below, (np.arange(PARTS) + 0.5) / PARTS)])


def count_interval(
    shares: np.ndarray, counts: list[tuple[float, float]], n: int
) -> tuple[float, float]:
    """5 % and 95 % of the number of wrong labels, uncertain in π and in which labels it befell:
    a mixture of normal distributions, one (mean, standard deviation) for each share."""
    off = np.linspace(-2.5, 2.5, 51)
    means, spreads = np.array(counts).T
    points = (means[:, None] + spreads[:, None] * off).ravel()
    mass = np.tile(np.exp(-0.5 * off**2), len(shares))
    order = np.argsort(points, kind="stable")
    below = np.cumsum(mass[order]) / mass.sum()
    low, high = (points[order][np.searchsorted(below, q)] for q in (0.05, 0.95))
    return float(np.clip(low, 0.0, n)), float(np.clip(high, 0.0, n))
