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

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp
from threadpoolctl import threadpool_limits

from exempla.tasks.labels.wrong import Z90

KINDS = ("×10", "÷10", "×100", "÷100", "×1000", "÷1000", "sign", "digits exchanged",
         "another row's value", "out of range")  # fmt: skip
_FACTORS = (0.1, 10.0, 0.01, 100.0, 0.001, 1000.0, -1.0)
"""What undoes the slip of the first kinds."""
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
    log_tail: float
    center: float

    @property
    def tail(self) -> float:
        """ν."""
        return float(np.clip(np.exp(self.log_tail), *_TAILS))

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """log f(z)."""
        nu, left, right = self.tail, np.exp(self.left), np.exp(self.right)
        off = (z - self.center) / np.where(z < self.center, left, right)
        peak = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
        return peak + np.log(2.0 / (left + right)) - (nu + 1) / 2 * np.log1p(off**2 / nu)


class Assessed(NamedTuple):
    """What is estimated of every number."""

    probabilities: np.ndarray
    kinds: np.ndarray
    """(n,) position in KINDS of the likeliest mistake."""
    expected_errors: float
    interval: tuple[float, float]
    """90 % interval of the number of wrong numbers, those that noise hides not counted."""
    tail: float
    """ν of right residuals."""


def assess(case: Case, seed: int) -> Assessed:
    """Return P(wrong) of every number, the likeliest kind of mistake and the count."""
    n, rows = int((~case.curated).sum()), np.arange(len(case.y))
    if len(rows) > _FIT_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _FIT_ROWS, replace=False))
    some = _Densities(Case(*(values[rows] for values in case)))
    with threadpool_limits(1, user_api="blas"):  # short vectors only wait for threads
        fitted = max((_maximised(some, share) for share in _STARTS), key=lambda one: one[2])
    right, shares, _ = fitted
    wrong, ways, _ = _responsible(*_Densities(case).given(right), shares)
    wrong = np.where(case.curated, 0.0, np.minimum(wrong, n / (n + 3.0)))
    expected = float(wrong.sum())
    # the count varies around its mean, and the shares are known from as many cases only
    off = Z90 * float(np.sqrt(expected + np.sum(wrong * (1.0 - wrong))))
    interval = max(expected - off, 0.0), min(expected + off, float(n))
    return Assessed(wrong, np.argmax(ways, axis=1), expected, interval, right.tail)


def repaired(case: Case, kinds: np.ndarray) -> np.ndarray:
    """What each number should be: the slip undone, or the expected number.

    >>> two = Case(np.array([350.0, 35.0]), np.array([36.0, 48.0]), np.ones(2), np.zeros(2, bool))
    >>> repaired(two, np.array([0, 8]))
    array([35., 48.])
    """
    rows, exchanges = np.arange(len(kinds)), _exchanges(case.y)
    off = np.where(np.isnan(exchanges), np.inf, np.abs(exchanges - case.expected[:, None]))
    undone = np.column_stack([case.y[:, None] * _FACTORS, exchanges[rows, np.argmin(off, axis=1)]])
    slip = undone[rows, np.minimum(kinds, len(_FACTORS))]
    return np.where((kinds > len(_FACTORS)) | np.isnan(slip), case.expected, slip)


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
    found = [exchanged(value) for value in y.tolist()]
    return np.array([each + [np.nan] * (PAIRS - len(each)) for each in found]).reshape(-1, PAIRS)


class _Densities:
    """Log-densities of numbers that are right, or wrong in each way."""

    def __init__(self, case: Case) -> None:
        self.case = case
        exchanges = _exchanges(case.y)
        undone = np.hstack([case.y[:, None] * _FACTORS, exchanges])
        told = np.abs(undone - case.y[:, None]) > _UNDONE * case.spread[:, None]
        self.undone = np.where(told, undone, np.nan)
        """(n, J) numbers with a slip undone; NaN where there is none."""
        count = np.maximum((~np.isnan(exchanges)).sum(axis=1), 1)[:, None]
        jacobian = np.tile(np.log(np.abs(_FACTORS)), (len(case.y), 1))
        self.added = np.hstack([jacobian, np.tile(-np.log(count), (1, PAIRS))])
        """(n, J) log |dT/dy|, or the share of one exchange among several."""
        near = np.abs(case.y - case.expected) <= _TOLD_APART * case.spread
        self.other = np.where(near[:, None], -np.inf, _whatever_is_expected(case))

    def given(self, right: _Right) -> tuple[np.ndarray, np.ndarray]:
        """Return those of right numbers, (n,), and of numbers wrong in each way, (n, K)."""
        case, unit = self.case, np.log(self.case.spread)
        clean = right.log_density((case.y - case.expected) / case.spread) - unit
        off = (self.undone - case.expected[:, None]) / case.spread[:, None]
        slips = right.log_density(np.nan_to_num(off)) - unit[:, None] + self.added
        slips[np.isnan(off)] = -np.inf
        exchanges = logsumexp(slips[:, len(_FACTORS) :], axis=1, keepdims=True)
        return clean, np.hstack([slips[:, : len(_FACTORS)], exchanges, self.other])


def _whatever_is_expected(case: Case) -> np.ndarray:
    """(n, 2): log-densities of another row's value, and of a number out of range."""
    y = case.y
    range_ = float(np.subtract(*np.quantile(y, [0.95, 0.05]))) or float(np.std(y)) or 1.0
    near = np.quantile(y, np.linspace(0.01, 0.99, 99))  # of all numbers, less the farthest
    width = max(0.5 * float(np.median(case.spread)), range_ / 20.0)
    kernel = -0.5 * ((y[:, None] - near) / width) ** 2
    swapped = logsumexp(kernel, axis=1) - np.log(99.0 * width * np.sqrt(2 * np.pi))
    off = (y - float(np.median(y))) / (5.0 * range_)
    return np.column_stack([swapped, -np.log1p(off**2) - np.log(np.pi * 5.0 * range_)])


def _responsible(
    clean: np.ndarray, wrong: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return P(wrong), P(wrong in this way) and the log-density of each number."""
    parts = wrong + np.log(shares)
    ways = logsumexp(parts, axis=1)
    total = np.logaddexp(ways, clean + np.log1p(-shares.sum()))
    return np.exp(ways - total), np.exp(parts - total[:, None]), total


def _maximised(densities: _Densities, start: float) -> tuple[_Right, np.ndarray, float]:
    """Return the most likely mixture by expectation-maximisation from a share of wrong numbers:
    right numbers, the shares of the kinds among all numbers, and the log-posterior."""
    case = densities.case
    n = int((~case.curated).sum())
    right, shares = _Right(0.0, 0.0, np.log(5.0), 0.0), np.full(len(KINDS), start / len(KINDS))
    posterior = -np.inf
    for _ in range(_MAX_STEPS):
        clean, wrong = densities.given(right)
        chance, ways, total = _responsible(clean, wrong, shares)
        total = np.where(case.curated, clean, total)
        # under the prior 1/share: a kind without a whole case fades
        before, posterior = posterior, float(total.sum() - np.log(np.maximum(n * shares, 1)).sum())
        if posterior - before < 1e-3:
            break
        right = _fit_right(case, np.where(case.curated, 1.0, 1.0 - chance), right)
        shares = np.maximum(ways[~case.curated].sum(axis=0) - 1.0, _FADED) / n
        shares *= min(1.0, _MOST_WRONG / shares.sum())
    return right, shares, posterior


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
