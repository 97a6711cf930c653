"""How likely each number is wrong: right and wrong numbers as a mixture of densities.

A right number y has a residual z = (y − μ)/s of a two-piece Student distribution, whose scales to
both sides and tail ν are fitted: heavy-tailed noise is right. A wrong number is one of these KINDS:

    ×10, ÷10, ×100, ÷100, ×1000, ÷1000, sign    T(y) is a right number, where T undoes the slip
    digits exchanged                             it is one with two neighbouring digits put back
    another row's value                          it has the distribution of all numbers, whatever x
    out of range                                 it lies anywhere, far away more often than not

The shares of the kinds and the distribution of right numbers are fitted together by
expectation-maximisation. The prior of each share holds every order of magnitude equally likely
(density 1/share): a kind without a whole case fades, so what noise explains as well is not called
wrong. Curated rows are right numbers, and count for the right component alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

from exempla.tasks.labels.wrong import Z90

KINDS = ("×10", "÷10", "×100", "÷100", "×1000", "÷1000", "sign", "digits exchanged",
         "another row's value", "out of range")  # fmt: skip
_FACTORS = (0.1, 10.0, 0.01, 100.0, 0.001, 1000.0, -1.0)
"""What undoes the slip of the first kinds."""
_SLIPS = len(_FACTORS) + 1
"""The kinds that can be undone; the others are mended by the expected number."""
PAIRS = 4
"""Neighbouring digits, from the first on, that may stand in each other's place."""
_FIT_ROWS = 5_000
"""Rows the distribution of right numbers is fitted to; a random part of larger sets."""
_MAX_STEPS = 40
_STARTS = (1e-4, 0.01, 0.1)
"""Shares of wrong numbers from which the fit starts; the most likely result is taken."""
_MOST_WRONG = 0.4
_FADED = 0.1
"""Cases of a kind that is taken not to occur: it may come back."""
_TAILS = (1.5, 60.0)
"""ν of the Student distribution: from almost Cauchy to almost normal."""
_TOLD_APART, _UNDONE = 2.5, 1.5
"""What lies fewer spreads than this from the expected number, or a slip from the number undone,
cannot be told from noise and does not count as wrong: there the shape of the noise would decide,
and nobody knows it."""


class Case(NamedTuple):
    """What the mixture is of."""

    y: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    curated: np.ndarray
    """(n,) rows known to be right."""


class _Right(NamedTuple):
    """The two-piece Student distribution of right residuals: log scales left and right, log ν,
    and where its peak is."""

    left: float
    right: float
    tail: float
    center: float

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """log f(z)."""
        nu = np.clip(np.exp(self.tail), *_TAILS)
        left, right = np.exp(self.left), np.exp(self.right)
        off = (z - self.center) / np.where(z < self.center, left, right)
        peak = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
        return peak + np.log(2.0 / (left + right)) - (nu + 1) / 2 * np.log1p(off**2 / nu)


@dataclass(frozen=True)
class Assessed:
    """What is estimated of every number."""

    probabilities: np.ndarray
    kinds: np.ndarray
    """(n,) position in KINDS of the likeliest mistake."""
    expected_errors: float
    interval: tuple[float, float]
    """90 % interval of the number of wrong numbers, those that noise hides not counted."""
    tail: float
    """ν of right residuals."""


class _Fitted(NamedTuple):
    """The most likely mixture."""

    right: _Right
    shares: np.ndarray
    """Of the kinds among all numbers."""
    log_posterior: float


def suspects(case: Case, seed: int) -> np.ndarray:
    """Return which numbers are more likely wrong than right, (n,)."""
    return np.greater(_posterior(case, seed)[0], 0.5)


def assess(case: Case, seed: int) -> Assessed:
    """Return P(wrong) of every number, the likeliest kind of mistake and the count."""
    n = int((~case.curated).sum())
    wrong, ways, right = _posterior(case, seed)
    wrong = np.where(case.curated, 0.0, np.minimum(wrong, n / (n + 3.0)))
    expected = float(wrong.sum())
    # the count varies around its mean, and the shares are known from as many cases only
    off = Z90 * float(np.sqrt(expected + np.sum(wrong * (1.0 - wrong))))
    return Assessed(
        wrong,
        np.argmax(ways, axis=1),
        expected,
        (max(expected - off, 0.0), min(expected + off, float(n))),
        float(np.clip(np.exp(right.tail), *_TAILS)),
    )


def repaired(case: Case, kinds: np.ndarray) -> np.ndarray:
    """What each number should be: the slip undone, or the expected number.

    >>> two = Case(np.array([350.0, 35.0]), np.array([36.0, 48.0]), np.ones(2), np.zeros(2, bool))
    >>> repaired(two, np.array([0, 8]))
    array([35., 48.])
    """
    undone = np.column_stack([case.y[:, None] * _FACTORS, _best_exchange(case)])
    rows = np.arange(len(kinds))
    return np.where(kinds < _SLIPS, undone[rows, np.minimum(kinds, _SLIPS - 1)], case.expected)


def exchanged(value: float) -> list[float]:
    """The numbers that two neighbouring digits in each other's place make of it.

    >>> exchanged(152.0), exchanged(-7.0)
    ([512.0, 125.0], [])
    """
    text = f"{value:.6g}" if value % 1 else f"{value:.0f}"
    digits = [i for i, sign in enumerate(text) if sign.isdigit()] if "e" not in text else []
    out = []
    for i, j in pairwise(digits[: PAIRS + 1]):
        if text[i] != text[j]:
            swapped = list(text)
            swapped[i], swapped[j] = text[j], text[i]
            out.append(float("".join(swapped)))
    return out


def _exchanges(y: np.ndarray) -> np.ndarray:
    """(n, PAIRS): those numbers, and NaN where there are fewer."""
    out = np.full((len(y), PAIRS), np.nan)
    for row, value in enumerate(y.tolist()):
        found = exchanged(value)
        out[row, : len(found)] = found
    return out


def _best_exchange(case: Case) -> np.ndarray:
    found = _exchanges(case.y)
    off = np.where(np.isnan(found), np.inf, np.abs(found - case.expected[:, None]))
    best = found[np.arange(len(found)), np.argmin(off, axis=1)]
    return np.where(np.isnan(best), case.expected, best)


class _Fixed(NamedTuple):
    """What of the wrong kinds does not change while fitting."""

    undone: np.ndarray
    """(n, J) numbers with a slip undone; NaN where there is none."""
    weights: np.ndarray
    """(n, J) log-densities' added part: log |dT/dy|, or the share of one exchange among several."""
    other: np.ndarray
    """(n, 2) log-densities of the kinds that do not depend on what is expected."""

    def part(self, rows: np.ndarray) -> _Fixed:
        """Of some rows."""
        return _Fixed(*(values[rows] for values in self))


def _fixed(case: Case) -> _Fixed:
    exchanges = _exchanges(case.y)
    undone = np.hstack([case.y[:, None] * _FACTORS, exchanges])
    told = np.abs(undone - case.y[:, None]) > _UNDONE * case.spread[:, None]
    count = np.maximum((~np.isnan(exchanges)).sum(axis=1), 1)
    added = np.log(np.abs(np.tile(_FACTORS, (len(case.y), 1))))
    added = np.hstack([added, np.tile(-np.log(count)[:, None], (1, PAIRS))])
    near = np.abs(case.y - case.expected) <= _TOLD_APART * case.spread
    return _Fixed(
        np.where(told, undone, np.nan), added, np.where(near[:, None], -np.inf, _other(case))
    )


def _other(case: Case) -> np.ndarray:
    """(n, 2): log-densities of the two kinds that do not depend on what is expected."""
    y = case.y
    middle = float(np.median(y))
    range_ = float(np.subtract(*np.quantile(y, [0.95, 0.05]))) or float(np.std(y)) or 1.0
    near = np.quantile(y, np.linspace(0.01, 0.99, 99))  # of all numbers, less the farthest
    width = max(0.5 * float(np.median(case.spread)), range_ / 20.0)
    kernel = -0.5 * ((y[:, None] - near) / width) ** 2
    swapped = logsumexp(kernel, axis=1) - np.log(99.0 * width * np.sqrt(2 * np.pi))
    off = (y - middle) / (5.0 * range_)
    anywhere = -np.log1p(off**2) - np.log(np.pi * 5.0 * range_)
    return np.column_stack([swapped, anywhere])


def _sample(case: Case, seed: int) -> np.ndarray:
    n = len(case.y)
    return (
        np.arange(n)
        if n <= _FIT_ROWS
        else np.sort(np.random.default_rng(seed).choice(n, _FIT_ROWS, replace=False))
    )


def _densities(case: Case, fixed: _Fixed, right: _Right) -> tuple[np.ndarray, np.ndarray]:
    """log-densities of y if it is right, (n,), and if it is wrong in each way, (n, K)."""
    unit = np.log(case.spread)
    clean = right.log_density((case.y - case.expected) / case.spread) - unit
    off = (fixed.undone - case.expected[:, None]) / case.spread[:, None]
    slips = right.log_density(np.nan_to_num(off)) - unit[:, None] + fixed.weights
    slips[np.isnan(off)] = -np.inf
    exchanges = logsumexp(slips[:, len(_FACTORS) :], axis=1, keepdims=True)
    return clean, np.hstack([slips[:, : len(_FACTORS)], exchanges, fixed.other])


def _posterior(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, _Right]:
    """Return P(wrong), (n,), P(wrong in this way), (n, K), and the distribution of right ones."""
    fixed, rows = _fixed(case), _sample(case, seed)
    part, told = Case(*(values[rows] for values in case)), fixed.part(rows)
    fitted = max(
        (_maximised(part, told, share) for share in _STARTS), key=lambda one: one.log_posterior
    )
    clean, wrong = _densities(case, fixed, fitted.right)
    return *_responsible(clean, wrong, fitted.shares)[:2], fitted.right


def _responsible(
    clean: np.ndarray, wrong: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return P(wrong), P(wrong in this way) and the log-density of each number."""
    parts = wrong + np.log(shares)
    ways = logsumexp(parts, axis=1)
    total = np.logaddexp(ways, clean + np.log1p(-shares.sum()))
    return np.exp(ways - total), np.exp(parts - total[:, None]), total


def _maximised(case: Case, fixed: _Fixed, start: float) -> _Fitted:
    """Return the most likely mixture by expectation-maximisation from a share of wrong numbers."""
    n = int((~case.curated).sum())
    right, shares = _Right(0.0, 0.0, np.log(5.0), 0.0), np.full(len(KINDS), start / len(KINDS))
    posterior = -np.inf
    for _ in range(_MAX_STEPS):
        clean, wrong = _densities(case, fixed, right)
        chance, ways, total = _responsible(clean, wrong, shares)
        total = np.where(case.curated, clean, total)
        # under the prior 1/share: a kind without a whole case fades
        before, posterior = posterior, float(total.sum() - np.log(np.maximum(n * shares, 1)).sum())
        if posterior - before < 1e-3:
            break
        right = _fit_right(case, np.where(case.curated, 1.0, 1.0 - chance), right)
        shares = np.maximum(ways[~case.curated].sum(axis=0) - 1.0, _FADED) / n
        shares *= min(1.0, _MOST_WRONG / shares.sum())
    return _Fitted(right, shares, posterior)


def _fit_right(case: Case, weights: np.ndarray, start: _Right) -> _Right:
    z = (case.y - case.expected) / case.spread
    keep = weights > 1e-3
    z, w = z[keep], weights[keep]

    def loss(p: np.ndarray) -> float:
        return -float(w @ _Right(*p).log_density(z)) / len(z)

    bounds = [(-3.0, 3.0), (-3.0, 3.0), tuple(np.log(_TAILS)), (-1.0, 1.0)]
    found = minimize(loss, np.array(start), method="L-BFGS-B", bounds=bounds,
                     options={"maxiter": 8})  # fmt: skip
    return _Right(*map(float, found.x))
