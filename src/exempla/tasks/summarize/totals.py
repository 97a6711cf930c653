"""How much a summary may weigh: measured on the training examples that are not in it.

They did enter the target, but what is chosen by them is one of a few totals, and there are many
of them. (Measured on tuning seeds of CovType and ChemReact: a held-out tenth chooses worse, because
it is small; preferring larger totals within one standard error is worse still.)
"""

from __future__ import annotations

import numpy as np

from exempla.progress import track
from exempla.tasks.summarize.last_layer import LastLayer
from exempla.tasks.summarize.refit import Refit

__all__ = ["best_total", "left_out"]

MOST, FEWEST = 50_000, 10
"""Examples to measure by: more say little more, fewer say nothing."""
TOTALS = 9
"""How many totals are tried, evenly spaced on a logarithmic scale."""
EQUAL = 1e-6
"""Mean log-likelihoods within this share of each other are equal: a refit stops that far from its
optimum, and where exactly is decided by rounding."""

Weighted = tuple[np.ndarray, np.ndarray]
"""Picked examples, and weights that sum to 1."""


def left_out(layer: LastLayer, choices: list[Weighted], rng: np.random.Generator) -> np.ndarray:
    """Training examples that no choice has picked; none if they are too few to measure by."""
    picked = np.unique(np.concatenate([indices for indices, _ in choices]))
    rest = np.setdiff1d(np.arange(len(layer)), picked)
    if layer.counts is not None:
        rest = rest[layer.counts[rest] > 0]
    if len(rest) < FEWEST:
        return np.empty(0, dtype=np.int64)
    return rest if len(rest) <= MOST else rng.choice(rest, MOST, replace=False)


def best_total(
    choices: list[Weighted], refit: Refit, others: np.ndarray, layer: LastLayer
) -> tuple[int, float]:
    """Which choice, at which total, lets a refit predict the others best; ties go to n."""
    counts = None if layer.counts is None else layer.counts[others]
    best, chosen = -np.inf, (0, layer.size)
    # from n down, so that a total that changes nothing stays n
    totals = np.geomspace(layer.size, min(1.0, len(choices[0][0]) / 32), TOTALS)
    tried = [(i, float(amount)) for amount in totals for i in range(len(choices))]
    for i, amount in track(tried, "choosing the total weight", len(tried)):
        picked, weights = choices[i]
        each = refit(picked, weights * amount, others)
        likely = float(np.average(each, weights=counts))
        if likely > best + EQUAL * abs(likely):
            best, chosen = likely, (i, amount)
    return chosen
