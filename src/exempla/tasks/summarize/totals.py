"""How much a summary may weigh: judged by the training examples that are not in it.

They did enter the target, but what is chosen by them is one of a few totals, and there are many
of them. (Measured on tuning seeds of CovType and ChemReact: a held-out tenth chooses worse, because
it is small; preferring larger totals within one standard error is worse still.)
"""

from __future__ import annotations

import numpy as np

from exempla.progress import track
from exempla.tasks.summarize.head import Head
from exempla.tasks.summarize.refit import Refit

__all__ = ["best_total", "judges"]

MOST_JUDGES = 50_000
FEWEST_JUDGES = 10
TOTALS = 9
"""How many totals are tried, evenly spaced on a logarithmic scale."""

Weighted = tuple[np.ndarray, np.ndarray]
"""Picked examples, and weights that sum to 1."""


def judges(head: Head, choices: list[Weighted], rng: np.random.Generator) -> np.ndarray:
    """Training examples that no choice has picked; none if they are too few to judge by."""
    picked = np.unique(np.concatenate([indices for indices, _ in choices]))
    rest = np.setdiff1d(np.arange(len(head)), picked)
    if head.counts is not None:
        rest = rest[head.counts[rest] > 0]
    if len(rest) < FEWEST_JUDGES:
        return np.empty(0, dtype=np.int64)
    return rest if len(rest) <= MOST_JUDGES else rng.choice(rest, MOST_JUDGES, replace=False)


def best_total(
    choices: list[Weighted], refit: Refit, others: np.ndarray, head: Head
) -> tuple[int, float]:
    """Which choice, at which total, lets a refit predict the others best; ties go to n."""
    counts = None if head.counts is None else head.counts[others]
    best, chosen = -np.inf, (0, head.size)
    # from n down, so that a total that changes nothing stays n
    totals = np.geomspace(head.size, min(1.0, len(choices[0][0]) / 32), TOTALS)
    tried = [(i, float(amount)) for amount in totals for i in range(len(choices))]
    for i, amount in track(tried, "choosing the total weight", len(tried)):
        picked, weights = choices[i]
        each = refit(picked, weights * amount, others)
        likely = float(np.average(each, weights=counts))
        if likely > best + 1e-9 * abs(likely):
            best, chosen = likely, (i, amount)
    return chosen
