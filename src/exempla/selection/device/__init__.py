"""The greedy loop where the rows are: torch tensors on a GPU, one round trip to the host a pass.

`single` runs ahead for one target, `several` picks for many at once; `sweep` is the pass that
checks guesses, fused in Triton where that is installed.

Imports: selection's basis, run, ties and candidates.base.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.selection.rows import Rule

__all__ = ["run_runs"]


def run_runs(
    rows: Any, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
) -> None:
    """Make as many picks as can be made on the device; the runs are changed in place."""
    import torch

    from exempla.selection.device.several import run_together
    from exempla.selection.device.single import MOST_PICKS, run_ahead

    clean = all(run.basis.size == run.basis.picks == len(run.indices) < k for run in runs)
    # Noise far below the rows' lengths would leave their products to rounding.
    spread = noise == 0.0 or noise > 1e-6 * float(rows.norms2.max())
    if not clean or not spread or k > MOST_PICKS or rule not in (Rule.GAIN, Rule.PURSUIT):
        return
    with torch.cuda.device_of(rows.array):  # Triton and graphs run on the current device
        if len(runs) == 1:
            run_ahead(rows, candidates[0], runs[0], k, noise, rule)
        elif not any(run.indices for run in runs):
            run_together(rows, candidates, runs, k, noise, rule)
