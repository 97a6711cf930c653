"""The share of wrong labels is not one number but a posterior; these shares stand for it.

The prior holds every order of magnitude equally likely (density 1/π): where the likelihood is flat,
because noise and mistakes look alike, few labels are taken to be wrong and the interval is wide.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.interpolate import PchipInterpolator

__all__ = ["PARTS", "around_peak", "count_interval", "posterior_points", "spread_points"]

PARTS = 15
"""How many shares stand for the posterior, each for an equal part of it."""
POINTS = 2000


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
    points = np.linspace(np.log(shares[0]), np.log(shares[-1]), POINTS)
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
