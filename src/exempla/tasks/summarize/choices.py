"""k of the candidates, with weights that match the mean row."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from exempla.errors import ExemplaWarning
from exempla.results import Selection
from exempla.selection import SBQ, NonNegative, Selector, select
from exempla.tasks.summarize.classes import with_every_class
from exempla.tasks.summarize.pool import Pool
from exempla.tasks.summarize.weights import fit_weights

__all__ = ["choices"]

MOST_NONNEGATIVE = 300
"""Up to so many picks the weights are refitted ≥ 0 after each pick; beyond, where almost every
good set has nearly positive weights, SBQ is cheaper."""
NOISE = 1e-3
"""σ² of SBQ, in units of the median squared row norm."""
RIDGE = 1e-2
"""Pull of the weights towards equal ones, in the same units."""


def choices(
    pool: Pool,
    codes: np.ndarray,
    k: int,
    selector: Selector | None,
    compared: bool,
    rng: np.random.Generator,
) -> list[Selection]:
    """The summaries to take one of: where a refit compares them, one that leaves the classes'
    shares free and one that matches them; else the second alone, which is the safe one."""
    both = compared and len(pool.shares) > 0 and k <= MOST_NONNEGATIVE
    fillers = rng.permutation(len(pool.examples))
    ways = (False, True) if both else (True,)
    return [_choose(pool, codes, k, selector, by_class, fillers) for by_class in ways]


def _choose(
    pool: Pool,
    codes: np.ndarray,
    k: int,
    selector: Selector | None,
    by_class: bool,
    fillers: np.ndarray,
) -> Selection:
    """k candidates, the first of `fillers` where fewer are found; weights of sum 1."""
    k = min(k, len(pool.examples))
    pool.mark_classes(codes, by_class)
    if selector is None:
        selector = NonNegative() if k <= MOST_NONNEGATIVE else SBQ(noise=NOISE * pool.typical)
    with warnings.catch_warnings():
        # fewer picks than k are filled up below
        warnings.simplefilter("ignore", ExemplaWarning)
        found = select(pool.rows, pool.target, k, selector)
    picked = found.indices
    if len(picked) < k:
        rest = fillers[~np.isin(fillers, picked)]
        picked = np.concatenate([picked, rest[: k - len(picked)]])
    if len(pool.shares):
        picked = with_every_class(picked, codes[pool.examples], pool.rows, pool.target)
    gains = np.zeros(k)
    gains[: len(found.gains)] = found.gains
    weights = fit_weights(pool.rows[picked], pool.target, RIDGE * pool.typical)
    apart = pool.target - weights @ pool.rows[picked]
    mmd2, norm2 = float(apart @ apart), float(pool.target @ pool.target)
    return replace(
        found,
        indices=pool.examples[picked],
        weights=weights,
        gains=gains,
        mmd2=mmd2,
        variance=mmd2,
        explained=1.0 - mmd2 / norm2,
        target_norm2=norm2,
        candidates=len(pool.examples),
    )
