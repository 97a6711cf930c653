"""How much a summary may weigh: judged by examples that were kept out of it."""

from __future__ import annotations

import numpy as np

from exempla.progress import track
from exempla.tasks.summary.head import Head
from exempla.tasks.summary.refit import Refit

__all__ = ["best_total", "hold_out"]

HELD_OUT = 0.1
MOST_HELD_OUT = 20_000
FEWEST_HELD_OUT = 10
TOTALS = 9
"""How many totals are tried, evenly spaced on a logarithmic scale."""

Weighted = tuple[np.ndarray, np.ndarray]
"""Picked examples, and weights that sum to 1."""


def hold_out(head: Head, k: int, discrete: bool, rng: np.random.Generator) -> np.ndarray:
    """Examples by which the total is judged: a tenth, as far as k leaves any."""
    n = len(head)
    size = min(int(HELD_OUT * n), MOST_HELD_OUT, n - k)
    if size < FEWEST_HELD_OUT:
        return np.empty(0, dtype=np.int64)
    held_out = rng.permutation(n)[:size]
    if discrete:
        # the only examples of a class stay candidates
        seen = np.unique(np.delete(head.codes, held_out))
        held_out = held_out[np.isin(head.codes[held_out], seen)]
    return held_out


def best_total(
    choices: list[Weighted], refit: Refit, held_out: np.ndarray, head: Head, progress: bool
) -> tuple[int, float]:
    """Which choice, at which total, lets a refit predict held-out examples best; ties go to n."""
    counts = None if head.counts is None else head.counts[held_out]
    best, chosen = -np.inf, (0, head.size)
    # from n down, so that a total that changes nothing stays n
    totals = np.geomspace(head.size, min(1.0, len(choices[0][0]) / 32), TOTALS)
    tried = [(i, float(amount)) for amount in totals for i in range(len(choices))]
    for i, amount in track(tried, "choosing the total weight", progress):
        picked, weights = choices[i]
        each = refit(picked, weights * amount, held_out)
        likely = float(np.average(each, weights=counts))
        if likely > best + 1e-9 * abs(likely):
            best, chosen = likely, (i, amount)
    return chosen
