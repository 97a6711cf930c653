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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.tasks.fix_labels.noise.kinds import NoiseModel, fit_noise
from exempla.tasks.fix_labels.noise.posterior import ClassPosterior, refitted

__all__ = ["Spread", "TrustedRows", "spread_of"]

DRAWS = 12
ROWS = 2000
"""Training rows the draws are fitted to: what they differ in is the curated rows."""
NEARLY = 2.0
"""Log-likelihoods closer than this are not told apart."""
TWO_SIDED = 1.645
"""Of a normal distribution, 90 % lie within."""
SETTINGS = ((-30.0, 1.0), (-1.0, 1.0), (0.0, 1.0), (0.0, 2.0), (1.5, 2.0), (3.0, 3.0), (3.0, 1.5))
"""(s, b): no wavering at all, then more and more of it."""
ECHOES = (0.25, 0.5, 0.75, 1.0)
"""λ: how often a label repeats what its row looks like."""
APART = 2.0
"""Numbers that differ by this factor are different answers,"""
FEW = 0.01
"""unless all are below this share of the rows."""
LEAST = 1e-3


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
    for _ in range(DRAWS):
        share = rng.exponential(size=m)
        q = refitted(trusted.views, trusted.codes, kept, posterior.penalty, share)
        log_q = q.log_proba(few)
        fitted = fit_noise(log_q, labels, weights=weights, start=noise, curated=m)
        drawn.append(max(float(weights @ fitted.wrong(log_q, labels)), LEAST))
    log_q = posterior.log_proba(few)
    here = noise.wrong(log_q, labels)
    number = max(float(weights @ here), LEAST)
    possible = [number, *_possible(posterior, noise, trusted, (log_q, labels, weights))]
    scatter = np.exp(TWO_SIDED * np.std(np.log(drawn), ddof=1))
    chance = float(np.sqrt(weights @ (here * (1 - here))))
    # the rows looked at stand for all: what they say is taken in proportion to all rows' number
    low = expected * min(possible) / number / scatter - TWO_SIDED * chance
    high = expected * max(possible) / number * scatter + TWO_SIDED * chance
    unsure = TWO_SIDED * float(np.hypot(n * _own_mistakes(posterior, trusted), chance))
    told = max(possible) < APART * min(possible) or max(possible) < FEW * n
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
        if other.log_likelihood * m / (m + n) + shown(other) > likeliest - NEARLY:
            found.append(max(float(weights @ other.wrong(log_q, labels)), LEAST))
    if trusted.once is None:  # what rows were once called would have shown it
        for echo in ECHOES:
            log_likelihood, wrong = _echoed(log_q, labels, weights, echo)
            if log_likelihood * m / (m + n) > likeliest - NEARLY:
                found.append(max(float(weights @ wrong), LEAST))
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
