"""How likely each number is wrong: right and wrong numbers as a mixture of densities.

A right number y has residual z = (y − μ)/s of a two-piece Student distribution, whose scales to
both sides and tail ν are fitted: heavy-tailed noise is right. A wrong number is one of these KINDS:

    ×10, ÷10, ×100, ÷100, ×1000, ÷1000, sign    T(y) is a right number, where T undoes the slip
    digits exchanged                             it is one with two neighbouring digits put back
    another row's value                          it has the distribution of all numbers, whatever x
    out of range                                 it lies anywhere, far away more often than not

Given the share π of wrong numbers, the shares of the kinds and the distribution of right ones are
the likeliest (expectation-maximisation). π itself is not one number: its posterior over a grid,
from the profile likelihood and a prior that holds every order of magnitude equally likely (density
1/π, for each kind's share as well), is averaged over. Where data cannot tell noise from mistakes,
that keeps the estimate low and its interval wide. Curated rows are right numbers, and count for the
right component alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

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
STEPS = 12
_COARSE, _FINE = 10, 5
"""Shares tried at first, then twice between the neighbours of the best."""
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
    evidence: np.ndarray
    """(n,) log-odds of wrong at even odds, every kind held possible: what the order goes by."""
    kinds: np.ndarray
    """(n,) position in KINDS of the likeliest mistake."""
    expected_errors: float
    interval: tuple[float, float]
    """Of the number of wrong numbers among those judged: from the 5 % to the 95 % quantile."""
    tail: float
    """ν of right residuals."""


class _Fitted(NamedTuple):
    """The likeliest mixture at one share of wrong numbers."""

    right: _Right
    shares: np.ndarray
    """Of the kinds among wrong numbers."""
    log_likelihood: float


def suspects(case: Case, seed: int) -> np.ndarray:
    """(n,) which numbers are more likely wrong than not, at the likeliest share."""
    fixed, start = _fixed(case), _start()
    rows = _sample(case, seed)
    share, fitted = 0.05, _Fitted(start, _even(), 0.0)
    wrong = np.zeros(len(case.y))
    for _ in range(3):
        fitted = _maximised(case, fixed, share, fitted, rows, 4)
        wrong = _posterior(case, fixed, share, fitted)[0]
        judged = ~case.curated
        share = float(np.clip(np.mean(wrong[judged]), 1.0 / (len(case.y) + 1), _MOST_WRONG))
    return np.greater(wrong, 0.5)


def assess(case: Case, seed: int) -> Assessed:
    """Average over what the share of wrong numbers may be."""
    fixed, rows = _fixed(case), _sample(case, seed)
    anywhere = fixed._replace(other=_other(case))
    found = _averaged(case, fixed, rows)
    # What noise of the fitted shape would leave to mistakes close to the expected number: an upper
    # end, for that the noise has this shape is not known.
    most = _averaged(case, anywhere, rows).interval[1]
    n = int((~case.curated).sum())
    clean, ways = _densities(case, anywhere, found.best.right)
    possible = logsumexp(ways + np.log(0.5 * found.best.shares + 0.5 / len(KINDS)), axis=1)
    wrong = np.where(case.curated, 0.0, np.minimum(found.wrong, n / (n + 3.0)))
    return Assessed(
        wrong,
        possible - clean,
        np.argmax(found.kinds, axis=1),
        float(wrong.sum()),
        (found.interval[0], max(found.interval[1], most)),
        float(np.clip(np.exp(found.best.right.tail), *_TAILS)),
    )


class _Averaged(NamedTuple):
    wrong: np.ndarray
    kinds: np.ndarray
    interval: tuple[float, float]
    best: _Fitted


def _averaged(case: Case, fixed: _Fixed, rows: np.ndarray) -> _Averaged:
    """P(wrong) and P(kind) over the posterior of the share; and of how many."""
    judged = ~case.curated
    n = int(judged.sum())
    fits = _profile(case, fixed, rows, 0.5 / n)
    shares = spread_points({share: fit.log_likelihood for share, fit in fits.items()})
    wrong, kinds, counts = np.zeros(len(case.y)), np.zeros((len(case.y), len(KINDS))), []
    for share in shares.tolist():
        nearest = min(fits, key=lambda known: abs(np.log(known / share)))
        p, ways = _posterior(case, fixed, share, fits[nearest])
        wrong, kinds = wrong + p / len(shares), kinds + ways
        p = p[judged]
        counts.append((float(p.sum()), float(np.sqrt((p * (1 - p)).sum()))))
    best = max(fits.values(), key=lambda fitted: fitted.log_likelihood)
    return _Averaged(wrong, kinds, count_interval(shares, counts, n), best)


def _profile(case: Case, fixed: _Fixed, rows: np.ndarray, least: float) -> dict[float, _Fitted]:
    """The likeliest fit at each of some shares, close together around the likeliest share."""
    fits: dict[float, _Fitted] = {}
    fitted = _Fitted(_start(), _even(), 0.0)
    for share in np.geomspace(least, _MOST_WRONG, _COARSE).tolist():
        fitted = _maximised(case, fixed, share, fitted, rows, STEPS if fits else 3 * STEPS)
        fits[share] = fitted
    for _ in range(2):
        heights = {share: fit.log_likelihood for share, fit in fits.items()}
        start = fits[max(heights, key=lambda share: heights[share])]
        for share in around_peak(heights, _FINE):
            fits[share] = _maximised(case, fixed, share, start, rows, STEPS)
    return fits


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


def _start() -> _Right:
    """Of normal spread to both sides, with a tail."""
    return _Right(0.0, 0.0, np.log(5.0), 0.0)


def _even() -> np.ndarray:
    return np.full(len(KINDS), 1.0 / len(KINDS))


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


def _posterior(
    case: Case, fixed: _Fixed, share: float, fitted: _Fitted
) -> tuple[np.ndarray, np.ndarray]:
    """P(wrong), (n,), and P(wrong in this way), (n, K)."""
    clean, wrong = _densities(case, fixed, fitted.right)
    return _responsible(clean, wrong, share, fitted.shares)[:2]


def _responsible(
    clean: np.ndarray, wrong: np.ndarray, share: float, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = wrong + np.log(np.maximum(share * shares, 1e-300))
    ways = logsumexp(parts, axis=1)
    total = np.logaddexp(ways, clean + np.log1p(-share))
    return np.exp(ways - total), np.exp(parts - total[:, None]), total


def _maximised(
    case: Case, fixed: _Fixed, share: float, start: _Fitted, rows: np.ndarray, steps: int
) -> _Fitted:
    """The likeliest distribution of right numbers and shares of the kinds, at this share."""
    part = Case(*(values[rows] for values in case))
    right, shares, told = start.right, start.shares, fixed.part(rows)
    before = -np.inf
    total = np.zeros(0)
    for _ in range(steps):
        clean, wrong = _densities(part, told, right)
        chance, ways, total = _responsible(clean, wrong, share, shares)
        total = np.where(part.curated, clean, total)
        chance = np.where(part.curated, 0.0, chance)
        ways[part.curated] = 0.0
        # the likeliest shares under the prior 1/π of each kind: those without a whole case fade
        counts = np.maximum(ways.sum(axis=0) - 1.0, _FADED)
        shares = counts / counts.sum()
        right = _fit_right(part, 1.0 - chance, right)
        if total.sum() - before < 1e-3:
            break
        before = float(total.sum())
    scale = len(case.y) / len(rows)
    return _Fitted(right, shares, float(total.sum()) * scale - _surprise(shares, share, case))


def _surprise(shares: np.ndarray, share: float, case: Case) -> float:
    """−log prior of the kinds' shares beyond that of their sum: each kind that is taken to occur
    costs as much as the first did."""
    cases = 2.0 * share * len(case.y)
    return float(np.sum(np.log(np.maximum(cases * shares, 1.0))) - np.log(max(cases, 1.0)))


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


PARTS = 15
"""How many shares stand for the posterior, each for an equal part of it."""
_POINTS = 2000


def around_peak(known: dict[float, float], count: int) -> list[float]:
    """Return new shares between the neighbours of the most likely one.

    >>> [round(share, 3) for share in around_peak({0.01: 1.0, 0.04: 3.0, 0.16: 2.0}, 3)]
    [0.02, 0.08]
    """
    order = sorted(known)
    peak = order.index(max(known, key=lambda share: known[share]))
    low, high = order[max(peak - 1, 0)], order[min(peak + 1, len(order) - 1)]
    between = np.geomspace(low, high, count + 2)[1:-1].tolist()
    return [share for share in between if min(abs(share / one - 1) for one in order) > 1e-6]


def spread_points(known: dict[float, float]) -> np.ndarray:
    """Return shares that represent the posterior, one for each of PARTS equal parts of it.

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
    """Return the 5 % and 95 % quantiles of the number of wrong numbers.

    The distribution is a mixture of normal ones, a (mean, standard deviation) for each share.
    """
    off = np.linspace(-2.5, 2.5, 51)
    means, spreads = np.array(counts).T
    points = (means[:, None] + spreads[:, None] * off).ravel()
    mass = np.tile(np.exp(-0.5 * off**2), len(shares))
    order = np.argsort(points, kind="stable")
    below = np.cumsum(mass[order]) / mass.sum()
    low, high = (points[order][np.searchsorted(below, q)] for q in (0.05, 0.95))
    return float(np.clip(low, 0.0, n)), float(np.clip(high, 0.0, n))
