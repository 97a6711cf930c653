"""How sure an LDS is: subsets and test points drawn anew, together."""

from __future__ import annotations

import numpy as np

from exempla.metrics import lds_per_test

__all__ = ["interval"]

DRAWS = 400


def interval(
    effects: np.ndarray, outcomes: np.ndarray, base: np.ndarray | None = None, draws: int = DRAWS
) -> tuple[float, float]:
    """95 % interval of the LDS of predicted effects, or of its lead on the effects of another.

    All are (subsets, test points); a prediction and its rival are drawn alike. Ranks will do in
    place of effects.
    """
    rng, one = np.random.default_rng(0), np.eye(len(outcomes))
    found = []
    for _ in range(draws):
        rows = rng.integers(len(outcomes), size=len(outcomes))
        columns = rng.integers(outcomes.shape[1], size=outcomes.shape[1])
        score = lds_per_test(effects[rows], one, outcomes[rows])
        if base is not None:
            score = score - lds_per_test(base[rows], one, outcomes[rows])
        found.append(score[columns].mean())
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)
